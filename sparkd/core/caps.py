# SPDX-License-Identifier: Apache-2.0
"""The compile caps on launch paths that are no unit of sparkd's: which files carry them, and how.

An engine's unit has the caps in its own environment. What somebody starts by hand has them only if
the place it is started from has them, and no single file reaches every such place:

* PAM's /etc/environment reaches cron, sudo and ssh commands; it is the administrator's, and a file
  without room for a drop-in, so sparkd only says what to add there;
* /etc/profile.d: login shells; environment.d: the user managers, and so user services and desktop
  sessions; DefaultEnvironment=: system services, whoever wrote their units.

Each file is marked by a comment with a hash of its content; sparkd replaces and removes no other.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from sparkd.core.config_model import CompileCaps
from sparkd.core.engine_environment import compile_caps

_MARKER = re.compile(r"^# sparkd-content: (sha256:[0-9a-f]{64})\n", re.MULTILINE)
_HEAD = """\
# Written by sparkd from [compile] in /etc/sparkd/sparkd.toml. Do not edit it: `sparkctl apply`
# writes it anew, and removes it with compile.everywhere = false.
"""


class CapsFile(NamedTuple):
    """A file of ours outside of the unit directory."""

    path: str
    reaches: str
    """Which launch path has the caps through it."""
    body: Callable[[Mapping[str, str]], str]


def _shell(variables: Mapping[str, str]) -> str:
    # What was set on purpose stays.
    lines = [f': "${{{name}:={value}}}"\n' for name, value in variables.items()]
    return "".join(lines) + f"export {' '.join(variables)}\n"


def _assignments(variables: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in variables.items())


def _manager(variables: Mapping[str, str]) -> str:
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"[Manager]\nDefaultEnvironment={words}\n"


FILES: Sequence[CapsFile] = (
    CapsFile("/etc/profile.d/sparkd-caps.sh", "login shells", _shell),
    CapsFile("/etc/environment.d/60-sparkd-caps.conf", "user managers and desktops", _assignments),
    CapsFile("/etc/systemd/system.conf.d/60-sparkd-caps.conf", "system services", _manager),
    CapsFile("/etc/systemd/user.conf.d/60-sparkd-caps.conf", "user services", _manager),
)


class State(StrEnum):
    """What stands in a file's place."""

    CURRENT = "current"
    STALE = "stale"
    """Ours, with other values."""
    ABSENT = "absent"
    EDITED = "edited"
    FOREIGN = "foreign"


class Found(NamedTuple):
    """A file as found; `text` is None when there is none."""

    text: str | None
    is_regular: bool = True


class Change(NamedTuple):
    """A file to write, or to remove (`text` is None), if it still is what was seen."""

    path: str
    text: str | None
    expected: str | None


class Refusal(NamedTuple):
    """A file that is left alone, and why."""

    path: str
    reason: str


class Plan(NamedTuple):
    """What an apply does to these files."""

    changes: tuple[Change, ...] = ()
    refused: tuple[Refusal, ...] = ()


def render(caps: CompileCaps) -> dict[str, str]:
    """Every file's text by its path; none where the caps are not wanted everywhere."""
    if not caps.everywhere:
        return {}
    variables = compile_caps(caps)
    return {file.path: _seal(file.body(variables)) for file in FILES}


def _seal(body: str) -> str:
    return f"{_HEAD}# sparkd-content: {_digest(_HEAD + body)}\n{body}"


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def state_of(found: Found, wanted: str | None) -> State:
    """How a file compares with what it should be; `wanted` is None where it should not be."""
    if found.text is None and found.is_regular:
        return State.ABSENT
    text = found.text or ""
    marker = _MARKER.search(text)
    if not found.is_regular or marker is None:
        return State.FOREIGN
    if marker[1] != _digest(text[: marker.start()] + text[marker.end() :]):
        return State.EDITED
    return State.CURRENT if found.text == wanted else State.STALE


def plan(wanted: Mapping[str, str], on_disk: Mapping[str, Found], *, force: bool = False) -> Plan:
    """Compare; with `force`, files of ours that were edited by hand are replaced too."""
    changes: list[Change] = []
    refused: list[Refusal] = []
    for file in FILES:
        found, text = on_disk[file.path], wanted.get(file.path)
        match state_of(found, text):
            case State.FOREIGN if text is not None:
                reason = f"{file.path} exists and is not sparkd's: it is left as it is"
                refused.append(Refusal(file.path, reason))
            case State.EDITED if not force:
                reason = f"{file.path} was edited by hand: remove it, or apply with --force"
                refused.append(Refusal(file.path, reason))
            case State.ABSENT if text is not None:
                changes.append(Change(file.path, text, None))
            case State.STALE | State.EDITED:
                changes.append(Change(file.path, text, found.text))
    return Plan(tuple(changes), tuple(refused))


class LaunchPath(NamedTuple):
    """A way in which somebody can start an engine or a compiler."""

    name: str
    capped: bool | None
    """Whether the caps hold on it; None where that cannot be seen."""
    detail: str
    is_ours: bool = True
    """Whether sparkd could give it the caps; else the detail says what an administrator can do."""


def missing_in(text: str, variables: Mapping[str, str]) -> list[str]:
    """The assignments of `variables` that a file like /etc/environment lacks; PAM's syntax."""
    there = dict(_pam_assignments(text))
    return [f"{name}={value}" for name, value in variables.items() if there.get(name) != value]


def _pam_assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("#")[0].strip().removeprefix("export ").partition("=")
        if equals:
            yield name.strip(), value.strip().strip("\"'")
