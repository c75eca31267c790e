# SPDX-License-Identifier: Apache-2.0
"""What a log tells of the hours before an end: the load, and the lines around the fatal one.

Pure accumulation over lines as they come; memory is bounded whatever the log.
"""

import re
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sparkd.core.lines import Source, frame, neutralise
from sparkd.core.progress import STATS_FILE

LOAD_MARK = b"Avg prompt throughput: "
"""Only a line with this in it is worth framing for its load."""
POINTS_MAX = 24
BEFORE = 12
AFTER = 12
TEXT_MAX = 500
NEEDLE = 120
_JSON_WITHIN = 80
"""A record that was logged as JSON starts at once, or behind the name of its process."""
_STATS = re.compile(
    r"(?:Engine \d{1,4}: )?Avg prompt throughput: (?P<prompt>\d{1,9}(?:\.\d+)?) tokens/s,"
    r" Avg generation throughput: (?P<generation>\d{1,9}(?:\.\d+)?) tokens/s,"
    r" Running: (?P<running>\d{1,7}) reqs, Waiting: (?P<waiting>\d{1,7}) reqs"
)


class Load(NamedTuple):
    """What vLLM's periodic line says, or the summary of several of them."""

    time: float
    """Seconds since the epoch; of a summary the first line's."""
    running: int
    """Requests that are worked on; of a summary the most."""
    waiting: int
    prompt_tps: float
    """Prompt tokens per second; of a summary the mean."""
    generation_tps: float


class Shown(NamedTuple):
    """One line of the excerpt."""

    time: float
    text: str
    is_evidence: bool


def load_of(raw: bytes, source: Source, time: float) -> Load | None:
    """The load in one log message; None when it is not vLLM's own line (a prompt may quote one)."""
    if LOAD_MARK not in raw or source is not Source.ENGINE:
        return None
    for line in frame(raw, source):
        is_own = line.level == "INFO" and line.file == STATS_FILE
        found = _STATS.match(line.message) if is_own else None
        if found is not None:
            return Load(
                time,
                int(found["running"]),
                int(found["waiting"]),
                float(found["prompt"]),
                float(found["generation"]),
            )
    return None


def downsample(points: Sequence[Load], most: int = POINTS_MAX) -> list[Load]:
    """At most so many points, over equal spans: peaks of the requests, means of the rates."""
    if len(points) <= most:
        return list(points)
    first, last = points[0].time, max(point.time for point in points)
    width = max((last - first) / most, 1e-6)
    buckets: dict[int, list[Load]] = {}
    for point in points:
        number = min(max(int((point.time - first) / width), 0), most - 1)
        buckets.setdefault(number, []).append(point)
    return [_merged(group) for _, group in sorted(buckets.items())]


def _merged(group: Sequence[Load]) -> Load:
    return Load(
        group[0].time,
        max(point.running for point in group),
        max(point.waiting for point in group),
        round(sum(point.prompt_tps for point in group) / len(group), 1),
        round(sum(point.generation_tps for point in group) / len(group), 1),
    )


class Excerpt:
    """The line that tells of the end, and some lines around it."""

    def __init__(self, evidence: str | None) -> None:
        """Without evidence the last lines are all there is to show."""
        self._needle = (evidence or "").removesuffix("…").strip()[:NEEDLE]
        self._before: deque[Shown] = deque(maxlen=BEFORE)
        self._found: list[Shown] = []
        self._after = 0

    def feed(self, message: bytes, time: float) -> None:
        """One more message of the log; one that is a JSON record is shown as the lines it holds."""
        if b'{"' in message[:_JSON_WITHIN]:
            for line in frame(message, Source.ENGINE):
                self._feed(neutralise(line.raw, TEXT_MAX), time)
            return
        text = message[: TEXT_MAX * 4].decode("utf-8", "backslashreplace")
        self._feed(neutralise(text, TEXT_MAX), time)

    def _feed(self, text: str, time: float) -> None:
        if self._found:
            if self._after < AFTER:
                self._after += 1
                self._found.append(Shown(time, text, is_evidence=False))
            return
        if self._needle and self._needle in text:
            self._found = [*self._before, Shown(time, text, is_evidence=True)]
            return
        self._before.append(Shown(time, text, is_evidence=False))

    def lines(self) -> list[Shown]:
        """What was found; the last lines when the evidence was not."""
        return self._found or list(self._before)
