# SPDX-License-Identifier: Apache-2.0
"""What the daemon knows, and the snapshot of it that everybody is shown.

It decides nothing about engines: systemd restarts them and the helpers bound that. It looks, tells,
and remembers.
"""

from collections.abc import Callable, Mapping, Sequence

from sparkd.adapters import notify
from sparkd.adapters.observe import History, Observer
from sparkd.core import darkness
from sparkd.core import status as core_status
from sparkd.core.darkness import Darkness
from sparkd.core.end_of_life import Record
from sparkd.core.hang import Shown
from sparkd.core.metrics import Alerts, Snapshot, Totals
from sparkd.core.projection import Entry
from sparkd.core.status import Boot, Status
from sparkd.daemon import log


class Supervisor:
    """Looks when told to, and publishes what it saw."""

    def __init__(self, observer: Observer, history: History) -> None:
        self._observer = observer
        self._deaths = dict(history.deaths)
        self._boots = dict(history.boots)
        self._said: dict[str, str] = {}
        self._line = ""
        self._dark: Mapping[str, float] = {}
        self._snapshot: Snapshot | None = None
        self._publish: Callable[[Snapshot], None] = lambda _snapshot: None
        self._watched: Callable[[], Mapping[str, Shown]] = dict

    @property
    def status(self) -> Status:
        """The last published status."""
        if self._snapshot is None:
            raise RuntimeError("nothing was looked at yet")
        return self._snapshot.status

    @property
    def observer(self) -> Observer:
        """The eyes."""
        return self._observer

    def show_progress(self, watched: Callable[[], Mapping[str, Shown]]) -> None:
        """Ask this for the progress of each engine, from now on."""
        self._watched = watched

    def publish_to(self, publish: Callable[[Snapshot], None]) -> None:
        """Also hand every snapshot to this, from now on."""
        self._publish = publish
        if self._snapshot is not None:
            publish(self._snapshot)

    def take_in(self, entries: Sequence[Entry]) -> None:
        """Learn from journal entries; an older one than what is known changes nothing."""
        for entry in entries:
            match entry.row:
                case Record() as record:
                    known = self._deaths.get(record.engine)
                    if known is None or record.time >= known.time:
                        self._deaths[record.engine] = record
                case Boot() as boot:
                    last = self._boots.get(boot.engine)
                    if last is None or boot.time >= last.time:
                        self._boots[boot.engine] = boot
                case _:
                    pass

    def last_death(self, engine: str) -> Record | None:
        """The last end of life of an engine."""
        return self._deaths.get(engine)

    def refresh(
        self,
        totals: Sequence[Totals],
        dark: Mapping[str, Darkness],
        alerts: Alerts,
        *,
        projection_failed: bool = False,
        notes: Sequence[str] = (),
    ) -> None:
        """Look again at what may have changed, and publish; `notes` are shown in the status."""
        self._observer.look()
        facts = self._observer.facts(History(self._deaths, self._boots))
        watched = self._watched()
        engines = [e._replace(progress=watched.get(e.name)) for e in facts.engines]
        facts = facts._replace(engines=engines, notes=notes)
        status = core_status.build(facts)
        self._say(status)
        self._dark = darkness.shown(dark, facts.now.wall, self._dark)
        self._snapshot = Snapshot(status, totals, projection_failed, self._dark, alerts)
        self._publish(self._snapshot)

    def _say(self, status: Status) -> None:
        """One line in the log for each engine that changed its state, and systemd's STATUS=."""
        for engine in status.engines:
            before = self._said.get(engine.name)
            if before != engine.state:
                text = f"{engine.name}: {engine.judgement}"
                log.info(text if before is None else f"{text} (was {before})")
        self._said = {engine.name: engine.state for engine in status.engines}
        line = core_status.status_line(status)
        if line != self._line:
            self._line = line
            notify.send(f"STATUS={line}")
