# SPDX-License-Identifier: Apache-2.0
"""incident.py UNIT PORT KIND: when does who know of a death? Prints JSON, in ms after the death.

The death is seen by pidfd. systemd's state is read over D-Bus and sparkd's database from the file,
both every 2 ms in one loop; neither is told that somebody looks.
"""

import http.client
import json
import os
import select
import sqlite3
import sys
import threading
import time

from gi.repository import Gio, GLib

POLL_S = 0.002
LIMIT_S = 60.0


class Bus:
    """One property of one unit, with as little in between as there is."""

    def __init__(self, unit: str) -> None:
        self._bus = Gio.bus_get_sync(Gio.BusType.SYSTEM, None)
        self._path = self._call(
            "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "GetUnit", [unit]
        )

    def _call(self, path: str, interface: str, member: str, words: list[str]) -> object:
        arguments = GLib.Variant(f"({'s' * len(words)})", words)
        answer = self._bus.call_sync(
            "org.freedesktop.systemd1", path, interface, member, arguments, None, 0, 5000, None
        )
        return answer.unpack()[0]

    def get(self, name: str) -> object:
        """A property of the unit as a service."""
        words = [
            "org.freedesktop.systemd1.Unit" if name == "SubState" else
            "org.freedesktop.systemd1.Service", name,
        ]  # fmt: skip
        return self._call(self._path, "org.freedesktop.DBus.Properties", "Get", words)


def die(port: int, kind: str) -> None:
    """Have the simulated engine die; it may be gone before it has answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/sim/die", json.dumps({"kind": kind}))
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        pass


def main() -> None:
    """One death."""
    unit, port, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    bus = Bus(unit)
    database = sqlite3.connect("file:/var/lib/sparkd/sparkd.db?mode=ro", uri=True)
    newest = "SELECT coalesce(max(id), 0) FROM incidents"
    before = database.execute(newest).fetchone()
    death: list[float] = []
    pidfd = os.pidfd_open(int(str(bus.get("MainPID"))))

    def watch() -> None:
        if select.select([pidfd], [], [], LIMIT_S)[0]:
            death.append(time.monotonic())

    watcher = threading.Thread(target=watch)
    watcher.start()
    die(port, kind)
    seen: dict[str, float] = {}
    deadline = time.monotonic() + LIMIT_S
    while "recorded" not in seen and time.monotonic() < deadline:
        if "shown" not in seen and bus.get("SubState") != "running":
            seen["shown"] = time.monotonic()
        if database.execute(newest).fetchone() != before:
            seen["recorded"] = time.monotonic()
        time.sleep(POLL_S)
    watcher.join()
    row = database.execute("SELECT time FROM incidents ORDER BY id DESC LIMIT 1").fetchone()
    seen["judged"] = row[0] - time.time() + time.monotonic()
    print(json.dumps({name: 1000 * (moment - death[0]) for name, moment in seen.items()}))


main()
