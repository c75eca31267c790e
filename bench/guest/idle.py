# SPDX-License-Identifier: Apache-2.0
"""idle.py SECONDS {"NAME": PID}: what processes use while nothing happens; prints JSON.

CPU time has the kernel's resolution, 10 ms: watch for a minute or more.
"""

import json
import os
import sys
import time
from pathlib import Path


def cpu_ms(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> dict[str, float]:
    """RSS and PSS in MiB."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in {"Rss", "Pss"}:
            found[name.lower()] = int(rest.split()[0]) / 1024
    return found


def main() -> None:
    """All of them over the same time."""
    seconds, pids = float(sys.argv[1]), json.loads(sys.argv[2])
    before = {name: cpu_ms(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    found = {name: {"cpu": cpu_ms(pid) - before[name], **memory(pid)} for name, pid in pids.items()}
    print(json.dumps(found))


main()
