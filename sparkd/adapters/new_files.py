# SPDX-License-Identifier: Apache-2.0
"""Files that are made for an operator, and never in place of one of theirs."""

import os
import stat
import tempfile
from pathlib import Path


class ChangedError(Exception):
    """A file is not what was read before, so it was left alone; the text says how it differs."""


def create(path: Path, text: str) -> None:
    """Create a file with its whole content at once.

    Raises:
        FileExistsError: there is one already; it stays as it is.
        OSError: the directory cannot be written to.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(name, path)  # unlike a rename, it never replaces what is there
    finally:
        Path(name).unlink()
    _sync(path.parent)


def extend(path: Path, before: str, after: str) -> None:
    """Replace an operator's file by a longer one, whole or not at all; mode and owner stay.

    Raises:
        ChangedError: it is a link or no file, or it is no longer `before`.
        OSError: the directory cannot be written to.
    """
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise ChangedError("it is a link or no regular file")
    # As bytes: a text's line ends would be read, and written, as others.
    if path.read_bytes() != before.encode("utf-8", "surrogateescape"):
        raise ChangedError("it changed meanwhile")
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            file.write(after.encode("utf-8", "surrogateescape"))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
    _sync(path.parent)


def _sync(directory: Path) -> None:
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
