# SPDX-License-Identifier: Apache-2.0
"""A thread for what may take long (disk, daemon-reload), whose results come back into the loop."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

QUEUE_MAX = 256


class BusyError(Exception):
    """Too much is waiting already."""


class Done(NamedTuple, Generic[T]):
    """What became of a piece of work: its value, or the exception that ended it."""

    value: T | None
    error: Exception | None


class Results:
    """Finished work on its way into the loop, from any number of workers."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._finished: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def put(self, deliver: Callable[[], None]) -> None:
        """Have this called in the loop."""
        self._finished.put(deliver)
        self._wake()

    def deliver(self) -> None:
        """Call everything that has come in; call it in the loop."""
        while True:
            try:
                deliver = self._finished.get_nowait()
            except queue.Empty:
                return
            deliver()


class Worker:
    """One thread; its work is done in order, one piece at a time."""

    def __init__(self, name: str, results: Results) -> None:
        self._results = results
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T], then: Callable[[Done[T]], None]) -> None:
        """Do `work` in the thread, then call `then` with what became of it in the loop.

        Raises:
            BusyError: the queue is full.
        """

        def run() -> None:
            done: Done[T]
            try:
                done = Done(work(), None)
            except Exception as error:  # noqa: BLE001  (it is handed on, not swallowed)
                done = Done(None, error)
            self._results.put(lambda: then(done))

        try:
            self._work.put_nowait(run)
        except queue.Full:
            raise BusyError(f"{QUEUE_MAX} pieces of work are waiting") from None

    def close(self, patience_s: float) -> None:
        """Finish what is queued and end; whatever takes longer is left to its fate."""
        try:
            self._work.put(None, timeout=patience_s)
        except queue.Full:
            return
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
