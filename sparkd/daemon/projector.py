# SPDX-License-Identifier: Apache-2.0
"""The journal, taken into the database: every event once, however often the daemon is killed.

Entries count for what the daemon shows as soon as they are read. They count as kept when the
worker has written them together with the journal's position; until then nothing more is read, so a
full disk costs no memory and no event.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sparkd.adapters import journal
from sparkd.adapters.database import Database, DatabaseError
from sparkd.adapters.journal import EventReader
from sparkd.core import events
from sparkd.core.darkness import Darkness
from sparkd.core.metrics import Totals
from sparkd.core.projection import Entry, project
from sparkd.daemon import log
from sparkd.daemon.loop import Loop
from sparkd.daemon.worker import BusyError, Done, Worker

BATCH = 200
RETRY_S = 30.0

T = TypeVar("T")
_Counters = tuple[Sequence[Totals], Mapping[str, Darkness]]


class Projector:
    """Reads on when asked to; never waits."""

    def __init__(
        self,
        database: Database,
        path: str,
        worker: Worker,
        loop: Loop,
        on_entries: Callable[[Sequence[Entry]], None],
        before_write: Callable[[Sequence[Entry]], None],
    ) -> None:
        """Begin at the saved position, or with the oldest event that the journal has.

        `path` is where the database should be, should it be in memory. `on_entries` is called in
        the loop; `before_write` in the worker, and again with the same entries when they could not
        be written.

        Raises:
            OSError: the journal cannot be read.
        """
        self._database = database
        self._path = path
        self._worker = worker
        self._loop = loop
        self._on_entries = on_entries
        self._before_write = before_write
        self._writing = False
        self._retry_at = 0.0
        self._trouble = ""
        self._leave_memory_at = time.monotonic() + RETRY_S
        self.totals: Sequence[Totals] = database.totals()
        self.dark: Mapping[str, Darkness] = database.darkness()
        self._reader = self._open(database.cursor())
        self._unwatch = loop.watch(self._reader.fileno(), self.pump)

    @property
    def trouble(self) -> str:
        """Why incidents are not kept on disk just now, in a sentence; '' when they are."""
        if self._database.trouble:
            return f"incidents are kept in memory only: {self._database.trouble}"
        return self._trouble

    def pump(self) -> None:
        """Take in what has come, a batch at a time."""
        now = time.monotonic()
        if self._writing or now < self._retry_at:
            self._reader.read(0)  # or its descriptor stays readable and the loop spins
            return
        if self._database.trouble and now >= self._leave_memory_at:
            self._leave_memory_at = now + RETRY_S
            self._hand_over(self._leave_memory, self._left_memory)
            return
        try:
            if self._retry_at:
                self._reopen()
            read = self._reader.read(BATCH)
        except (OSError, DatabaseError) as error:
            # 'Bad message' while a file is being vacuumed, for one: begin again where we were.
            self._fail(f"the journal is not read: {error}")
            return
        if not read:
            self._trouble = ""
            return
        entries = [entry for _, fields in read if (entry := project(fields)) is not None]
        self._on_entries(entries)
        cursor = read[-1][0]
        self._hand_over(lambda: self._write(entries, cursor), self._written)

    def _hand_over(self, work: Callable[[], T], then: Callable[[Done[T]], None]) -> None:
        try:
            self._worker.submit(work, then)
        except BusyError as error:
            self._fail(f"incidents are not written: {error}")
            return
        self._writing = True

    def _fail(self, trouble: str) -> None:
        """Go back to what was written, later; said once for each kind of trouble."""
        if trouble != self._trouble:
            log.error(f"{trouble}; tried again every {RETRY_S:.0f} s")
        self._trouble = trouble
        self._retry_at = time.monotonic() + RETRY_S

    def _write(self, entries: Sequence[Entry], cursor: str) -> _Counters | None:
        self._before_write(entries)
        new = self._database.take_in(entries, cursor)
        return (self._database.totals(), self._database.darkness()) if new else None

    def _written(self, done: Done[_Counters | None]) -> None:
        self._writing = False
        if done.error is not None:
            self._fail(f"incidents are not written: {done.error}")
            return
        if self._trouble:
            self._trouble = ""
            log.info("incidents are written again")
        if done.value is not None:
            self.totals, self.dark = done.value
        self.pump()

    def _leave_memory(self) -> _Counters:
        self._database.leave_memory(self._path)
        return self._database.totals(), self._database.darkness()

    def _left_memory(self, done: Done[_Counters]) -> None:
        self._writing = False
        if done.value is not None:
            log.info("incidents are kept on disk again")
            self.totals, self.dark = done.value
            self._retry_at = time.monotonic()  # now, from the position that the file has
        self.pump()

    def _reopen(self) -> None:
        """Go back to the last position that was written."""
        fresh = self._open(self._database.cursor())
        self._unwatch()
        self._reader.close()
        self._reader = fresh
        self._unwatch = self._loop.watch(fresh.fileno(), self.pump)
        self._retry_at = 0.0

    def _open(self, cursor: str | None) -> EventReader:
        reader = EventReader(cursor)
        if reader.gap:
            text = (
                "the journal no longer has the entry up to which sparkd had read:"
                " events in between may be missing from the incidents"
            )
            log.warning(text)
            fields = {events.REASON: text}
            journal.send(
                events.Event.JOURNAL_GAP, text, priority=journal.Priority.WARNING, **fields
            )
        return reader
