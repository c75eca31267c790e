# SPDX-License-Identifier: Apache-2.0
"""Several files of one folder replaced together: all of them, or after an error none.

Everything new is written and synced beside its place first, which is where a full disk shows. Then
each file is renamed over its place, while a hard link keeps the old one; an error in that phase
puts the old files back, which needs no space. A crash leaves each file whole, old or new; who keeps
a record of both can tell which, and finish.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

NEW = ".sparkd-new-"
OLD = ".sparkd-old-"


class Change(NamedTuple):
    """One file: its new content, None to remove it."""

    name: str
    content: bytes | None
    mode: int = 0o644
    check: Callable[[], None] | None = None
    """Called before staging and again right before the file is replaced; its exception ends it."""


class ChangeError(Exception):
    """An OSError, and at which file and in which step; everything is as it was before."""

    def __init__(self, verb: str, name: str, error: OSError) -> None:
        super().__init__(f"cannot {verb} {name}: {error.strerror}")
        self.verb = verb
        self.name = name
        self.error = error


def change(directory: int, changes: Sequence[Change]) -> None:
    """Carry out all the changes in the folder behind a descriptor; sweeps earlier leftovers.

    Raises:
        ChangeError: a file could not be written, replaced or removed.
        Exception: what a `check` raised.
    """
    sweep(directory)
    done: list[tuple[Change, bool]] = []
    try:
        for item in changes:
            if item.check is not None:
                item.check()
            if item.content is not None:
                _stage(directory, item)
        for item in changes:
            if item.check is not None:
                item.check()
            done.append((item, _keep_old(directory, item)))
            _place(directory, item)
        _sync(directory)
    except BaseException:
        _undo(directory, done)
        with contextlib.suppress(ChangeError):
            sweep(directory)
        raise
    # From here on the change stands, whatever becomes of the links to the old files.
    with contextlib.suppress(ChangeError):
        sweep(directory)


def sweep(directory: int) -> None:
    """Remove what an interrupted change has left.

    Raises:
        ChangeError: the folder cannot be read or written.
    """
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise ChangeError("list", ".", error) from error
    for name in names:
        if name.startswith((NEW, OLD)):
            try:
                os.unlink(name, dir_fd=directory)
            except OSError as error:
                raise ChangeError("remove", name, error) from error


def _stage(directory: int, item: Change) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(NEW + item.name, flags, 0o600, dir_fd=directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(item.content or b"")
            file.flush()
            # Whatever the umask: systemd warns about units that others cannot read.
            os.fchmod(descriptor, item.mode)
            os.fsync(descriptor)
    except OSError as error:
        raise ChangeError("write", item.name, error) from error


def _keep_old(directory: int, item: Change) -> bool:
    """Link the file that is about to go; False where there is none."""
    try:
        os.link(
            item.name, OLD + item.name,
            src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False,
        )  # fmt: skip
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ChangeError("keep the old", item.name, error) from error
    return True


def _place(directory: int, item: Change) -> None:
    verb = "replace"
    try:
        if item.content is None:
            verb = "remove"
            os.unlink(item.name, dir_fd=directory)
        else:
            os.rename(NEW + item.name, item.name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        raise ChangeError(verb, item.name, error) from error


def _sync(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        raise ChangeError("sync", ".", error) from error


def _undo(directory: int, done: Sequence[tuple[Change, bool]]) -> None:
    """Put the old files back, last first. rename() of a link to the same file does nothing."""
    for item, had_old in reversed(done):
        with contextlib.suppress(OSError):
            if had_old:
                os.rename(OLD + item.name, item.name, src_dir_fd=directory, dst_dir_fd=directory)
            elif item.content is not None and not _is_staged(directory, item):
                os.unlink(item.name, dir_fd=directory)
    with contextlib.suppress(OSError):
        os.fsync(directory)


def _is_staged(directory: int, item: Change) -> bool:
    """Whether the new file still stands beside its place, so that it never got there."""
    try:
        os.stat(NEW + item.name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
