# SPDX-License-Identifier: Apache-2.0
"""Tells somebody: alerts into the queue before the journal's position moves, then out by a thread.

Nothing here is on the loop but decisions of microseconds. The queue is written by the thread that
writes the database; receivers are waited for by a thread of their own.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sparkd.adapters import alert_delivery
from sparkd.adapters.alert_post import Figures, Places, PostOffice, Tried
from sparkd.adapters.alert_post import policy as policy_of
from sparkd.adapters.alert_queue import QueueError, Row
from sparkd.adapters.database import Database
from sparkd.core import alert_events
from sparkd.core.alerts import Alert
from sparkd.core.config_model import AlertConfig
from sparkd.core.projection import Entry
from sparkd.core.status import Boot, Status
from sparkd.daemon import log
from sparkd.daemon.worker import BusyError, Done, Worker

SUMMARY_EVERY_S = 60.0
"""How often a summary of what was suppressed is looked for when nothing else happens."""
TROUBLE_S = 30.0
"""Pause after the queue itself could not be used."""
BUSY_S = 2.0
"""Pause while another program delivers."""

Starts = Mapping[str, Sequence[tuple[float, str]]]


class Alerter:
    """The daemon's part in alerting; everything is off while nobody is configured to be told."""

    def __init__(self, database: Database, worker: Worker, places: Places | None = None) -> None:
        """`worker` is the thread that waits for receivers."""
        self._database = database
        self._worker = worker
        self._places = places or Places()
        self._config: AlertConfig | None = None
        self._office: PostOffice | None = None
        self._delivering = False
        self._next = 0.0
        self._summary_at = 0.0
        self._trouble = ""
        self._entered = 0
        self._failing: dict[str, str] = {}
        self._starts: Starts = {}
        self._seen: set[str] = set()
        self.figures = Figures({}, 0)

    @property
    def trouble(self) -> str:
        """Why alerts are not kept on disk; '' when they are."""
        return self._trouble

    def configure(self, config: AlertConfig | None) -> None:
        """Use this from now on; what waits is delivered to the new destinations of the same name.

        None (there never was a good configuration) changes nothing.
        """
        if config is None or config == self._config:
            return
        self._config = config
        office = None
        if config.is_on:
            if config.webhooks:
                # Now: an upgrade of the package may change it under a running daemon.
                alert_delivery.load_http()
            office = PostOffice(config, self._places)
        # The old one is left to whoever is using it in a thread; it is closed when they drop it.
        self._office = office
        self._next = 0.0

    # in: called by the thread that owns the database

    def take_in(self, entries: Sequence[Entry]) -> None:
        """Queue the alerts of these events; call it before they are entered in the database.

        A queue that cannot be written is said and never keeps an incident from being recorded.
        """
        office = self._office
        if office is None or not entries:
            return
        try:
            starts = {
                row.engine: self._database.starts(row.engine, before=row.invocation_id)
                for row in (entry.row for entry in entries)
                if isinstance(row, Boot)
            }
            wanted = policy_of(office.config)
            found = alert_events.from_events(entries, self._database.darkness(), starts, wanted)
            self._enter(office, found)
        except Exception:  # noqa: BLE001  (logged with its trace; incidents come first)
            log.exception(f"no alerts of {len(entries)} events")

    def _learn(self) -> None:
        """How long earlier starts of every engine took."""
        engines = self._database.last_boots()
        self._starts = {name: self._database.starts(name, before="") for name in engines}

    def _enter(self, office: PostOffice, found: Sequence[Alert]) -> None:
        try:
            office.enter(found)
        except QueueError as error:
            self._trouble = str(error)
            log.error(f"{len(found)} alerts cannot be queued: {error}")
            return
        if office.trouble != self._trouble:
            self._trouble = office.trouble
            if self._trouble:
                log.error(f"alerts are kept in memory only: {self._trouble}")
        self._entered += 1
        self._next = 0.0

    # out: called by the loop

    def watch(self, status: Status, storage: Worker) -> None:
        """Look for starts that take too long, and for summaries that are due."""
        office = self._office
        if office is None:
            return
        slow = alert_events.from_status(status, self._starts)
        new = [alert for alert in slow if alert.id not in self._seen]
        now = time.monotonic()
        if not new and now < self._summary_at:
            return
        self._summary_at = now + SUMMARY_EVERY_S
        self._seen = {alert.id for alert in slow}

        def work() -> None:
            self._learn()
            self._enter(office, new)

        try:
            storage.submit(work, lambda _done: self.pump())
        except BusyError:
            self._seen -= {alert.id for alert in new}

    def pump(self) -> None:
        """Have the next alert delivered, when there is one and its time has come."""
        office = self._office
        if office is None or self._delivering or time.monotonic() < self._next:
            return
        entered = self._entered
        try:
            self._worker.submit(
                lambda: _deliver(office), lambda done: self._delivered(done, entered)
            )
        except BusyError:
            return
        self._delivering = True

    def _delivered(self, done: Done["Visit"], entered: int) -> None:
        self._delivering = False
        if done.value is None:
            log.error(f"alerts cannot be delivered: {done.error}")
            self._next = time.monotonic() + TROUBLE_S
            return
        visit = done.value
        self.figures = visit.figures
        if visit.tried is not None:
            self._say(visit.tried)
        # What was queued meanwhile has not been looked at.
        self._next = time.monotonic() + visit.pause if entered == self._entered else 0.0
        self.pump()

    def _say(self, tried: Tried) -> None:
        """A line when a destination begins to fail, changes how it fails, or works again."""
        name, outcome = tried
        before = self._failing.get(name, "")
        now = "" if outcome.taken else outcome.detail
        if now and now != before:
            log.warning(f"alerts wait for {name}: {now}")
        elif before and not now:
            log.info(f"{name} takes alerts again")
        self._failing[name] = now

    # for sparkctl

    def test(self, then: Callable[[Done[list[Tried]]], None]) -> bool:
        """Send a test alert everywhere; False when nobody is configured.

        Raises:
            BusyError: too much is waiting.
        """
        office = self._office
        if office is None:
            return False
        self._worker.submit(office.test, then)
        return True

    def rows(self, limit: int) -> list[Row]:
        """The newest alerts; in a thread."""
        office = self._office
        return [] if office is None else office.rows(limit)


class Visit(NamedTuple):
    """One visit to the queue."""

    tried: Tried | None
    pause: float
    """Seconds until the next one; not a time, which a step of the clock could put far off."""
    figures: Figures


def _deliver(office: PostOffice) -> Visit:
    tried = office.deliver_one()
    due = office.next_due()
    pause = SUMMARY_EVERY_S if due is None else max(0.0, due - time.time())
    if tried is None and not pause:
        pause = BUSY_S  # it is due and was not tried: another program is at it
    return Visit(tried, pause, office.figures())
