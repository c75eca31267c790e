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
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]  # C, and linear; no stub has it
from typing import NamedTuple

KEYS_MAX = 64
"""Members of an object that are read."""
DEPTH_MAX = 32
"""An object that nests deeper is no log record."""
LINES_MAX = 1000
"""Lines of one record that are kept: the first half and, where a traceback ends, the last."""

_TIME = ("asctime", "timestamp", "time", "@timestamp")
_LEVEL = ("levelname", "level", "severity", "severity_text")
_FILE = ("filename", "pathname")
_LOGGER = ("name", "logger", "logger_name")
_PROCESS = ("vllm_process_name", "processName", "process_name")
_PID = ("process", "pid")
_LINENO = ("lineno", "line")
_TEXT = ("message", "msg", "body", "event")
_TRACES = (("exc_info", "exception", "exc_text"), ("stack_info",))
_MAY_BE_CUT = frozenset(_TEXT).union(*_TRACES)
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
_SERVER = re.compile(r"uvicorn(?:\.|\Z)")


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
    members = _members(text)
    if members is None:
        return None
    level = _LEVELS.get(_string(members, _LEVEL).upper(), "")
    said = _first(members, _TEXT)
    if not level or not isinstance(said, str):
        return None
    prefix = _prefix(members, level, process)
    if prefix is None:
        return None
    lines = _with_traces(said, members).split("\n")
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX // 2], *lines[-LINES_MAX // 2 :]]
    if _SERVER.match(_string(members, _LOGGER)):
        return [prefix + lines[0], *lines[1:]]
    return [prefix + line for line in lines]


def _prefix(members: dict[str, object], level: str, process: Process | None) -> str | None:
    logger = _string(members, _LOGGER)
    if _SERVER.match(logger):
        return f"{level}:".ljust(10)
    file = _string(members, _FILE)
    module = _LOGGER_NAME.fullmatch(logger)
    if not _FILE_NAME.fullmatch(file):
        if module is None:
            return None
        file = f"{module[1]}.py"
    name, pid = process or (_string(members, _PROCESS), _number(members, _PID))
    if not _PROCESS_NAME.fullmatch(name):
        return None
    clock = _CLOCK.search(_string(members, _TIME)[:40])
    when = f"{clock[1]} {clock[2]}" if clock else _NO_TIME
    return f"({name} pid={pid}) {level} {when} [{file}:{_number(members, _LINENO)}] "


def _with_traces(text: str, members: dict[str, object]) -> str:
    for names in _TRACES:
        trace = _first(members, names)
        if isinstance(trace, str) and trace:
            text += trace if text.endswith("\n") else "\n" + trace
    return text


def _first(members: dict[str, object], names: tuple[str, ...]) -> object:
    return next((members[name] for name in names if members.get(name) is not None), None)


def _string(members: dict[str, object], names: tuple[str, ...]) -> str:
    value = _first(members, names)
    return value if isinstance(value, str) else ""


def _number(members: dict[str, object], names: tuple[str, ...]) -> int:
    """A number as a record holds it, which is plain digits; 0 for anything else."""
    value = _first(members, names)
    return value if isinstance(value, int) else 0


def _members(text: str) -> dict[str, object] | None:
    """The top level of an object; None when it is none. What was cut off is not in it."""
    members: dict[str, object] = {}
    at = 1
    for _ in range(KEYS_MAX):
        key = _KEY.match(text, at)
        if key is None:
            break
        value, at = _value(text, key.end())
        if at < 0:
            return None
        if at > len(text) and key[1] not in _MAY_BE_CUT:
            break
        members[key[1]] = value
    return members or None


def _value(text: str, at: int) -> tuple[object, int]:
    """The value that starts at `at`, and where it ends.

    A negative end: this is no JSON. One behind the text's: the value has been cut off.
    """
    if text.startswith('"', at):
        return _text_at(text, at + 1)
    if text.startswith("[", at):
        return _lines_at(text, at)
    if text.startswith("{", at):
        return None, _end_of_nested(text, at)
    scalar = _SCALAR.match(text, at)
    if scalar is None:
        return None, len(text) + 1 if at >= len(text) else -1
    digits = scalar[0]
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 10
    return int(digits) if is_number else None, scalar.end()


def _text_at(text: str, at: int) -> tuple[str, int]:
    try:
        found: tuple[str, int] = scanstring(text, at, False)
    except ValueError:
        return _cut_text(text, at), len(text) + 1
    return found


def _cut_text(text: str, at: int) -> str:
    """A string whose end is missing, as may be that of its last escape."""
    for missing in range(7):
        try:
            whole = text[: max(at, len(text) - missing)] + '"'
            found: tuple[str, int] = scanstring(whole, at, False)
        except ValueError:
            continue
        return found[0]
    return ""


def _lines_at(text: str, at: int) -> tuple[object, int]:
    """A list; when it is one of strings, as formatters may write a traceback, those as lines."""
    end = _end_of_nested(text, at)
    if end < 0:
        return None, end
    lines = list(_strings(text, at + 1, min(end, len(text))))
    return "\n".join(lines) if lines else None, end


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
