# SPDX-License-Identifier: Apache-2.0
"""One configuration file against the settings table: strict, with a line for every complaint."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkd.core.config_errors import ConfigError, shown
from sparkd.core.schema import (
    ENGINE,
    ENGINE_NAME,
    ENGINE_NAME_RULE,
    FREE_SECTIONS,
    SETTINGS,
    Setting,
    named_section,
    settings_in,
)
from sparkd.core.secrecy import is_secret_name
from sparkd.core.toml_lines import KeyPath, key_lines

MAX_FILE_BYTES = 1 << 20

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
_AT_LINE = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)\Z")


@dataclass(frozen=True, slots=True)
class Source:
    """A configuration file's name and content; `engine` is None for sparkd.toml."""

    path: str
    data: bytes | str
    engine: str | None = None


@dataclass(slots=True)
class Document:
    """A parsed file and what was found wrong with it."""

    path: str
    table: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    errors: list[ConfigError] = field(default_factory=list)
    unreadable: bool = False

    def line(self, *path: str) -> int:
        """Return the line of `path`, or of the nearest table around it, or 1."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return line
        return 1

    def refuse(
        self, path: KeyPath, rule: str, *, value: object = None, secret: bool = False,
        hint: str = "",
    ) -> None:  # fmt: skip
        """Add an error about the key at `path`; a value of None is not shown."""
        line = self.line(*path)
        text = "" if value is None else shown(value, secret=secret)
        key = ".".join(part if _BARE_KEY.match(part) else shown(part) for part in path)
        self.errors.append(ConfigError(self.path, line, key, text, rule, hint))

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section's table, empty where the file has none."""
        table: object = self.table
        for part in name.split("."):
            table = table.get(part) if isinstance(table, dict) else None
        return table if isinstance(table, dict) else {}


def parse(source: Source) -> Document:
    """Parse TOML; whatever is wrong with the text becomes an error of the document."""
    document = Document(source.path, unreadable=True)
    try:
        text = _decode(source.data)
        document.table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        document.errors.append(_syntax_error(source.path, text, str(error)))
    except _TextError as error:
        document.errors.append(ConfigError(source.path, error.line, "", "", error.rule))
    except RecursionError:
        rule = "must not nest tables or arrays this deeply"
        document.errors.append(ConfigError(source.path, 0, "", "", rule))
    except ValueError:
        rule = "must not hold a number of thousands of digits or an impossible date"
        document.errors.append(ConfigError(source.path, 0, "", "", rule))
    else:
        document.lines = key_lines(text)
        document.unreadable = False
    return document


class _TextError(Exception):
    def __init__(self, line: int, rule: str) -> None:
        super().__init__(rule)
        self.line = line
        self.rule = rule


def _decode(data: bytes | str) -> str:
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > MAX_FILE_BYTES:
        raise _TextError(0, f"must not be larger than {MAX_FILE_BYTES >> 20} MiB")
    if data.startswith(b"\xef\xbb\xbf"):
        raise _TextError(1, "must not begin with a byte order mark: save it as UTF-8 without BOM")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _TextError(line, "must be UTF-8: this line holds a byte that is not") from None


def _syntax_error(path: str, text: str, message: str) -> ConfigError:
    match = _AT_LINE.search(message)
    line = int(match[1]) if match and match[1] else text.count("\n") + 1
    return ConfigError(path, line, "", "", f"is not valid TOML: {_AT_LINE.sub('', message)}")


def read_settings(document: Document, file: str) -> dict[str, Any]:
    """Return the values of the settings of `file` by `section.key`, defaults included.

    A key that is wrong is missing from the result and has an error in `document`.
    """
    by_section: dict[str, dict[str, Setting]] = {}
    for setting in settings_in(file, document.table):
        by_section.setdefault(setting.section, {})[setting.key] = setting
    free = {section.name for section in FREE_SECTIONS if section.file == file}
    named = {named_section(setting) for setting in SETTINGS if setting.file == file} - {""}
    top = by_section.get("", {})
    sections = {section for section in by_section if "." not in section} - {""} | free | named

    values: dict[str, Any] = {}
    for key, value in document.table.items():
        if key in sections and not isinstance(value, dict):
            document.refuse((key,), f"must be a table: write [{key}]", value=value)
        elif key in free:
            continue
        elif key in named:
            _read_named(document, file, key, by_section, values)
        elif key in sections:
            _read_section(document, file, (key,), by_section[key], values)
        elif key in top:
            _read_value(document, top[key], value, values)
        else:
            _unknown(document, file, (key,), [*top, *sections])
    _add_defaults(document, by_section, values)
    return values


def _read_named(
    document: Document, file: str, section: str, by_section: Mapping[str, Mapping[str, Setting]],
    values: dict[str, Any],
) -> None:  # fmt: skip
    for name, table in document.section(section).items():
        if not ENGINE_NAME.match(name):
            document.refuse((section, name), f"the name {ENGINE_NAME_RULE}")
        elif not isinstance(table, dict):
            document.refuse((section, name), f"must be a table: write [{section}.{name}]")
        else:
            known = by_section[f"{section}.{name}"]
            _read_section(document, file, (section, name), known, values)


def _read_section(
    document: Document, file: str, section: KeyPath, known: Mapping[str, Setting],
    values: dict[str, Any],
) -> None:  # fmt: skip
    for key, value in document.section(".".join(section)).items():
        if key in known:
            _read_value(document, known[key], value, values)
        else:
            _unknown(document, file, (*section, key), known)


def _read_value(
    document: Document, setting: Setting, value: object, values: dict[str, Any]
) -> None:
    try:
        values[setting.path] = setting.parse(value)
    except (ValueError, TypeError):
        document.refuse(setting.key_path, setting.rule, value=value, secret=setting.hidden)


def _add_defaults(
    document: Document, by_section: Mapping[str, Mapping[str, Setting]], values: dict[str, Any]
) -> None:
    for settings in by_section.values():
        for setting in settings.values():
            given = document.section(setting.section) if setting.section else document.table
            if setting.key in given:
                continue
            if setting.default is not None:
                default = tomllib.loads(f"value = {setting.default}")["value"]
                values[setting.path] = setting.parse(default)
            elif setting.required:
                document.refuse(setting.key_path, f"is required and {setting.rule}")


def _unknown(document: Document, file: str, path: KeyPath, known: Iterable[str]) -> None:
    kind = "section" if len(path) == 1 and isinstance(document.table[path[0]], dict) else "key"
    # The value stays unseen: a misspelled name may well hold a secret.
    document.refuse(path, f"is no known {kind}", hint=_hint(file, path, known))


def _hint(file: str, path: KeyPath, known: Iterable[str]) -> str:
    key = path[-1]
    for setting in SETTINGS:
        if setting.key == key and setting.file == file:
            place = f"[{setting.section}]" if setting.section else "the top of the file"
            return f"it belongs in {place}"
    for setting in SETTINGS:
        if setting.key == key:
            return f"it belongs in [{setting.section}] of {setting.file}"
    # Case and the two word separators are the most common slips.
    folded = {name.lower().replace("_", "-"): name for name in known}
    close = difflib.get_close_matches(key.lower().replace("_", "-"), folded, n=1, cutoff=0.6)
    if close:
        return f"did you mean {folded[close[0]]}?"
    if file == ENGINE:
        if is_secret_name(key):
            return "secrets go into [credentials]"
        return "vLLM's flags go into [serve]"
    return ""
