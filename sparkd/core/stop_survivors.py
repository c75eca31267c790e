# SPDX-License-Identifier: Apache-2.0
"""Which processes did not end in time when their unit was stopped, by systemd's own account.

When TimeoutStopSec= is over, PID 1 logs `State 'stop-sigterm' timed out. Killing.` and one line for
each process that it kills then, with the unit's fields and without a MESSAGE_ID: `Killing process
812 (VLLM::Worker) with signal SIGKILL.` (systemd 252 and 257). The name is the kernel's, of at most
15 bytes, and the process may have chosen it.
"""

import re
from typing import NamedTuple

from sparkd.core.lines import Line, Source

NAMED_MAX = 6
"""Processes that are named; of the others the number is told."""
KEPT_MAX = 256
_TIMED_OUT = re.compile(r"(?:\A|: )State '(?:stop|final)-[a-z]{1,20}' timed out\.")
_KILLED = re.compile(
    r"(?:\A|: )Killing process (\d{1,10}) \((.{1,60})\) with signal SIG(?:KILL|ABRT)\.\Z"
)


class Survivor(NamedTuple):
    """A process that lived when the time to stop was up."""

    pid: int
    name: str


class StopSurvivors:
    """Takes an invocation's lines in their order."""

    def __init__(self, main_pid: int = 0) -> None:
        self._main_pid = main_pid
        self._is_over = False
        self._found: dict[int, Survivor] = {}

    def feed(self, line: Line) -> None:
        """Take one line; only systemd's count."""
        if line.source is not Source.SYSTEMD:
            return
        if _TIMED_OUT.search(line.message):
            self._is_over = True
        killed = _KILLED.search(line.message) if self._is_over else None
        if killed is not None and len(self._found) < KEPT_MAX:
            pid = int(killed[1])
            self._found.setdefault(pid, Survivor(pid, killed[2]))

    @property
    def found(self) -> list[Survivor]:
        """The children first: the main process often only waits for one of them."""
        return sorted(self._found.values(), key=lambda one: one.pid == self._main_pid)

    @property
    def reason(self) -> str:
        """Who they were, for the end of a sentence; '' when all ended in time."""
        found = self.found
        if not found:
            return ""
        names = [self._called(one) for one in found[:NAMED_MAX]]
        if len(found) > NAMED_MAX:
            names.append(f"{len(found) - NAMED_MAX} more")
        who = ", ".join(names)
        noun = "process" if len(found) == 1 else "processes"
        return f"{noun} {who} had not ended after SIGTERM when TimeoutStopSec= was over"

    def _called(self, one: Survivor) -> str:
        role = ", the main process" if one.pid == self._main_pid else ""
        return f"{one.name} (PID {one.pid}{role})"
