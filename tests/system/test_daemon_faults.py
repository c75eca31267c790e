# SPDX-License-Identifier: Apache-2.0
"""What breaks under the daemon: bus, disk, journal, its own life; it says so and finds back."""

from typing import Any

import pytest

from sparkd.core.events import Event
from tests.system.lab import Lab, unit
from tests.system.test_daemon import call, main_pid, two_ready, until_up

pytestmark = pytest.mark.system

METRICS = "http://127.0.0.1:9837/metrics"
UNITS = "/etc/systemd/system"
STATE = "/var/lib/sparkd"


def metric(lab: Lab, name: str) -> float | None:
    """A sample of /metrics; None when it is not there or nobody answers."""
    done = lab.machine.run(["curl", "-sf", "-m", "5", METRICS], check=False)
    lines = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines() if line[:1] != "#")
    return float(lines[name]) if name in lines else None


def notes(lab: Lab) -> str:
    status = lab.status()
    assert status["daemon"] == "running"
    return "\n".join(status["notes"])


def invocations(lab: Lab, before: dict[str, str]) -> dict[str, str]:
    return {name: lab.one(name)["invocation_id"] for name in before}


def deaths(lab: Lab, name: str) -> list[dict[str, Any]]:
    return [row for row in lab.incidents(name) if not row["requested"]]


# the bus


def test_a_restart_of_the_bus_blanks_nothing(lab: Lab) -> None:
    before = two_ready(lab)
    pid = main_pid(lab)
    scrapes = lab.machine.start_background(
        f"for i in $(seq 50); do curl -sfo /dev/null {METRICS} || echo failed; sleep 0.1; done"
    )
    for _ in range(3):
        lab.machine.run(["systemctl", "restart", "dbus.service"])
        lab.machine.run(["sleep", "1"])
    assert scrapes.wait() == 0
    assert scrapes.output() == ""
    lab.machine.wait_until(lambda: metric(lab, "sparkd_systemd_visible") == 1, "it sees systemd")
    assert main_pid(lab) == pid
    assert lab.machine.show("sparkd.service", "NRestarts")["NRestarts"] == "0"
    # It is asked, it gives orders and it hears signals over the new connection.
    assert {e["name"] for e in call(lab, "Status")["engines"]} == {"one", "two"}
    assert invocations(lab, before) == before
    assert call(lab, "Restart", "sb", "two", "true")["state"] == "ready"
    lab.die("one", "core-killed")
    lab.until_dead("one")
    lab.until("one", "ready", other_than=before["one"])


def test_while_the_bus_is_away_old_facts_are_shown_as_old_and_then_it_leaves(lab: Lab) -> None:
    before = two_ready(lab)
    pid = main_pid(lab)
    socket = "/run/dbus/system_bus_socket"
    lab.machine.run(f"mv {socket} {socket}.away && systemctl kill --signal=KILL dbus.service")
    lab.machine.wait_until(lambda: metric(lab, "sparkd_systemd_visible") == 0, "it is blind")
    assert metric(lab, 'sparkd_engine_ready{engine="one"}') == 1
    assert lab.machine.run(["kill", "-0", pid], check=False).returncode == 0
    lab.machine.wait_until(
        lambda: lab.machine.run(["kill", "-0", pid], check=False).returncode, "it leaves"
    )
    said = [e["MESSAGE"] for e in lab.machine.journal("--unit=sparkd.service")]
    assert any("the system bus stays away" in text for text in said)
    assert all(lab.serves(name) for name in before)
    lab.machine.run(f"mv {socket}.away {socket}")
    until_up(lab, pid)
    assert invocations(lab, before) == before


# the disk


def test_a_full_disk_costs_no_supervision_and_no_incident(lab: Lab) -> None:
    before = two_ready(lab)
    lab.machine.run(
        f"systemctl stop sparkd && cp -a {STATE} /root/state && mount -t tmpfs -o"
        f" size=1m,mode=750 none {STATE} && cp -a /root/state/. {STATE}/ && systemctl start sparkd"
    )
    pid = main_pid(lab)
    lab.machine.run(f"dd if=/dev/zero of={STATE}/full bs=1k 2>/dev/null || true")
    lab.die("one", "core-killed")
    lab.machine.wait_until(
        lambda: "incidents are not written" in notes(lab), "the status says what does not work"
    )
    assert metric(lab, "sparkd_database_failing") == 1
    shown = lab.until("one", "ready", other_than=before["one"])  # systemd has started it again
    assert shown["last_death"]["class"]
    assert deaths(lab, "one") == []
    lab.machine.run(["rm", f"{STATE}/full"])
    assert len(lab.until_dead("one")) == 1
    lab.machine.wait_until(lambda: not notes(lab), "the status is calm again")
    assert metric(lab, "sparkd_database_failing") == 0
    assert metric(lab, 'sparkd_engine_failures_total{engine="one"}') == 1
    assert main_pid(lab) == pid
    assert lab.one("two")["invocation_id"] == before["two"]


def test_a_database_of_a_newer_version_is_left_alone_and_told(lab: Lab) -> None:
    two_ready(lab)
    lab.die("one", "core-killed")
    lab.until_dead("one")
    lab.until("one", "ready")
    version = f"sqlite3.connect('{STATE}/sparkd.db').execute('PRAGMA user_version')"
    real = lab.machine.out(["python3", "-c", f"import sqlite3; print({version}.fetchone()[0])"])

    def become(number: str) -> None:
        change = version.replace("user_version", f"user_version = {number}")
        lab.machine.run(["python3", "-c", f"import sqlite3; {change}"])

    lab.machine.run(["systemctl", "stop", "sparkd"])
    become("99")
    lab.machine.run(["systemctl", "start", "sparkd"])
    assert "kept in memory only" in notes(lab)
    assert "newer sparkd (schema 99" in notes(lab)
    assert metric(lab, "sparkd_database_failing") == 1
    pid = main_pid(lab)
    lab.die("one", "core-killed")
    lab.until_dead("one", 2)
    become(real)
    lab.machine.wait_until(lambda: not notes(lab), "the file is used again", limit=90)
    assert len(lab.until_dead("one", 2)) == 2
    assert metric(lab, "sparkd_database_failing") == 0
    assert main_pid(lab) == pid


# the journal


def test_a_vacuumed_position_is_a_gap_that_is_told_once(lab: Lab) -> None:
    two_ready(lab)
    lab.die("one", "core-killed")
    first = lab.until_dead("one")
    lab.until("one", "ready")
    lab.machine.run("systemctl stop sparkd && journalctl --sync && journalctl --rotate")
    life = lab.one("one")["invocation_id"]
    lab.die("one", "core-killed")
    lab.until_dead("one", 2)
    lab.until("one", "ready")
    lab.machine.run("journalctl --sync && journalctl --rotate && journalctl --vacuum-files=2")
    lab.machine.run(["systemctl", "start", "sparkd"])
    told = lab.machine.wait_until(
        lambda: lab.machine.journal(f"MESSAGE_ID={Event.JOURNAL_GAP}"), "the gap is told"
    )
    assert len(told) == 1
    assert [row["invocation_id"] for row in lab.until_dead("one", 2)] == [
        life, first[0]["invocation_id"],
    ]  # fmt: skip
    lab.machine.run(["systemctl", "restart", "sparkd"])
    lab.machine.run(["sleep", "1"])
    assert len(lab.machine.journal(f"MESSAGE_ID={Event.JOURNAL_GAP}")) == 1
    assert len(deaths(lab, "one")) == 2


# its own life


def check_whole(lab: Lab, before: dict[str, str], number: int) -> None:
    """Everything on disk is whole and known to systemd, and no engine was touched."""
    lab.apply()
    for name in before:
        shown = lab.machine.show(unit(name), "NeedDaemonReload", "UnitFileState")
        assert shown == {"NeedDaemonReload": "no", "UnitFileState": "enabled"}
        assert f"max-num-seqs {number}" in lab.machine.read(f"{UNITS}/{unit(name)}").replace(
            '" "', " "
        ).replace("=", " ")
        assert lab.one(name)["config"] == "pending"
    assert invocations(lab, before) == before
    left = lab.machine.out(
        f"ls -A {UNITS} {STATE} | grep -E 'tmp|new|unfinished|sparkd-'", check=False
    )
    assert left == ""


def test_killed_while_systemd_reloads_it_finishes_the_apply_later(lab: Lab) -> None:
    before = two_ready(lab)
    # It reloads until it is told to be done: PID 1 waits for its generators.
    lab.push("/etc/systemd/system-generators/slow", "#!/bin/sh\n[ -e /run/slow ] || exit 0\n"
             "touch /run/reloading\nfor i in $(seq 300); do\n[ -e /run/slow ] || exit 0\n"
             "sleep 0.1\ndone\n")  # fmt: skip
    lab.machine.run("chmod +x /etc/systemd/system-generators/slow; touch /run/slow")
    pid = main_pid(lab)
    for order, name in enumerate(before):
        lab.engine(name, order=order + 1, serve="max-num-seqs = 77")
    apply = lab.machine.start_background(["sparkctl", "apply"])
    lab.machine.wait_until(
        lambda: lab.machine.run(["test", "-e", "/run/reloading"], check=False).returncode == 0,
        "systemd is reloading",
        every=0.02,
    )
    lab.machine.run(["kill", "-9", pid])
    lab.machine.run("rm /run/slow")
    apply.wait()
    until_up(lab, pid)
    check_whole(lab, before, 77)


def test_killed_at_any_moment_of_an_apply_nothing_is_half_done(lab: Lab) -> None:
    before = two_ready(lab)
    for number, delay in enumerate(("0", "0.1", "0.2", "0.3", "0.5", "0.8"), 10):
        pid = main_pid(lab)
        for order, name in enumerate(before):
            lab.engine(name, order=order + 1, serve=f"max-num-seqs = {number}")
        lab.machine.run(f"sparkctl apply & sleep {delay}; kill -9 {pid}; wait", check=False)
        until_up(lab, pid)
        check_whole(lab, before, number)
