# SPDX-License-Identifier: Apache-2.0
"""Finds compiler processes in /proc: cheap while there are none, thorough while there are.

At rest one look reads /proc/loadavg, whose last number is the newest process id: nothing was forked
when it has not moved. A process changes its name when it executes a program, so the young ones are
read again for a while.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import proc
from sparkd.core import storm
from sparkd.core.storm import Compiler, Key

YOUNG_S = 3.0
"""So long after it was first seen a process is looked at each time."""
EVERYTHING_S = 30.0
"""Every process is read again so often: one may execute a compiler late in its life."""
DEPTH = 16
_PAGE = os.sysconf("SC_PAGE_SIZE")
_FATAL = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14
"""SIGHUP, SIGINT, SIGQUIT, SIGTERM in the masks of /proc/PID/status."""
_INTERESTING = storm.COMPILERS | storm.DRIVERS | storm.BUILDERS


class _Stat(NamedTuple):
    name: str
    state: str
    parent: int
    cpu: int
    start: int
    rss: int


class _Identity(NamedTuple):
    """What does not change while a process lives under one name."""

    owner: str
    job: Key
    attributed: bool


class Compilers:
    """What was seen of the process table, kept between two looks."""

    def __init__(self) -> None:
        self._newest = ""
        self._everything_at = 0.0
        self._names: dict[int, tuple[str, float]] = {}
        self._identities: dict[tuple[Key, str], _Identity] = {}
        self.building = False
        """Whether anything that compiles or drives a compilation was there at the last look."""

    def look(self) -> list[Compiler]:
        """Every compiler there is."""
        now = time.monotonic()
        newest = (proc.PROC / "loadavg").read_text(encoding="ascii").split()[-1]
        young = any(now - since < YOUNG_S for _, since in self._names.values())
        if now - self._everything_at >= EVERYTHING_S:
            self._everything_at = now
            self._names.clear()
        elif newest == self._newest and not young and not self.building:
            return []
        self._newest = newest
        self._read_names(now)
        found = [pid for pid, (name, _) in self._names.items() if name in _INTERESTING]
        self.building = bool(found)
        seen = [c for pid in found if (c := self._compiler(pid)) is not None]
        alive = {(c.key, c.name) for c in seen}
        self._identities = {k: v for k, v in self._identities.items() if k in alive}
        return seen

    def _read_names(self, now: float) -> None:
        known = self._names
        names = {}
        for pid in proc.pids():
            name, since = known.get(pid, ("", now))
            if not name or now - since < YOUNG_S:
                name = _name(pid)
            names[pid] = (name, since)
        self._names = names

    def _compiler(self, pid: int) -> Compiler | None:
        stat = _stat(pid)
        if stat is None or stat.name not in storm.COMPILERS or stat.state in "ZX":
            return None
        key = Key(pid, stat.start)
        identity = self._identities.get((key, stat.name))
        if identity is None:
            identity = self._identities[key, stat.name] = _identify(key, stat)
        stopped = stat.state == "T"
        return Compiler(
            key, stat.name, identity.owner, identity.job, stat.rss, stat.cpu, stopped,
            dying=stopped and _is_dying(pid), waits=stat.state == "D",
            attributed=identity.attributed,
        )  # fmt: skip


def _identify(key: Key, stat: _Stat) -> _Identity:
    ancestors = []
    parent = stat.parent
    for _ in range(DEPTH):
        above = _stat(parent) if parent > 1 else None
        if above is None:
            break
        ancestors.append((above.name, Key(parent, above.start)))
        parent = above.parent
    try:
        words = (proc.PROC / str(key.pid) / "cmdline").read_bytes().split(b"\0")[1:]
    except OSError:
        words = []
    arguments = [os.fsdecode(word) for word in words]
    return _Identity(
        storm.owner_of(proc.cgroup_of(key.pid)),
        storm.job_of(key, ancestors),
        storm.is_attributed([name for name, _ in ancestors], arguments),
    )


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:  # noqa: PTH123  (hot: Path doubles it)
            return os.fsdecode(file.read()).rstrip("\n")
    except OSError:
        return ""


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    name = os.fsdecode(head.partition(b"(")[2])
    return _Stat(
        name,
        fields[0].decode(),
        int(fields[1]),
        int(fields[11]) + int(fields[12]),
        int(fields[19]),
        int(fields[21]) * _PAGE,
    )


def _is_dying(pid: int) -> bool:
    """Whether a signal that ends a process waits for it: Ctrl-C does not reach a stopped one."""
    try:
        lines = (proc.PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    masks = {
        name: int(value, 16)
        for name, _, value in (line.partition(":\t") for line in lines.splitlines())
        if name in {"SigPnd", "ShdPnd", "SigIgn"}
    }
    pending = masks.get("SigPnd", 0) | masks.get("ShdPnd", 0)
    return bool(pending & _FATAL & ~masks.get("SigIgn", 0))
