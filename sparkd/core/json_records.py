# SPDX-License-Identifier: Apache-2.0
"""From a log record that was written as one JSON object to the lines vLLM prints as text.

vLLM 0.32 and later write JSON with `--logging-config.formatter json`: python-json-logger with
`asctime levelname name processName process message`, and `vllm_process_name`, `exc_info` and
`stack_info` where a record has them (run with 0.32.0). Earlier versions do with
VLLM_LOGGING_CONFIG_PATH, and then put `(Process pid=N) ` in front of the object. The field names of
other common JSON formatters are understood as well.

Read by hand: a parser of the whole value would recurse, and would refuse an object whose end
journald has cut off. Only what stands at the top level counts, so nothing that is nested can pose
as a level or a message.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

KEYS_MAX = 64
"""Members of an object that are read."""
DEPTH_MAX = 32
"""An object that nests deeper is no log record."""
LINES_MAX = 1000
"""Lines of one record that are kept: the first half and, where a traceback ends, the last."""

# Of every line, the first name is vLLM's own, and wins where a record has several.
_NAMES = {
    "time": ("asctime", "timestamp", "time", "@timestamp"),
    "level": ("levelname", "level", "severity", "severity_text"),
    "file": ("filename", "pathname"),
    "logger": ("name", "logger", "logger_name"),
    "process": ("vllm_process_name", "processName", "process_name"),
    "pid": ("process", "pid"),
    "lineno": ("lineno", "line"),
    "text": ("message", "msg", "body", "event"),
    "error": ("exc_info", "exception", "exc_text"),
    "stack": ("stack_info",),
}
_FIELD = {name: field for field, names in _NAMES.items() for name in names}
_WINS = frozenset(names[0] for names in _NAMES.values())
_NUMBERS = frozenset({"pid", "lineno"})
_MAY_BE_CUT = frozenset({"text", "error", "stack"})
"""Half a text is worth reading; half a name is another name."""

_LEVELS = {
    **{name: name for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")},
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
}
_KEY = re.compile(r'[,\s]*"([\w.@-]{1,64})"\s*:\s*')
_SCALAR = re.compile(r"-?\d[\d.eE+-]{0,40}|true|false|null|NaN|-?Infinity")
_NESTED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]|[^"\[\]{}]+', re.DOTALL)
_CLOCK = re.compile(r"(\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_NO_TIME = "00-00 00:00:00"
_FILE_NAME = re.compile(r"[\w./-]{1,200}\.py")
_PROCESS_NAME = re.compile(r"[\w-]{1,64}")
_LOGGER_NAME = re.compile(r"(?:[\w-]{1,100}\.){0,20}([\w-]{1,100})")


class _Value(NamedTuple):
    text: str
    is_number: bool = False


class Process(NamedTuple):
    """Who wrote a record, when something in front of the object says so."""

    name: str
    pid: int


def text_lines(text: str, process: Process | None = None) -> list[str] | None:
    """The lines that vLLM's text formatter would have printed for a record.

    What the record does not say is written as zeros (vLLM's JSON names no line of the source file).
    Records of uvicorn come without vLLM's prefix, as its own formatter prints them.

    Args:
        text: what starts with `{`; may be cut off at its end.
        process: overrides what the object says.

    Returns:
        None: this is no record that names its level, origin, process and text. Never raises.
    """
    said = _members(text)
    if said is None:
        return None
    level = _LEVELS.get(said.get("level", "").upper())
    message = said.get("text")
    prefix = None if level is None or message is None else _prefix(said, level, process)
    if message is None or prefix is None:
        return None
    for trace in (said.get("error"), said.get("stack")):
        if trace:
            message += trace if message.endswith("\n") else "\n" + trace
    lines = message.split("\n")
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX // 2], *lines[-LINES_MAX // 2 :]]
    if _is_server(said):
        return [prefix + lines[0], *lines[1:]]
    return [prefix + line for line in lines]


def _is_server(said: dict[str, str]) -> bool:
    return said.get("logger", "").partition(".")[0] == "uvicorn"


def _prefix(said: dict[str, str], level: str, process: Process | None) -> str | None:
    if _is_server(said):
        return f"{level}:".ljust(10)
    file = said.get("file", "")
    if not _FILE_NAME.fullmatch(file):
        module = _LOGGER_NAME.fullmatch(said.get("logger", ""))
        if module is None:
            return None
        file = f"{module[1]}.py"
    name, pid = process or (said.get("process", ""), said.get("pid", "0"))
    if not _PROCESS_NAME.fullmatch(name):
        return None
    clock = _CLOCK.search(said.get("time", "")[:40])
    when = f"{clock[1]} {clock[2]}" if clock else _NO_TIME
    return f"({name} pid={pid}) {level} {when} [{file}:{said.get('lineno', '0')}] "


def _members(text: str) -> dict[str, str] | None:
    """The known fields of an object's top level; None when it is none."""
    fields: dict[str, str] = {}
    at = 1
    for _ in range(KEYS_MAX):
        key = _KEY.match(text, at)
        if key is None:
            break
        value, at = _value(text, key.end())
        if at < 0:
            return None
        name = key[1]
        field = _FIELD.get(name)
        if field is None or value is None or (at > len(text) and field not in _MAY_BE_CUT):
            continue
        is_number = field in _NUMBERS
        if is_number == value.is_number and (name in _WINS or field not in fields):
            fields[field] = value.text
    return fields


def _value(text: str, at: int) -> tuple[_Value | None, int]:
    """The value that starts at `at`, and where it ends.

    A negative end: this is no JSON. One behind the text's: the value has been cut off.
    """
    first = text[at : at + 1]
    if first == '"':
        string, end = _text_at(text, at + 1)
        return _Value(string), end
    if first == "[":
        return _lines_at(text, at)
    if first == "{":
        return None, _end_of_nested(text, at)
    scalar = _SCALAR.match(text, at)
    if scalar is None:
        return None, -1 if first else len(text) + 1
    digits = scalar[0]
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 10
    return _Value(digits, is_number=True) if is_number else None, scalar.end()


@cache
def _scanner() -> Callable[[str, int, bool], tuple[str, int]]:
    """The standard library's reader of a JSON string: in C, and linear.

    Most logs hold no JSON, and whoever frames them at a start need not wait for the import (3 ms).
    """
    from json.decoder import scanstring  # type: ignore[attr-defined]  # noqa: PLC0415  (see above)

    reader: Callable[[str, int, bool], tuple[str, int]] = scanstring
    return reader


def _text_at(text: str, at: int) -> tuple[str, int]:
    try:
        return _scanner()(text, at, False)
    except ValueError:
        return _cut_text(text, at), len(text) + 1


def _cut_text(text: str, at: int) -> str:
    """A string whose end is missing, as may be that of its last escape."""
    for missing in range(7):
        try:
            whole = text[: max(at, len(text) - missing)] + '"'
            return _scanner()(whole, at, False)[0]
        except ValueError:
            continue
    return ""


def _lines_at(text: str, at: int) -> tuple[_Value | None, int]:
    """A list; when it is one of strings, as formatters may write a traceback, those as lines."""
    end = _end_of_nested(text, at)
    if end < 0:
        return None, end
    lines = list(_strings(text, at + 1, min(end, len(text))))
    return _Value("\n".join(lines)) if lines else None, end


def _strings(text: str, at: int, end: int) -> Iterator[str]:
    while at < end and text.startswith('"', at):
        line, at = _text_at(text, at + 1)
        yield line
        while at < end and text[at] in ", \t":
            at += 1


def _end_of_nested(text: str, at: int) -> int:
    """Where the value that opens at `at` ends; a negative number: it nests too deep."""
    depth = 0
    for token in _NESTED.finditer(text, at):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        if depth > DEPTH_MAX:
            return -1
        if depth == 0:
            return token.end()
    return len(text) + 1
