# SPDX-License-Identifier: Apache-2.0
"""What is left of engines: vLLM processes, compilers and ports that belong to no unit or guest.

vLLM's engine core can outlive its API server and go on holding all of its memory, with its port
free and its container gone. A process in a unit or a container is never one of these, whatever it
does: its unit's end is its end. One that somebody runs by hand is shown and left to its owner.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from sparkd.core import storm
from sparkd.core.guest_launch import text as command_text
from sparkd.core.storm import Key

TOOLS = storm.CUDA | {"nvcc", "ninja", "fatbinary"}
"""Compilers and what drives them, where nothing but a kernel build runs them."""


class Process(NamedTuple):
    """A process as seen in /proc."""

    key: Key
    name: str
    argv: tuple[str, ...]
    cgroup: str
    user: str
    rss: int
    """Resident bytes; on GB10 CUDA's memory is not in them."""


class Orphan(NamedTuple):
    """A process that nobody supervises."""

    key: Key
    name: str
    command: str
    user: str
    rss: int
    owner: str
    """The session or scope it is in, for people."""
    port: int
    """The engine's port that it listens on; 0 for none."""
    is_left_behind: bool
    """Whether what started it is gone; only such a process is ended."""
    reason: str


def is_vllm(name: str, argv: Sequence[str]) -> bool:
    """Whether a process is part of a vLLM server, by its title or its command line."""
    if name.startswith("VLLM::") or (argv and argv[0].startswith("VLLM::")):
        return True
    words = [word.rpartition("/")[2] for word in argv[:3]]
    if "vllm" in words and "serve" in argv:
        return True
    return any(word.startswith("vllm.entrypoints") for word in argv[:4])


def in_unit(cgroup: str, guests: Collection[str]) -> bool:
    """Whether systemd or a container engine answers for a process in this control group.

    Interactive sessions do not count: their processes are nobody's when their parent is gone.
    """
    parts = [part for part in cgroup.split("/") if part]
    leaf = parts[-1] if parts else ""
    if leaf in {"", "init.scope"}:
        return False
    if leaf.startswith("vllm-guest-"):
        return leaf in guests
    named = [p for p in parts if p.endswith((".service", ".scope")) and not p.startswith("user@")]
    if not named:
        return False
    last = named[-1]
    if last == "init.scope":
        return False
    return last.endswith(".service") or "user.slice" not in parts


def find(
    processes: Sequence[Process],
    parents: Mapping[int, int],
    adopters: Collection[int],
    guests: Collection[str],
    holders: Mapping[int, Collection[int]],
    engines: Mapping[int, str],
) -> list[Orphan]:
    """Everything that belongs to no unit or guest, the largest first.

    Args:
        processes: those that are vLLM's or compilers', and every holder of an engine's port.
        parents: parent of every process of the host.
        adopters: who gets a process whose parent has ended: init, and each user's manager.
        guests: scopes of the guests that live.
        holders: processes that listen on an engine's port, by port.
        engines: the engine's name by port.
    """
    ports = {pid: port for port, pids in holders.items() for pid in pids}
    loose = [p for p in processes if not in_unit(p.cgroup, guests)]
    members = {p.key.pid for p in loose}
    found = []
    for process in loose:
        vllm = is_vllm(process.name, process.argv)
        top = _top(process.key.pid, parents, members)
        left = parents.get(top, 0) in adopters
        port = ports.get(process.key.pid, 0)
        if not vllm and not port and not (left and process.name in TOOLS):
            continue
        found.append(_orphan(process, port, engines.get(port, ""), vllm=vllm, left=left))
    return sorted(found, key=lambda orphan: (-orphan.rss, orphan.key))


def _top(pid: int, parents: Mapping[int, int], members: Collection[int]) -> int:
    """The uppermost of the process's ancestors that are loose themselves."""
    while (parent := parents.get(pid, 0)) in members:
        pid = parent
    return pid


def _orphan(process: Process, port: int, engine: str, *, vllm: bool, left: bool) -> Orphan:
    what = "a part of vLLM" if vllm else "a compiler" if process.name in TOOLS else "a listener"
    owner = storm.owner_of(process.cgroup)
    is_left_behind = left and (vllm or process.name in TOOLS)
    if is_left_behind:
        reason = f"{what} whose parent is gone"
    else:
        reason = f"{what} in {owner}, run by hand: end it where it was started"
    if port:
        reason += f"; it holds port {port} of {engine or 'an engine'}"
    return Orphan(
        process.key, process.name, command_text(process.argv), process.user, process.rss, owner,
        port, is_left_behind, reason,
    )  # fmt: skip
