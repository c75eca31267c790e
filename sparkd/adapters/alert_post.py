# SPDX-License-Identifier: Apache-2.0
"""The post office: takes alerts into the queue and hands them out, one at a time on the whole host.

Used by the daemon's thread, by the program that tells of the daemon's end, and by sparkctl while
there is no daemon. Who delivers holds a lock, so that two of them never send the same alert.
"""

import contextlib
import fcntl
import os
import random
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import alert_delivery
from sparkd.adapters.alert_delivery import Outcome
from sparkd.adapters.alert_queue import AlertQueue, Job, QueueError, Row
from sparkd.core import alert_limits, alerts
from sparkd.core.alerts import Alert, Kind, Policy
from sparkd.core.config_model import AlertConfig

COMMAND = "command"
NOBODY = "nobody is told: set alerts.webhook or alerts.command in sparkd.toml, see sparkd.toml(5)"
REFUSED_AFTER = 3
"""A receiver that says so often that it will not take an alert is believed."""


class Places(NamedTuple):
    """Where the queue and the lock are."""

    disk: str = "/var/lib/sparkd/alerts.db"
    memory: str = "/run/sparkd/alerts.db"
    """Used while the disk refuses: full or read-only."""
    lock: str = "/run/sparkd/alerts.lock"


class Figures(NamedTuple):
    """What /metrics shows of the queue."""

    totals: dict[tuple[str, str], int]
    """By kind and result."""
    queued: int


class Tried(NamedTuple):
    """What one destination did with an alert."""

    destination: str
    outcome: Outcome

    def to_json(self) -> dict[str, object]:
        """One element of `sparkctl alert test --json`."""
        name, outcome = self
        return {"destination": name, "taken": outcome.taken, "detail": outcome.detail}


def policy(config: AlertConfig) -> Policy:
    """`[alerts]` as the core wants it."""
    kinds = frozenset(Kind(kind) for kind in config.kinds)
    return Policy(kinds, config.dedup_seconds, config.rate_limit)


class PostOffice:
    """One configuration's destinations and the queue."""

    def __init__(self, config: AlertConfig, places: Places | None = None) -> None:
        """Open the queue; a disk that refuses is no error, see `trouble`."""
        self.config = config
        self._places = places or Places()
        self._queues: dict[str, AlertQueue] = {}
        self.trouble = ""
        """Why alerts are kept in memory instead of on disk; '' when they are not."""
        self._host = socket.gethostname()
        self._unwritten: set[tuple[str, int]] = set()
        """What was taken while the queue could not be written: it must not be sent again."""
        if Path(self._places.memory).exists():
            self._queue(self._places.memory)
        # Now and not with the first alert: from here on nothing is too old to be told.
        self._queue(self._places.disk)

    @property
    def destinations(self) -> list[str]:
        """The names under which alerts wait."""
        names = [hook.name for hook in self.config.webhooks]
        return [*names, COMMAND] if self.config.command else names

    def close(self) -> None:
        """Give the files back."""
        for queue in self._queues.values():
            queue.close()

    def _queue(self, path: str) -> AlertQueue | None:
        if path not in self._queues:
            try:
                self._queues[path] = AlertQueue(path, time.time())
            except QueueError as error:
                self.trouble = str(error)
                return None
        return self._queues[path]

    def enter(self, arriving: Sequence[Alert]) -> int:
        """Queue what is new, and the summary that may be due.

        Returns:
            How many are to be sent.

        Raises:
            QueueError: neither the disk nor memory takes them.
        """
        now = time.time()
        spare = self._queues.get(self._places.memory)
        # What was taken in while the disk refused must not go out again now that it does not.
        new = [one for one in arriving if spare is None or not spare.knows(one.id)]
        wanted = policy(self.config)
        disk = self._queue(self._places.disk)
        if disk is not None:
            try:
                count = disk.enter(new, self.destinations, wanted, now)
            except QueueError as error:
                self.trouble = str(error)
            else:
                self.trouble = ""
                return count
        memory = self._queue(self._places.memory)
        if memory is None:
            raise QueueError(self.trouble)
        if disk is not None:
            with contextlib.suppress(QueueError):
                new = [one for one in new if not disk.knows(one.id)]
        return memory.enter(new, self.destinations, wanted, now)

    def deliver_one(self) -> Tried | None:
        """Try the next alert that is due.

        Returns:
            What became of it; None: nothing is due now, or somebody else is delivering.

        Raises:
            QueueError: what became of it cannot be written down.
        """
        with self._alone() as alone:
            if not alone:
                return None
            now = time.time()
            for queue in list(self._queues.values()):
                job = queue.due(self.destinations, now)
                if job is not None:
                    return self._deliver(queue, job)
        return None

    def next_due(self) -> float | None:
        """When there is something to deliver, seconds since the epoch; None: nothing waits."""
        now = time.time()
        times = []
        for queue in self._queues.values():
            with contextlib.suppress(QueueError):
                at = queue.next_due(self.destinations, now)
                times += [] if at is None else [at]
        return min(times, default=None)

    def test(self) -> list[Tried]:
        """Send one test alert to each destination now, past the queue and every limit."""
        alert = alerts.of_test(time.time(), uuid.uuid4().hex)
        return [Tried(name, self._try(name, alert)) for name in self.destinations]

    def rows(self, limit: int) -> list[Row]:
        """The newest alerts and what became of them."""
        found: list[Row] = []
        for queue in self._queues.values():
            found += queue.rows(limit)
        return sorted(found, key=lambda row: row.queued, reverse=True)[:limit]

    def figures(self) -> Figures:
        """Counters over both queues."""
        totals: dict[tuple[str, str], int] = {}
        queued = 0
        for queue in self._queues.values():
            for key, count in queue.totals().items():
                totals[key] = totals.get(key, 0) + count
            queued += queue.pending()
        return Figures(totals, queued)

    def _deliver(self, queue: AlertQueue, job: Job) -> Tried:
        this = (queue.path, job.number)
        if this in self._unwritten:
            outcome = Outcome(taken=True, detail="taken earlier, and only now written down")
        else:
            outcome = self._try(job.destination, job.alert)
        if outcome.taken:
            self._unwritten.add(this)
            queue.taken(job)
            self._unwritten.discard(this)
        elif outcome.refused and job.attempts + 1 >= REFUSED_AFTER:
            queue.refused(job, outcome.detail)
        else:
            # random: no secret depends on it.
            jitter = random.random()  # noqa: S311
            delay = alert_limits.retry_delay(job.failures + 1, jitter, outcome.retry_after)
            queue.failed(job, outcome.detail, time.time() + delay)
        return Tried(job.destination, outcome)

    def _try(self, destination: str, alert: Alert) -> Outcome:
        now = time.time()
        if destination == COMMAND:
            return alert_delivery.run(self.config.command, alert, self._host, now)
        hook = next(hook for hook in self.config.webhooks if hook.name == destination)
        return alert_delivery.post(hook, alert, self._host, now, self.config.proxy)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether nobody else delivers; the kernel drops the lock of whoever dies."""
        Path(self._places.lock).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._places.lock, flags, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(fd)
