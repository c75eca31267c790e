# SPDX-License-Identifier: Apache-2.0
"""restart.py UNIT PORT KIND[,LINES]: kill an engine and take down how it comes back; prints JSON.

With LINES it prints so many before its fatal line and as many after.

The death is seen by pidfd, the rest is systemd's own account: when the unit had ended for good
and RestartSec= began (the last stop command is over), and when ExecStart= was forked. When the
start job began is not among it: systemd 257 keeps no time for that.
"""

import http.client
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

PROPERTIES = "MainPID,SubState,StateChangeTimestampMonotonic,ExecMainStartTimestampMonotonic"
PAUSE_US = 1_000_000
"""RestartSec= of both units."""
POLL_S = 0.2
"""The moments are systemd's: to ask seldom disturbs least."""


def show(unit: str) -> dict[str, str]:
    """The unit's state and its moments, in µs of CLOCK_MONOTONIC."""
    argv = ["systemctl", "show", unit, f"--property={PROPERTIES}"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return dict(row.split("=", 1) for row in text.splitlines())


class Watch(threading.Thread):
    """Looks at post-mortem's memory, ten times a second, while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.peak = 0.0
        """Largest anonymous memory seen, MiB; the rest is the mapped journal, which is cache."""

    def run(self) -> None:
        """Look until it is over."""
        while not self.over.wait(0.1):
            for status in Path("/proc").glob("[0-9]*/status"):
                try:
                    text = status.read_text()
                except OSError:
                    continue
                if text.startswith("Name:\tpost-mortem\n"):
                    size = text.partition("RssAnon:")[2].split(maxsplit=1)[0]
                    self.peak = max(self.peak, int(size) / 1024)


def wait(unit: str, state: str, after: int) -> dict[str, str]:
    """The properties once the unit is in a state, or its next process was started."""
    for _ in range(int(60 / POLL_S)):
        time.sleep(POLL_S)
        seen = show(unit)
        started = int(seen["ExecMainStartTimestampMonotonic"]) > after
        if started or seen["SubState"] == state:
            return seen
    return sys.exit(f"{unit} does not come back")


def die(port: int, death: str) -> None:
    """Have the simulated engine die; it may be gone before it has answered."""
    kind, _, lines = death.partition(",")
    flood = int(lines or 0)
    body = json.dumps({"kind": kind, "flood_before": flood, "flood_after": flood})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/sim/die", body)
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        pass


def main() -> None:
    """One death and the restart after it."""
    unit, port, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    pidfd = os.pidfd_open(int(show(unit)["MainPID"]))
    die(port, kind)
    if not select.select([pidfd], [], [], 120)[0]:
        sys.exit(f"{unit} does not die")
    death = time.monotonic_ns() // 1000
    watch = Watch()
    if "," in kind:
        watch.start()  # it would slow down what takes no longer than a glance
    pause = wait(unit, "auto-restart", death)
    if pause["SubState"] != "auto-restart":
        sys.exit(f"{unit} was restarted before it could be seen to pause")
    ended = int(pause["StateChangeTimestampMonotonic"])
    watch.over.set()
    back = wait(unit, "", death)
    started = int(back["ExecMainStartTimestampMonotonic"])
    spans = {
        "whole": started - death,
        "end": ended - death,
        "start": started - ended - PAUSE_US,
    }
    found = {name: span / 1000 for name, span in spans.items()}
    print(json.dumps({**found, "peak": watch.peak}))


main()
