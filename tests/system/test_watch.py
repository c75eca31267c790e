# SPDX-License-Identifier: Apache-2.0
"""Engines that live and do not serve, under a real systemd: seen, said, ended only where due."""

import json
from typing import Any

import pytest

from sparkd.core.events import Event
from tests.system.lab import Lab, unit

pytestmark = pytest.mark.system

SHORT = '[hang]\nmode = "observe"\nafter = "5s"\ncanary = "5s"\n'
PATIENT = '[hang]\nmode = "observe"\nafter = "15s"\ncanary = "10s"\n'
"""Where nothing hangs, and a busy machine must not make it look so."""
ACT = '[hang]\nmode = "act"\nafter = "5s"\nact-after = "10s"\ncanary = "5s"\n'


def ready(lab: Lab, name: str, extra: str, **life: object) -> str:
    lab.engine(name, extra=extra, life={"load_seconds": 0.3, **life})
    lab.apply()
    lab.ctl("start", name, "--wait")
    return str(lab.one(name)["invocation_id"])


def events(lab: Lab, event: Event) -> list[dict[str, Any]]:
    return list(lab.machine.journal(f"MESSAGE_ID={event}"))


def metric(lab: Lab, name: str) -> float:
    page = lab.machine.out(["curl", "-sf", "http://127.0.0.1:9837/metrics"])
    rows = [row for row in page.splitlines() if row.startswith(f"{name}{{")]
    assert len(rows) == 1, rows
    return float(rows[0].rsplit(" ", 1)[1])


def test_dead_inside_alive_outside_is_ended_and_restarted(lab: Lab) -> None:
    life = ready(lab, "zombie", "")
    # The simulated engine obeys vLLM's own variable: its server outlives its engine for ever.
    lab.die("zombie", "keep-alive")
    death = lab.until_dead("zombie", limit=240)[0]
    assert death["invocation_id"] == life
    assert death["requested"] is False
    assert death["action"] == "restart"
    assert "its process has not ended" in death["reason"]
    assert death["class"] not in {"external-sigterm", ""}
    assert death["evidence"]
    again = lab.until("zombie", "ready", other_than=life)
    assert again["restarts"]["used"] == 1
    assert len(lab.incidents("zombie")) == 1
    assert len(events(lab, Event.ENDED_BY_SPARKD)) == 1


def test_a_fatal_line_alone_ends_nothing(lab: Lab) -> None:
    life = ready(lab, "quoted", SHORT)
    core = engine_core(lab, "quoted")
    line = (
        f"(EngineCore pid={core}) ERROR 11-29 10:00:00 [core.py:1]"
        " EngineCore encountered a fatal error."
    )
    # As if the engine itself had printed it: from a process of its control group.
    cgroup = lab.show("quoted", "ControlGroup")["ControlGroup"]
    lab.push("/tmp/line", line + "\n")
    lab.machine.run(
        f"echo $$ > /sys/fs/cgroup{cgroup}/cgroup.procs"
        " && { cat /tmp/line; sleep 5; } | systemd-cat --identifier=vllm"
    )
    logged = [e for e in lab.machine.journal() if e.get("MESSAGE") == line]
    assert [e["_SYSTEMD_UNIT"] for e in logged] == [unit("quoted")]
    asked = lab.machine.wait_until(
        lambda: [e for e in lab.machine.journal() if '"GET /health' in e.get("MESSAGE", "")][2:],
        "sparkd asks the engine about it",
        limit=240,
    )
    assert asked
    lab.machine.run(["sleep", "20"])
    shown = lab.one("quoted")
    assert (shown["state"], shown["invocation_id"]) == ("ready", life)
    assert lab.incidents("quoted") == []
    assert events(lab, Event.ENDED_BY_SPARKD) == []


def test_a_hang_is_observed_and_left_alone(lab: Lab) -> None:
    life = ready(lab, "frozen", SHORT)
    assert lab.one("frozen")["progress"]["stalled_since"] is None
    lab.die("frozen", "hang")
    stalled = lab.until("frozen", "stalled")
    assert "no progress for" in stalled["reason"]
    assert "one token" in stalled["reason"]
    assert "left alone" in stalled["reason"]
    assert stalled["ready"] is False
    lab.machine.run(["sleep", "12"])
    still = lab.one("frozen")
    assert (still["state"], still["invocation_id"]) == ("stalled", life)
    assert metric(lab, "sparkd_engine_stalled_seconds_total") > 5
    assert len(events(lab, Event.STALLED)) == 1, "said once"
    assert lab.incidents("frozen") == []


def test_a_stall_that_ends_by_itself_is_learned(lab: Lab) -> None:
    life = ready(lab, "sleepy", SHORT)
    core = engine_core(lab, "sleepy")
    lab.machine.run(["kill", "-STOP", core])
    lab.until("sleepy", "stalled")
    lab.machine.run(["sleep", "18"])
    lab.machine.run(["kill", "-CONT", core])
    back = lab.until("sleepy", "ready")
    assert back["invocation_id"] == life
    told = lab.machine.wait_until(lambda: events(lab, Event.RECOVERED), "recovery is told")
    assert json.loads(told[0]["SPARKD_RECORD"])["seconds"] > 15
    # It is told first and remembered then.
    learned = "/var/lib/sparkd/watch/sleepy.json"
    lab.machine.wait_until(
        lambda: lab.machine.run(["test", "-e", learned], check=False).returncode == 0,
        "it is remembered",
    )
    assert json.loads(lab.machine.read(learned))["longest_stall"] > 15
    lab.machine.run(["systemctl", "restart", "sparkd"])
    lab.machine.wait_until(
        lambda: (lab.one("sleepy")["progress"] or {}).get("longest_recovered_stall_seconds"),
        "what was learned outlives the daemon",
    )


def test_a_hang_is_ended_where_acting_is_allowed_with_evidence_first(lab: Lab) -> None:
    life = ready(lab, "frozen", ACT)
    lab.die("frozen", "hang")
    death = lab.until_dead("frozen", limit=300)[0]
    assert death["invocation_id"] == life
    assert death["class"] == "frozen-engine-health-200"
    assert death["requested"] is False
    assert death["action"] == "restart"
    assert "no progress for" in death["reason"]
    assert lab.until("frozen", "ready")["restarts"]["used"] == 1
    assert len(lab.incidents("frozen")) == 1
    listing = lab.machine.out("stat -c '%a %U %n' /var/lib/sparkd/evidence/frozen-*.txt")
    mode, owner, path = listing.split()
    assert (mode, owner) == ("640", "root")
    text = lab.machine.read(path)
    assert f"invocation {life}" in text
    assert "VLLM::EngineCor" in text
    assert "vllm:num_requests_running" in text
    assert "py-spy" in text


def engine_core(lab: Lab, name: str) -> str:
    cgroup = lab.show(name, "ControlGroup")["ControlGroup"]
    script = (
        "for p in /proc/[0-9]*; do"
        f" grep -q '{cgroup}$' $p/cgroup 2>/dev/null && grep -q '^VLLM::EngineCor' $p/comm"
        " && basename $p; done; true"
    )
    pids = lab.machine.out(script).split()
    assert len(pids) == 1, pids
    return pids[0]


def test_busy_idle_locked_and_switched_off_are_not_hung(lab: Lab) -> None:
    lab.machine.push("/etc/sparkd/secrets/key", "k-1", mode=0o600)
    key = '[credentials]\nVLLM_API_KEY = "/etc/sparkd/secrets/key"\n'
    lab.engine("idle", extra=PATIENT, order=1, life={"load_seconds": 0.3})
    lab.engine("locked", extra=PATIENT + key, order=2, life={"load_seconds": 0.3})
    lab.engine("unasked", extra='[hang]\nmode = "off"\n', order=3, life={"load_seconds": 0.3})
    lab.engine("busy", extra=PATIENT, order=4, life={"load_seconds": 0.3, "tokens_per_second": 2})
    lab.apply()
    lab.ctl("start", "idle", "locked", "unasked", "busy", "--wait")
    body = json.dumps({"model": "busy", "prompt": "x", "max_tokens": 100})
    url = f"http://127.0.0.1:{lab.ports['busy']}/v1/completions"
    asking = lab.machine.start_background(["curl", "-s", "-m", "110", "-d", body, url])
    lab.die("unasked", "hang")
    lab.machine.run(["sleep", "45"])
    assert {e["name"]: e["state"] for e in lab.status()["engines"]} == dict.fromkeys(
        ("idle", "locked", "unasked", "busy"), "ready"
    )
    assert events(lab, Event.STALLED) == []
    for name in ("idle", "locked", "busy"):
        progress = lab.one(name)["progress"]
        assert lab.status()["time"] - progress["last_progress"] < 25, (name, progress)
    assert asking.wait() == 0


def test_an_operators_stop_of_a_hung_engine_is_requested_and_bounded(lab: Lab) -> None:
    ready(lab, "deaf", SHORT, deaf=True)
    lab.push(f"/etc/systemd/system/{unit('deaf')}.d/t.conf", "[Service]\nTimeoutStopSec=20\n")
    lab.machine.run("systemctl daemon-reload")
    lab.ctl("stop", "deaf", "--wait")
    lab.until("deaf", "stopped")
    last = lab.machine.wait_until(lambda: lab.one("deaf")["last_death"], "the stop is recorded")
    assert last["requested"] is True
    assert last["class"] == "stop-timed-out"
    assert last["result"] == "timeout"
    assert "timed out" in last["evidence"]
    assert events(lab, Event.ENDED_BY_SPARKD) == []


@pytest.mark.each_systemd
def test_a_child_that_does_not_end_when_its_unit_is_stopped_is_named(lab: Lab) -> None:
    """Both are deaf to SIGTERM: vLLM's server would kill an EngineCore that alone is (seen)."""
    lives = {
        "one": ready(lab, "one", SHORT, deaf=True),
        "polite": ready(lab, "polite", SHORT),
    }
    lab.push(f"/etc/systemd/system/{unit('one')}.d/t.conf", "[Service]\nTimeoutStopSec=20\n")
    lab.machine.run("systemctl daemon-reload")
    core, main = engine_core(lab, "one"), lab.show("one", "MainPID")["MainPID"]
    lab.machine.run(["systemctl", "stop", unit("one"), unit("polite")])
    last = {name: lab.end_of(name, life) for name, life in lives.items()}
    assert (last["one"]["class"], last["one"]["requested"]) == ("stop-timed-out", True)
    told = f"VLLM::EngineCor (PID {core})"
    assert told in last["one"]["reason"]
    assert f"(PID {main}, the main process)" in last["one"]["reason"]
    assert "TimeoutStopSec=" in last["one"]["reason"]
    assert told in lab.ctl("incidents").stdout or told in lab.ctl("incidents", "--json").stdout
    (entry,) = [e for e in events(lab, Event.END_OF_LIFE) if e["SPARKD_ENGINE"] == "one"]
    assert told in entry["MESSAGE"]
    assert entry["PRIORITY"] == "4"
    # Its children are killed at once when the server has ended (KillMode=mixed): in good order.
    assert "TimeoutStopSec=" not in last["polite"]["reason"]
