# SPDX-License-Identifier: Apache-2.0
"""The kernel's view of processes, sockets and memory, read from /proc.

The helpers use it on the start path, where psutil's import (40 ms) would be most of their work.
"""

import os
import pwd
import socket
import sys
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
LISTEN = "0A"
"""TCP_LISTEN in the `st` column of /proc/net/tcp."""


class Process(NamedTuple):
    """A process as far as a message to a person needs it."""

    pid: int
    name: str
    cgroup: str

    def __str__(self) -> str:
        unit = self.cgroup.rsplit("/", 1)[-1]
        place = f", {unit}" if "." in unit else ""
        return f"{self.name or 'a process'} (PID {self.pid}{place})"


class Memory(NamedTuple):
    """From /proc/meminfo, in bytes. On GB10 the only figures to trust: nvidia-smi shows none."""

    total: int
    available: int


def memory() -> Memory:
    """Total and available memory; page cache counts as available."""
    fields = {}
    for line in (PROC / "meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024
    return Memory(fields["MemTotal"], fields["MemAvailable"])


def cgroup_of(pid: int | str) -> str:
    """The control group that systemd put a process in ('/vllm.slice/vllm-a.service'), or ''.

    systemd tracks processes in the cgroup v2 tree ('0::', alone or beside v1 controllers) or, on an
    old layout, in the hierarchy named 'systemd'; the other one of the two then says '/'.
    """
    try:
        lines = (PROC / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    rows = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    unified = next((path for number, _, path in rows if number == "0"), "")
    named = next((path for _, name, path in rows if name == "name=systemd"), "")
    return unified if unified not in {"", "/"} else named or unified


def process(pid: int) -> Process:
    """Name and control group of a process; empty when it is gone."""
    try:
        name = (PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        name = ""
    return Process(pid, name, cgroup_of(pid))


def pids() -> list[int]:
    """Every process id."""
    return [int(entry) for entry in os.listdir(PROC) if entry.isdigit()]  # noqa: PTH208  (hot)


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def listeners(address: str, port: int) -> set[str]:
    """Inodes of the sockets that would get a connection to this address, in our network namespace.

    A listener on the very address is preferred by the kernel over one on the wildcard address. For
    the wildcard address itself: every listener on the port, since each stands in the way of a bind.
    """
    rows = _listening("tcp6", port)
    if ":" not in address:
        # Sockets of IPv6 serve IPv4 too, through the wildcard or a mapped address (::ffff:a.b.c.d).
        rows = [(local.removeprefix(_MAPPED), i) for local, i in rows if _serves_ipv4(local)]
    if ":" not in address or _is_wildcard(_hex(address)):
        rows += _listening("tcp", port)
    if _is_wildcard(_hex(address)):
        return {inode for _, inode in rows}
    exact = {inode for local, inode in rows if local == _hex(address)}
    return exact or {inode for local, inode in rows if _is_wildcard(local)}


def _is_wildcard(local: str) -> bool:
    return not local.strip("0")


def _serves_ipv4(local: str) -> bool:
    return _is_wildcard(local) or local.startswith(_MAPPED)


def _listening(table: str, port: int) -> list[tuple[str, str]]:
    try:
        rows = (PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return []
    fields = [row.split() for row in rows]
    local = [(row[1].rpartition(":"), row[9]) for row in fields if row[3] == LISTEN]
    return [(host, inode) for (host, _, number), inode in local if int(number, 16) == port]


def _hex(address: str) -> str:
    """An address as /proc/net/tcp writes it: 32-bit words in the byte order of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


_MAPPED = _hex("::ffff:0:0")[:24]
"""How the address of an IPv4-mapped socket begins in /proc/net/tcp6."""


def owners_of(inodes: set[str], candidates: list[int] | None = None) -> list[Process]:
    """The processes that have one of these sockets open, as far as we may look."""
    if not inodes:
        return []
    links = {f"socket:[{inode}]" for inode in inodes}
    return [
        process(pid) for pid in (pids() if candidates is None else candidates) if _has(pid, links)
    ]


def _has(pid: int, links: set[str]) -> bool:
    try:
        return any(_target(entry) in links for entry in (PROC / str(pid) / "fd").iterdir())
    except OSError:
        return False


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def pids_in(cgroup: str) -> list[int]:
    """The processes in a control group or below it."""
    below = cgroup.rstrip("/") + "/"
    return [pid for pid in pids() if (cgroup_of(pid) + "/").startswith(below)]


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    try:
        fields = (PROC / str(pid) / "statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def usable_by(user: str, path: str, mode: int) -> bool | None:
    """Whether a user may read (os.R_OK), write (os.W_OK) or run (os.X_OK) a path, says the kernel.

    To read or write a folder means what is in it, so that needs its search permission too; only a
    file can be run. None when there is no such user. A forked child becomes the user and asks the
    kernel, so groups, ACLs and every folder on the way count.
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.initgroups(user, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            status = 0 if _accessible(path, mode) else 1
        finally:
            os._exit(status)  # whatever happened, the child must never run the parent's code
    return os.waitpid(child, 0)[1] == 0


def _accessible(path: str, mode: int) -> bool:
    if Path(path).is_dir():
        return mode != os.X_OK and os.access(path, mode | os.X_OK)
    return os.access(path, mode)
