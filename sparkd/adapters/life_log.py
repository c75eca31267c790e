# SPDX-License-Identifier: Apache-2.0
"""What the journal still has of a life that ended, and of what sparkd did then."""

from itertools import islice
from typing import NamedTuple

from sparkd.adapters.ended_log import Bounds, EndedLog
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
    """Read one life's log within a bound of lines and time, and both of its ends at any rate.

    Raises:
        OSError: the journal cannot be read.
    """
    bounds = Bounds(newest=LINES_MAX, cpu_s=READ_S, wall_s=READ_S)
    log = EndedLog(InvocationLog(invocation_id), bounds)
    excerpt = Excerpt(evidence)
    loads: list[Load] = []
    for entry in log:
        if entry.source is Source.ENGINE:
            excerpt.feed(entry.message, entry.realtime)
            point = timeline.load_of(entry.message, entry.source, entry.realtime)
            if point is not None and point.time >= ended - LOAD_HOURS * 3600:
                loads.append(point)
    return LifeLog(timeline.downsample(loads), excerpt.lines(), not log.passed_over)


def deeds(engine: str, ended: float, until: float | None) -> list[Deed]:
    """What sparkd's helpers and daemon said about the engine from its end until it was ready again.

    Raises:
        OSError: the journal cannot be read.
    """
    last = (ended + AFTER_END_S) if until is None else until + 1.0
    found = engine_events(engine, ended - BEFORE_END_S, last)
    return [Deed(at, neutralise(text, timeline.TEXT_MAX)) for at, text in islice(found, EVENTS_MAX)]
