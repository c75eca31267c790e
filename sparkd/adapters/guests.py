# SPDX-License-Identifier: Apache-2.0
"""Guests: engines that somebody launched by hand with `sparkctl run`, each in a scope of its own.

A scope has no start phases. That a guest has become ready is noted in its file by the watcher that
`sparkctl run` leaves beside it. Should the watcher be gone, the kernel tells: vLLM listens on its
port only once its engine has started. So a guest's claim of the start slot ends when it is ready,
or with its scope, and nobody has to release it.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import proc
from sparkd.adapters.state_files import read_json, write_atomic
from sparkd.core import slot

FOLDER = Path("/run/sparkd/guests")
PREFIX = "vllm-guest-"
SLICE = "vllm.slice"
GONE = slot.Phase("", "")


class Guest(NamedTuple):
    """One guest, as its file says."""

    unit: str
    invocation_id: str
    pid: int
    """Of the process that was launched."""
    started: int
    """Its start in clock ticks since boot: with the number it names one process for good."""
    user: str
    command: str
    """For people; without values that look like secrets."""
    host: str
    """Address at which it will answer."""
    port: int
    """0: not known."""
    peak: int
    """Bytes it was admitted for."""
    since: float
    """Seconds since the epoch."""
    watcher: int = 0
    watcher_started: int = 0
    is_ready: bool = False


def is_guest(unit: str) -> bool:
    """Whether a unit's name is that of a guest's scope."""
    return unit.startswith(PREFIX) and unit.endswith(".scope")


def unit_of(pid: int) -> str:
    """The scope's name of the guest that a process becomes."""
    return f"{PREFIX}{pid}.scope"


def identity(pid: int) -> str:
    """Names one process for good; '' when it is gone. Stands for an invocation in the queue."""
    started = proc.start_time(pid)
    return "" if started is None else f"{pid}:{started}"


def waiting_phase(text: str) -> slot.Phase:
    """What there is to say of a guest in the queue: it has no unit yet, only a process."""
    pid = text.partition(":")[0]
    alive = pid.isdecimal() and identity(int(pid)) == text
    return slot.Phase(text, "start-pre") if alive else GONE


def claim_phase(unit: str, seen: slot.Phase, folder: Path = FOLDER) -> slot.Phase:
    """A guest's phase in the words that are used of engines: `start` until it is ready."""
    if seen.sub_state in {"", "dead", "failed"}:
        return GONE
    guest = read(unit, folder)
    known = guest is not None and guest.invocation_id == seen.invocation_id
    if known and guest is not None and is_ready(guest):
        if not guest.is_ready:
            # Its watcher would have. The daemon may not look into a user's processes, and asks us.
            with contextlib.suppress(OSError):
                write(guest._replace(is_ready=True), folder)
        return slot.Phase(seen.invocation_id, "running")
    return slot.Phase(seen.invocation_id, "start")


def is_ready(guest: Guest) -> bool:
    """Whether it serves: says its watcher or, should that be gone, the kernel."""
    if guest.is_ready:
        return True
    if guest.watcher and proc.start_time(guest.watcher) == guest.watcher_started:
        return False
    return bool(guest.port) and listens(guest)


def cgroup_of(unit: str) -> str:
    """The control group of a guest's scope."""
    return f"/{SLICE}/{unit}"


def listens(guest: Guest) -> bool:
    """Whether a process of the guest listens on its port."""
    inodes = proc.listeners(guest.host, guest.port)
    return bool(inodes) and bool(proc.owners_of(inodes, proc.pids_in(cgroup_of(guest.unit))))


def may_wait(waiter: slot.Waiter) -> bool:
    """Whether a place in the queue may count: that of a guest whose process is gone does not."""
    return not is_guest(waiter.unit) or waiting_phase(waiter.invocation_id) != GONE


def write(guest: Guest, folder: Path = FOLDER) -> None:
    """Note a guest.

    Raises:
        OSError: the file is the old one.
    """
    write_atomic(folder / f"{guest.unit}.json", json.dumps(guest._asdict()) + "\n")


def drop(unit: str, folder: Path = FOLDER) -> None:
    """Forget a guest."""
    (folder / f"{unit}.json").unlink(missing_ok=True)


def read(unit: str, folder: Path = FOLDER) -> Guest | None:
    """What is noted of a guest."""
    value = read_json(folder / f"{unit}.json") or {}
    match value:
        case {
            "unit": str(name),
            "invocation_id": str(),
            "pid": int(),
            "started": int(),
            "user": str(),
            "command": str(),
            "host": str(),
            "port": int(),
            "peak": int(),
            "since": int() | float(),
            "watcher": int(),
            "watcher_started": int(),
            "is_ready": bool(),
        } if name == unit and set(value) == set(Guest._fields):
            return Guest(**value)  # type: ignore[arg-type]  # each was just looked at
    return None


def all_noted(folder: Path = FOLDER) -> Iterator[Guest]:
    """Every guest that has a file, alive or not."""
    for path in sorted(folder.glob(f"{PREFIX}*.scope.json")):
        guest = read(path.name.removesuffix(".json"), folder)
        if guest is not None:
            yield guest


def is_alive(guest: Guest) -> bool:
    """Whether its process is there."""
    return proc.start_time(guest.pid) == guest.started
