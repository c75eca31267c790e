# SPDX-License-Identifier: Apache-2.0
"""Finds and reads what `sparkctl import` is pointed at: files, drop-ins, loaded units."""

import glob
import os
import posixpath
import pwd
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparkd.core.importing.plan import Document, is_command
from sparkd.core.importing.unit_text import Fragment, parse

MAX_BYTES = 1 << 20
_TIMEOUT_SECONDS = 20
_FRAGMENT_HEAD = re.compile(r"^# (/\S.*)$")
_SYSTEM_FOLDERS = frozenset(
    {"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
     "/usr/lib/systemd/system", "/lib/systemd/system"}
)  # fmt: skip
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(?:service|container|timer)\Z")


class SourceError(Exception):
    """A source cannot be read; the text is the reason."""


class HostSurroundings:
    """Files, users and programs of this host."""

    def read(self, path: str) -> str | None:
        """Return the text of a regular file of at most 1 MiB; None where there is none."""
        try:
            return _read_text(Path(path))
        except (OSError, SourceError, ValueError):
            return None

    def home(self, user: str) -> str | None:
        """Return the home directory of a user."""
        try:
            return pwd.getpwnam(user).pw_dir
        except (KeyError, ValueError):
            return None

    def is_executable(self, path: str) -> bool:
        """Return whether a program stands at `path`."""
        return os.access(path, os.X_OK) and Path(path).is_file()

    def matching(self, pattern: str) -> Sequence[str]:
        """Return the paths that a shell pattern matches, sorted."""
        return sorted(glob.glob(pattern))  # noqa: PTH207 - the pattern is absolute


def _read_text(path: Path) -> str:
    # Non-blocking, so that a FIFO in the place of a file cannot hang the import.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise SourceError(f"{path} is no regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise SourceError(f"{path} is larger than {MAX_BYTES >> 20} MiB")
    return data.decode("utf-8", "surrogateescape")


def documents(source: str) -> list[Document]:
    """Return what a SOURCE of the command line is: a command, a file, or the name of a unit.

    Raises:
        SourceError: it cannot be found or read.
    """
    if is_command(source) and not Path(source).exists():
        return [Document("command line", source, is_command=True)]
    path = Path(source)
    try:
        if path.is_dir():
            raise SourceError(f"{source} is a directory: name the files")
        if path.exists():
            return list(_from_file(path.absolute()))
        template = _template_of(path)
        if template is not None:
            return [_unit_document(template.absolute(), path.name)]
    except OSError as error:
        raise SourceError(f"{source} cannot be read: {error.strerror}") from None
    if "/" not in source:
        name = source if _UNIT_NAME.match(source) else f"{source}.service"
        if _UNIT_NAME.match(name) and (document := _loaded_unit(name)) is not None:
            return [document]
    raise SourceError(f"{source} is neither a file nor a unit that systemd knows")


def _template_of(path: Path) -> Path | None:
    prefix, at, _ = path.name.partition("@")
    template = path.with_name(f"{prefix}@{path.suffix}")
    return template if at and template.exists() else None


def _from_file(path: Path) -> Iterator[Document]:
    if path.suffix == ".service" and path.stem.endswith("@"):
        text = _read_text(path)
        instances = list(_instances(path, text))
        if not instances:
            raise SourceError(
                f"{path} is a template and no instance of it was found: name one, such as"
                f" {path.stem}NAME.service"
            )
        for instance in instances:
            yield _unit_document(path, f"{path.stem}{instance}.service")
    elif path.suffix in {".service", ".container"}:
        yield _unit_document(path, path.name)
    else:
        yield Document(str(path), _read_text(path), owner=_owner(path))


def _unit_document(path: Path, name: str) -> Document:
    # Its drop-ins may lie in any of these folders, and systemd knows which of them count.
    loaded = _loaded_unit(name) if str(path.parent) in _SYSTEM_FOLDERS else None
    if loaded is not None and loaded.path == str(path):
        return loaded
    fragment = Fragment(str(path), _read_text(path))
    folders = [path.with_name(f"{other}.d") for other in _drop_in_names(name, path.suffix)]
    # Of two files of one name systemd takes the one for the more specific name; their order is that
    # of their names, whatever directories they are in (systemd.unit(5)).
    files = {
        file.name: file
        for folder in folders
        if folder.is_dir()
        for file in sorted(folder.glob("*.conf"))
    }
    drop_ins = [
        Fragment(str(file), _read_text(file))
        for _, file in sorted(files.items())
        if os.path.realpath(file) != os.devnull  # so a drop-in of that name is masked
    ]
    # A user unit, or a quadlet of a user.
    is_users = "/systemd/user/" in str(path) or "/.config/containers/systemd/" in str(path)
    owner = _owner(path) if is_users else ""
    return Document(fragment.path, fragment.text, name, tuple(drop_ins), owner)


def _drop_in_names(name: str, suffix: str) -> Iterator[str]:
    """Yield the names whose `.d` directories count for a unit, the least specific first.

    systemd.unit(5): `a-b.service` also has `a-.service.d` and `service.d`.
    """
    stem = name.removesuffix(suffix)
    prefix, at, instance = stem.partition("@")
    yield suffix.removeprefix(".")
    yield from (
        f"{prefix[: index + 1]}{suffix}"
        for index, letter in enumerate(prefix[:-1])
        if letter == "-"
    )
    if at and instance:
        yield f"{prefix}@{suffix}"
    yield name


def _owner(path: Path) -> str:
    """Return the user whose file it is: by its place in a home directory, else by its owner."""
    for entry in pwd.getpwall():
        if entry.pw_dir not in {"", "/"} and str(path).startswith(entry.pw_dir.rstrip("/") + "/"):
            return entry.pw_name
    parts = path.parts
    if len(parts) > 3 and parts[1] == "home":
        return parts[2]
    try:
        return pwd.getpwuid(path.stat().st_uid).pw_name
    except (KeyError, OSError):
        return ""


def _instances(path: Path, text: str) -> Iterator[str]:
    """Yield the instances of a template: enabled ones, those with drop-ins, those with a file.

    A file counts when an `EnvironmentFile=` names it with `%i`.
    """
    prefix = path.stem
    found: dict[str, None] = {}
    pattern = re.compile(re.escape(prefix) + r"(.+)\.service(?:\.d)?\Z")
    places = [path.parent, *path.parent.glob("*.wants"), *path.parent.glob("*.requires")]
    for place in places:
        for entry in sorted(place.iterdir()):
            if match := pattern.match(entry.name):
                found[match[1]] = None
    settings = parse(Fragment(str(path), text))
    for setting in settings:
        if setting.key == "EnvironmentFile" and "%i" in setting.value:
            found |= dict.fromkeys(_instances_by_file(setting.value.removeprefix("-")))
        elif setting.key == "DefaultInstance" and not found:
            found[setting.value] = None
    yield from found


def _instances_by_file(value: str) -> Iterator[str]:
    head, _, tail = value.partition("%i")
    for name in glob.glob(f"{glob.escape(head)}*{glob.escape(tail)}"):  # noqa: PTH207
        instance = name[len(head) : len(name) - len(tail)]
        if instance and "/" not in instance:
            yield instance


def _loaded_unit(name: str) -> Document | None:
    """Ask systemd for a unit and its drop-ins, in the order in which it applies them."""
    try:
        done = subprocess.run(
            ["systemctl", "cat", "--no-pager", "--", name],
            capture_output=True, timeout=_TIMEOUT_SECONDS, check=False,
            env={**os.environ, "SYSTEMD_COLORS": "0", "LC_ALL": "C"},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    fragments = _cut(done.stdout.decode("utf-8", "surrogateescape"))
    if not fragments:
        return None
    # The files themselves have the true line numbers.
    read = [Fragment(path, HostSurroundings().read(path) or text) for path, text in fragments]
    return Document(read[0].path, read[0].text, name, tuple(read[1:]))


def _cut(text: str) -> list[tuple[str, str]]:
    """Cut the output of `systemctl cat`: each file comes after a comment with its path."""
    found: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        match = _FRAGMENT_HEAD.match(line)
        if match and posixpath.splitext(match[1])[1] in {".service", ".conf"}:
            found.append((match[1], []))
        elif found:
            found[-1][1].append(line)
    return [(path, "\n".join(lines)) for path, lines in found]
