# SPDX-License-Identifier: Apache-2.0
"""Alerts on their way, on disk: each event makes one, and it stays until somebody took it.

A file of its own beside the database of incidents, because the program that tells of the daemon's
own end writes here too. The daemon enters an event's alert before it moves the journal's position;
killed in between it reads the event again, and the alert's `id` makes the second one the first.
"""

import contextlib
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from sparkd.core import alert_limits, alerts
from sparkd.core.alert_limits import Admission, Past
from sparkd.core.alerts import Alert, Policy, Result

PATH = "/var/lib/sparkd/alerts.db"
FALLBACK = "/run/sparkd/alerts.db"
"""Used when the disk of the first refuses (full, read-only); memory, and gone after a reboot."""
BUSY_S = 10.0
KEPT = 5000
"""Alerts remembered after they were delivered, so that none is told twice."""
_LOOK_BACK = 2000

_SCHEMA = """
CREATE TABLE IF NOT EXISTS alerts (
    id TEXT PRIMARY KEY,
    key TEXT NOT NULL,
    time REAL NOT NULL,
    queued REAL NOT NULL,
    counts INTEGER NOT NULL,
    fate TEXT NOT NULL,
    payload TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS alerts_by_time ON alerts (queued);
CREATE TABLE IF NOT EXISTS deliveries (
    number INTEGER PRIMARY KEY,
    alert TEXT NOT NULL REFERENCES alerts (id),
    destination TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    UNIQUE (alert, destination)
);
CREATE INDEX IF NOT EXISTS deliveries_pending ON deliveries (destination, state, number);
CREATE TABLE IF NOT EXISTS destinations (
    name TEXT PRIMARY KEY,
    failures INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS totals (
    kind TEXT NOT NULL,
    result TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (kind, result)
);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class QueueError(Exception):
    """The queue cannot be used; the message names the file and why."""


class Job(NamedTuple):
    """One alert that one destination has not taken yet."""

    number: int
    alert: Alert
    destination: str
    attempts: int
    """Of this alert."""
    failures: int
    """Of this destination in a row, whatever the alert."""


class Row(NamedTuple):
    """One line of the queue's listing."""

    alert: Alert
    queued: float
    destination: str
    state: str
    """'pending', 'sent', 'refused', 'dropped', or 'suppressed' when it never was to be sent."""
    attempts: int
    error: str
    next_at: float


class AlertQueue:
    """One queue; any thread of any process may use it, and each call is one transaction."""

    def __init__(self, path: str, now: float) -> None:
        """Open, and make the file when it is not there; `now` is seconds since the epoch.

        Raises:
            QueueError: it cannot be opened or written.
        """
        self.path = path
        self._lock = threading.Lock()
        self._db = _open(path, now)
        with self._transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO meta VALUES ('since', ?)", (str(now - alert_limits.NEWS_S),)
            )

    def close(self) -> None:
        """Give the file back."""
        with self._lock:
            self._db.close()

    # in

    def knows(self, identity: str) -> bool:
        """Whether this alert was ever entered here."""
        with self._transaction() as db:
            found = db.execute("SELECT 1 FROM alerts WHERE id = ?", (identity,)).fetchone()
        return found is not None

    def enter(
        self, arriving: Iterable[Alert], destinations: Sequence[str], policy: Policy, now: float
    ) -> int:
        """Take in what is new: to be sent, or to be counted for a summary.

        Returns:
            How many were new and are to be sent.

        Raises:
            QueueError: nothing was taken in (the disk is full, for one).
        """
        with self._transaction() as db:
            since = float(db.execute("SELECT value FROM meta WHERE key = 'since'").fetchone()[0])
            count = 0
            for alert in arriving:
                if alert.time <= since and alert.kind is not alerts.Kind.TEST:
                    continue
                count += self._enter_one(db, alert, destinations, policy, now)
            count += self._summarise(db, destinations, policy, now)
            _bound(db, destinations, now)
        return count

    def _enter_one(
        self,
        db: sqlite3.Connection,
        alert: Alert,
        destinations: Sequence[str],
        policy: Policy,
        now: float,
    ) -> bool:
        if db.execute("SELECT 1 FROM alerts WHERE id = ?", (alert.id,)).fetchone():
            return False
        admission = alert_limits.admit(alert, _past(db), policy, now)
        if admission is Admission.UNWANTED:
            return False
        send = admission is Admission.SEND
        counts = send and not alert.is_urgent and alert.kind is not alerts.Kind.SUMMARY
        payload = json.dumps(alert._asdict())
        db.execute(
            "INSERT INTO alerts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                *(alert.id, alert.key, alert.time, now, counts),
                "queued" if send else "suppressed",
                payload,
            ),
        )
        if not send:
            _count(db, alert.kind, Result.SUPPRESSED)
            return False
        for destination in destinations:
            db.execute(
                "INSERT INTO deliveries (alert, destination, state) VALUES (?, ?, 'pending')",
                (alert.id, destination),
            )
        return True

    def _summarise(
        self, db: sqlite3.Connection, destinations: Sequence[str], policy: Policy, now: float
    ) -> bool:
        rows = db.execute(
            "SELECT payload, queued FROM alerts WHERE fate = 'suppressed' ORDER BY queued, id"
        ).fetchall()
        waiting = [(alert, float(at)) for text, at in rows if (alert := _alert(text)) is not None]
        made = alert_limits.summary(waiting, policy, now)
        if made is None:
            return False
        db.execute("UPDATE alerts SET fate = 'summarised' WHERE fate = 'suppressed'")
        return self._enter_one(db, made, destinations, policy, now)

    # out

    def due(self, destinations: Sequence[str], now: float) -> Job | None:
        """The oldest alert of a destination that may be tried now; None when there is none."""
        with self._transaction() as db:
            for name in destinations:
                failures, next_at = _destination(db, name)
                if not alert_limits.is_due(next_at, now):
                    continue
                job = _oldest(db, name, failures)
                if job is not None:
                    return job
        return None

    def next_due(self, destinations: Sequence[str], now: float) -> float | None:
        """When something is to be done next, seconds since the epoch; None: nothing waits."""
        with self._transaction() as db:
            times = []
            for name in destinations:
                waits = db.execute(
                    "SELECT 1 FROM deliveries WHERE destination = ? AND state = 'pending' LIMIT 1",
                    (name,),
                ).fetchone()
                if waits:
                    next_at = _destination(db, name)[1]
                    times.append(now if alert_limits.is_due(next_at, now) else next_at)
        return min(times, default=None)

    def taken(self, job: Job) -> None:
        """The destination has acknowledged it."""
        with self._transaction() as db:
            _settle(db, job, Result.SENT, "")
            db.execute("INSERT OR REPLACE INTO destinations (name) VALUES (?)", (job.destination,))

    def refused(self, job: Job, error: str) -> None:
        """The destination will never take this one; the others are not held up by it."""
        with self._transaction() as db:
            _settle(db, job, Result.REFUSED, error)

    def failed(self, job: Job, error: str, next_at: float) -> None:
        """It was not taken; nothing goes to this destination before `next_at`."""
        with self._transaction() as db:
            db.execute(
                "UPDATE deliveries SET attempts = attempts + 1, error = ? WHERE number = ?",
                (error, job.number),
            )
            db.execute(
                "INSERT OR REPLACE INTO destinations VALUES (?, ?, ?, ?)",
                (job.destination, job.failures + 1, next_at, error),
            )

    # looking

    def rows(self, limit: int) -> list[Row]:
        """Newest first, a row for each destination of each alert."""
        with self._transaction() as db:
            found = db.execute(
                "SELECT a.payload, a.queued, a.fate, d.destination, d.state, d.attempts, d.error,"
                " coalesce(w.next_at, 0) FROM alerts AS a"
                " LEFT JOIN deliveries AS d ON d.alert = a.id"
                " LEFT JOIN destinations AS w ON w.name = d.destination"
                " ORDER BY a.queued DESC, a.rowid DESC, d.number LIMIT ?",
                (limit,),
            ).fetchall()
        rows = []
        for payload, queued, fate, destination, state, attempts, error, next_at in found:
            alert = _alert(payload)
            if alert is not None:
                shown = state or ("suppressed" if fate != "queued" else "dropped")
                waits = float(next_at) if state == "pending" else 0.0
                rows.append(
                    Row(alert, queued, destination or "", shown, attempts or 0, error or "", waits)
                )
        return rows

    def totals(self) -> dict[tuple[str, str], int]:
        """Alerts by kind and result since the queue was made; deliveries count one each."""
        with self._transaction() as db:
            found = db.execute("SELECT kind, result, count FROM totals").fetchall()
        return {(kind, result): count for kind, result, count in found}

    def pending(self) -> int:
        """How many deliveries wait."""
        with self._transaction() as db:
            row = db.execute("SELECT count(*) FROM deliveries WHERE state = 'pending'").fetchone()
        return int(row[0])

    def _transaction(self) -> "_Transaction":
        return _Transaction(self._db, self._lock, self.path)


class _Transaction:
    """Begin, and commit or roll back; SQLite's errors become QueueError."""

    def __init__(self, db: sqlite3.Connection, lock: threading.Lock, path: str) -> None:
        self._db, self._lock, self._path = db, lock, path

    def __enter__(self) -> sqlite3.Connection:
        self._lock.acquire()
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._lock.release()
            raise QueueError(f"{self._path}: {error}") from error
        return self._db

    def __exit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        try:
            if kind is None:
                self._db.execute("COMMIT")
        except sqlite3.Error as failure:
            self._undo()
            raise QueueError(f"{self._path}: {failure}") from failure
        else:
            if kind is not None:
                self._undo()
            if isinstance(error, sqlite3.Error):
                raise QueueError(f"{self._path}: {error}") from error
        finally:
            self._lock.release()

    def _undo(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")


def _open(path: str, now: float) -> sqlite3.Connection:
    try:
        Path(path).parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640))
        return _connect(path)
    except OSError as error:
        raise QueueError(f"{path}: cannot be opened: {error.strerror}") from error
    except sqlite3.OperationalError as error:
        raise QueueError(f"{path}: cannot be used: {error}") from error
    except sqlite3.DatabaseError:
        # No database any more. What happened lately is read from the journal again.
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{path}{suffix}").rename(f"{path}.unreadable-{int(now)}{suffix}")
        return _open(path, now)


def _connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        # Unlike an incident, an alert that is forgotten again cannot be read from the journal.
        db.execute("PRAGMA synchronous = FULL")
        db.executescript(_SCHEMA)
    except BaseException:
        db.close()
        raise
    return db


def _alert(text: str) -> Alert | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return alerts.from_json(value) if isinstance(value, dict) else None


def _past(db: sqlite3.Connection) -> list[Past]:
    rows = db.execute(
        "SELECT key, time, queued, counts FROM alerts WHERE fate = 'queued'"
        " ORDER BY queued DESC LIMIT ?",
        (_LOOK_BACK,),
    )
    return [Past(key, time, queued, bool(counts)) for key, time, queued, counts in rows]


def _destination(db: sqlite3.Connection, name: str) -> tuple[int, float]:
    row = db.execute(
        "SELECT failures, next_at FROM destinations WHERE name = ?", (name,)
    ).fetchone()
    return (0, 0.0) if row is None else (int(row[0]), float(row[1]))


def _oldest(db: sqlite3.Connection, destination: str, failures: int) -> Job | None:
    rows = db.execute(
        "SELECT d.number, a.payload, d.attempts FROM deliveries AS d JOIN alerts AS a"
        " ON a.id = d.alert WHERE d.destination = ? AND d.state = 'pending' ORDER BY d.number",
        (destination,),
    )
    for number, payload, attempts in rows:
        alert = _alert(payload)
        if alert is not None:
            return Job(number, alert, destination, attempts, failures)
    return None


def _settle(db: sqlite3.Connection, job: Job, result: Result, error: str) -> None:
    done = db.execute(
        "UPDATE deliveries SET state = ?, attempts = attempts + 1, error = ?"
        " WHERE number = ? AND state = 'pending'",
        (result, error, job.number),
    )
    if done.rowcount:
        _count(db, job.alert.kind, result)


def _count(db: sqlite3.Connection, kind: str, result: Result, count: int = 1) -> None:
    db.execute(
        "INSERT INTO totals VALUES (?1, ?2, ?3) ON CONFLICT (kind, result)"
        " DO UPDATE SET count = count + ?3",
        (kind, result, count),
    )


def _bound(db: sqlite3.Connection, destinations: Sequence[str], now: float) -> None:
    """Give up what is too old, too much, or for nobody any more; forget what is long delivered."""
    names = ", ".join("?" * len(destinations))
    _drop(db, f"destination NOT IN ({names})", destinations, "this destination is gone")
    old = "alert IN (SELECT id FROM alerts WHERE queued < ?)"
    _drop(db, old, (now - alert_limits.KEEP_S,), "not taken for 7 days")
    for name in destinations:
        surplus = (
            "destination = ? AND number <= coalesce((SELECT number FROM deliveries WHERE"
            " destination = ? AND state = 'pending' ORDER BY number DESC LIMIT 1 OFFSET ?), 0)"
        )
        _drop(db, surplus, (name, name, alert_limits.PENDING_MAX), "too many were waiting")
    _forget(db)


def _drop(db: sqlite3.Connection, which: str, values: Sequence[object], why: str) -> None:
    where = f"state = 'pending' AND {which}"
    found = db.execute(
        "SELECT a.payload FROM deliveries AS d JOIN alerts AS a ON a.id = d.alert"  # noqa: S608
        f" WHERE d.number IN (SELECT number FROM deliveries WHERE {where})",
        tuple(values),
    ).fetchall()
    if not found:
        return
    for (payload,) in found:
        alert = _alert(payload)
        _count(db, "summary" if alert is None else alert.kind, Result.DROPPED)
    db.execute(
        f"UPDATE deliveries SET state = 'dropped', error = ? WHERE {where}",  # noqa: S608
        (why, *values),
    )


def _forget(db: sqlite3.Connection) -> None:
    """Keep the newest; what happened before a forgotten one is no news any more."""
    surplus = int(db.execute("SELECT count(*) FROM alerts").fetchone()[0]) - KEPT
    if surplus <= 0:
        return
    rows = db.execute(
        "SELECT id, time FROM alerts WHERE fate != 'suppressed' AND id NOT IN"
        " (SELECT alert FROM deliveries WHERE state = 'pending') ORDER BY queued LIMIT ?",
        (surplus,),
    ).fetchall()
    for identity, _ in rows:
        db.execute("DELETE FROM deliveries WHERE alert = ?", (identity,))
        db.execute("DELETE FROM alerts WHERE id = ?", (identity,))
    newest = max((float(time) for _, time in rows), default=0.0)
    db.execute(
        # As Python writes it: SQLite writes two digits less, and would let the newest back in.
        "UPDATE meta SET value = ?1 WHERE key = 'since' AND CAST(value AS REAL) < ?2",
        (repr(newest), newest),
    )


def to_json(row: Row) -> dict[str, object]:
    """One element of `sparkctl alerts --json`."""
    alert = row.alert
    return {
        "id": alert.id,
        "kind": str(alert.kind),
        "engine": alert.engine or None,
        "time": alert.time,
        "queued": row.queued,
        "title": alert.title,
        "destination": row.destination or None,
        "state": row.state,
        "attempts": row.attempts,
        "error": row.error or None,
        "next_attempt": row.next_at or None,
    }
