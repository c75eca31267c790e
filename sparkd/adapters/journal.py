# SPDX-License-Identifier: Apache-2.0
"""The journal: writing sparkd's own entries, reading an engine's lines and our events back.

Uses the C parts of python3-systemd: `systemd.journal` imports twice as much and its iterator
decodes every field of every entry (59k lines/s against 476k, measured).
"""

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from systemd._journal import sendv
from systemd._reader import _Reader

from sparkd.core import events
from sparkd.core.cut_lines import CutLines
from sparkd.core.lines import Source

OWN_HELPERS = frozenset({b"await-slot", b"await-ready", b"post-mortem"})
"""SYSLOG_IDENTIFIER of what the helpers print inside the unit; no engine output.

Not with-credentials: it becomes the engine, whose whole output goes by that name.
"""


_CUT_MIN = 1024
"""Bytes of a line from which on it is asked whether journald cut it (`core.cut_lines`).

To ask of every line would take 3 µs of the 9 that one takes to be read (measured).
"""


class Priority:
    """syslog(3) levels as journal text."""

    CRITICAL = "2"
    ERROR = "3"
    WARNING = "4"
    NOTICE = "5"
    INFO = "6"


class Entry(NamedTuple):
    """One line of an engine, or of the kernel or systemd about it."""

    message: bytes
    realtime: float
    """Seconds since the epoch."""
    source: Source
    """Who wrote it, as journald knows it and not as the text claims."""


def send(
    event: events.Event, message: str, *, priority: str = Priority.INFO, **fields: str
) -> None:
    """Write one structured entry. Field values may hold anything, newlines included."""
    with contextlib.suppress(OSError):  # journald away: supervision goes on without its record
        sendv(
            f"MESSAGE={message}",
            f"MESSAGE_ID={event.value}",
            f"PRIORITY={priority}",
            "SYSLOG_IDENTIFIER=sparkd",
            *(f"{name}={value}" for name, value in fields.items()),
        )


def sync() -> None:
    """Ask journald to write out everything it has received.

    Without this a read right after a death missed the last line 6 times of 6 after a burst of
    5,000 lines; with it 0 times (measured).
    """
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        argv = ["/usr/bin/journalctl", "--sync"]  # by its path: see `systemctl`
        subprocess.run(argv, timeout=10, check=False, capture_output=True)


class InvocationLog:
    """The lines of one invocation of a unit, from its first on; can be read again for more."""

    def __init__(self, invocation_id: str) -> None:
        self._reader = _Reader()
        self._reader.add_match(f"_SYSTEMD_INVOCATION_ID={invocation_id}")
        # What it printed, which journald cuts at 48 KiB. The journal's own protocol knows no bound:
        # an engine could have everybody who reads its log take in hundreds of megabytes.
        self._reader.add_match("_TRANSPORT=stdout")
        self._reader.add_disjunction()
        # PID 1's own lines about it. The field alone proves nothing: any user may send it.
        self._reader.add_match(f"INVOCATION_ID={invocation_id}")
        self._reader.add_match("_PID=1")
        self._reader.seek_head()
        self._cut = CutLines()
        self._read_any = False

    def read(self, *, until: float = float("inf")) -> Iterator[Entry]:
        """The lines that have come since the last call, at most until a time.monotonic() value."""
        self._reader.process()
        while time.monotonic() < until and self._reader._next():
            if _field(self._reader, "SYSLOG_IDENTIFIER") in OWN_HELPERS:
                continue
            entry = _entry(self._reader)
            self._read_any = True
            yield entry._replace(source=Source.OTHER) if self._is_rest(entry) else entry

    @property
    def _here(self) -> tuple[int, str] | None:
        """When the entry that was read last was written, in µs, and its cursor."""
        if not self._read_any:
            return None
        return self._reader._get_realtime(), self._reader._get_cursor()

    def _is_rest(self, entry: Entry) -> bool:
        """Whether this is the rest of a line that journald cut: it may not pose as a record."""
        if len(entry.message) < _CUT_MIN and not self._cut.is_waiting:
            return False
        fields = [_field(self._reader, n) for n in ("_LINE_BREAK", "_STREAM_ID", "_PID")]
        return self._cut.is_rest(entry.message, *map(_text, fields))

    def skip_to_last(self, lines: int) -> bool:
        """Move so that about `lines` remain to be read, but never back to what has been read.

        Returns:
            Whether entries are passed over.
        """
        here = self._here
        self._reader.seek_tail()
        # One step more than that: the next one forward reads the first of them.
        if self._reader._previous(lines) and self._reader._previous():
            if here is None or self._reader._get_realtime() > here[0]:
                self._cut.forget()
                self._is_rest(_entry(self._reader))  # the first line may be the rest of this one
                return True
        elif here is None:
            self._reader.seek_head()
        if here is not None:
            self._reader.seek_cursor(here[1])
            self._reader._next()
        return False


def kernel_lines(since: float) -> Iterator[Entry]:
    """The kernel's lines of this boot since a wall-clock time."""
    with _Reader() as reader:
        reader.add_match("_TRANSPORT=kernel")
        reader.seek_realtime(int(since * 1e6))
        while reader._next():
            yield _entry(reader)


def lines_of(units: Iterable[str], since: float) -> Iterator[tuple[str, str]]:
    """What some units have logged since a wall-clock time: unit and message."""
    with _Reader() as reader:
        for unit in units:
            reader.add_match(f"_SYSTEMD_UNIT={unit}")
        reader.seek_realtime(int(since * 1e6))
        while reader._next():
            yield _text(_field(reader, "_SYSTEMD_UNIT")), _text(_field(reader, "MESSAGE"))


def engine_events(engine: str, since: float, until: float) -> Iterator[tuple[float, str]]:
    """Our own entries about one engine between two wall-clock times: when, and the message."""
    with _Reader() as reader:
        reader.add_match(f"SPARKD_ENGINE={engine}")
        reader.add_match("_UID=0")
        reader.seek_realtime(int(since * 1e6))
        while reader._next():
            at = reader._get_realtime() / 1e6
            if at > until:
                return
            fields = {
                name: _text(value[0] if isinstance(value, list) else value)
                for name, value in reader._get_all().items()
            }
            if fields.get("MESSAGE_ID") in set(events.Event) and events.is_trusted(fields):
                yield at, fields.get("MESSAGE", "")


class EventReader:
    """sparkd's own entries, from a cursor on.

    Reading goes on after the entry at the cursor. When that entry is gone (vacuumed, or of another
    journal) systemd seeks silently to what is left nearby (252 and 257, measured): then reading
    goes on there and `gap` says so.
    """

    def __init__(self, cursor: str | None) -> None:
        self._reader = _Reader()
        self.gap = False
        """The saved cursor's entry is gone: something between may have been lost."""
        for event in events.Event:
            self._reader.add_match(f"MESSAGE_ID={event.value}")
        # Also so that nobody else can have us read entries of hundreds of megabytes, or thousands.
        self._reader.add_match("_UID=0")
        self._seek(cursor)

    def _seek(self, cursor: str | None) -> None:
        if cursor is None:
            self._reader.seek_head()
            return
        try:
            self._reader.seek_cursor(cursor)
        except (ValueError, OSError):
            self.gap = True
            self._reader.seek_head()
            return
        if self._reader._next():
            if not self._reader.test_cursor(cursor):
                # What stands here instead is the first that is left: it must be read. A step back
                # from the very first entry does not move, and then the next step would skip it.
                self.gap = True
                if not self._reader._previous():
                    self._reader.seek_head()
        else:
            # Nothing at or after the cursor: either it is the newest entry, or it is gone.
            self._reader.seek_head()
            self._skip_past(cursor)

    def _skip_past(self, cursor: str) -> None:
        while self._reader._next():
            if self._reader.test_cursor(cursor):
                return
        self._reader.seek_head()
        self.gap = True

    def fileno(self) -> int:
        """A descriptor that becomes readable when the journal changed."""
        return int(self._reader.fileno())

    def poll_events(self) -> int:
        """The poll(2) mask to wait for on `fileno`."""
        return int(self._reader.get_events())

    def read(self, limit: int) -> list[tuple[str, Mapping[str, str]]]:
        """At most `limit` entries that have come since the last call, as (cursor, fields)."""
        self._reader.process()
        found: list[tuple[str, Mapping[str, str]]] = []
        while len(found) < limit and self._reader._next():
            raw = self._reader._get_all()
            fields = {
                name: _text(value[0] if isinstance(value, list) else value)
                for name, value in raw.items()
            }
            fields["__REALTIME"] = str(self._reader._get_realtime() / 1e6)
            found.append((self._reader._get_cursor(), fields))
        return found

    def close(self) -> None:
        """Give the journal files back."""
        self._reader.close()


def _entry(reader: _Reader) -> Entry:
    if _field(reader, "_TRANSPORT") == b"kernel":
        source = Source.KERNEL
    else:
        source = Source.SYSTEMD if _field(reader, "_PID") == b"1" else Source.ENGINE
    return Entry(_field(reader, "MESSAGE"), reader._get_realtime() / 1e6, source)


def _field(reader: _Reader, name: str) -> bytes:
    try:
        value = reader._get(name)
    except (KeyError, OSError):  # OSError: 'Bad message' while a file is being vacuumed
        return b""
    return value if isinstance(value, bytes) else b""


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
