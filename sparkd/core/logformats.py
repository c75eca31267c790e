# SPDX-License-Identifier: Apache-2.0
"""From a log file of any carrier to framed lines with their line numbers.

Understood: plain output, `journalctl` in its short flavours, `-o cat`, `-o verbose`, `-o json`,
`-o json-pretty`, `-o json-sse`, `-o json-seq` and `-o export`, Docker's json-file, and what
`docker logs`, compose, CRI and kubectl print. The carrier is recognised record by record, so a file
may mix them. Journal fields say who wrote a message; a text file is believed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from sparkd.core.cut_lines import CutLines
from sparkd.core.lines import Line, Source, frame

LINE_CAP = 4 * 1024 * 1024
"""Bytes of one physical line, or of one structured record, that are looked at."""
_FIELD = re.compile(rb"([A-Z_][A-Z0-9_]{0,63})(=?)")
_VERBOSE_HEAD = re.compile(rb"[A-Z][a-z]{2} \d{4}-\d\d-\d\d .{8,40} \[s=[0-9a-f]+;")
_PRETTY_CAP = 512  # lines of one json-pretty record


class _Numbered:
    """Physical lines with their number, and a way to take raw bytes across them."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._pushed: list[bytes] = []
        self.number = 0

    def next(self) -> bytes | None:
        line = self._pushed.pop() if self._pushed else next(self._chunks, None)
        if line is not None:
            self.number += 1
        return line

    def push(self, line: bytes) -> None:
        self.number -= 1
        self._pushed.append(line)

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes, fewer at the end; newlines count as bytes."""
        parts: list[bytes] = []
        while size > 0:
            line = self.next()
            if line is None:
                break
            if len(line) > size:
                self.push(line[size:])
                line = line[:size]
            parts.append(line)
            size -= len(line)
        return b"".join(parts)


class _Broken:
    """Lines whose rest has not come yet."""

    def __init__(self) -> None:
        self.docker: set[str] = set()
        self.journal = CutLines()


def read_lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, Line]]:
    """Yield `(number, line)` for every framed line of a log.

    Args:
        chunks: the file's physical lines, each with its newline (iterate the file in binary mode).

    The number is that of the physical line, 1-based, on which the record starts. Never raises on
    content; what cannot be parsed is framed as plain text.
    """
    source = _Numbered(chunks)
    broken = _Broken()
    while True:
        chunk = source.next()
        if chunk is None:
            return
        number = source.number
        for line in _read_record(source, chunk[:LINE_CAP], broken):
            yield number, line


def _read_record(source: _Numbered, chunk: bytes, broken: _Broken) -> list[Line]:
    text = chunk.rstrip(b"\n").removeprefix(b"\xef\xbb\xbf")
    if text.startswith(b"__CURSOR="):
        return _journal_lines(_export_fields(source, text), broken)
    if _VERBOSE_HEAD.match(text):
        return _journal_lines(_verbose_fields(source), broken)
    bare = text.removeprefix(b"\x1e").removeprefix(b"data: ")
    if bare == b"{":
        bare = _pretty_record(source, bare)
    if bare.startswith(b"{"):
        fields = _json_object(bare)
        if fields is not None:
            return _structured_lines(fields, broken) or frame(text)
    return frame(text)


def _json_object(text: bytes) -> Mapping[str, object] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _pretty_record(source: _Numbered, opening: bytes) -> bytes:
    lines = [opening]
    while len(lines) < _PRETTY_CAP:
        chunk = source.next()
        if chunk is None:
            break
        lines.append(chunk)
        if chunk.rstrip(b"\r\n") in (b"}", b"},"):
            return b"".join(lines).rstrip().rstrip(b",")
    for line in reversed(lines[1:]):
        source.push(line)
    return opening


def _structured_lines(fields: Mapping[str, object], broken: _Broken) -> list[Line]:
    if "MESSAGE" in fields or "_TRANSPORT" in fields or "__REALTIME_TIMESTAMP" in fields:
        return _journal_lines(fields, broken)
    text = fields.get("log")
    if isinstance(text, str) and ("stream" in fields or "time" in fields):
        return _docker_lines(text, str(fields.get("stream", "")), broken)
    return []


def _docker_lines(text: str, stream: str, broken: _Broken) -> list[Line]:
    """Docker cuts records at 16 KiB; only a chunk that ends with a newline ends its line."""
    continues = stream in broken.docker
    broken.docker.discard(stream)
    if not text.endswith("\n"):
        broken.docker.add(stream)
    return frame(text.removesuffix("\n"), Source.OTHER if continues else None)


def _journal_lines(fields: Mapping[str, object], broken: _Broken) -> list[Line]:
    """Frame a journal entry; a continuation of an overlong line may not pose as a record."""
    message = _message(fields.get("MESSAGE"))
    of = (str(fields.get(name) or "") for name in ("_LINE_BREAK", "_STREAM_ID", "_PID"))
    continues = broken.journal.is_rest(message, *of)
    return frame(message, Source.OTHER if continues else _source(fields))


def _source(fields: Mapping[str, object]) -> Source:
    transport = fields.get("_TRANSPORT")
    identifier = fields.get("SYSLOG_IDENTIFIER")
    if transport == "kernel" or (transport is None and identifier == "kernel"):
        return Source.KERNEL
    manager = fields.get("_PID", "1") == "1" or fields.get("_SYSTEMD_UNIT") == "init.scope"
    if identifier == "systemd" and manager:
        return Source.SYSTEMD
    return Source.ENGINE


def _message(value: object) -> bytes | str:
    """A JSON journal message: text, a list of bytes when it is not text, or null when too long."""
    if isinstance(value, list):
        if all(isinstance(item, int) and 0 <= item < 256 for item in value):
            return bytes(value)
        return "\n".join(item for item in value if isinstance(item, str))
    return value if isinstance(value, str | bytes) else ""


def _export_fields(source: _Numbered, first: bytes) -> dict[str, object]:
    """Read one entry of the export format: `NAME=text`, or NAME, 64-bit length, bytes."""
    fields: dict[str, object] = {}
    line: bytes | None = first
    while line is not None and line.strip(b"\n"):
        name = _FIELD.match(line)
        if not name:
            source.push(line)
            break
        key = name[1].decode("ascii")
        if name[2]:
            fields[key] = _plain(key, line[name.end() :].rstrip(b"\n"))
        else:
            size = int.from_bytes(source.take(8), "little")
            if size > LINE_CAP:
                break
            fields[key] = _plain(key, source.take(size))
            source.take(1)
        line = source.next()
    return fields


def _plain(key: str, value: bytes) -> bytes | str:
    return value if key == "MESSAGE" else value.decode("utf-8", "replace")


def _verbose_fields(source: _Numbered) -> dict[str, object]:
    fields: dict[str, object] = {}
    while (line := source.next()) is not None:
        if not line.startswith(b"    "):
            source.push(line)
            break
        name = _FIELD.match(line.strip(b" "))
        if name and name[2]:
            key = name[1].decode("ascii")
            fields[key] = _plain(key, line.strip(b" ")[name.end() :].rstrip(b"\n"))
    return fields
