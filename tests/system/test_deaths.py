# SPDX-License-Identifier: Apache-2.0
"""Ends of life under a real systemd: recorded once, answered rightly, bounded."""

import json
import time

import pytest

from sparkd.helpers import await_ready
from tests.system.lab import Lab, unit

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]


def test_a_death_with_exit_0_is_seen_named_and_healed(lab: Lab) -> None:
    lab.engine("nemotron", order=10)
    lab.engine("q38", order=20)
    lab.apply()
    lab.ctl("start", "nemotron", "q38", "--wait")
    neighbour = lab.one("q38")["invocation_id"]
    before = lab.one("nemotron")["invocation_id"]

    lab.die("nemotron", "cuda-illegal-instruction")
    death = lab.until_dead("nemotron")[0]

    assert death["exit_code"] == 0
    assert death["signal"] is None
    assert death["result"] == "success"
    assert death["requested"] is False
    assert "illegal-instruction" in death["class"]
    assert "illegal instruction" in death["evidence"]
    assert death["action"] == "restart"
    assert death["invocation_id"] == before
    again = lab.until("nemotron", "ready")
    assert again["invocation_id"] != before
    assert again["restarts"] == {**again["restarts"], "used": 1, "limit": 3}
    assert lab.one("q38")["invocation_id"] == neighbour, "the neighbour was left alone"
    assert len(lab.incidents("nemotron")) == 1


def test_an_engine_that_logs_json_is_understood(lab: Lab) -> None:
    """From the first line of its start to its last words: readiness, boot facts, class, excerpt."""
    lab.engine("one", serve='logging-config = { formatter = "json" }')
    lab.apply()
    lab.ctl("start", "one", "--wait")
    told = lab.machine.out(["journalctl", "-u", unit("one"), "-o", "cat", "--no-pager"])
    assert '"vllm_process_name": "EngineCore"' in told
    assert "(EngineCore pid=" not in told
    before = lab.one("one")["invocation_id"]
    lab.die("one", "cuda-illegal-instruction")
    death = lab.until_dead("one")[0]
    assert death["invocation_id"] == before
    assert "illegal-instruction" in death["class"]
    assert death["was_ready"] is True
    assert "(EngineCore pid=" in death["evidence"]
    assert "illegal instruction" in death["evidence"]
    detail = json.loads(lab.ctl("incident", death["id"], "--json").stdout)
    assert [line["is_evidence"] for line in detail["log"]["lines"]].count(True) == 1
    assert detail["boot"]["invocation_id"] == before
    journal = lab.machine.out(["journalctl", "-u", unit("one"), "-o", "cat", "--no-pager"])
    lab.push("/tmp/one.log", journal)
    (found,) = json.loads(lab.ctl("classify", "--json", "/tmp/one.log").stdout)
    assert found["class"] == death["class"]
    lab.until("one", "ready")


def test_the_third_death_holds_and_a_restart_by_hand_releases(lab: Lab) -> None:
    lab.engine("nemotron")
    lab.apply()
    lab.ctl("start", "nemotron", "--wait")
    for count in (1, 2, 3):
        lab.until("nemotron", "ready")
        lab.die("nemotron", "core-killed")
        lab.until_dead("nemotron", count)

    held = lab.until("nemotron", "held")
    assert held["restarts"]["used"] == 3
    assert "3" in held["reason"]
    assert held["last_death"]["action"] == "hold"
    assert lab.show("nemotron", "ActiveState")["ActiveState"] in {"inactive", "failed"}
    time.sleep(3)  # longer than RestartSec=: nothing may start it
    assert lab.one("nemotron")["state"] == "held"
    refused = lab.machine.run(["systemctl", "start", unit("nemotron")], check=False)
    assert refused.returncode != 0, "a held engine is refused to systemctl too"
    lab.until_down("nemotron")
    assert lab.until("nemotron", "held")["restarts"]["used"] == 3

    lab.ctl("restart", "nemotron", "--wait")
    ready = lab.until("nemotron", "ready")
    assert ready["restarts"]["used"] == 0
    assert lab.serves("nemotron")


def test_an_operators_stop_is_requested_and_final(lab: Lab) -> None:
    lab.engine("nemotron")
    lab.apply()
    lab.ctl("start", "nemotron", "--wait")
    lab.machine.run(["systemctl", "stop", unit("nemotron")])
    stopped = lab.until("nemotron", "stopped")
    last = lab.machine.wait_until(lambda: lab.one("nemotron")["last_death"], "the stop is recorded")
    assert last["requested"] is True
    assert last["exit_code"] == 0
    time.sleep(3)
    assert lab.one("nemotron")["state"] == "stopped"
    assert stopped["restarts"]["used"] == 0


def test_manual_restarts_never_count_and_never_trip_systemds_limit(lab: Lab) -> None:
    lab.engine("nemotron", life={"load_seconds": 0.2})
    lab.apply()
    lab.ctl("start", "nemotron", "--wait")
    for _ in range(6):
        lab.ctl("restart", "nemotron", "--wait")
    assert lab.one("nemotron")["state"] == "ready"
    for _ in range(6):
        lab.machine.run(["systemctl", "restart", unit("nemotron")])
    assert lab.one("nemotron")["state"] == "ready"
    assert lab.one("nemotron")["restarts"]["used"] == 0


def test_an_init_failure_ends_the_gate_at_once(lab: Lab) -> None:
    lab.engine("nemotron", life={"load_seconds": 1.0, "death": "init-failed"})
    lab.apply()
    lab.machine.run(["systemctl", "start", unit("nemotron")], check=False)
    death = lab.until_dead("nemotron")[-1]
    assert death["exit_code"] == 1
    # From PID 1's record of the exit to the gate's verdict, both stamped by journald.
    main_exit = lab.machine.journal("MESSAGE_ID=98e322203f7a4ed290d09fe03c09fe15")
    gate = lab.machine.journal("SYSLOG_IDENTIFIER=await-ready")
    exited = next(e for e in main_exit if e.get("EXIT_STATUS") == "1")
    said = next(e for e in gate if e["MESSAGE"].startswith("not ready"))
    late = int(said["__REALTIME_TIMESTAMP"]) - int(exited["__REALTIME_TIMESTAMP"])
    # Seen, and not found out by what else would end the wait: the fatal line alone after LINGER_S,
    # the budget after 60 s. That much is for a busy machine.
    assert late < (await_ready.LINGER_S - 5) * 1_000_000, f"the gate took {late} µs to see a death"
    assert "the main process is gone" in said["MESSAGE"]


def test_what_will_fail_again_is_held_at_once(lab: Lab) -> None:
    lab.engine("nemotron", life={"load_seconds": 0.3, "death": "bad-flag"})
    lab.apply()
    lab.machine.run(["systemctl", "start", unit("nemotron")], check=False)
    lab.until_dead("nemotron")
    held = lab.until("nemotron", "held")
    assert held["restarts"]["used"] == 1
    assert held["last_death"]["exit_code"] == 2
    assert len(lab.incidents("nemotron")) == 1


def test_a_strangers_sigterm_is_no_requested_stop(lab: Lab) -> None:
    lab.engine("nemotron")
    lab.apply()
    lab.ctl("start", "nemotron", "--wait")
    lab.machine.run(["kill", "-TERM", lab.show("nemotron", "MainPID")["MainPID"]])
    death = lab.until_dead("nemotron")[0]
    assert death["requested"] is False
    lab.until("nemotron", "ready")


@pytest.mark.parametrize("moment", ["start", "death", "apply"])
def test_losing_the_daemon_loses_nothing(lab: Lab, moment: str) -> None:
    lab.engine("nemotron", life={"load_seconds": 2.0})
    lab.engine("q38", life={"load_seconds": 0.3})
    lab.apply()
    lab.ctl("start", "q38", "--wait")
    lab.machine.run(["systemctl", "stop", "sparkd.service"]) if moment == "death" else None
    neighbour = lab.show("q38", "InvocationID")
    match moment:
        case "start":
            lab.start_all("nemotron")
            lab.machine.run("systemctl kill -s KILL sparkd.service")
        case "death":
            lab.start_all("nemotron")
        case "apply":
            lab.engine("extra", life={"load_seconds": 0.3})
            lab.machine.run("sparkctl apply & systemctl kill -s KILL sparkd.service; wait || true")
            lab.start_all("nemotron")
    lab.machine.wait_until(lambda: lab.serves("nemotron"), "nemotron serves without the daemon")
    lab.die("nemotron", "cuda-illegal-instruction")
    lab.machine.wait_until(
        lambda: lab.show("nemotron", "NRestarts")["NRestarts"] == "1", "systemd restarts it"
    )
    if moment == "death":
        assert lab.status()["daemon"] == "absent"
        lab.machine.run(["systemctl", "start", "sparkd.service"])
    lab.machine.wait_until(lambda: lab.status()["daemon"] == "running", "the daemon is back")
    deaths = lab.until_dead("nemotron")
    lab.until("nemotron", "ready")
    assert len(deaths) == 1
    assert len(lab.incidents("nemotron")) == 1, "exactly once"
    assert lab.show("q38", "InvocationID") == neighbour, "the engines were not touched"
    if moment == "apply":
        lab.apply()
        assert lab.one("extra")["config"] == "current"
