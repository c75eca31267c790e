# SPDX-License-Identifier: Apache-2.0
"""Incidents: each once, whole, countable, and readable while the daemon writes or is away."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.adapters import database
from sparkd.adapters.database import Database, DatabaseError, open_database, reader
from sparkd.core.darkness import Darkness, Stopped
from sparkd.core.metrics import Totals
from sparkd.core.projection import Applied, Entry
from sparkd.core.status import Boot
from tests.unit.status_facts import NOW, record


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "sparkd.db")


@pytest.fixture
def db(path: str) -> Iterator[Database]:
    opened = open_database(path)
    yield opened
    opened.close()


def death(number: int = 1, **changes: object) -> Entry:
    row = record(invocation=f"{number:032x}", time=NOW.wall + number, **changes)
    return Entry(row, database.to_text(row))


def boot(number: int, at: float, engine: str = "a") -> Entry:
    row = Boot(engine, f"{number:032x}", at, 30.0)
    return Entry(row, json.dumps(row._asdict()))


def test_rows_and_position_are_written_together(db: Database, path: str) -> None:
    assert db.cursor() is None
    assert db.take_in([death(1), death(2)], "c2") == 2
    db.close()
    again = open_database(path)
    assert again.cursor() == "c2"
    assert [i.record.invocation_id for i in again.incidents(10)] == [f"{n:032x}" for n in (2, 1)]
    again.close()


def test_an_entry_that_is_read_twice_counts_once(db: Database) -> None:
    db.take_in([death(1)], "c1")
    assert db.take_in([death(1), death(2)], "c2") == 1
    assert len(db.incidents(10)) == 2
    assert db.totals() == [Totals("a", "engine-core-fatal", 2, 2)]


def test_killed_at_any_point_it_has_all_of_a_batch_or_nothing(path: str) -> None:
    """A writer is killed again and again; afterwards rows, counters and position agree."""
    script = textwrap.dedent(
        f"""
        import sys
        from sparkd.adapters.database import open_database, to_text
        from sparkd.core.projection import Entry
        from tests.unit.status_facts import record
        db = open_database({path!r})
        start = int(db.cursor() or 0)
        print("ready", flush=True)
        for n in range(start + 1, start + 100000):
            rows = [record(invocation=f"{{n}}-{{k}}", time=float(n)) for k in range(3)]
            db.take_in([Entry(row, to_text(row)) for row in rows], str(n))
        """
    )
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=Path(__file__).resolve().parents[2],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while not Path(f"{path}-wal").exists() or Path(f"{path}-wal").stat().st_size < 100_000:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        process.stdout.close()
        db = open_database(path)
        rows = sqlite3.connect(path).execute("SELECT count(*) FROM incidents").fetchone()[0]
        assert rows == 3 * int(db.cursor() or 0)
        assert sum(total.deaths for total in db.totals()) == rows
        db.close()


def test_requested_ends_are_kept_and_not_counted_as_deaths(db: Database) -> None:
    db.take_in([death(1, requested=True, action="none"), death(2, action="hold")], "c")
    assert len(db.incidents(10)) == 2
    assert db.totals() == [Totals("a", "engine-core-fatal", 1, 0)]


def test_incidents_are_newest_first_limited_and_by_engine(db: Database) -> None:
    db.take_in([death(n, engine="a" if n % 2 else "b") for n in range(1, 8)], "c")
    assert [i.record.time - NOW.wall for i in db.incidents(3)] == [7, 6, 5]
    assert [i.record.time - NOW.wall for i in db.incidents(10, "b")] == [6, 4, 2]
    assert db.incidents(10, "nobody") == []
    assert db.last_deaths()["a"].time == NOW.wall + 7
    assert db.last_deaths()["b"].time == NOW.wall + 6


def test_dark_time_ends_with_the_next_ready(db: Database) -> None:
    db.take_in([death(1), death(5)], "c1")
    assert [i.dark_seconds for i in db.incidents(2)] == [None, None]
    db.take_in([boot(9, NOW.wall + 65)], "c2")
    assert [i.dark_seconds for i in db.incidents(2)] == [60, 64]
    db.take_in([death(100), boot(101, NOW.wall + 130)], "c3")
    assert [i.dark_seconds for i in db.incidents(3)] == [30, 60, 64]
    assert db.last_boots()["a"].time == NOW.wall + 130


def test_another_engines_ready_ends_nothing(db: Database) -> None:
    db.take_in([death(1), boot(2, NOW.wall + 50, engine="b")], "c")
    assert db.incidents(1)[0].dark_seconds is None


def test_applies_are_kept(db: Database, path: str) -> None:
    db.take_in([Entry(Applied(1.0, "root", "wrote x"), "{}")] * 2, "c")
    rows = sqlite3.connect(path).execute("SELECT author, summary FROM applies").fetchall()
    assert rows == [("root", "wrote x")]


def test_old_rows_go_and_counters_stay(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "ROWS_MAX", 10)
    db.take_in([death(n) for n in range(1, 31)], "c")
    assert [i.record.time - NOW.wall for i in db.incidents(100)] == list(range(30, 20, -1))
    assert db.totals() == [Totals("a", "engine-core-fatal", 30, 30)]


def test_a_newer_schema_is_refused_with_what_to_do(db: Database, path: str) -> None:
    db.close()
    with sqlite3.connect(path) as other:
        other.execute(f"PRAGMA user_version = {database.VERSION + 1}")
    with pytest.raises(DatabaseError, match=r"newer sparkd.*install that version"):
        open_database(path)
    with pytest.raises(DatabaseError, match="newer sparkd"), reader(path):
        pass


def test_a_file_that_is_no_database_is_put_aside(path: str) -> None:
    Path(path).parent.mkdir()
    Path(path).write_bytes(b"\xff" * 8192)
    db = open_database(path)
    assert db.incidents(1) == []
    db.close()
    (kept,) = Path(path).parent.glob("sparkd.db.unreadable-*")
    assert kept.read_bytes() == b"\xff" * 8192


def test_nobody_else_may_read_it(path: str) -> None:
    open_database(path).close()
    assert Path(path).stat().st_mode & 0o777 == 0o640 & ~_umask()
    assert Path(path).parent.stat().st_mode & 0o777 == 0o750 & ~_umask()
    assert not Path(path).stat().st_mode & 0o007


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseError, match=str(tmp_path / "file" / "db")):
        open_database(str(tmp_path / "file" / "db"))


def test_a_full_disk_changes_nothing_and_says_so(db: Database) -> None:
    db.take_in([death(1)], "c1")
    pages = db._connection.execute("PRAGMA page_count").fetchone()[0]
    db._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DatabaseError, match="full"):
        db.take_in([death(n) for n in range(2, 1000)], "c2")
    assert db.cursor() == "c1"
    assert len(db.incidents(5000)) == 1
    db._connection.execute("PRAGMA max_page_count = 1000000")
    assert db.take_in([death(n) for n in range(2, 1000)], "c2") == 998


def test_it_can_be_read_while_the_daemon_writes(db: Database, path: str) -> None:
    db.take_in([death(1)], "c1")
    with reader(path) as access:
        assert access is not None
        db.take_in([death(2)], "c2")
        assert len(access.incidents(10)) == 2


def test_it_can_be_read_without_the_daemon_and_nothing_is_left_behind(
    db: Database, path: str
) -> None:
    db.take_in([death(1)], "c1")
    db.close()
    before = sorted(Path(path).parent.iterdir())
    with reader(path) as access:
        assert access is not None
        assert len(access.incidents(10)) == 1
        assert access.totals() == [Totals("a", "engine-core-fatal", 1, 1)]
    assert sorted(Path(path).parent.iterdir()) == before


def test_after_a_kill_a_reader_sees_what_was_written(path: str) -> None:
    """The write-ahead log is still there then, and so must be what it holds."""
    script = (
        "import os, signal\n"
        "from sparkd.adapters.database import open_database, to_text\n"
        "from sparkd.core.projection import Entry\n"
        "from tests.unit.status_facts import record\n"
        f"db = open_database({path!r})\n"
        "db.take_in([Entry(record(), to_text(record()))], 'c')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", script], cwd=root, check=False, timeout=60)
    with reader(path) as access:
        assert access is not None
        assert len(access.incidents(10)) == 1


def test_no_database_yet_is_no_error(tmp_path: Path) -> None:
    with reader(str(tmp_path / "none.db")) as access:
        assert access is None


def test_a_database_in_memory_works_like_one_on_disk() -> None:
    db = database.open_in_memory("disk full")
    assert db.trouble == "disk full"
    assert db.take_in([death(1)], "c") == 1
    assert db.cursor() == "c"


def test_a_database_in_memory_moves_to_the_disk_when_that_can_be_used(tmp_path: Path) -> None:
    path = str(tmp_path / "sparkd.db")
    with database.open_database(path) as on_disk:
        on_disk.take_in([death(1)], "c")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    db = database.open_in_memory("it was another reason before")
    db.take_in([death(2)], "d")
    with pytest.raises(DatabaseError, match="newer sparkd"):
        db.leave_memory(path)
    assert "newer sparkd" in db.trouble
    assert db.cursor() == "d", "it goes on in memory"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {database.VERSION}")
    db.leave_memory(path)
    assert db.trouble == ""
    assert db.cursor() == "c", "the journal is to be read again from there"
    db.take_in([death(2)], "d")
    assert len(db.incidents(10)) == 2
    db.close()


# how long an engine was dark


def stop(at: float) -> Entry:
    return Entry(Stopped("a", at), "")


def test_overlapping_darkness_counts_once_and_survives(db: Database, path: str) -> None:
    db.take_in([death(1), death(5)], "c1")
    assert db.darkness() == {"a": Darkness(0.0, NOW.wall + 1)}
    db.close()
    again = open_database(path)
    again.take_in([boot(9, NOW.wall + 65), boot(9, NOW.wall + 65)], "c2")
    assert again.darkness() == {"a": Darkness(64.0, None)}
    again.close()


def test_an_order_to_stop_ends_the_darkness(db: Database) -> None:
    db.take_in([death(1), stop(NOW.wall + 11), boot(9, NOW.wall + 900)], "c")
    assert db.darkness() == {"a": Darkness(10.0, None)}
    assert db.incidents(1)[0].dark_seconds == 10


def test_events_that_are_read_twice_make_no_second_darkness(db: Database) -> None:
    entries = [death(1), boot(2, NOW.wall + 31)]
    db.take_in(entries, "c")
    db.take_in(entries, "c")
    assert db.darkness() == {"a": Darkness(30.0, None)}


def test_a_database_of_version_1_is_brought_up_to_date(db: Database, path: str) -> None:
    db.take_in([death(1), death(5), boot(9, NOW.wall + 65), death(70)], "c")
    expected = db.darkness()
    db.close()
    with sqlite3.connect(path) as old:
        old.execute("DROP TABLE dark")
        old.execute("PRAGMA user_version = 1")
    again = open_database(path)
    assert again.darkness() == expected == {"a": Darkness(64.0, NOW.wall + 70)}
    assert len(again.incidents(10)) == 3
    again.close()


# one incident


def test_an_incident_is_found_by_its_number_and_by_its_invocation(db: Database) -> None:
    rows = [record(invocation=f"{letter * 8}{n:024x}", time=NOW.wall + n, cls="oom")
            for n, letter in enumerate("a2ca")]  # fmt: skip
    db.take_in([Entry(row, database.to_text(row)) for row in rows], "c")
    (found,) = db.find("2")
    assert found.incident.record == rows[1]
    assert [d.incident.record for d in db.find("22222222")] == [rows[1]]
    assert len(db.find("aaaaaaaa")) == 2
    assert [d.incident.record for d in db.find(rows[3].invocation_id)] == [rows[3]]
    assert db.find("99") == db.find("ffffffff") == []
    (last,) = db.find(rows[3].invocation_id)
    assert (last.earlier, last.last_earlier) == (3, NOW.wall + 2)


def test_an_incident_knows_its_own_start_and_the_next(db: Database) -> None:
    db.take_in([boot(1, NOW.wall), death(1), boot(2, NOW.wall + 61)], "c")
    (found,) = db.find(f"{1:032x}")
    assert found.boot is not None
    assert found.boot["seconds"] == 30.0
    assert found.next_boot is not None
    assert found.next_boot.time == NOW.wall + 61
    assert (found.earlier, found.last_earlier) == (0, None)


def test_earlier_starts_are_newest_first_without_the_one_in_question(db: Database) -> None:
    db.take_in([boot(n, NOW.wall + n) for n in range(1, 5)], "c")
    assert db.starts("a", before=f"{4:032x}", limit=2) == [(30.0, ""), (30.0, "")]
    assert db.starts("b", before="") == []


def test_the_first_starts_of_a_boot_come_in_the_order_of_their_launch(db: Database) -> None:
    def start(number: int, engine: str, boot_id: str, launched: float, seconds: float) -> Entry:
        row = Boot(engine, f"{number:032x}", NOW.wall + number, seconds)
        more = {"boot_id": boot_id, "launched_boottime": launched}
        return Entry(row, json.dumps({**row._asdict(), **more}))

    rows = [
        start(1, "a", "before", 5.0, 60.0),
        start(2, "b", "now", 80.0, 50.0),
        start(3, "a", "now", 20.0, 55.0),
        start(4, "b", "now", 900.0, 10.0),
        boot(5, NOW.wall + 5, "c"),
    ]
    db.take_in(rows, "c")
    assert db.first_starts("now") == [("a", 20.0, 55.0), ("b", 80.0, 50.0)]
    assert db.first_starts("never") == []
