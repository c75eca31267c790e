# SPDX-License-Identifier: Apache-2.0
"""The status that scripts read, and the line that systemd shows."""

import json

from sparkd.core import status as core_status
from sparkd.core.burst import Death, HeldBy, Hold, Ledger
from sparkd.core.slot import Claim, Phase, Waiter
from sparkd.core.status import Boot, build, status_line, to_json
from tests.unit.status_facts import NOW, engine, facts, record, unit

HOLD = Hold(HeldBy.CLASS, "no-kernel-image", "no kernel image for this GPU", NOW.wall)


def test_the_contract_for_scripts_has_every_key() -> None:
    boot = Boot("a", "1" * 32, NOW.wall, 42.5, 3_000_000, 12.25, "0.27.1")
    ledger = Ledger((Death("9" * 32, NOW._replace(boottime=900.0), "x"),))
    one = engine(last=record(), boot=boot, ledger=ledger)
    value = json.loads(json.dumps(to_json(build(facts(one)))))

    assert value["version"] == "1.2.3"
    assert value["daemon"] == "running"
    assert value["host"] == {
        "memory_total_bytes": 128 << 30,
        "memory_available_bytes": 100 << 30,
        "pressure_memory_full_avg10": 1.5,
        "compilers": {"count": 2, "rss_bytes": 7 << 30},
        "guards": None,
        "orphans": 0,
    }
    assert value["slot"] == {"holder": None, "waiting": []}
    shown = value["engines"][0]
    wanted = {
        "name": "a",
        "unit": "vllm-a.service",
        "port": 8001,
        "state": "ready",
        "since": NOW.wall - 60,
        "pid": 4242,
        "invocation_id": "1" * 32,
        "ready": True,
        "config": "current",
    }
    assert {key: shown[key] for key in wanted} == wanted
    assert shown["restarts"] == {
        "used": 1, "limit": 3, "window_seconds": 3600.0, "frees_at": NOW.wall + 3500,
        "in_a_row": 0,
    }  # fmt: skip
    death = shown["last_death"]
    assert death["time"] == NOW.wall - 10
    assert (death["class"], death["signature"]) == ("engine-core-fatal", "engine-core-died")
    assert (death["exit_code"], death["signal"], death["result"]) == (0, None, "success")
    assert death["requested"] is False
    assert "fatal error" in death["evidence"]
    assert shown["boot"]["seconds"] == 42.5
    assert shown["boot"]["kv_cache_tokens"] == 3_000_000
    assert shown["boot"]["max_concurrency"] == 12.25
    assert shown["boot"]["vllm_version"] == "0.27.1"


def test_what_never_happened_is_null() -> None:
    one = engine(unit=unit(main_pid=0, invocation_id="", state_change=0.0))
    shown = to_json(build(facts(one)))["engines"][0]  # type: ignore[index]
    for key in ("pid", "invocation_id", "since", "last_death", "boot"):
        assert shown[key] is None, key


def test_an_incident_says_whose_it_is_and_how_long_it_was_dark() -> None:
    row = core_status.incident_json(record(), 12.5)
    assert row["engine"] == "a"
    assert row["invocation_id"] == "1" * 32
    assert row["action"] == "restart"
    assert row["dark_seconds"] == 12.5
    assert row["class"] == "engine-core-fatal"


def test_the_slot_shows_its_holder_and_the_queue_in_order() -> None:
    starting = {"active_state": "activating", "sub_state": "start-pre"}
    engines = [engine(name, unit=unit(name, **starting)) for name in ("a", "b", "c")]
    engines[0] = engine("a", unit=unit("a", active_state="activating", sub_state="start-post"))
    waiters = [
        Waiter("vllm-b.service", "1" * 32, 60, 1.0),
        Waiter("vllm-c.service", "1" * 32, 50, 2.0),
        Waiter("vllm-gone.service", "1" * 32, 1, 0.0),
    ]
    gone = engine("gone", unit=unit("gone", active_state="inactive", sub_state="dead"))
    status = build(
        facts(
            *engines,
            gone,
            claim=Claim("vllm-a.service", "1" * 32),
            claim_phase=Phase("1" * 32, "start-post"),
            waiters=waiters,
        )
    )
    assert status.holder == "a"
    assert status.waiting == ("c", "b")


def test_a_claim_of_an_ended_start_holds_nothing() -> None:
    claim = Claim("vllm-a.service", "1" * 32)
    status = build(facts(engine(), claim=claim, claim_phase=Phase("1" * 32, "running")))
    assert status.holder is None


def test_a_blind_daemon_shows_what_it_last_saw_and_says_so() -> None:
    status = build(facts(engine(), blind="no answer", seen_at=NOW.wall - 45))
    value = to_json(status)
    assert value["stale"] is True
    assert value["stale_seconds"] == 45
    shown = value["engines"][0]  # type: ignore[index]
    assert shown["state"] == "ready"
    assert shown["reason"].startswith("cannot see systemd: no answer; 45 s ago it was ready")


def test_an_engine_that_was_never_seen_is_not_called_ready() -> None:
    shown = to_json(build(facts(engine(unit=None), blind="no answer")))["engines"][0]  # type: ignore[index]
    assert shown["ready"] is False
    assert "unknown" in shown["reason"]
    assert shown["unit"] == "vllm-a.service"


def test_the_line_for_systemd_counts_and_explains() -> None:
    down = {"active_state": "inactive", "sub_state": "dead"}
    held = engine("q38", unit=unit("q38", **down), ledger=Ledger(held=HOLD))
    line = status_line(build(facts(engine("a"), engine("b"), held)))
    assert line.startswith("2/3 ready, 1 held (q38: no kernel image for this GPU")
    assert status_line(build(facts())) == "no engines"


def test_the_line_stays_one_short_line() -> None:
    down = {"active_state": "inactive", "sub_state": "dead"}
    hold = HOLD._replace(reason="x\ny" * 500)
    held = engine(unit=unit(**down), ledger=Ledger(held=hold))
    line = status_line(build(facts(held)))
    assert "\n" not in line
    assert len(line) <= core_status.STATUS_LINE_MAX


def test_boot_facts_of_another_shape_are_left_out() -> None:
    good = {"engine": "a", "invocation_id": "i", "time": 1, "seconds": 2.0}
    assert core_status.boot_from_json(good) == Boot("a", "i", 1.0, 2.0)
    assert core_status.boot_from_json({**good, "kv_cache_tokens": "many"}) is not None
    for key in good:
        assert core_status.boot_from_json({**good, key: None}) is None
