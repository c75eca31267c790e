# SPDX-License-Identifier: Apache-2.0
"""Bringing back the TOML of an earlier revision.

These files are the operator's: one that is a link, or that changed since the rollback looked at it,
stays as it is and is named. Files that are no configuration (README, an editor's backup) are not
touched.
"""

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import config_files, file_set
from sparkd.adapters.config_files import ENGINE_DIRECTORY, HOST_FILE
from sparkd.adapters.unit_files import ApplyError
from sparkd.core import revisions
from sparkd.core.config import Source


class Restore(NamedTuple):
    """TOML texts by path below the configuration folder: as they stand, and as they are to be.

    An empty `after` means that they are not known: then nothing is done.
    """

    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def changed(self) -> list[str]:
        """The files that would be written or removed."""
        if not self.after:
            return []
        names = self.before.keys() | self.after.keys()
        return sorted(name for name in names if self.before.get(name) != self.after.get(name))

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        return revisions.texts_diff(self.before, self.after) if self.after else ""


def texts(folder: Path, sources: Sequence[Source]) -> dict[str, str]:
    """The texts of sources by path below the folder, odd bytes as surrogate escapes."""
    found = {}
    for source in sources:
        data = source.data
        text = data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")
        found[os.path.relpath(source.path, folder)] = text
    return found


def plan(folder: Path, after: Mapping[str, str]) -> Restore:
    """What would have to change.

    Raises:
        ConfigErrors: the present files cannot be read.
    """
    before = {}
    if (folder / HOST_FILE).exists() or (folder / ENGINE_DIRECTORY).is_dir():
        before = texts(folder, config_files.read_sources(folder))
    return Restore(before, after)


def carry_out(folder: Path, change: Restore) -> str:
    """Write and remove what `change` says, each folder's files together.

    Returns:
        What was left alone and why; '' when everything was done.

    Raises:
        ApplyError: a file could not be written; the files of its folder are as they were.
    """
    present = plan(folder, change.after).before
    left: list[str] = []
    wanted: dict[str, list[str]] = {ENGINE_DIRECTORY: [], "": []}
    for name in change.changed:
        now = present.get(name)
        if now == change.after.get(name):
            continue
        if now != change.before.get(name) or (folder / name).is_symlink():
            left.append(name)
        else:
            wanted[str(Path(name).parent).removeprefix(".")].append(name)
    engines, host = wanted.values()
    _replace(folder / ENGINE_DIRECTORY, engines, change.after)
    try:
        _replace(folder, host, change.after)
    except ApplyError:
        with contextlib.suppress(ApplyError):
            _replace(folder / ENGINE_DIRECTORY, engines, change.before)
        raise
    return f"{', '.join(left)} changed meanwhile or is a link, and stays as it is" if left else ""


def _mode(path: Path) -> int:
    """Permissions of the file that is replaced; a new one is for all to read, as others are."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0o644


def _replace(folder: Path, names: Sequence[str], after: Mapping[str, str]) -> None:
    changes = []
    for name in names:
        path = folder / Path(name).name
        text = after.get(name)
        content = None if text is None else text.encode("utf-8", "surrogateescape")
        changes.append(file_set.Change(path.name, content, _mode(path)))
    if not changes and not folder.is_dir():
        return  # else leftovers of a crash are swept
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            file_set.change(directory, changes)
        finally:
            os.close(directory)
    except file_set.ChangeError as error:
        raise ApplyError(
            f"cannot {error.verb} {folder / error.name}: {error.error.strerror}"
        ) from (error)
    except OSError as error:
        raise ApplyError(f"cannot write to {folder}: {error.strerror}") from error
