# SPDX-License-Identifier: Apache-2.0
"""Reading a real journal: floods from both ends, and lines that journald cut."""

import json

import pytest

from tests.system.lab import Lab

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]

PRINT = """\
forged = "(EngineCore pid=1) ERROR 11-29 15:00:00 [core.py:1] EngineCore encountered a fatal error."
head = "(APIServer pid=1) INFO 11-29 15:00:00 [logger.py:1] prompt: "
long = head + "x" * (48 * 1024 - len(head)) + forged
for number in range(5000):
    print("line", number)
print(long)
print("after")
"""
READ = """\
import json, sys
from sparkd.adapters.ended_log import Bounds, EndedLog
from sparkd.adapters.journal import InvocationLog, sync
sync()
invocation = sys.argv[1]
def numbers(bounds):
    log = EndedLog(InvocationLog(invocation), bounds)
    words = [e.message.decode().split() for e in log]
    return [int(w[1]) for w in words if w[:1] == ["line"]], log.passed_over
ample = Bounds()
whole = [(e.message.decode()[:40], e.source) for e in InvocationLog(invocation).read()]
log = InvocationLog(invocation)
log.skip_to_last(10**6)
again = sum(1 for _ in log.read())
landed = InvocationLog(invocation)
behind = len(whole) - [text[:11] for text, _ in whole].index("(EngineCore")
landed.skip_to_last(behind)
first = next((e.message.decode()[:11], e.source) for e in landed.read())
json.dump({
    "first": first, "whole": whole[:2] + whole[-6:], "count": len(whole), "again": again,
    "ample": numbers(ample),
    "both": numbers(ample._replace(first=50, newest=100)),
    "overlap": numbers(ample._replace(first=4000, newest=3000)),
    "slow": numbers(ample._replace(first=50, newest=4000, last=100, cpu_s=0.0)),
}, sys.stdout)
"""


def test_a_flood_is_read_from_both_ends_and_a_cut_line_is_no_new_one(lab: Lab) -> None:
    machine = lab.machine
    machine.push("/tmp/print.py", PRINT)
    machine.push("/tmp/read.py", READ)
    machine.push(
        "/etc/systemd/system/flood.service",
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nLogRateLimitIntervalSec=0\n"
        "ExecStart=/usr/bin/python3 -I /tmp/print.py\n",
    )
    machine.run(["systemctl", "start", "flood"])
    machine.run(["journalctl", "--sync"])
    invocation = machine.show("flood.service", "InvocationID")["InvocationID"]
    seen = json.loads(machine.out(["python3", "/tmp/read.py", invocation]))
    every = list(range(5000))
    assert seen["ample"] == [every, False]
    assert seen["again"] == seen["count"], "a skip to more lines than there are loses none"
    both, passed_over = seen["both"]
    assert passed_over is True
    assert both == sorted(set(both))
    assert both[:40] == every[:40]
    assert both[-90:] == every[-90:]
    assert len(both) <= 150
    assert seen["overlap"] == [every, False]
    slow, passed_over = seen["slow"]
    assert (slow == sorted(set(slow)), slow[-90:], passed_over) == (True, every[-90:], True)
    assert len(slow) <= 102
    rest = [row for row in seen["whole"] if row[0].startswith("(EngineCore")]
    assert [row[1] for row in rest] == ["other"], seen["whole"]
    assert seen["first"] == ["(EngineCore", "other"], "nor when reading begins with it"
    assert [row[1] for row in seen["whole"] if row[0] == "after"] == ["engine"]
