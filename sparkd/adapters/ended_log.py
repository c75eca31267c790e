# SPDX-License-Identifier: Apache-2.0
"""What an ended invocation logged, within a bound of lines and time, and both of its ends.

What tells of a death stands at the beginning of a flood, at its end, or anywhere between. So the
first lines are read, then the newest in their order, and when the time is up before that is done,
at least the last ones.
"""

import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from sparkd.adapters.journal import Entry


class Bounds(NamedTuple):
    """How much is read; a restart waits for it."""

    first: int = 5_000
    """The oldest lines: how it started, and how far it came."""
    newest: int = 300_000
    """The newest lines, oldest first."""
    last: int = 20_000
    """Of them those that are read even when `cpu_s` or `wall_s` is over."""
    cpu_s: float = 10.0
    """CPU time for all but the last lines, twice what they take. A limit of 5 s of wall time missed
    the fatal line in the middle of 200,000 on a busy machine (load 22 on 2 cores, measured)."""
    wall_s: float = 16.0
    """And wall time: systemd kills what outlasts TimeoutStopSec=."""
    last_s: float = 4.0
    """Wall time for the last lines."""


class Log(Protocol):
    """`journal.InvocationLog`, as far as it is needed here."""

    def read(self, *, until: float = ...) -> Iterator[Entry]:
        """The lines that follow, until a time.monotonic() value."""

    def skip_to_last(self, lines: int) -> bool:
        """Pass over all but so many lines, and never back; False when nothing is passed over."""


class EndedLog:
    """Reads a log once."""

    def __init__(self, log: Log, bounds: Bounds | None = None) -> None:
        self._log = log
        self._bounds = bounds or Bounds()
        self._is_cut = False
        self.passed_over = False
        """Whether lines were not read, known when all others have been."""

    def __iter__(self) -> Iterator[Entry]:
        """The entries, in their order, each once."""
        bounds = self._bounds
        cpu_end = time.process_time() + bounds.cpu_s
        wall_end = time.monotonic() + bounds.wall_s
        yield from self._read(bounds.first, cpu_end, wall_end)
        if self._is_cut:
            self.passed_over = self._log.skip_to_last(bounds.newest)
            yield from self._read(bounds.newest, cpu_end, wall_end)
        if self._is_cut:
            self.passed_over |= self._log.skip_to_last(bounds.last)
            last_end = time.monotonic() + bounds.last_s
            yield from self._read(bounds.last, float("inf"), last_end)
            self.passed_over |= self._is_cut

    def _read(self, lines: int, cpu_end: float, wall_end: float) -> Iterator[Entry]:
        """At most so many lines; `_is_cut` is whether a bound and not the log's end stopped it."""
        self._is_cut = True
        for count, entry in enumerate(self._log.read(until=wall_end), start=1):
            yield entry
            if count >= lines or time.process_time() >= cpu_end:
                return
        self._is_cut = time.monotonic() >= wall_end
