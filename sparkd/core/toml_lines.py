# SPDX-License-Identifier: Apache-2.0
"""Where each key of a TOML document stands.

tomllib tells no positions, and an error without a line number makes an operator search. This
scanner reads only what is needed for that: it expects text that tomllib has accepted, and it
gives up silently on anything else, because a missing line number is better than a second opinion.
"""

import contextlib
import re
from collections.abc import Callable, Mapping

KeyPath = tuple[str, ...]

_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:""?(?!"))?'
    r"|'''.*?'''(?:''?(?!'))?"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")
_UNICODE_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)")
_SHORT_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


class _UnreadableError(Exception):
    """The text is not what this scanner knows."""


def key_lines(text: str) -> Mapping[KeyPath, int]:
    """Return the 1-based line of every key and table header in `text`.

    The elements of an array of tables share one path; the first occurrence wins.
    """
    scanner = _Scanner(text)
    with contextlib.suppress(_UnreadableError, RecursionError):
        scanner.document()
    return scanner.lines


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted_to = 0
        self._line = 1
        self.lines: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._take("["):
                brackets = 2 if self._take("[") else 1
                table = self._key(())
                self._expect("]" * brackets)
            else:
                self._pair(table)
            self._skip(_BLANK)

    def _pair(self, table: KeyPath) -> None:
        path = self._key(table)
        self._expect("=")
        self._value(path)

    def _key(self, table: KeyPath) -> KeyPath:
        path = table
        while True:
            self._skip(_SPACE)
            line = self._current_line()
            path = (*path, self._key_part())
            self.lines.setdefault(path, line)
            self._skip(_SPACE)
            if not self._take("."):
                return path

    def _key_part(self) -> str:
        if self._text.startswith(('"', "'"), self._at):
            return _unquote(self._match(_STRING))
        return self._match(_BARE_KEY)

    def _value(self, path: KeyPath) -> None:
        self._skip(_SPACE)
        if self._take("["):
            self._items("]", lambda: self._value(path))
        elif self._take("{"):
            self._items("}", lambda: self._pair(path))
        elif self._text.startswith(('"', "'"), self._at):
            self._match(_STRING)
        else:
            self._match(_SCALAR)

    def _items(self, close: str, item: Callable[[], None]) -> None:
        self._skip(_BLANK)
        while not self._take(close):
            item()
            self._skip(_BLANK)
            self._take(",")
            self._skip(_BLANK)

    def _current_line(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if match := pattern.match(self._text, self._at):
            self._at = match.end()

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _UnreadableError
        self._at = match.end()
        return match[0]

    def _take(self, literal: str) -> bool:
        if not self._text.startswith(literal, self._at):
            return False
        self._at += len(literal)
        return True

    def _expect(self, literal: str) -> None:
        self._skip(_SPACE)
        if not self._take(literal):
            raise _UnreadableError


def _unquote(quoted: str) -> str:
    if quoted.startswith("'"):
        return quoted[1:-1]

    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if escape[0] in "uU" and len(escape) > 1:
            return chr(int(escape[1:], 16))
        return _SHORT_ESCAPES.get(escape, escape)

    return _UNICODE_ESCAPE.sub(character, quoted[1:-1])
