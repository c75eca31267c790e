# SPDX-License-Identifier: Apache-2.0
"""What importing works with: words that know where they stand, launches, notes, refusals."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from sparkd.core.secrecy import contains_secret, is_secret_name

_HIDDEN = "(hidden)"
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)([=:]\s*)(\"[^\"]*\"?|'[^']*'?|[^\s'\"]+)")
_GIVEN = re.compile(r"(--[a-z][a-z0-9_-]*)(\s+)(\S+)")
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")


class Origin(NamedTuple):
    """A place in a source; `line` is 1-based, 0 where the whole source is meant."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        """Return `source:line`."""
        return f"{self.source}:{self.line}" if self.line else self.source


class Word(NamedTuple):
    """A text and the place that it came from.

    `problem` says why the text cannot be known (a variable that only the caller has, a command
    substitution); then `text` is the raw source and must not be used as a value.
    """

    text: str
    origin: Origin
    problem: str = ""


class Note(NamedTuple):
    """What the operator should know about one line of a source; `code` is stable (`SPI###`)."""

    source: str
    line: int
    text: str
    code: str


class Refused(NamedTuple):
    """A source, or an engine in it, that is not imported, and why."""

    source: str
    reason: str


class Published(NamedTuple):
    """A container's port as the host sees it; `host` is empty for every address.

    `port` is 0 when the host's port is chosen at each start. `problem` says why the mapping cannot
    be known; then the other fields are of no use.
    """

    container_port: int
    host: str
    port: int
    origin: Origin
    problem: str = ""


class Mount(NamedTuple):
    """A directory of the host inside a container."""

    host: str
    container: str


class RefusalError(Exception):
    """Ends the import of one launch; the text is the reason."""

    def __init__(self, origin: Origin, reason: str) -> None:
        super().__init__(reason)
        self.origin = origin
        self.reason = reason


class Share(NamedTuple):
    """What a server's own command line claims of all memory."""

    percent: int
    why: str


def share(text: str, why: str) -> Share | None:
    """Return the share that a flag's value means, rounded up; None when it is none."""
    try:
        percent = math.ceil(round(100 * float(text), 6))
    except (ValueError, OverflowError):
        return None
    return Share(percent, why) if 1 <= percent <= 100 else None


class TenantError(RefusalError):
    """Refused, but it runs and takes memory: it can be counted as a tenant.

    `share` is None where the source does not say how much it takes. `names` and `unit` are known
    to whoever catches it: what the source calls it, and the system unit that starts it.
    """

    def __init__(self, origin: Origin, reason: str, share: Share | None = None) -> None:
        super().__init__(origin, reason)
        self.share = share
        self.names: tuple[str, ...] = ()
        self.unit = ""


class Surroundings(Protocol):
    """What a source refers to. The core asks, an adapter looks."""

    def read(self, path: str) -> str | None:
        """Return the text of a file; None where it cannot be read."""

    def home(self, user: str) -> str | None:
        """Return the home directory of a user; None where there is no such user."""

    def is_executable(self, path: str) -> bool:
        """Return whether a program stands at `path`."""

    def matching(self, pattern: str) -> Sequence[str]:
        """Return the paths that a shell pattern matches, sorted."""


def without_secrets(text: str) -> str:
    """Return a message without what looks like a secret: notes quote what a source says."""

    def hide(match: re.Match[str]) -> str:
        return match[1] + match[2] + (_HIDDEN if is_secret_name(match[1]) else match[3])

    text = _BEARER.sub(rf"\1{_HIDDEN}", _GIVEN.sub(hide, _ASSIGNED.sub(hide, text)))
    return " ".join(_HIDDEN if contains_secret(word) else word for word in text.split(" "))


@dataclass(slots=True)
class Notebook:
    """Collects notes in the order in which they are found, each once."""

    notes: list[Note] = field(default_factory=list)

    def add(self, origin: Origin, code: str, text: str) -> None:
        """Write one note."""
        text = without_secrets(text).replace("\ufeff", "\\ufeff")
        note = Note(origin.source, origin.line, text, code)
        if note not in self.notes:
            self.notes.append(note)


@dataclass(frozen=True, slots=True)
class Launch:
    """One way in which a vLLM server is started, whatever the source looked like.

    `arguments` are those of `vllm serve`. `program` is what was to be executed, as written.
    `exact` marks a unit that sparkd wrote: its arguments are taken back letter by letter.
    `settings` are further keys of engines.d (`ready.budget`, …) that the source states.
    `written` are files that the source itself writes before it starts the server.
    `unit` is the name of the unit that starts it today, if one does; `is_users`: a user's unit.
    """

    origin: Origin
    names: tuple[str, ...]
    program: Word
    arguments: tuple[Word, ...]
    environment: Mapping[str, Word] = field(default_factory=dict)
    venv: Word | None = None
    user: Word | None = None
    group: Word | None = None
    image: Word | None = None
    directory: str = ""
    unit: str = ""
    is_users: bool = False
    after: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    mounts: tuple[Mount, ...] = ()
    settings: Mapping[str, tuple[object, Origin]] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    exact: bool = False


@dataclass(slots=True)
class Findings:
    """What reading sources yields."""

    launches: list[Launch] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    tenants: list[TenantError] = field(default_factory=list)
    notebook: Notebook = field(default_factory=Notebook)

    def refuse(
        self, error: RefusalError, label: str = "", *, names: Sequence[str] = (), unit: str = ""
    ) -> None:
        """Take up a refusal.

        Args:
            error: the reason, and the place.
            label: the part of the source that it is about.
            names: what the source calls it.
            unit: the system unit that starts it.
        """
        if isinstance(error, TenantError):
            error.names, error.unit = (*error.names, *names), unit
            self.tenants.append(error)
        source = f"{error.origin.source} ({label})" if label else error.origin.source
        place = f"line {error.origin.line}: " if error.origin.line else ""
        self.refused.append(Refused(source, place + without_secrets(error.reason)))


class NotAServerError(RefusalError):
    """The command starts no server at all: a helper before or after one."""


@dataclass(frozen=True, slots=True)
class Context:
    """What is known around a command before it is looked at."""

    origin: Origin
    notebook: Notebook
    surroundings: Surroundings
    names: tuple[str, ...] = ()
    environment: Mapping[str, Word] = field(default_factory=dict)
    venv: Word | None = None
    user: Word | None = None
    group: Word | None = None
    home: str | None = None
    directory: str = ""
    search_path: str = ""
    depth: int = 0
    image: Word | None = None
    published: tuple[Published, ...] = ()
    mounts: tuple[Mount, ...] = ()
    written: frozenset[str] = frozenset()
