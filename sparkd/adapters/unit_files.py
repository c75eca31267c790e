# SPDX-License-Identifier: Apache-2.0
"""Unit files on disk: read without following links, replaced whole or not at all.

No daemon-reload here: whoever applies a plan reloads systemd after it.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparkd.adapters import file_set
from sparkd.core.apply_plan import DiskUnit, Kind, Plan, text_hash
from sparkd.core.units import SLICE, TARGET

UNIT_DIRECTORY = Path("/etc/systemd/system")
# Where else systemd finds units. One of our names in them is somebody else's: writing ours into
# /etc would silently replace it.
OTHER_UNIT_DIRECTORIES = (
    Path("/run/systemd/system"),
    Path("/usr/local/lib/systemd/system"),
    Path("/usr/lib/systemd/system"),
)
LOCK_FILE = Path("/run/sparkd/apply.lock")

_MAX_UNIT_BYTES = 4 << 20


class ApplyBusyError(Exception):
    """Another apply is running (exit status 75)."""


class ApplyError(Exception):
    """A file could not be written, read or removed, or changed since the plan was made.

    Of what was ordered together nothing is done; every file is as it was.
    """


@contextlib.contextmanager
def apply_lock(path: Path = LOCK_FILE) -> Iterator[None]:
    """Hold the lock that keeps two applies from interleaving; take it before reading.

    Raises:
        ApplyBusyError: somebody else holds it.
        ApplyError: the lock file cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise ApplyError(f"cannot open {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ApplyBusyError(f"another apply holds {path}") from None
    try:
        yield
    finally:
        os.close(descriptor)


class UnitDirectory:
    """The directory that sparkd's units live in. Every access goes through one directory fd."""

    def __init__(
        self, path: Path = UNIT_DIRECTORY, others: Sequence[Path] = OTHER_UNIT_DIRECTORIES
    ) -> None:
        self.path = path
        self._others = others

    def read(self) -> dict[str, DiskUnit]:
        """Return every file with a name of sparkd's units, and names taken in other directories.

        Raises:
            ApplyError: a directory or file cannot be read.
        """
        units: dict[str, DiskUnit] = {}
        with self._open() as directory:
            for name in sorted(filter(is_unit_name, self._list(directory))):
                if (found := self._read(directory, name)) is not None:
                    units[name] = found
        for other in self._others:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for entry in sorted(other.iterdir()):
                    if is_unit_name(entry.name) and entry.name not in units:
                        units[entry.name] = _elsewhere(entry)
        return units

    def apply(self, plan: Plan) -> None:
        """Carry out the writes and removals of a plan, all of them or none.

        A file that is no longer what the plan saw stops the apply. Leftovers of an interrupted
        apply are swept first. Killed in between, every file is whole, old or new.

        Raises:
            ApplyError: with the path and what stands; every file is as it was.
        """
        with self._open() as directory:
            steps = [
                *((write.name, self._content(write.text), write.expected) for write in plan.writes),
                *((removal.name, None, removal.expected) for removal in plan.removals),
            ]
            changes = [
                file_set.Change(name, content, check=self._checker(directory, name, expected))
                for name, content, expected in steps
            ]
            try:
                file_set.change(directory, changes)
            except file_set.ChangeError as error:
                raise self._explained_error(error.verb, error.name, error.error) from error

    @staticmethod
    def _content(text: str) -> bytes:
        # As _read has it: a rollback writes back what an editor with another encoding left.
        return text.encode("utf-8", "surrogateescape")

    def _checker(self, directory: int, name: str, expected: str | None) -> Callable[[], None]:
        return lambda: self._check(directory, name, expected)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        with self._explained("open", "."):
            # The unit directory itself must not be a link to somewhere else.
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.path, flags)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _list(self, directory: int) -> list[str]:
        with self._explained("list", "."):
            return os.listdir(directory)

    def _read(self, directory: int, name: str) -> DiskUnit | None:
        with self._explained("read", name):
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    target = os.readlink(name, dir_fd=directory)
                    masked = target == os.devnull
                    return DiskUnit(target, Kind.MASKED if masked else Kind.SYMLINK)
                if not stat.S_ISREG(status.st_mode):
                    return DiskUnit("", Kind.OTHER)
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                descriptor = os.open(name, flags, dir_fd=directory)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(_MAX_UNIT_BYTES)
        # An empty unit file masks the unit, too.
        if not data:
            return DiskUnit("", Kind.MASKED)
        return DiskUnit(data.decode("utf-8", "surrogateescape"))

    def _check(self, directory: int, name: str, expected: str | None) -> None:
        found = self._read(directory, name)
        if found is None:
            if expected is None:
                return
        elif found.kind is Kind.REGULAR and text_hash(found.text) == expected:
            return
        raise ApplyError(
            f"{self.path / name} changed since the plan was made: apply again to see the new diff"
        )

    @contextlib.contextmanager
    def _explained(self, verb: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explained_error(verb, name, error) from error

    def _explained_error(self, verb: str, name: str, error: OSError) -> ApplyError:
        hint = ""
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            hint = f" (in a sandboxed service, ReadWritePaths={self.path} permits it)"
        return ApplyError(f"cannot {verb} {self.path / name}: {error.strerror}{hint}")


def is_unit_name(name: str) -> bool:
    """Return whether a file of this name could be a unit of sparkd's."""
    return name in {SLICE, TARGET} or (name.startswith("vllm-") and name.endswith(".service"))


def _elsewhere(entry: Path) -> DiskUnit:
    try:
        masked = entry.is_symlink() and str(entry.readlink()) == os.devnull
    except OSError:
        masked = False
    return DiskUnit(str(entry), Kind.MASKED if masked else Kind.ELSEWHERE)
