# SPDX-License-Identifier: Apache-2.0
"""Finds and ends what is left of engines, see `sparkd.core.orphans`."""

import os
import pwd
import select
import signal
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparkd.adapters import guests, proc
from sparkd.core import orphans
from sparkd.core.orphans import Orphan, Process
from sparkd.core.storm import Key

TERM_S = 10.0
"""From SIGTERM to SIGKILL."""
KILL_S = 5.0
"""A process stuck in the driver does not end of SIGKILL either: only a reboot helps then."""
_PYTHON = ("python", "pt_main", "vllm")


class _Seen(NamedTuple):
    start: int
    parent: int
    name: str
    owner: int


def look(engines: Mapping[int, tuple[str, str]]) -> list[Orphan]:
    """Everything that belongs to no unit or guest.

    Args:
        engines: by port, the engine's name and the address it listens on.
    """
    seen = {pid: row for pid in proc.pids() if (row := _stat(pid)) is not None}
    holders = {}
    for port, (_, host) in engines.items():
        inodes = proc.listeners(host, port)
        if inodes:
            holders[port] = {p.pid for p in proc.owners_of(inodes)}
    wanted = {pid for pids in holders.values() for pid in pids}
    processes = []
    for pid, row in seen.items():
        near = row.name in orphans.TOOLS or row.name.startswith(("VLLM::", *_PYTHON))
        if near or pid in wanted:
            argv = _argv(pid)
            if pid in wanted or row.name in orphans.TOOLS or orphans.is_vllm(row.name, argv):
                processes.append(_process(pid, row, argv))
    adopters = {0, 1, *(pid for pid, row in seen.items() if row.name == "systemd")}
    return orphans.find(
        processes,
        {pid: row.parent for pid, row in seen.items()},
        adopters,
        {guest.unit for guest in guests.all_noted() if guests.is_alive(guest)},
        holders,
        {port: name for port, (name, _) in engines.items()},
    )


def _stat(pid: int) -> _Seen | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  (every process of the host)
            text = file.read()
        owner = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    if fields[0] in {b"Z", b"X"}:
        return None
    name = os.fsdecode(head.partition(b"(")[2])
    return _Seen(int(fields[19]), int(fields[1]), name, owner)


def _argv(pid: int) -> tuple[str, ...]:
    try:
        words = (proc.PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in words if word)


def _process(pid: int, row: _Seen, argv: tuple[str, ...]) -> Process:
    try:
        user = pwd.getpwuid(row.owner).pw_name
    except KeyError:
        user = str(row.owner)
    rss = proc.resident_bytes(pid)
    return Process(Key(pid, row.start), row.name, argv, proc.cgroup_of(pid), user, rss)


def end(found: Sequence[Orphan]) -> list[tuple[Orphan, str]]:
    """End these: SIGTERM, then SIGKILL.

    Each is named by a pidfd whose start time is the one that was seen, and looked at once more: it
    may have come into a unit since.

    Returns:
        Those that are still there, and why.
    """
    held: list[tuple[Orphan, int]] = []
    failed: list[tuple[Orphan, str]] = []
    try:
        for orphan in found:
            fd = _open(orphan)
            if fd is not None:
                held.append((orphan, fd))
        for number, patience in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
            for orphan, fd in held:
                try:
                    signal.pidfd_send_signal(fd, number)
                except ProcessLookupError:
                    continue
                except PermissionError:
                    failed.append((orphan, f"it belongs to {orphan.user}: only root may end it"))
            _wait([fd for _, fd in held], patience)
        refused = {orphan.key for orphan, _ in failed}
        for orphan, fd in held:
            if orphan.key not in refused and not _has_ended(fd):
                reason = "it does not end, not even by SIGKILL: it is stuck in the kernel, reboot"
                failed.append((orphan, reason))
    finally:
        for _, fd in held:
            os.close(fd)
    return list(dict(failed).items())


def _open(orphan: Orphan) -> int | None:
    try:
        fd = os.pidfd_open(orphan.key.pid)
    except OSError:
        return None
    noted = {guest.unit for guest in guests.all_noted() if guests.is_alive(guest)}
    same = proc.start_time(orphan.key.pid) == orphan.key.start
    if same and not orphans.in_unit(proc.cgroup_of(orphan.key.pid), noted):
        return fd
    os.close(fd)
    return None


def _wait(fds: Sequence[int], patience_s: float) -> None:
    """Until every process has ended, or so many seconds."""
    deadline = time.monotonic() + patience_s
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    waiting = len(fds)
    while waiting and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            waiting -= 1


def _has_ended(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
