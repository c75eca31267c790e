# SPDX-License-Identifier: Apache-2.0
"""Unit files as systemd reads them: sections, continuation lines, drop-ins, resets."""

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparkd.core.importing.model import Origin

_BLANK = " \t\r\n"
# A carriage return ends a line for systemd too.
_END_OF_LINE = re.compile(r"\r\n|\n\r|\n|\r|\0")


class Fragment(NamedTuple):
    """The text of a unit file or of one drop-in."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One `Key=value`; `starts` are the offsets in `value` at which a physical line begins."""

    section: str
    key: str
    value: str
    origin: Origin
    starts: tuple[int, ...] = (0,)
    lines: tuple[int, ...] = ()

    def at(self, offset: int) -> Origin:
        """Return the place of the character at `offset` in `value`."""
        if not self.lines:
            return self.origin
        index = bisect.bisect_right(self.starts, offset) - 1
        return Origin(self.origin.source, self.lines[max(index, 0)])


def parse(fragment: Fragment) -> list[Setting]:
    """Return the settings of one file in order.

    A line that is no assignment, which systemd ignores, has an empty key.
    """
    settings: list[Setting] = []
    section = ""
    joined, starts, lines = "", [0], [0]
    continuing = False
    for number, line in enumerate(
        _END_OF_LINE.split(fragment.text.removeprefix("\ufeff")), start=1
    ):
        if line.lstrip(_BLANK)[:1] in {"#", ";"}:
            continue  # a comment, also between two continuation lines
        if continuing:
            starts.append(len(joined))
            lines.append(number)
        else:
            joined, starts, lines = "", [0], [number]
        joined += line if continuing else line.lstrip(_BLANK)
        continuing = _ends_in_backslash(joined)
        if continuing:
            joined = joined[:-1] + " "
            continue
        if joined.startswith("["):
            section = joined.strip(_BLANK)[1:-1]
        elif joined.strip(_BLANK):
            settings.append(_setting(fragment.path, section, joined, starts, lines))
    if continuing and joined.strip(_BLANK):
        settings.append(_setting(fragment.path, section, joined, starts, lines))
    return settings


def _ends_in_backslash(text: str) -> bool:
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1


def _setting(
    path: str, section: str, joined: str, starts: Sequence[int], lines: Sequence[int]
) -> Setting:
    key, equals, rest = joined.partition("=")
    if not equals:
        key, rest = "", joined
    value = rest.lstrip(_BLANK)
    skipped = len(joined) - len(value)
    return Setting(
        section, key.strip(_BLANK), value.rstrip(_BLANK), Origin(path, lines[0]),
        tuple(max(start - skipped, 0) for start in starts), tuple(lines),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit with its drop-ins merged, as systemd merges them."""

    name: str
    settings: tuple[Setting, ...]

    def all(self, section: str, key: str) -> list[Setting]:
        """Return the values of a list setting; an empty assignment resets the list."""
        values: list[Setting] = []
        for setting in self.settings:
            if setting.section == section and setting.key == key:
                values = [*values, setting] if setting.value else []
        return values

    def last(self, section: str, key: str) -> Setting | None:
        """Return the value of a setting that has only one; None where it is not set or empty."""
        values = self.all(section, key)
        return values[-1] if values else None

    def is_true(self, section: str, key: str) -> bool:
        """Return whether a boolean setting is switched on."""
        setting = self.last(section, key)
        return setting is not None and setting.value.lower() in {"1", "yes", "y", "true", "t", "on"}


def merge(name: str, fragment: Fragment, drop_ins: Sequence[Fragment]) -> Unit:
    """Return the unit; drop-ins apply in the order of their file names."""
    ordered = sorted(drop_ins, key=lambda drop_in: drop_in.path.rpartition("/")[2])
    settings = [setting for part in (fragment, *ordered) for setting in parse(part)]
    return Unit(name, tuple(settings))
