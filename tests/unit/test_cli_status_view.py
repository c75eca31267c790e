# SPDX-License-Identifier: Apache-2.0
"""The status for a person, from the JSON of the contract."""

import copy
import time

import pytest

from sparkd.cli import status_view
from sparkd.cli.terminal import Paint

NOW = 1_000_000.0
PLAIN = Paint(enabled=False)

DEATH = {
    "time": NOW - 7200,
    "class": "engine-core-fatal",
    "signature": "engine-core-fatal-error",
    "exit_code": 0,
    "signal": None,
    "result": "success",
    "requested": False,
    "evidence": "EngineCore encountered a fatal error.\x1b[2J",
    "reason": "the engine core met a fatal error",
    "hint": "look at the line",
    "action": "restart",
    "action_reason": "death 1 of 3 within 1 h: systemd starts it again",
    "was_ready": True,
}
READY = {
    "name": "nemotron",
    "unit": "vllm-nemotron.service",
    "port": 8012,
    "model": "/models/n",
    "state": "ready",
    "reason": "the readiness gate has passed",
    "since": NOW - 7200,
    "pid": 4711,
    "invocation_id": "0" * 32,
    "ready": True,
    "config": "current",
    "config_reason": None,
    "restarts": {"used": 1, "limit": 3, "window_seconds": 3600.0, "frees_at": NOW + 60},
    "last_death": DEATH,
    "boot": {
        "seconds": 183.4,
        "kv_cache_tokens": 1048576,
        "max_concurrency": 4.0,
        "vllm_version": "0.32.0",
        "time": NOW - 7200,
        "invocation_id": "0" * 32,
    },
    "enabled": "enabled",
    "drop_ins": [],
}
HELD = {
    **READY,
    "name": "q38",
    "unit": "vllm-q38.service",
    "port": None,
    "state": "held",
    "reason": "held: no kernel image for this GPU",
    "since": None,
    "pid": None,
    "invocation_id": None,
    "ready": False,
    "config": "pending",
    "config_reason": "not applied yet; `sparkctl apply` writes its unit",
    "restarts": {"used": 0, "limit": 3, "window_seconds": 3600.0, "frees_at": None},
    "last_death": None,
    "boot": None,
}
STATUS = {
    "version": "0.1.0",
    "daemon": "running",
    "stale": False,
    "stale_reason": None,
    "host": {
        "memory_total_bytes": 121 << 30,
        "memory_available_bytes": 90 << 30,
        "pressure_memory_full_avg10": 1.25,
        "compilers": {"count": 2, "rss_bytes": 7 << 30},
    },
    "slot": {"holder": "q38", "waiting": ["a", "b"]},
    "engines": [READY, HELD],
    "config_errors": [],
    "notes": [],
}


@pytest.fixture
def status():
    return copy.deepcopy(STATUS)


def overview(status, paint=PLAIN):
    return status_view.overview(status, NOW, paint, "0.1.0")


def test_overview(status):
    assert overview(status) == [
        "ENGINE    STATE  SINCE  PORT   PID  RESTARTS   BOOT  CONFIG",
        "nemotron  ready  2 h    8012  4711       1/3  183 s  current",
        "q38       held   -         -     -       0/3      -  pending",
        "",
        "nemotron  the readiness gate has passed",
        "q38       held: no kernel image for this GPU",
        "          config: not applied yet; `sparkctl apply` writes its unit",
        "",
        "slot    q38 is starting; waiting: a, b",
        "host    90.0 GiB of 121.0 GiB available, memory pressure 1.25 %, 2 compilers with 7.0 GiB",
        "daemon  running",
    ]


def test_overview_of_nothing(status):
    status["engines"] = []
    status["slot"] = {"holder": None, "waiting": []}
    status["host"]["pressure_memory_full_avg10"] = None
    status["host"]["compilers"] = {"count": 0, "rss_bytes": 0}
    lines = overview(status)
    assert lines[0] == "no engines are configured"
    assert lines[-3:] == [
        "slot    free",
        "host    90.0 GiB of 121.0 GiB available, memory pressure unknown (no PSI), no compilers",
        "daemon  running",
    ]


def test_an_absent_daemon_is_named(status):
    status["daemon"] = "absent"
    assert overview(status)[-1] == "daemon  absent: shown from systemd and the database"


def test_another_version_of_the_daemon_is_named(status):
    status["version"] = "0.0.9"
    assert "running 0.0.9, while this sparkctl is 0.1.0" in overview(status)[-1]


def test_blindness_errors_and_notes_are_shown(status):
    status |= {
        "stale": True,
        "stale_reason": "no answer",
        "notes": ["a note"],
        "config_errors": ["a.toml:1: port: bad"],
    }
    assert overview(status)[-3:] == [
        "stale   no answer",
        "note    a note",
        "config  a.toml:1: port: bad",
    ]


def test_colour_does_not_move_columns(status):
    painted = overview(status, Paint(enabled=True))
    assert painted[1].startswith("nemotron  \x1b[32mready\x1b[0m  2 h    8012  4711")
    plain = [line.replace("\x1b[0m", "") for line in painted]
    for code in ("1", "31", "32"):
        plain = [line.replace(f"\x1b[{code}m", "") for line in plain]
    assert plain == overview(status)


def test_details(status):
    lines = status_view.details(status["engines"][0], NOW, PLAIN)
    text = "\n".join(lines)
    assert lines[0] == "nemotron - vllm-nemotron.service"
    assert "State: ready since " in text
    assert "(2 h ago)" in text
    assert (
        "Boot: ready after 3 min 3 s, vLLM 0.32.0, KV cache 1,048,576 tokens, concurrency 4.00"
    ) in text
    frees = time.strftime("%H:%M", time.localtime(NOW + 60))
    assert f"Restarts: 1 of 3 starts used; the window of 1 h frees one at {frees}" in text
    assert "Progress: -" in text
    assert ", engine-core-fatal, exit 0" in text
    assert "Evidence: EngineCore encountered a fatal error." in text
    assert "\x1b" not in text


def test_details_tell_of_failures_in_a_row_and_of_progress(status):
    progress = {
        "last_progress": NOW - 12,
        "stalled_since": None,
        "stalled_seconds_total": 0.0,
        "longest_recovered_stall_seconds": 840.0,
        "log_lines_dropped": 0,
        "excuse": "4 compilers run in its unit",
    }
    restarts = {"used": 2, "limit": 3, "window_seconds": 3600.0, "frees_at": None, "in_a_row": 2}
    engine = {**status["engines"][0], "progress": progress, "restarts": restarts}
    text = "\n".join(status_view.details(engine, NOW, PLAIN))
    assert (
        "Restarts: 2 of 3 starts used; 2 in a row without having served for 10 min in between"
    ) in text
    assert (
        "Progress: last seen 12 s ago, 4 compilers run in its unit,"
        " longest stall that ended by itself 14 min"
    ) in text


def test_details_of_an_engine_that_never_ran(status):
    text = "\n".join(status_view.details(status["engines"][1], NOW, PLAIN))
    assert "State: held\n" in text
    assert "Last end: none recorded" in text
    assert "Evidence" not in text


def test_a_requested_end_shows_no_cause(status):
    engine = status["engines"][0]
    engine["last_death"]["requested"] = True
    text = "\n".join(status_view.details(engine, NOW, PLAIN))
    assert ", requested" in text
    assert "Evidence" not in text


def test_no_text_from_outside_reaches_the_terminal(status):
    evil = "\x1b[31m\u202e\nforged"
    for engine in status["engines"]:
        engine |= {"name": evil, "reason": evil, "config_reason": evil, "model": evil}
        engine["drop_ins"] = [evil]
    status["slot"] = {"holder": evil, "waiting": [evil]}
    status["notes"] = [evil]
    lines = overview(status)
    for engine in status["engines"]:
        lines += status_view.details(engine, NOW, PLAIN)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize(
    ("death", "text"),
    [
        ({"exit_code": 0, "signal": None}, "exit 0"),
        ({"exit_code": None, "signal": "KILL"}, "signal KILL"),
        ({"exit_code": None, "signal": None, "result": "timeout"}, "timeout"),
        ({}, "unknown"),
    ],
)
def test_how_it_ended(death, text):
    assert status_view.end_text(death) == text
