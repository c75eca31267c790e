# SPDX-License-Identifier: Apache-2.0
"""No two engines are ever starting at once, whoever starts them."""

import pytest

from tests.system.lab import Lab, overlaps, unit

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]
NAMES = ["one", "two", "three", "four", "five"]


@pytest.fixture
def five(lab: Lab) -> Lab:
    for at, name in enumerate(NAMES):
        lab.engine(name, order=10 * (at + 1), life={"load_seconds": 1.0})
    lab.apply()
    return lab


def ready(lab: Lab, *names: str) -> None:
    for name in names:
        lab.until(name, "ready")


def test_all_at_once_by_hand_without_the_daemon(five: Lab) -> None:
    five.machine.run(["systemctl", "stop", "sparkd.service"])
    # One systemctl call an engine: systemd's After= orders only jobs that are queued together.
    for name in reversed(NAMES):
        five.machine.run(["systemctl", "start", "--no-block", unit(name)])
    for name in NAMES:
        five.machine.wait_until(lambda n=name: five.serves(n), f"{name} serves")
    five.machine.run(["systemctl", "start", "sparkd.service"])
    ready(five, *NAMES)
    intervals = five.intervals()
    assert len(intervals) == 5
    assert not overlaps(intervals)


def test_several_restarts_at_once(five: Lab) -> None:
    five.start_all(*NAMES)
    ready(five, *NAMES)
    for name in NAMES[:4]:
        five.machine.run(["kill", "-KILL", five.show(name, "MainPID")["MainPID"]])
    five.ctl("restart", "five", "--wait")
    for name in NAMES[:4]:
        five.until_dead(name)
    ready(five, *NAMES)
    intervals = five.intervals()
    assert len(intervals) == 10
    assert not overlaps(intervals)


def test_a_reboot_brings_everything_back_in_order_one_disabled(five: Lab) -> None:
    five.start_all(*NAMES)
    ready(five, *NAMES)
    five.machine.run(["systemctl", "disable", unit("three")])
    five.machine.reboot()
    up = [name for name in NAMES if name != "three"]
    ready(five, *up)
    intervals = five.intervals()
    assert not overlaps(intervals)
    after = [i.engine for i in sorted(intervals[5:], key=lambda i: i.begin)]
    assert after == [unit(name) for name in up]
    off = five.one("three")
    assert off["state"] == "stopped"
    assert "disabled" in off["reason"]


def test_a_killed_holder_leaks_nothing(five: Lab) -> None:
    five.life("one", load_seconds=50.0)
    five.start_all("one", "two")
    five.until("one", "loading", "starting")
    five.until("two", "waiting")
    assert five.status()["slot"] == {"holder": "one", "waiting": ["two"]}
    five.life("one", load_seconds=0.5)
    five.machine.run(["systemctl", "kill", "--signal=KILL", unit("one")])
    ready(five, "one", "two")
    assert not overlaps(five.intervals())
    # systemd 257 takes ExecStopPost= along when it kills the whole unit; the next start records it.
    (death,) = five.until_dead("one")
    assert death["signal"] == "KILL"
    assert death["requested"] is False
    assert five.one("one")["restarts"]["used"] == 1


def test_a_stop_while_waiting_is_quiet(five: Lab) -> None:
    five.life("one", load_seconds=50.0)
    five.start_all("one", "two")
    five.until("two", "waiting")
    five.machine.run(["systemctl", "stop", unit("two")])
    assert five.show("two", "ActiveState", "Result") == {
        "ActiveState": "inactive",
        "Result": "success",
    }
    assert five.one("two")["restarts"]["used"] == 0
