# SPDX-License-Identifier: Apache-2.0
"""What the journal still has of a life that ended, and of what sparkd did then."""

import time
from itertools import islice
from typing import NamedTuple

from sparkd.adapters.journal import InvocationLog, engine_events
from sparkd.core import timeline
from sparkd.core.lines import Source, neutralise
from sparkd.core.timeline import Excerpt, Load, Shown

READ_S = 20.0
LINES_MAX = 500_000
LOAD_HOURS = 6.0
EVENTS_MAX = 60
BEFORE_END_S = 30.0
AFTER_END_S = 3600.0


class LifeLog(NamedTuple):
    """The journal's part of an incident."""

    load: list[Load]
    lines: list[Shown]
    complete: bool
    """Whether the log was read from its first line to its last."""


class Deed(NamedTuple):
    """One of sparkd's own entries about the engine."""

    time: float
    text: str


def read(invocation_id: str, ended: float, evidence: str | None) -> LifeLog:
    """Read one life's log, newest lines at most, within a bound of time.

    Raises:
        OSError: the journal cannot be read.
    """
    log = InvocationLog(invocation_id)
    log.skip_to_last(LINES_MAX)
    end = time.monotonic() + READ_S
    excerpt = Excerpt(evidence)
    loads: list[Load] = []
    count = 0
    for count, entry in enumerate(log.read(until=end), start=1):  # noqa: B007  (it is used below)
        if entry.source is Source.ENGINE:
            excerpt.feed(entry.message, entry.realtime)
            point = timeline.load_of(entry.message, entry.source, entry.realtime)
            if point is not None and point.time >= ended - LOAD_HOURS * 3600:
                loads.append(point)
    complete = count < LINES_MAX and time.monotonic() < end
    return LifeLog(timeline.downsample(loads), excerpt.lines(), complete)


def deeds(engine: str, ended: float, until: float | None) -> list[Deed]:
    """What sparkd's helpers and daemon said about the engine from its end until it was ready again.

    Raises:
        OSError: the journal cannot be read.
    """
    last = (ended + AFTER_END_S) if until is None else until + 1.0
    found = engine_events(engine, ended - BEFORE_END_S, last)
    return [Deed(at, neutralise(text, timeline.TEXT_MAX)) for at, text in islice(found, EVENTS_MAX)]
