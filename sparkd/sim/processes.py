# SPDX-License-Identifier: Apache-2.0
"""Processes of one engine: their titles, their forks and the link between two of them."""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

Message = dict[str, Any]
_PACKET_MAX = 65_536


def set_title(title: str) -> None:
    """Show `title` as this process's name and command line.

    The kernel cuts the name (comm) at 15 bytes, so `VLLM::EngineCore` reads `VLLM::EngineCor`.
    The command line is overwritten in place; it may be shorter than the title, and a kernel may
    forbid it: the title is for people and for `ps`, so neither is an error.
    """
    try:
        Path("/proc/self/comm").write_text(title)
        stat = Path("/proc/self/stat").read_text()
        # Fields 48 and 49 of proc(5), counted after the name, which may hold any character.
        fields = stat.rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        raw = title.encode()[: max(0, end - start - 1)]
        descriptor = os.open("/proc/self/mem", os.O_WRONLY)
        try:
            os.pwrite(descriptor, raw.ljust(end - start, b"\0"), start)
        finally:
            os.close(descriptor)
    except OSError:
        return


class Link:
    """One end of a pair of sockets on which two processes exchange small messages."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock

    @classmethod
    def pair(cls) -> "tuple[Link, Link]":
        """Both ends."""
        one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(one), cls(two)

    def send(self, message: Message, descriptors: list[int] | None = None) -> None:
        """Send, or drop: a peer that is gone or frozen must not freeze this process."""
        data = json.dumps(message).encode()
        try:
            if descriptors:
                socket.send_fds(self.sock, [data], descriptors)
            else:
                self.sock.send(data)
        except OSError:
            return

    def receive(self) -> tuple[Message | None, list[int]]:
        """The next message and its descriptors; None once the peer is gone.

        Raises BlockingIOError when there is nothing yet.
        """
        try:
            data, descriptors, _flags, _address = socket.recv_fds(self.sock, _PACKET_MAX, 1)
        except ConnectionResetError:
            return None, []
        return (json.loads(data) if data else None), descriptors

    def close(self) -> None:
        """Close this end; the peer receives None."""
        self.sock.close()


def fork(body: Callable[[], int]) -> int:
    """Run `body` in a child process, which exits with its result; returns the child's PID."""
    pid = os.fork()
    if pid == 0:
        _run(body)
    return pid


def _run(body: Callable[[], int]) -> NoReturn:
    status = 70
    try:
        status = body()
    finally:
        if status == 70:
            sys.excepthook(*sys.exc_info())
        # Never sys.exit: it would unwind into the parent's stack, of which this is a copy.
        os._exit(status)


def reap(pid: int) -> int | None:
    """Wait for a child that is gone or going; exit code, or minus the signal, as Python counts.

    None if somebody else took it already.
    """
    try:
        _pid, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status)


def kill(pid: int, number: int) -> None:
    """Signal a process of ours; no matter if it is gone."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
