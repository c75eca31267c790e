# SPDX-License-Identifier: Apache-2.0
"""Revisions on disk: one file each, and beside it what was learned later.

`000007.json` is written when a change begins and once more when it ends. `000007.outcomes.json` and
`000007.notes.json` grow; nothing in them is ever replaced, so a wrong note stays beside its
correction. Every file is written whole or not at all. The database's row of an apply is only a
projection: these files are what counts.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkd.adapters.state_files import write_atomic
from sparkd.core import revisions
from sparkd.core.revisions import Revision, State

FOLDER = Path("/var/lib/sparkd/revisions")
KEPT = 500
"""Revisions that are kept; one takes about 50 kB."""

_FILE = re.compile(r"(\d{6,9})\.json\Z")
_SIZE_MAX = 64 << 20


class Revisions:
    """The folder of revisions."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def numbers(self) -> list[int]:
        """Every revision, oldest first. A folder that is not there has none.

        Raises:
            OSError: it is there and may not be read.
        """
        try:
            names = os.listdir(self._folder)  # noqa: PTH208  (names, not paths)
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for name in names if (match := _FILE.match(name)))

    def read(self, number: int) -> Revision | None:
        """One revision; None when it is not there or made by a version that this one cannot read.

        Raises:
            OSError: it may not be read.
        """
        value = self._json(f"{number:06}.json")
        return revisions.from_json(value) if isinstance(value, dict) else None

    def all(self) -> list[Revision]:
        """Every revision that can be understood, oldest first.

        Raises:
            OSError: they may not be read.
        """
        found = (self.read(number) for number in self.numbers())
        return [revision for revision in found if revision is not None]

    def begun(self) -> Revision | None:
        """The newest revision when its end is not on record, which only a crash or error leaves.

        Raises:
            OSError: it may not be read.
        """
        numbers = self.numbers()
        newest = self.read(numbers[-1]) if numbers else None
        return newest if newest is not None and newest.state is State.BEGUN else None

    def write(self, revision: Revision) -> None:
        """Write one, whole or not at all; the oldest go when there are too many.

        Raises:
            OSError: the disk refuses; nothing was changed.
        """
        text = json.dumps(revisions.to_json(revision)) + "\n"
        write_atomic(self._folder / f"{revision.number:06}.json", text, exact=True)
        for number in self.numbers()[:-KEPT]:
            for suffix in ("", ".outcomes", ".notes"):
                (self._folder / f"{number:06}{suffix}.json").unlink(missing_ok=True)

    def notes(self, number: int) -> list[dict[str, object]]:
        """What was noted about a revision, oldest first: `time`, `author`, `text`."""
        return self._rows(number, "notes")

    def add_note(self, number: int, note: Mapping[str, object]) -> None:
        """Add a note; earlier ones stay.

        Raises:
            OSError: the disk refuses; the notes are as before.
        """
        self._add(number, "notes", note)

    def outcomes(self, number: int) -> list[dict[str, object]]:
        """What starts after a revision showed: `engine`, `invocation_id`, `time`, `figures`."""
        return self._rows(number, "outcomes")

    def add_outcome(self, number: int, outcome: Mapping[str, object]) -> None:
        """Add what a start showed.

        Raises:
            OSError: the disk refuses; the outcomes are as before.
        """
        self._add(number, "outcomes", outcome)

    def _rows(self, number: int, what: str) -> list[dict[str, object]]:
        value = self._json(f"{number:06}.{what}.json")
        return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []

    def _add(self, number: int, what: str, row: Mapping[str, object]) -> None:
        with self._locked():
            rows = [*self._rows(number, what), dict(row)]
            text = json.dumps(rows) + "\n"
            write_atomic(self._folder / f"{number:06}.{what}.json", text, exact=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The daemon adds outcomes while somebody adds a note."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _json(self, name: str) -> object:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(self._folder / name, flags)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(_SIZE_MAX)
        try:
            value: object = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return value
