# SPDX-License-Identifier: Apache-2.0
"""Each engine's effective configuration, and the place that every value comes from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sparkd.core.config_reader import Document, Source, parse
from sparkd.core.schema import ENGINE, FREE_SECTIONS, HOST, settings_in
from sparkd.core.secrecy import contains_secret, is_secret_name

DEFAULT = "default"
# An address in it may be the secret itself, and this shows configurations that were refused, too.
_HIDDEN = frozenset({"alerts.more-webhooks"})


class Value(NamedTuple):
    """One value and where it is written: `default`, `/etc/…:12`, a drop-in's line."""

    key: str
    value: str
    origin: str


class DropIn(NamedTuple):
    """One line of a drop-in and what systemd makes of it."""

    path: str
    line: int
    key: str
    value: str
    unit_value: str | None
    """What the unit file says for the key; None when it says nothing."""
    effective: str | None
    """What systemd uses; None where it does not tell."""


def values(source: Source) -> list[Value]:
    """The values of one file, those that it leaves to their defaults included."""
    document = parse(source)
    file = HOST if source.engine is None else ENGINE
    found = []
    for setting in settings_in(file, document.table):
        table = document.section(setting.section) if setting.section else document.table
        if setting.key in table:
            hidden = setting.hidden or setting.path in _HIDDEN
            shown = _hidden_if(table[setting.key], hidden=hidden)
            found.append(Value(setting.path, shown, _place(document, setting.key_path)))
        elif setting.default is not None:
            found.append(Value(setting.path, setting.default, DEFAULT))
    for free in FREE_SECTIONS:
        if free.file == file:
            found += _free(document, free.name)
    return found


def _free(document: Document, name: str) -> Iterator[Value]:
    for key, value in document.section(name).items():
        # Credentials are paths; a variable named like a secret was refused, but this may be a
        # configuration that was.
        hidden = name == "env" and is_secret_name(key)
        shown = _hidden_if(value, hidden=hidden)
        yield Value(f"{name}.{key}", shown, _place(document, (name, key)))


def _place(document: Document, path: tuple[str, ...]) -> str:
    return f"{document.path}:{document.line(*path)}"


def _hidden_if(value: object, *, hidden: bool) -> str:
    return "…" if hidden or contains_secret(value) else _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def effect(drop_in: DropIn) -> str:
    """One sentence about a line of a drop-in."""
    before = "" if drop_in.unit_value is None else f", the unit says {drop_in.unit_value!r}"
    now = "" if drop_in.effective is None else f"; systemd uses {drop_in.effective!r}"
    return f"{drop_in.key}={drop_in.value}{before}{now}"


def to_json(found: Sequence[Value], drop_ins: Sequence[DropIn]) -> Mapping[str, object]:
    """The configuration's part of an engine in `sparkctl doctor --json`."""
    return {
        "values": [value._asdict() for value in found],
        "drop_ins": [drop_in._asdict() for drop_in in drop_ins],
    }
