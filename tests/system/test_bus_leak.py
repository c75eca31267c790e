# SPDX-License-Identifier: Apache-2.0
"""The daemon's memory stays flat however often it is asked.

PyGObject before 3.49 (Debian 12, Ubuntu 24.04) keeps 2 kB of every call that a Python object
serves: 40,000 calls would add 80 MB. PyGObject 3.42 keeps 130 bytes of each one-shot callback too.
"""

from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]

CALLS = 20_000
GROWTH_MAX_KB = 3_000
"""The leak would be 40,000 kB for as many calls; allocators and caches settle within this."""
CALLER = """
import sys
from gi.repository import Gio, GLib
con = Gio.bus_get_sync(Gio.BusType.SYSTEM, None)
name, path = "io.github.sparkd.Manager1", "/io/github/sparkd/Manager1"
count = int(sys.argv[1])
for _ in range(count):
    con.call_sync(name, path, name, "Status", None, None, 0, 30000, None)
for _ in range(count // 10):
    bad = GLib.Variant("(us)", (1, "Not A Name"))
    try:
        con.call_sync(name, path, name, "Incidents", bad, None, 0, 30000, None)
    except GLib.GError as error:
        assert "NoSuchEngine" in error.message, error.message
    else:
        raise AssertionError("a bad name was accepted")
    get = GLib.Variant("(ss)", (name, "Version"))
    props = "org.freedesktop.DBus.Properties"
    con.call_sync(name, path, props, "Get", get, None, 0, 30000, None)
    one = GLib.Variant("(us)", (1, ""))
    con.call_sync(name, path, name, "Incidents", one, None, 0, 30000, None)
"""


def anonymous_kb(machine: Any) -> int:
    pid = machine.show("sparkd.service", "MainPID")["MainPID"]
    for line in machine.read(f"/proc/{pid}/status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise AssertionError("sparkd is not running")


def test_forty_thousand_calls_leave_its_memory_flat(container: Any) -> None:
    container.push("/root/caller.py", CALLER)
    container.run(["python3", "/root/caller.py", "2000"], limit=1200)  # caches fill
    pid = container.show("sparkd.service", "MainPID")["MainPID"]
    before = anonymous_kb(container)
    for _ in range(2):
        container.run(["python3", "/root/caller.py", str(CALLS)], limit=1200)
    after = anonymous_kb(container)
    assert container.show("sparkd.service", "MainPID")["MainPID"] == pid, "it was not restarted"
    assert after - before < GROWTH_MAX_KB, f"{before} kB before, {after} kB after"
