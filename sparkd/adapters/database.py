# SPDX-License-Identifier: Apache-2.0
"""The daemon's memory: ends of life, boots and applies, projected from the journal into SQLite.

The journal's cursor is written in the same transaction as the rows it stands behind, and each row
has a natural key, so an entry is counted exactly once whenever the daemon is killed. The daemon is
the only writer; sparkctl reads the same file without it.
"""

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from sparkd.core import darkness, end_of_life
from sparkd.core.darkness import Darkness, Stopped
from sparkd.core.end_of_life import Record
from sparkd.core.metrics import Totals
from sparkd.core.projection import Applied, Entry, Gap, Stall, record_from_json
from sparkd.core.status import Boot, boot_from_json

PATH = "/var/lib/sparkd/sparkd.db"
VERSION = 2
ROWS_MAX = 10_000
"""Incidents and boots kept; the counters for /metrics are kept apart and never shrink."""
BUSY_S = 5.0

_SCHEMA = """
CREATE TABLE incidents (
    id INTEGER PRIMARY KEY,
    invocation_id TEXT NOT NULL,
    engine TEXT NOT NULL,
    time REAL NOT NULL,
    requested INTEGER NOT NULL,
    record TEXT NOT NULL,
    dark_seconds REAL,
    UNIQUE (invocation_id, engine)
);
CREATE INDEX incidents_by_engine ON incidents (engine, id);
CREATE TABLE boots (
    id INTEGER PRIMARY KEY,
    invocation_id TEXT NOT NULL UNIQUE,
    engine TEXT NOT NULL,
    time REAL NOT NULL,
    record TEXT NOT NULL
);
CREATE TABLE applies (
    id INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    author TEXT NOT NULL,
    summary TEXT NOT NULL,
    UNIQUE (time, author)
);
CREATE TABLE totals (
    engine TEXT NOT NULL,
    class TEXT NOT NULL,
    deaths INTEGER NOT NULL DEFAULT 0,
    restarts INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (engine, class)
);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_DARK = "CREATE TABLE dark (engine TEXT PRIMARY KEY, total REAL NOT NULL, since REAL);"
"""Since version 2; its rows follow from those of incidents and boots."""


class DatabaseError(Exception):
    """The database cannot be used; the message names the file and says what to do."""


class Incident(NamedTuple):
    """One end of life and how long the engine was then not ready; None while it still is not."""

    record: Record
    dark_seconds: float | None


class Detail(NamedTuple):
    """One end of life and what the database knows around it."""

    number: int
    """The row's number; it changes when the database is made anew."""
    incident: Incident
    boot: Mapping[str, object] | None
    """What the readiness gate saw of the life that ended; None when it never became ready."""
    next_boot: Boot | None
    """The next start of this engine that became ready."""
    earlier: int
    """How often it had died of the same class before."""
    last_earlier: float | None


class Reader:
    """Read access, for the daemon's own queries and for sparkctl while there is no daemon."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        self._connection.close()

    def cursor(self) -> str | None:
        """The journal's position up to which everything has been taken in.

        Raises:
            DatabaseError: it cannot be read.
        """
        try:
            row = self._connection.execute("SELECT value FROM meta WHERE key = 'cursor'").fetchone()
        except sqlite3.Error as error:
            raise DatabaseError(f"cannot read the database: {error}") from error
        return None if row is None else str(row[0])

    def incidents(self, limit: int, engine: str = "") -> list[Incident]:
        """The newest ends of life first, of one engine or of all."""
        rows = self._connection.execute(
            "SELECT record, dark_seconds FROM incidents WHERE ?1 = '' OR engine = ?1"
            " ORDER BY time DESC, id DESC LIMIT ?2",
            (engine, limit),
        )
        found = ((_record(text), dark) for text, dark in rows)
        return [Incident(record, dark) for record, dark in found if record is not None]

    def last_deaths(self) -> dict[str, Record]:
        """The last end of life of each engine."""
        rows = self._connection.execute(
            "SELECT record FROM incidents AS i WHERE id = (SELECT id FROM incidents"
            " WHERE engine = i.engine ORDER BY time DESC, id DESC LIMIT 1)"
        )
        records = (_record(row[0]) for row in rows)
        return {record.engine: record for record in records if record is not None}

    def last_boots(self) -> dict[str, Boot]:
        """The last start of each engine that became ready."""
        rows = self._connection.execute(
            "SELECT record FROM boots AS b WHERE id = (SELECT id FROM boots"
            " WHERE engine = b.engine ORDER BY time DESC, id DESC LIMIT 1)"
        )
        boots = (boot_from_json(json.loads(row[0])) for row in rows)
        return {boot.engine: boot for boot in boots if boot is not None}

    def boot_records(self) -> dict[str, dict[str, object]]:
        """All that the readiness gate wrote down of the last start of each engine."""
        rows = self._connection.execute(
            "SELECT engine, record FROM boots AS b WHERE id = (SELECT id FROM boots"
            " WHERE engine = b.engine ORDER BY time DESC, id DESC LIMIT 1)"
        )
        values = ((engine, json.loads(text)) for engine, text in rows)
        return {engine: value for engine, value in values if isinstance(value, dict)}

    def first_starts(self, boot_id: str) -> list[tuple[str, float, float]]:
        """Each engine's first start in a boot of the machine that became ready, in their order.

        Engine, seconds after the boot at which it was launched, seconds from there to ready. Starts
        that an older sparkd recorded do not say in which boot they were.
        """
        rows = self._connection.execute(
            "SELECT engine, min(json_extract(record, '$.launched_boottime')) AS launched,"
            " json_extract(record, '$.seconds') FROM boots"
            " WHERE json_extract(record, '$.boot_id') = ?"
            " AND json_type(record, '$.launched_boottime') IN ('real', 'integer')"
            " GROUP BY engine ORDER BY launched",
            (boot_id,),
        )
        return [(str(row[0]), float(row[1]), float(row[2])) for row in rows]

    def find(self, identity: str) -> list[Detail]:
        """The ends of life with this row number, or whose invocation begins so; at most ten."""
        rows = self._connection.execute(
            "SELECT id, record, dark_seconds FROM incidents WHERE"
            " CASE WHEN ?2 THEN id = CAST(?1 AS INTEGER)"
            " ELSE substr(invocation_id, 1, length(?1)) = ?1 END"
            " ORDER BY time DESC, id DESC LIMIT 10",
            (identity, identity.isdigit() and len(identity) < 8),
        ).fetchall()
        found = ((number, _record(text), dark) for number, text, dark in rows)
        return [
            self._detail(number, Incident(record, dark))
            for number, record, dark in found
            if record is not None
        ]

    def _detail(self, number: int, incident: Incident) -> Detail:
        record = incident.record
        earlier, last = self._connection.execute(
            "SELECT count(*), max(time) FROM incidents WHERE engine = ?1 AND requested = 0 AND"
            " time < ?2 AND id != ?3 AND json_extract(record, '$.class') = ?4",
            (record.engine, record.time, number, record.cls),
        ).fetchone()
        boot = self._connection.execute(
            "SELECT record FROM boots WHERE invocation_id = ?", (record.invocation_id,)
        ).fetchone()
        later = self._connection.execute(
            "SELECT record FROM boots WHERE engine = ? AND time >= ? AND invocation_id != ?"
            " ORDER BY time LIMIT 1",
            (record.engine, record.time, record.invocation_id),
        ).fetchone()
        return Detail(
            number,
            incident,
            None if boot is None else json.loads(boot[0]),
            None if later is None else boot_from_json(json.loads(later[0])),
            int(earlier),
            last,
        )

    def darkness(self) -> dict[str, Darkness]:
        """How long each engine was down although nobody asked for it."""
        rows = self._connection.execute("SELECT engine, total, since FROM dark")
        return {engine: Darkness(total, since) for engine, total, since in rows}

    def starts(self, engine: str, *, before: str, limit: int = 50) -> list[tuple[float, str]]:
        """Seconds and 'cold', 'warm' or '' of earlier starts that became ready, newest first.

        `before` is the invocation that does not count: it is the one to be compared.
        """
        rows = self._connection.execute(
            "SELECT record FROM boots WHERE engine = ? AND invocation_id != ?"
            " ORDER BY time DESC LIMIT ?",
            (engine, before, limit),
        )
        values = (json.loads(row[0]) for row in rows)
        return [(float(v["seconds"]), str(v.get("compile") or "")) for v in values]

    def totals(self) -> list[Totals]:
        """Deaths and automatic restarts per engine and class."""
        rows = self._connection.execute(
            "SELECT engine, class, deaths, restarts FROM totals ORDER BY engine, class"
        )
        return [Totals(*row) for row in rows]


class Database(Reader):
    """Read and write access; one per host, owned by the daemon."""

    def __init__(self, connection: sqlite3.Connection, trouble: str = "") -> None:
        super().__init__(connection)
        self.trouble = trouble
        """Why everything is in memory only and gone with the process; '' when it is on disk."""

    def leave_memory(self, path: str) -> None:
        """Go on in the file. What came in meanwhile is left behind: read the journal again.

        Raises:
            DatabaseError: it still cannot be used; nothing has changed.
        """
        try:
            fresh = _open(path)
        except DatabaseError as error:
            self.trouble = str(error)
            raise
        self._connection.close()
        self._connection, self.trouble = fresh, ""

    def take_in(self, entries: Sequence[Entry], cursor: str) -> int:
        """Enter what is new of these and move the journal's position, or do neither.

        Returns:
            How many rows were new.

        Raises:
            DatabaseError: nothing was changed (disk full, for one); the caller tries again later.
        """
        try:
            with self._connection as connection:
                connection.execute("BEGIN IMMEDIATE")
                new = sum(_enter(connection, entry) for entry in entries)
                connection.execute(
                    "INSERT INTO meta VALUES ('cursor', ?1)"
                    " ON CONFLICT (key) DO UPDATE SET value = ?1",
                    (cursor,),
                )
                if new:
                    _prune(connection)
        except sqlite3.Error as error:
            raise DatabaseError(f"cannot write the database: {error}") from error
        return new


def _enter(connection: sqlite3.Connection, entry: Entry) -> bool:
    match entry.row:
        case Record() as record:
            return _enter_record(connection, record, entry.text)
        case Boot() as boot:
            return _enter_boot(connection, boot, entry.text)
        case Applied() as applied:
            done = connection.execute(
                "INSERT OR IGNORE INTO applies (time, author, summary) VALUES (?, ?, ?)", applied
            )
            return done.rowcount == 1
        case Stopped() as stopped:
            _enter_darkness(connection, stopped)
            return True
        case Gap() | Stall():
            return False


def _enter_record(connection: sqlite3.Connection, record: Record, text: str) -> bool:
    done = connection.execute(
        "INSERT OR IGNORE INTO incidents (invocation_id, engine, time, requested, record)"
        " VALUES (?, ?, ?, ?, ?)",
        (record.invocation_id, record.engine, record.time, record.requested, text),
    )
    if done.rowcount != 1:
        return False
    if not record.requested:
        restarts = int(record.action == "restart")
        connection.execute(
            "INSERT INTO totals VALUES (?1, ?2, 1, ?3) ON CONFLICT (engine, class)"
            " DO UPDATE SET deaths = deaths + 1, restarts = restarts + ?3",
            (record.engine, record.cls, restarts),
        )
    _enter_darkness(connection, record)
    return True


def _enter_boot(connection: sqlite3.Connection, boot: Boot, text: str) -> bool:
    done = connection.execute(
        "INSERT OR IGNORE INTO boots (invocation_id, engine, time, record) VALUES (?, ?, ?, ?)",
        (boot.invocation_id, boot.engine, boot.time, text),
    )
    if done.rowcount != 1:
        return False
    _enter_darkness(connection, boot)
    return True


def _enter_darkness(connection: sqlite3.Connection, event: Record | Boot | Stopped) -> None:
    row = connection.execute(
        "SELECT total, since FROM dark WHERE engine = ?", (event.engine,)
    ).fetchone()
    before = Darkness() if row is None else Darkness(*row)
    now = darkness.after(before, event)
    if now == before:
        return
    connection.execute("INSERT OR REPLACE INTO dark VALUES (?, ?, ?)", (event.engine, *now))
    if now.since is None:
        # Every end of life that nobody asked for since then was dark until now.
        connection.execute(
            "UPDATE incidents SET dark_seconds = ?2 - time"
            " WHERE engine = ?1 AND dark_seconds IS NULL AND requested = 0 AND time <= ?2",
            (event.engine, event.time),
        )


def _prune(connection: sqlite3.Connection) -> None:
    for table in ("incidents", "boots", "applies"):
        connection.execute(
            f"DELETE FROM {table} WHERE id <= (SELECT max(id) FROM {table}) - ?",  # noqa: S608
            (ROWS_MAX,),
        )


def _record(text: str) -> Record | None:
    value = json.loads(text)
    return record_from_json(value) if isinstance(value, dict) else None


def open_database(path: str = PATH) -> Database:
    """Open for reading and writing, and make the file when it is not there.

    A file that is no database any more is put aside: everything in it came from the journal, and
    what the journal still holds comes back from there.

    Raises:
        DatabaseError: the folder cannot be written, or a newer sparkd made the file.
    """
    return Database(_open(path))


def _open(path: str) -> sqlite3.Connection:
    file = Path(path)
    try:
        file.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640))
    except OSError as error:
        raise DatabaseError(f"{path}: cannot be opened: {error.strerror}") from error
    try:
        return _connect(path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError):
            raise DatabaseError(f"{path}: cannot be used: {error}") from error
        _put_aside(file)
        return _open(path)


def open_in_memory(trouble: str) -> Database:
    """One that is gone with the process, for a host whose disk refuses the real one, and why."""
    return Database(_connect(":memory:"), trouble)


def _connect(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # A lost power supply may cost the last entries: the journal still has them.
        connection.execute("PRAGMA synchronous = NORMAL")
        _migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: str) -> None:
    version = _version(connection)
    if version > VERSION:
        raise DatabaseError(
            f"{path}: made by a newer sparkd (schema {version}, this one knows {VERSION}):"
            " install that version again, or move the file away"
        )
    if version == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # One statement at a time: executescript() would commit first.
        schema = [*(_SCHEMA.split(";") if version == 0 else ()), _DARK]
        for statement in schema:
            connection.execute(statement)
        _replay_darkness(connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _replay_darkness(connection: sqlite3.Connection) -> None:
    """What a database of version 1 had not added up."""
    rows = connection.execute(
        "SELECT time, 0, record FROM incidents UNION ALL SELECT time, 1, record FROM boots"
        " ORDER BY 1, 2"
    ).fetchall()
    for _, is_boot, text in rows:
        event = boot_from_json(json.loads(text)) if is_boot else _record(text)
        if event is not None:
            _enter_darkness(connection, event)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _put_aside(file: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        part = Path(f"{file}{suffix}")
        with contextlib.suppress(FileNotFoundError):
            part.rename(f"{file}.unreadable-{int(time.time())}{suffix}")


@contextlib.contextmanager
def reader(path: str = PATH) -> Iterator[Reader | None]:
    """Read access while the daemon may be writing; None when there is no database yet.

    Raises:
        DatabaseError: the file is there and cannot be read.
    """
    if not Path(path).exists():
        yield None
        return
    # Without a -wal file nobody writes, and a reader without rights on the folder cannot make one.
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "mode=ro&immutable=1"
    try:
        connection = sqlite3.connect(f"file:{path}?{mode}", uri=True, timeout=BUSY_S)
    except sqlite3.Error as error:
        raise DatabaseError(f"{path}: cannot be read: {error}") from error
    with Reader(connection) as access:
        try:
            version = _version(connection)
            if version > VERSION:
                raise DatabaseError(f"{path}: made by a newer sparkd (schema {version})")
            yield access if version else None
        except sqlite3.Error as error:
            raise DatabaseError(f"{path}: cannot be read: {error}") from error


def to_text(record: Record) -> str:
    """The JSON text of a record, as the journal and the database hold it."""
    return json.dumps(end_of_life.to_json(record))
