# SPDX-License-Identifier: Apache-2.0
"""From a log record that was written as one JSON object to the lines vLLM prints as text.

vLLM 0.32 and later write JSON with `--logging-config.formatter json`: python-json-logger with
`asctime levelname name processName process message`, and `vllm_process_name`, `exc_info` and
`stack_info` where a record has them (run with 0.32.0). Earlier versions do with
VLLM_LOGGING_CONFIG_PATH, and then put `(Process pid=N) ` in front of the object. The field names of
other common JSON formatters are understood as well.

journald cuts off the end of a long object; what came before is read all the same. Only what stands
at the top level counts, so nothing that is nested can pose as a level or a message.
"""

import re
from typing import NamedTuple

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
_ESCAPE_MAX = 6
"""Characters of an escape, all but the last of which may be left of it."""
_MEMBERS_BACK = 16
"""So many members, or items of a nested value, are given up when the cut fell between others."""

_LEVELS = {
    **{name: name for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")},
    "WARN": "WARNING",
    "FATAL": "CRITICAL",
}
_CLOCK = re.compile(r"(\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
_NO_TIME = "00-00 00:00:00"
_FILE_NAME = re.compile(r"[\w./-]{1,200}\.py")
_PROCESS_NAME = re.compile(r"[\w-]{1,64}")
_LOGGER_NAME = re.compile(r"(?:[\w-]{1,100}\.){0,20}([\w-]{1,100})")


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
    found = _load(text)
    if found is None:
        return None
    fields: dict[str, str] = {}
    for name, value in found.items():
        field = _FIELD.get(name)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if field is None or is_number != (field in _NUMBERS):
            continue
        if isinstance(value, list):  # as formatters may write a traceback
            said = "\n".join(line for line in value if isinstance(line, str))
        elif isinstance(value, str | int):
            said = str(value)
        else:
            continue
        if name in _WINS or field not in fields:
            fields[field] = said
    return fields


def _load(text: str) -> dict[str, object] | None:
    """The object, or as much of it as there is when its end has been cut off."""
    whole = _parse(text)
    if whole is not None or text.endswith("}"):
        return whole
    for end in ('"}', '"]}'):
        for missing in range(_ESCAPE_MAX + 1):
            cut = _parse(text[: len(text) - missing] + end)
            if cut is not None:
                # Half a text is worth reading; half a name is another name.
                if _FIELD.get(list(cut)[-1]) not in _MAY_BE_CUT:
                    cut.popitem()
                return cut
    at = len(text)
    for _ in range(_MEMBERS_BACK):
        at = text.rfind(', "', 0, at)
        if at < 0:
            return None
        if (cut := _parse(text[:at] + "}")) is not None:
            return cut
    return None


def _parse(text: str) -> dict[str, object] | None:
    import json  # noqa: PLC0415  (3 ms, and most logs hold none: a start need not wait for it)

    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
