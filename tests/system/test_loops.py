# SPDX-License-Identifier: Apache-2.0
"""Loops that are slower than the window, and reboots: bounded, and nobody's failure.

systemd's own limit does not end such loops (see `core.start_limit`), nor does a window alone: with
attempts of 20 minutes that wait for each other's slot, no three ends lie within an hour. The times
here are compressed: a window of 20 s, attempts of 12 s.
"""

import json

import pytest

from sparkd.core.events import Event
from tests.system.lab import HOST, Lab, unit

pytestmark = pytest.mark.system

SHORT_WINDOW = HOST.replace('window = "1h"', 'window = "20s"')


def deaths(lab: Lab, name: str) -> list[float]:
    return sorted(row["time"] for row in lab.incidents(name) if not row["requested"])


def pauses(lab: Lab) -> list[str]:
    """The reasons of starts that have waited for nothing but time to pass."""
    waits = lab.machine.journal(f"MESSAGE_ID={Event.SLOT_WAIT}")
    return [e["SPARKD_REASON"] for e in waits if "pausing" in e["SPARKD_REASON"]]


def test_starts_that_fail_slowly_are_bounded(lab: Lab) -> None:
    lab.push("/etc/sparkd/sparkd.toml", SHORT_WINDOW)
    lab.engine("slow", life={"load_seconds": 600.0})
    text = lab.machine.read("/etc/sparkd/engines.d/slow.toml")
    lab.push("/etc/sparkd/engines.d/slow.toml", text.replace('budget = "60s"', 'budget = "12s"'))
    lab.apply()
    lab.machine.run(["systemctl", "start", "--no-block", unit("slow")])
    lab.until_dead("slow", 3, limit=600)
    held = lab.until("slow", "held")
    times = deaths(lab, "slow")
    assert len(times) == 3
    assert times[2] - times[0] > 20, "the window alone would never have held it"
    assert "3 ends of life in a row" in held["reason"]
    assert held["restarts"]["used"] == 3
    assert held["last_death"]["class"] == "not-ready-in-time"
    lab.machine.run(["sleep", "20"])
    assert lab.one("slow")["state"] == "held", "and it stays so when the window has passed"
    assert len(deaths(lab, "slow")) == 3
    # Somebody has mended it: the row is forgotten.
    lab.life("slow", load_seconds=0.3)
    lab.ctl("restart", "slow", "--wait")
    assert lab.until("slow", "ready")["restarts"]["used"] == 0


def test_ready_and_dead_at_once_is_bounded_however_slow(lab: Lab) -> None:
    lab.push("/etc/sparkd/sparkd.toml", SHORT_WINDOW)
    lab.engine("brief", life={"load_seconds": 11.0})
    lab.apply()
    lab.machine.run(["systemctl", "start", "--no-block", unit("brief")])
    for count in (1, 2, 3):
        lab.until("brief", "ready")
        lab.die("brief", "core-killed")
        lab.until_dead("brief", count)
    held = lab.until("brief", "held")
    times = deaths(lab, "brief")
    assert len(times) == 3
    assert times[2] - times[0] > 20
    assert held["last_death"]["was_ready"] is True
    assert "3 ends of life in a row" in held["reason"]


def test_a_second_death_in_quick_succession_waits_visibly(lab: Lab) -> None:
    lab.engine("hasty", life={"load_seconds": 0.3})
    lab.apply()
    lab.ctl("start", "hasty", "--wait")
    lab.die("hasty", "core-killed")
    lab.until_dead("hasty")
    first = lab.until("hasty", "ready")
    assert first["restarts"]["used"] == 1
    assert pauses(lab) == [], "the first retry comes at once"
    lab.die("hasty", "core-killed")
    second = lab.until_dead("hasty", 2)[0]["time"]
    why = "waiting: pausing 15 s after the last of 2 ends of life within 15 min"
    waiting = lab.until("hasty", "waiting", says=why)
    assert waiting["reason"] == why
    assert waiting["restarts"]["frees_at"] > lab.status()["time"]
    details = lab.ctl("status", "hasty", check=False).stdout
    assert "2 of 3 starts used; the window of 1 h frees one at" in details
    lab.until("hasty", "ready")
    taken = lab.machine.journal("_SYSTEMD_UNIT=" + unit("hasty"))
    began = [e for e in taken if "takes the start slot" in e.get("MESSAGE", "")]
    assert int(began[-1]["__REALTIME_TIMESTAMP"]) / 1e6 - second >= 15
    lab.die("hasty", "core-killed")
    held = lab.until("hasty", "held")
    so_far = pauses(lab)
    assert len(so_far) == 1
    lab.ctl("restart", "hasty", "--wait")
    assert pauses(lab) == so_far, "by hand it starts at once"
    assert lab.one("hasty")["invocation_id"] != held["invocation_id"]


def test_a_reboot_is_nobodys_failure(lab: Lab) -> None:
    """Ready, loading, hung and deaf: whatever the shutdown finds, it was asked for."""
    lab.engine("serving", order=1, life={"load_seconds": 0.3})
    lab.engine("hung", order=2, life={"load_seconds": 0.3})
    lab.engine("deaf", order=3, life={"load_seconds": 0.3, "deaf": True})
    lab.engine("loading", order=4, life={"load_seconds": 50.0})
    lab.apply()
    lab.ctl("start", "serving", "hung", "deaf", "--wait")
    lab.start_all("loading")
    lab.until("loading", "loading")
    for name in ("hung", "deaf"):
        lab.push(f"/etc/systemd/system/{unit(name)}.d/t.conf", "[Service]\nTimeoutStopSec=20\n")
    lab.machine.run("systemctl daemon-reload")
    lab.die("hung", "hang")
    for name in ("deaf", "loading"):
        lab.life(name, load_seconds=0.3)
    lab.machine.reboot()
    for name in ("serving", "hung", "deaf", "loading"):
        ready = lab.until(name, "ready")
        assert ready["restarts"]["used"] == 0, name
        rows = lab.incidents(name)
        assert [row["requested"] for row in rows] == [True], (name, json.dumps(rows))


def test_a_start_that_takes_the_host_down_each_time_is_held(lab: Lab) -> None:
    """Power is cut in the middle of its start; whoever served at that moment has no part in it."""
    # An end of another boot counts as older than this one, which by CLOCK_BOOTTIME is the outer
    # host's age here: of a long window only a host that has been up for longer is outside.
    lab.push("/etc/sparkd/sparkd.toml", SHORT_WINDOW)
    lab.engine("served", order=1, life={"load_seconds": 0.3})
    lab.engine("heavy", order=2, life={"load_seconds": 50.0})
    lab.apply()
    lab.ctl("start", "served", "--wait")
    lab.start_all("heavy")
    for used in (0, 1, 2):
        loading = lab.until("heavy", "loading")
        assert loading["restarts"]["used"] == used
        assert len(lab.until_dead("heavy", used)) == used
        lab.until("served", "ready")
        lab.machine.reboot(hard=True)
    lab.until_dead("heavy", 3)
    held = lab.until("heavy", "held")
    assert "3 ends of life in a row" in held["reason"]
    assert "the limit is 3; the last was host-went-down" in held["reason"]
    rows = lab.incidents("heavy")
    assert [row["class"] for row in rows] == ["host-went-down"] * 3, json.dumps(rows)
    assert {row["reason"] for row in rows} == {"the host went down while it started"}
    assert not any(row["requested"] or row["was_ready"] for row in rows)
    assert len({row["invocation_id"] for row in rows}) == 3
    assert all(row["hint"] for row in rows)
    # Somebody has mended it. Once it is ready, a host that goes down is not its failure.
    lab.life("heavy", load_seconds=0.3)
    lab.ctl("restart", "heavy", "--wait")
    lab.machine.reboot(hard=True)
    for name, incidents in (("served", 0), ("heavy", 3)):
        assert lab.until(name, "ready")["restarts"]["used"] == 0
        assert len(deaths(lab, name)) == incidents


def test_a_strangers_sigterm_is_unrequested_though_the_log_looks_like_a_clean_stop(
    lab: Lab,
) -> None:
    lab.engine("told", life={"load_seconds": 0.3})
    lab.apply()
    lab.ctl("start", "told", "--wait")
    lab.machine.run(["kill", "-TERM", lab.show("told", "MainPID")["MainPID"]])
    death = lab.until_dead("told")[0]
    assert death["requested"] is False
    assert death["class"] == "external-sigterm"
    assert death["action"] == "restart"
    assert (death["exit_code"], death["result"]) == (0, "success"), "as after a clean stop"
    assert lab.until("told", "ready")["restarts"]["used"] == 1
    assert len(lab.incidents("told")) == 1
