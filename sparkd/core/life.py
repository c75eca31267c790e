# SPDX-License-Identifier: Apache-2.0
"""What one life of an engine showed: the matches that a verdict needs, and no more.

Memory is bounded whatever is fed: of each kind of match the first, the last, or a fixed number is
kept.
"""

from collections import deque
from typing import ClassVar, NamedTuple

from sparkd.core.lines import Line
from sparkd.core.signatures import Match, Role

KEPT = 32
"""Matches kept of each kind that is kept at all."""


class Seen(NamedTuple):
    """A match with its place in the stream (`sequence`) and in the caller's count (`position`)."""

    match: Match
    sequence: int
    position: int

    @property
    def cls(self) -> str:
        """The class that the match's signature belongs to."""
        return self.match.signature.cls


def _sequence(seen: Seen) -> int:
    return seen.sequence


class Life:
    """One life, from the first line of a main process to its last."""

    def __init__(self) -> None:
        self.frames: list[Seen] = []
        self.causes_before: deque[Seen] = deque(maxlen=KEPT)
        self.causes_after: list[Seen] = []
        self.stops: list[Seen] = []
        self.unhealthy: list[Seen] = []
        self.first: dict[Role, Seen] = {}
        self.detail: Seen | None = None
        self.stall: Seen | None = None
        self.stalled_before = False
        self.idle: Seen | None = None
        self.probes: dict[str, int] = {}
        self.waiting: Seen | None = None
        self.down: Seen | None = None
        self.harmless: dict[str, Seen] = {}
        self.moved_at = 0
        self.pids: dict[str, int] = {}
        self.exit: dict[str, str] = {}

    @property
    def ready(self) -> Seen | None:
        """The line that told of readiness."""
        return self.first.get(Role.READY)

    @property
    def starting(self) -> bool:
        """Whether a start was seen and readiness was not."""
        return (Role.BOOT in self.first or Role.LIFE in self.first) and self.ready is None

    @property
    def ended(self) -> bool:
        """Whether anything tells of an end, of whatever kind."""
        return bool(self.frames or self.stops or self.exit or self.down) or (
            Role.LATE_STOP in self.first
        )

    @property
    def server_stops(self) -> list[Seen]:
        """Lines by which the server, or systemd, tells that it was told to stop."""
        late = (self.first.get(Role.LATE_STOP), self.first.get(Role.INTERRUPT))
        return sorted([*self.stops, *(one for one in late if one)], key=_sequence)

    @property
    def stop_marks(self) -> list[Seen]:
        """Every line that tells of a stop, also of a single process."""
        soft = self.first.get(Role.SOFT_STOP)
        return sorted([*self.server_stops, *([soft] if soft else [])], key=_sequence)

    @property
    def causes(self) -> list[Seen]:
        """Every cause that is kept, in order."""
        return [*self.causes_before, *self.causes_after]

    def note_process(self, line: Line) -> None:
        """Learn which pid a process name belongs to."""
        if line.level and line.process and len(self.pids) < KEPT:
            self.pids.setdefault(line.process, line.pid)

    def take(self, seen: Seen) -> None:
        """Keep what `seen` adds."""
        role = seen.match.signature.role
        self.first.setdefault(role, seen)
        take = self._TAKE.get(role)
        if take:
            take(self, seen)
        if role in _HARMLESS:
            self.harmless.setdefault(seen.cls, seen)

    def _frame(self, seen: Seen) -> None:
        if len(self.frames) < KEPT:
            self.frames.append(seen)

    def _cause(self, seen: Seen) -> None:
        if not self.frames:
            self.causes_before.append(seen)
        elif len(self.causes_after) < KEPT:
            self.causes_after.append(seen)

    def _detail(self, seen: Seen) -> None:
        # Before the end any exception may be the last one; behind it the first is the root cause.
        frame = self.frames[0].sequence if self.frames else None
        if self.detail is None or frame is None or self.detail.sequence < frame:
            self.detail = seen

    def _stop(self, seen: Seen) -> None:
        if len(self.stops) < KEPT:
            self.stops.append(seen)

    def _exit(self, seen: Seen) -> None:
        self.exit.update(seen.match.groups)

    def _ready(self, seen: Seen) -> None:
        del seen
        self.causes_before.clear()  # what the start survived explains no later death
        self.detail = None
        self.stall = None

    def _boot(self, seen: Seen) -> None:
        self.moved_at = seen.sequence

    def _moving(self, seen: Seen) -> None:
        self.stall = self.idle = None
        self.moved_at = seen.sequence

    def _idle(self, seen: Seen) -> None:
        self.stall = None
        self.idle, self.probes = seen, {}

    def _probe(self, seen: Seen) -> None:
        name = seen.match.groups["probe"]
        self.probes[name] = self.probes.get(name, 0) + 1

    def _stall(self, seen: Seen) -> None:
        if not self.starting:  # compiling and loading look the same
            self.stall, self.stalled_before = seen, True

    def _unhealthy(self, seen: Seen) -> None:
        if len(self.unhealthy) < KEPT:
            self.unhealthy.append(seen)

    def _waiting(self, seen: Seen) -> None:
        self.waiting = seen

    def _down(self, seen: Seen) -> None:
        self.down, self.waiting = seen, None

    _TAKE: ClassVar = {
        Role.FRAME: _frame,
        Role.WEAK: _frame,
        Role.CAUSE: _cause,
        Role.KERNEL: _cause,
        Role.DETAIL: _detail,
        Role.STOP: _stop,
        Role.EXIT: _exit,
        Role.READY: _ready,
        Role.BOOT: _boot,
        Role.MOVING: _moving,
        Role.IDLE: _idle,
        Role.PROBE: _probe,
        Role.STALL: _stall,
        Role.UNHEALTHY: _unhealthy,
        Role.WAITING: _waiting,
        Role.DOWN: _down,
    }


_HARMLESS = frozenset(
    {
        Role.LIFE,
        Role.BOOT,
        Role.MOVING,
        Role.IDLE,
        Role.PROBE,
        Role.ECHO,
        Role.REQUEST,
        Role.NOISE,
        Role.CAUSE,
    }
)
