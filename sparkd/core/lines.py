# SPDX-License-Identifier: Apache-2.0
"""From the bytes of one log message to framed lines: who said it, at which level, from which file.

A verdict about an engine must not hang on text that a client of the engine can write. vLLM prefixes
every physical line of its own records with `(Process pid=N) LEVEL MM-DD HH:MM:SS [file.py:LINE]`,
and a prompt, a grammar or a parameter cannot forge that prefix: its newlines are escaped or
prefixed in turn. So the prefix is parsed here, once, and signatures are anchored on it. A record
that was logged as JSON is first turned into the lines that it would have been as text.
"""

import re
from enum import StrEnum
from typing import NamedTuple

from sparkd.core import json_records

MESSAGE_CAP = 4096
"""Characters of a message that are matched; longer messages are cut and marked."""
RAW_CAP = 2048
"""Characters of a line that are shown to people."""
SCAN_CAP = 64 * 1024
"""Characters of one journal message that are framed at all (journald cuts lines at 48 KiB)."""
TRUNCATED = " [truncated]"


class Source(StrEnum):
    """Whose words a line is."""

    ENGINE = "engine"
    KERNEL = "kernel"
    SYSTEMD = "systemd"
    OTHER = "other"


class Line(NamedTuple):
    """One framed physical line.

    Attributes:
        source: who wrote it.
        process: vLLM's process name (`EngineCore`, `EngineCore_DP0`, `Worker_TP0`, `APIServer`,
            `MainProcess`), empty when the line is bare.
        pid: the process's pid as vLLM prints it (in a container: the container's), 0 if unknown.
        level: `DEBUG` to `CRITICAL`, empty when the line is not a record of vLLM's logger.
        file: base name of the source file, empty when the line is not a record of vLLM's logger.
        message: the text without wrappers, colours and prefix; at most `MESSAGE_CAP` characters,
            then `TRUNCATED`.
        raw: the line as it came, without control characters; at most `RAW_CAP`, then `TRUNCATED`.
            Of a JSON record: the line as vLLM's text formatter would have printed it.
    """

    source: Source
    process: str
    pid: int
    level: str
    file: str
    message: str
    raw: str


_ESCAPE = re.compile(
    r"\x1b\[[0-9;:?<=>]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: window titles, hyperlinks
    r"|\x1b[@-Z\\-_]"
)

_PROCESS = re.compile(
    r"\((?P<process>A[Pp][Ii]Server(?:_\d+)?|MainProcess|(?:Stage)?EngineCore(?:Proc)?(?:_\w+)?"
    r"|Worker(?:_\w+)?|VllmWorker(?:[- ]\w+)?)(?: rank=\d+)? pid=(?P<pid>\d{1,10})\) ?"
)
_RECORD = re.compile(
    r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)? "
    r"\[(?P<file>[\w./-]{1,200}\.py):\d+\] ?"
)
# A progress bar, or nanobind's last note, ends without a newline: the next record is glued to it.
_GLUE = re.compile(
    r"(?:\]|it/s|s/it|\.html)"
    r"(?=\(\w[\w -]{0,40}(?: rank=\d+)? pid=\d{1,10}\) (?:[A-Z]{4,8} \d\d-\d\d |\{\")"
    r'|\{"\w{1,32}": )'
    r"|\.html(?=Traceback \(most recent call last\):)"
)
_BAR = re.compile(r"\d%\||\d% Completed \||\.html")
_BAR_LITERALS = ("%|", "% Completed |", ".html")

_ISO_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?"
_SHORT_TIME = (
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?"
    r"|(?:[A-Z][a-z]{2} )?" + _ISO_TIME + r"(?: [A-Z]{2,5})?"
    r"|\[ *\d{1,9}\.\d{6}\]"
    r"|\d{9,11}\.\d{6}"
)
# `journalctl -o short` in its flavours, and syslog files: time, host, identifier[pid]: (only the
# kernel has no pid; without one, "vllm serve: error:" behind a time would pass for host and name).
_JOURNAL = re.compile(
    rf"(?:{_SHORT_TIME}) (?P<host>[\w.-]{{1,255}}) "
    r"(?:(?P<ident>[^\s\[\]]{1,64})\[\d{1,10}\]|kernel):(?: |$)"
)
_DMESG = re.compile(
    r"(?:<\d{1,2}>)?"
    r"\[(?: *\d{1,9}\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})\] "
)
# What containers and terminals put in front: CRI, RFC 3339, compose and pm2, kubectl, level, ^C.
_WRAPPERS = tuple(
    re.compile(pattern)
    for pattern in (
        _ISO_TIME + r" (?:stdout|stderr) [FP] ",
        _ISO_TIME + r" ",
        r"[\w.|-]{1,80} *\| ",
        r"\[pod/[\w./-]{1,250}\] ",
        r"<\d{1,2}>",
        r"\^C",
    )
)
_ANY_TIMED_WRAPPER = re.compile(r"[^'\"()]{0,80}\d\d:\d\d:\d\d[^'\"()]{0,40}(?=\(\w)")
_OWN = ("(", "{")
"""How a record starts: with its process, or as a JSON object."""
_UVICORN = ("INFO: ", "WARNING: ", "ERROR: ", "DEBUG: ", "CRITICAL: ")
_MAX_WRAPPERS = 3
_SYSTEM_IDENTIFIERS = {"kernel": Source.KERNEL, "systemd": Source.SYSTEMD}


def neutralise(text: str, cap: int = RAW_CAP) -> str:
    """Return `text` safe for a terminal: no colours, no control or direction characters, capped.

    Args:
        text: anything that came out of a log.
        cap: characters kept before `TRUNCATED` is added.
    """
    cut = len(text) > cap
    if cut:
        text = text[:cap]
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    if not text.isprintable():
        text = "".join(_visible(character) for character in text)
        cut = cut or len(text) > cap
    return text[:cap] + TRUNCATED if cut else text


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    if character in "\t\r\n":
        return " "
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def frame(raw: bytes | str, source: Source | None = None) -> list[Line]:
    """Split one log message into framed lines.

    One journal message may hold several physical lines, or a progress bar with a record glued
    behind it. Never raises, whatever the bytes; at least one line comes back.

    Args:
        raw: the message. Undecodable bytes become backslash escapes.
        source: who wrote it, when the reader knows (journal fields); otherwise taken from the
            wrapper of a text log, else the engine.
    """
    text = (
        raw
        if isinstance(raw, str)
        else bytes(raw[: SCAN_CAP * 4]).decode("utf-8", "backslashreplace")
    )
    text = text[:SCAN_CAP]
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    lines: list[Line] = []
    for physical in text.split("\n") if "\n" in text else (text,):
        _frame_physical(physical, source, lines)
    if len(lines) > 1:
        lines = [line for line in lines if line.message] or lines[:1]
    return lines


def _frame_physical(physical: str, source: Source | None, lines: list[Line]) -> None:
    physical = physical.rstrip("\r")
    who, rest = source or Source.ENGINE, physical
    if who is Source.ENGINE:
        found, rest = _unwrap(physical)
        who = source or found
    if who is not Source.ENGINE:
        lines.append(_bare(who, rest, physical))
        return
    process = _PROCESS.match(rest)
    record = _RECORD.match(rest, process.end()) if process else None
    if record:
        # A line that starts with a whole record prefix is never cut: what follows may be a
        # client's text, and a carriage return inside it is only a character.
        lines.append(_line(rest, physical, process, record))
        return
    unwrapped = _of_json(rest, process)
    if unwrapped:
        lines.extend(unwrapped)
        return
    for segment in _segments(rest):
        glued = [] if segment is rest else _of_json(segment, _PROCESS.match(segment))
        lines.extend(glued or [_parse(segment, physical if segment is rest else segment)])


def _of_json(text: str, process: re.Match[str] | None) -> list[Line]:
    """The lines of a record that was logged as JSON, behind a process's prefix or without one."""
    start = process.end() if process else 0
    if not text.startswith("{", start):
        return []
    known = json_records.Process(process["process"], int(process["pid"])) if process else None
    texts = json_records.text_lines(text[start:], known) or []
    # Never cut, as a line with a whole record prefix never is: all of it is that record's text. Nor
    # does a line of a record without such a prefix, which is uvicorn's, pose as another record.
    has_prefix = bool(texts) and _PROCESS.match(texts[0]) is not None
    return [_uncut(one, may_be_record=has_prefix) for one in texts]


def _uncut(text: str, *, may_be_record: bool) -> Line:
    text = (_ESCAPE.sub("", text) if "\x1b" in text else text).rstrip("\r")
    process = _PROCESS.match(text) if may_be_record else None
    return _line(text, text, process, _RECORD.match(text, process.end()) if process else None)


def _unwrap(text: str) -> tuple[Source, str]:
    """Strip what a log's carrier put in front; the carrier also says whether the kernel speaks."""
    source = Source.ENGINE
    for _ in range(_MAX_WRAPPERS):
        if text.startswith(_OWN) or text.startswith(_UVICORN):
            break
        journal = _JOURNAL.match(text)
        if journal:
            source = _SYSTEM_IDENTIFIERS.get(journal["ident"] or "kernel", Source.ENGINE)
            text = text[journal.end() :]
            if source is not Source.ENGINE:
                return source, _DMESG.sub("", text, count=1)
            continue
        kernel = _DMESG.match(text)
        if kernel:
            return Source.KERNEL, text[kernel.end() :]
        for wrapper in _WRAPPERS:
            match = wrapper.match(text)
            if match:
                text = text[match.end() :]
                break
        else:
            break
    if not text.startswith(_OWN):
        timed = _ANY_TIMED_WRAPPER.match(text)
        if timed and not text.startswith(_UVICORN) and _PROCESS.match(text, timed.end()):
            text = text[timed.end() :]
    return source, text


def _segments(text: str) -> list[str]:
    """Cut a bare line where a record is glued behind a progress bar or a note without newline."""
    segments: list[str] = []
    for part in text.split("\r") if "\r" in text else (text,):
        start = 0
        if (
            any(literal in part for literal in _BAR_LITERALS)  # far cheaper than the search
            and not part.startswith(_UVICORN)
            and _BAR.search(part)
        ):
            for glue in _GLUE.finditer(part):
                segments.append(part[start : glue.end()])
                start = glue.end()
                if part[start] in "({":
                    break  # a whole record: what follows in it may be a client's text
        segments.append(part[start:] if start else part)
    return segments


def _parse(text: str, shown: str) -> Line:
    process = _PROCESS.match(text)
    record = _RECORD.match(text, process.end() if process else 0)
    return _line(text, shown, process, record)


def _line(
    text: str, shown: str, process: re.Match[str] | None, record: re.Match[str] | None
) -> Line:
    prefix = record or process
    start = prefix.end() if prefix else 0
    message, raw = _message_and_raw(text[start:], shown)
    return Line(
        Source.ENGINE,
        process["process"] if process else "",
        int(process["pid"]) if process else 0,
        record["level"] if record else "",
        record["file"].rpartition("/")[2] if record else "",
        message,
        raw,
    )


def _bare(source: Source, text: str, shown: str) -> Line:
    return Line(source, "", 0, "", "", *_message_and_raw(text, shown))


def _message_and_raw(text: str, shown: str) -> tuple[str, str]:
    """Both forms of a line; `text` is part of `shown`, which is nearly always harmless as it is."""
    if len(shown) <= RAW_CAP and shown.isprintable():
        return text.rstrip(), shown
    return neutralise(text, MESSAGE_CAP).rstrip(), neutralise(shown)


def process_kind(process: str) -> str:
    """Return `EngineCore`, `Worker` or `APIServer` for any process of that kind, else the name."""
    if process.startswith(("EngineCore", "StageEngineCore")):
        return "EngineCore"
    if process.startswith(("Worker", "VllmWorker")):
        return "Worker"
    if process[:9].lower() == "apiserver":
        return "APIServer"
    return process
