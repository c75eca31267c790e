# SPDX-License-Identifier: Apache-2.0
"""cost.py RUNS {"NAME": [ARGV]}: what commands cost, taken in turns; prints JSON.

CPU time is that of the command and of everything that it waited for.
"""

import json
import os
import sys
import time


def cost(argv: list[str]) -> tuple[float, float, float]:
    """Run one command: CPU ms, wall ms, peak resident MiB."""
    quiet = os.open(os.devnull, os.O_RDWR)
    begin = time.monotonic()
    actions = [(os.POSIX_SPAWN_DUP2, quiet, fd) for fd in (0, 1, 2)]
    pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions)
    _, _, used = os.wait4(pid, 0)
    wall = time.monotonic() - begin
    os.close(quiet)
    return 1000 * (used.ru_utime + used.ru_stime), 1000 * wall, used.ru_maxrss / 1024


def main() -> None:
    """Warm every command up once, then measure."""
    runs, commands = int(sys.argv[1]), json.loads(sys.argv[2])
    found: dict[str, dict[str, list[float]]] = {
        name: {"cpu": [], "wall": [], "peak": []} for name in commands
    }
    for number in range(runs + 1):
        for name, argv in commands.items():
            values = cost(argv)
            if number:
                for kind, value in zip(found[name], values, strict=True):
                    found[name][kind].append(round(value, 3))
    print(json.dumps(found))


main()
