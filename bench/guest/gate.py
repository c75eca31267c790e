# SPDX-License-Identifier: Apache-2.0
"""gate.py: how soon gates that wait for one engine see that its process died; prints JSON.

All wait for the same process at the same time. It is a unit of its own, so that systemd reaps it:
`kill -0` takes a process that nobody has reaped for a living one.
"""

import json
import os
import random
import select
import subprocess
import sys
import time

LOOP = 'while kill -0 "$1" 2>/dev/null; do sleep "$2"; done'
UNIT = f"victim-{os.getpid()}.service"


def gates(pid: str) -> dict[str, list[str]]:
    """The commands that end when the process does."""
    own = ["/usr/libexec/sparkd/await-ready", f"--pid={pid}", "--port=8399", "--served-name=x"]
    return {
        "await-ready": own,
        "shell, every 1 s": ["sh", "-c", LOOP, "gate", pid, "1"],
        "shell, every 0.1 s": ["sh", "-c", LOOP, "gate", pid, "0.1"],
    }


def main() -> None:
    """One death, at a random moment within two seconds after all gates are well under way."""
    subprocess.run(["systemd-run", "--quiet", "--unit", UNIT, "sleep", "600"], check=True)
    show = ["systemctl", "show", "--value", "--property=MainPID", UNIT]
    pid = subprocess.run(show, capture_output=True, text=True, check=True).stdout.strip()
    victim = os.pidfd_open(int(pid))
    quiet = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, quiet, fd) for fd in (0, 1, 2)]
    waiting = {}
    for name, argv in gates(pid).items():
        child = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions)
        waiting[os.pidfd_open(child)] = (name, child)
    begin = time.monotonic()
    time.sleep(3 + 2 * random.random())
    os.kill(int(pid), 9)
    select.select([victim], [], [])
    death = time.monotonic()
    found = {}
    while waiting:
        ready = select.select(list(waiting), [], [], 30)[0]
        if not ready:
            sys.exit(f"these gates do not end: {waiting}")
        now = time.monotonic()
        for fd in ready:
            name, child = waiting.pop(fd)
            used = os.wait4(child, 0)[2]
            cpu = 1000 * (used.ru_utime + used.ru_stime)
            found[name] = [1000 * (now - death), cpu / (now - begin)]
    print(json.dumps(found))


main()
