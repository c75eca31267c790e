# SPDX-License-Identifier: Apache-2.0
"""The log of a serving engine, followed for two things: a death, and whether tokens flow.

Bounded whatever is logged: a look takes a fixed time, and when it cannot keep up, lines that could
not tell of a death are passed over and counted.
"""

import time
from typing import NamedTuple

from sparkd.adapters.catalogue import load_catalogue
from sparkd.adapters.journal import InvocationLog
from sparkd.core import progress
from sparkd.core.classify import Classifier
from sparkd.core.exit_state import EXTERNAL_STOP
from sparkd.core.lines import Source, frame
from sparkd.core.signatures import Catalogue, Label
from sparkd.core.unit_state import unit_of

BACKLOG = 50_000
"""Lines of an engine that served before anybody looked, read back at most."""
LOOK_S = 0.25
"""How long a look may take."""
LATE_S = 30.0
"""So far behind, and only lines of these levels are looked at."""
LEVELS = tuple(
    quote + level + quote for quote in (b" ", b'"') for level in (b"ERROR", b"CRITICAL", b"WARNING")
)
"""As text, and as JSON."""
STOP_WAITS = "stop-waits-for-connections"
STATS = b"Avg generation throughput"


class News(NamedTuple):
    """What the log says after a look."""

    fatal: str = ""
    """What the engine died of, in words; '' while no line says that it did."""
    cls: str = ""
    evidence: str = ""
    holds: bool = False
    """Whether that would happen again at the next start."""
    moved: bool = False
    """Whether a statistics line since the last look says that tokens flowed."""
    requests: int = 0
    """Running and waiting, by the last statistics line."""
    dropped: int = 0
    """Lines passed over, over the whole invocation."""
    is_complete: bool = True
    """Whether everything was read that is there."""


class Shelf:
    """The signature catalogue, read when the first engine serves."""

    def __init__(self) -> None:
        self._catalogue: Catalogue | None = None

    def catalogue(self) -> Catalogue:
        """The one catalogue.

        Raises:
            CatalogueError: the installed files are missing or damaged.
        """
        if self._catalogue is None:
            self._catalogue = load_catalogue()
        return self._catalogue


class EngineLog:
    """One invocation's log. Belongs to the thread that looks."""

    def __init__(self, engine: str, invocation_id: str, pid: int, catalogue: Catalogue) -> None:
        self._log = InvocationLog(invocation_id)
        self._log.skip_to_last(BACKLOG)
        pids = frozenset({pid} - {0})
        self._classifier = Classifier(catalogue, pids=pids, unit=unit_of(engine), has_served=True)
        self._requests = 0
        self._dropped = 0
        self._late = False

    def look(self) -> News:
        """Read on, for a short time."""
        moved = False
        newest = 0.0
        until = time.monotonic() + LOOK_S
        for entry in self._log.read(until=until):
            newest = entry.realtime
            message = entry.message
            if self._late and not any(level in message for level in LEVELS):
                self._dropped += 1
                continue
            for line in frame(message, entry.source):
                self._classifier.feed(line)
                is_stats = line.source is Source.ENGINE and line.file == progress.STATS_FILE
                if is_stats and STATS in message:
                    stats = progress.stats(line.message)
                    if stats is not None:
                        moved = moved or stats.is_moving
                        self._requests = stats.requests
        is_complete = time.monotonic() < until
        self._late = not is_complete and time.time() - newest > LATE_S
        return self._news(moved=moved, is_complete=is_complete)

    def _news(self, *, moved: bool, is_complete: bool) -> News:
        verdict = self._classifier.verdict()
        news = News(
            moved=moved,
            requests=self._requests,
            dropped=self._dropped,
            is_complete=is_complete,
        )
        if verdict.label == Label.CLEAN_STOP or verdict.cls == STOP_WAITS:
            # Only looked at while systemd stops nothing: then somebody else told it to, and it
            # ends within seconds or hangs in its shutdown.
            fatal = "its server was told to stop, and not by systemd"
            return news._replace(fatal=fatal, cls=EXTERNAL_STOP, evidence=verdict.evidence)
        if not verdict.label.startswith("fatal"):
            return news
        return news._replace(
            fatal=verdict.summary,
            cls=verdict.cls,
            evidence=verdict.evidence,
            holds=verdict.answer.holds,
        )
