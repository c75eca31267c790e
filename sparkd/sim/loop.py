# SPDX-License-Identifier: Apache-2.0
"""A small event loop: sockets, timers and signals in one thread."""

import heapq
import itertools
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable

Callback = Callable[[], None]


class Loop:
    """Runs callbacks until `stop` is called.

    Make it after the process has forked its children: an epoll descriptor is shared by a fork.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self._status: int | None = None
        self._pending: list[Callback] = []
        self._wakeup: tuple[socket.socket, socket.socket] | None = None

    def watch(self, sock: socket.socket, callback: Callback, *, write: bool = False) -> None:
        """Call back whenever `sock` is readable (or, with `write`, also writable)."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if write else 0)
        try:
            self._selector.modify(sock, events, callback)
        except KeyError:
            self._selector.register(sock, events, callback)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching `sock`; no matter if it was not watched."""
        try:
            self._selector.unregister(sock)
        except (KeyError, ValueError):
            return

    def call_later(self, seconds: float, callback: Callback) -> None:
        """Call back once, `seconds` from now on the monotonic clock."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), callback))

    def on_signals(
        self, numbers: Iterable[signal.Signals], callback: Callable[[int], None]
    ) -> None:
        """Deliver these signals as calls from the loop, never in the middle of another call."""

        def note(number: int, _frame: object) -> None:
            self._pending.append(lambda: callback(number))

        if self._wakeup is None:
            reader, writer = self._wakeup = socket.socketpair()
            reader.setblocking(False)
            writer.setblocking(False)
            signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
            self.watch(reader, lambda: self._drain(reader))
        for number in numbers:
            signal.signal(number, note)

    @staticmethod
    def _drain(reader: socket.socket) -> None:
        try:
            reader.recv(4096)
        except BlockingIOError:
            return

    def stop(self, status: int) -> None:
        """End `run`, which returns `status`; the first call wins."""
        if self._status is None:
            self._status = status

    def run(self) -> int:
        """Run until `stop`; returns its status."""
        while self._status is None:
            ready = self._selector.select(self._timeout())
            # Signals first: a process told to stop must know it before it sees its child go.
            pending, self._pending = self._pending, []
            due = self._due()
            for callback in [*pending, *(key.data for key, _ in ready), *due]:
                callback()
                if self._status is not None:
                    break
        return self._status

    def _timeout(self) -> float | None:
        if self._pending:
            return 0
        if not self._timers:
            return None
        return max(0.0, self._timers[0][0] - time.monotonic())

    def _due(self) -> list[Callback]:
        now = time.monotonic()
        due = []
        while self._timers and self._timers[0][0] <= now:
            due.append(heapq.heappop(self._timers)[2])
        return due
