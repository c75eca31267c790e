# SPDX-License-Identifier: Apache-2.0
"""Which ends were asked for: the timestamps and jobs that a real systemd shows to ExecStopPost=."""

import time

import pytest
from beds.container import Container

from sparkd.core import end_of_life
from sparkd.core.end_of_life import UnitAtEnd

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]

REPORT = """#!/bin/sh
while [ -e /run/hold ]; do sleep 0.05; done
{
    systemctl show "$1" -p ExecMainExitTimestampMonotonic,ActiveEnterTimestampMonotonic \\
        -p ActiveExitTimestampMonotonic,InactiveExitTimestampMonotonic
    echo "JOB=$(systemctl list-jobs --no-legend --no-pager --full -- "$1" | awk '{print $3}')"
    echo END
} >> /tmp/ends
"""
AWAIT = """
await() { until [ "$(systemctl show --property=SubState --value t)" = "$1" ]; do sleep 0.05; done; }
"""
"""Nothing here counts on how fast the unit moves: what a case acts on is waited for."""
FOREVER = "/bin/sleep 1000"
FAILS = "/bin/sh -c 'sleep .2; exit 1'"
GATE_HANGS_THE_SECOND_TIME = "/bin/sh -c 'test -e /run/second && sleep 1000; touch /run/second'"
READY, NOT_READY = True, False
ASKED, UNASKED = True, False

CASES = {
    "stop": (
        {},
        "systemctl start t; systemctl stop t",
        [(ASKED, READY)],
    ),
    "restart": (
        {},
        "systemctl start t; systemctl restart t",
        [(ASKED, READY)],
    ),
    "stop after daemon-reload": (
        {},
        "systemctl start t; systemctl daemon-reload; systemctl stop t",
        [(ASKED, READY)],
    ),
    "exit 0, two lives": (
        {"main": "/bin/sleep .3"},
        "systemctl start t",
        [(UNASKED, READY)] * 2,
    ),
    "exit 0 after daemon-reexec": (
        {"main": "/bin/sleep .8"},
        "systemctl start t; systemctl daemon-reexec",
        [(UNASKED, READY)],
    ),
    "a stranger's signal": (
        {},
        "systemctl start t; systemctl kill t",
        [(UNASKED, READY)],
    ),
    "stop while the post-mortem of a death runs": (
        {"main": "/bin/sleep .3"},
        "touch /run/hold; systemctl start t; await stop-post; systemctl stop --no-block t",
        [(UNASKED, READY)],
    ),
    "restart while the post-mortem of a death runs": (
        {"main": "/bin/sleep .3"},
        "touch /run/hold; systemctl start t; await stop-post; systemctl restart --no-block t",
        [(UNASKED, READY)],
    ),
    "stop in start-pre": (
        {"pre": FOREVER},
        "systemctl start --no-block t; await start-pre; systemctl stop t",
        [(ASKED, NOT_READY)],
    ),
    "stop in start-post": (
        {"post": FOREVER},
        "systemctl start --no-block t; await start-post; systemctl stop t",
        [(ASKED, NOT_READY)],
    ),
    "restart in start-post": (
        {"post": FOREVER},
        "systemctl start --no-block t; await start-post; systemctl restart --no-block t",
        [(ASKED, NOT_READY)],
    ),
    "stop in start-post of the second life": (
        {"post": GATE_HANGS_THE_SECOND_TIME},
        (
            "systemctl start t; systemctl kill -s KILL --kill-whom=main t; "
            "await start-post; systemctl stop t"
        ),
        [(UNASKED, READY), (ASKED, NOT_READY)],
    ),
    "the gate fails": (
        {"post": FAILS, "restart": "no"},
        "systemctl start t || true",
        [(UNASKED, NOT_READY)],
    ),
    "await-slot refuses": (
        {"pre": FAILS, "restart": "no"},
        "systemctl start t || true",
        [(UNASKED, NOT_READY)],
    ),
    "a death while the gate waits": (
        {"main": "/bin/sleep .1", "post": FAILS, "restart": "no"},
        "systemctl start t || true",
        [(UNASKED, NOT_READY)],
    ),
}


def unit_text(main=FOREVER, pre="", post="", restart="always"):
    return "\n".join(
        [
            "[Service]",
            "Type=exec",
            "KillMode=mixed",
            f"ExecStartPre={pre}",
            f"ExecStart={main}",
            f"ExecStartPost={post}",
            "ExecStopPost=/opt/report %n",
            f"Restart={restart}",
            "RestartSec=200ms",
            "",
        ]
    )


def ends(machine: Container):
    """What was_requested and was_ready say of each end that was reported."""
    for block in machine.out("cat /tmp/ends").split("END")[:-1]:
        seen = dict(line.split("=", 1) for line in block.split() if "=" in line)
        unit = UnitAtEnd(
            job=seen["JOB"],
            main_exit=int(seen["ExecMainExitTimestampMonotonic"]),
            active_enter=int(seen["ActiveEnterTimestampMonotonic"]),
            active_exit=int(seen["ActiveExitTimestampMonotonic"]),
            inactive_exit=int(seen["InactiveExitTimestampMonotonic"]),
        )
        yield end_of_life.was_requested(unit), end_of_life.was_ready(unit)


def test_who_asked_for_the_end(bare_container: Container):
    """One machine for all: each case is a fresh unit and takes about a second."""
    machine = bare_container
    machine.push("/opt/report", REPORT, mode=0o755)
    wrong = {}
    for name, (unit, script, expected) in CASES.items():
        machine.push("/etc/systemd/system/t.service", unit_text(**unit))
        machine.out("rm -f /tmp/ends /run/second; systemctl daemon-reload; touch /tmp/ends")
        machine.out(f"{AWAIT}{script}; rm -f /run/hold")
        deadline = time.monotonic() + 60
        while len(seen := list(ends(machine))) < len(expected) and time.monotonic() < deadline:
            time.sleep(0.1)
        if seen[: len(expected)] != expected:
            wrong[name] = seen
        machine.out("systemctl stop t; systemctl reset-failed")
    assert wrong == {}
