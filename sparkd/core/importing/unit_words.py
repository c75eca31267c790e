# SPDX-License-Identifier: Apache-2.0
"""Words of unit settings: systemd's quoting, escapes, specifiers and variables.

The rules are those of systemd 252 to 257; tests compare them with systemd's own parser.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparkd.core.importing.model import Origin, RefusalError, Word
from sparkd.core.importing.unit_text import Setting

_BLANK = " \t\n\r"
_SIMPLE = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " ",
    "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class RawWord(NamedTuple):
    """A word after unquoting and the offset at which it began; `bare` is its unquoted spelling.

    `is_open` marks a last word whose quotation mark is never closed.
    """

    text: str
    offset: int
    bare: str
    is_open: bool = False


def split(value: str, *, unescape: bool = True) -> list[RawWord]:
    """Split a value into words; an unbalanced quotation mark ends at the end of the value."""
    words: list[RawWord] = []
    index = 0
    while index < len(value):
        if value[index] in _BLANK:
            index += 1
            continue
        start = index
        text, index, is_open = _word(value, index, unescape=unescape)
        words.append(RawWord(text, start, value[start:index], is_open))
    return words


def _word(value: str, index: int, *, unescape: bool) -> tuple[str, int, bool]:
    text: list[str] = []
    quote = ""
    while index < len(value):
        character = value[index]
        if character == "\\" and index + 1 < len(value):
            if unescape:
                part, index = _escape(value, index + 1)
            else:
                part, index = value[index + 1], index + 2
            text.append(part)
            continue
        if quote and character == quote:
            quote = ""
        elif not quote and character in {'"', "'"}:
            quote = character
        elif not quote and character in _BLANK:
            break
        else:
            text.append(character)
        index += 1
    return "".join(text), index, bool(quote)


def _escape(value: str, index: int) -> tuple[str, int]:
    """Return what the escape at `index` (after the backslash) stands for, and where it ends."""
    character = value[index]
    if character in _SIMPLE:
        return _SIMPLE[character], index + 1
    if length := _HEX_DIGITS.get(character):
        digits = value[index + 1 : index + 1 + length]
        if len(digits) == length and all(c in "0123456789abcdefABCDEF" for c in digits):
            return chr(int(digits, 16)), index + 1 + length
    octal = value[index : index + 3]
    if len(octal) == 3 and all(c in "01234567" for c in octal) and int(octal, 8) < 256:
        return chr(int(octal, 8)), index + 3
    # systemd keeps an unknown escape as it stands.
    return "\\" + character, index + 1


@dataclass(frozen=True, slots=True)
class Specifiers:
    """What `%` letters mean in one unit; a letter that is missing cannot be known."""

    table: Mapping[str, str]

    def expand(self, text: str, origin: Origin) -> Word:
        """Return `text` with its specifiers replaced."""
        parts: list[str] = []
        index = 0
        while index < len(text):
            character = text[index]
            if character != "%" or index + 1 == len(text):
                parts.append(character)
                index += 1
                continue
            letter = text[index + 1]
            if letter == "%":
                parts.append("%")
            elif letter in self.table:
                parts.append(self.table[letter])
            elif letter.isalpha():
                return Word(text, origin, f"the specifier %{letter} is not known here")
            else:
                parts.append("%" + letter)
            index += 2
        return Word("".join(parts), origin)


def unescape_name(text: str) -> str:
    """Undo systemd's escaping of a path in a unit name."""
    text = text.replace("-", "/")
    return re.sub(r"\\x([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), text)


def specifiers(unit: str, home: str | None, user: str, *, is_user_unit: bool) -> Specifiers:
    """Return the specifiers of a unit that the manager of `user` loads."""
    stem, _, suffix = unit.rpartition(".")
    prefix, at, instance = stem.partition("@")
    table = {
        "n": unit, "N": stem, "p": prefix, "P": unescape_name(prefix), "i": instance,
        "I": unescape_name(instance), "j": prefix.rpartition("-")[2],
        "f": "/" + unescape_name(instance if at else prefix), "u": user,
        "T": "/tmp", "V": "/var/tmp",  # noqa: S108
    }  # fmt: skip
    if is_user_unit:
        if home is not None:
            table |= {
                "h": home, "E": f"{home}/.config", "S": f"{home}/.local/state",
                "C": f"{home}/.cache", "L": f"{home}/.local/state/log", "s": "/bin/bash",
            }  # fmt: skip
    else:
        table |= {
            "h": home or "/root", "t": "/run", "E": "/etc", "S": "/var/lib", "C": "/var/cache",
            "L": "/var/log", "U": "0", "G": "0", "g": "root",
        }  # fmt: skip
    return Specifiers(table if suffix else {})


class Command(NamedTuple):
    """One command of an Exec setting; `prefix` holds its special characters (`-`, `+`, `:` …)."""

    words: tuple[Word, ...]
    prefix: str


def commands(setting: Setting, known: Specifiers) -> Iterator[Command]:
    """Yield the commands of an Exec setting, before variables are expanded.

    Raises:
        RefusalError: a quotation mark is never closed, so systemd does not take the unit.
    """
    current: list[Word] = []
    prefix = ""
    for raw in split(setting.value):
        origin = setting.at(raw.offset)
        if raw.is_open:
            reason = f"{setting.key}=: the quotation mark of {raw.bare[:40]} is never closed"
            raise RefusalError(origin, reason)
        if raw.bare == ";":
            if current:
                yield Command(tuple(current), prefix)
            current, prefix = [], ""
            continue
        text = ";" if raw.bare == r"\;" else raw.text
        if not current:
            body = text.lstrip("@-:+!|")
            prefix, text = text[: len(text) - len(body)], body
        current.append(known.expand(text, origin))
    if current:
        yield Command(tuple(current), prefix)


Lookup = Callable[[str, Origin], Word]


def expand_variables(words: Sequence[Word], lookup: Lookup) -> list[Word]:
    """Expand `$NAME` and `${NAME}` as systemd does at start; the program is not expanded.

    `$NAME` counts only as a word of its own and is split at blanks; `${NAME}` stands anywhere.
    """
    expanded = [*words[:1]]
    for word in words[1:]:
        text = word.text
        if word.problem or "$" not in text:
            expanded.append(word)
        elif text[0] == "$" and _NAME.match(text[1:]):
            expanded += _as_words(lookup(text[1:], word.origin))
        else:
            expanded.append(_inline(word, lookup))
    return expanded


def _as_words(value: Word) -> list[Word]:
    if value.problem:
        return [value]
    return [Word(raw.text, value.origin) for raw in split(value.text, unescape=False)]


def _inline(word: Word, lookup: Lookup) -> Word:
    parts: list[str] = []
    origin, text, index = word.origin, word.text, 0
    while index < len(text):
        following = text[index + 1 : index + 2]
        if text[index] != "$" or following not in {"$", "{"}:
            parts.append(text[index])
            index += 1
        elif following == "$":
            parts.append("$")
            index += 2
        else:
            end = text.find("}", index)
            if end < 0:
                parts.append(text[index:])
                break
            if not _NAME.match(text[index + 2 : end]):
                # systemd knows no ${NAME:-…} here and leaves it to the program, often a shell.
                parts.append("${")
                index += 2
                continue
            value = lookup(text[index + 2 : end], word.origin)
            if value.problem:
                return value
            parts.append(value.text)
            if not parts[:-1] and end + 1 == len(text):
                origin = value.origin
            index = end + 1
    return Word("".join(parts), origin)


Ignored = Callable[[str, Origin], None]
"""Told the name that systemd ignores, and where it stands; "" for what has no `=`.

A text without a name may be a value, and so a secret.
"""


def environment(
    setting: Setting, known: Specifiers, ignored: Ignored = lambda _text, _origin: None
) -> Iterator[tuple[str, Word]]:
    """Yield the assignments of one `Environment=`; what systemd would ignore is left out."""
    for raw in split(setting.value):
        name, equals, _ = raw.text.partition("=")
        if equals and _NAME.match(name) and not raw.is_open:
            word = known.expand(raw.text, setting.at(raw.offset))
            yield name, word._replace(text=word.text.partition("=")[2])
        else:
            ignored(name if equals else "", setting.at(raw.offset))


def environment_file(
    text: str, path: str, ignored: Ignored = lambda _text, _origin: None
) -> Iterator[tuple[str, Word]]:
    """Yield the assignments of an `EnvironmentFile=`, by systemd's rules: nothing is expanded.

    A quotation mark quotes only where a value begins or after a quoted part; later in a value it is
    an ordinary character.
    """
    index, line = 0, 1
    while index < len(text):
        start, first = index, line
        if text[index] in "#;":
            index = _end_of_line(text, index)
        elif text[index] in " \t\r\n":
            index += 1
        else:
            end = _end_of_line(text, index)
            equals = text.find("=", index + 1, end)  # the first character is the name's anyway
            if equals < 0:
                ignored("", Origin(path, first))
                index = end
            else:
                value, index = _file_value(text, equals + 1)
                name = text[start:equals].strip()
                if _NAME.match(name):
                    yield name, Word(value, Origin(path, first))
                else:
                    ignored(name, Origin(path, first))
        line += text.count("\n", start, index)


def _end_of_line(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end


def _file_value(text: str, index: int) -> tuple[str, int]:
    parts: list[str] = []
    quote, at_start, kept = "", True, 0
    while index < len(text):
        character = text[index]
        following = text[index + 1 : index + 2]
        if quote == "'" or (quote and character == quote):
            # Nothing is special between single quotes but the closing one.
            if character == quote:
                quote, at_start = "", True
            else:
                parts.append(character)
            kept = len(parts)
        elif character == "\\":
            if following not in {"\n", ""}:
                protects = not quote or following in '"\\`$'
                parts.append(following if protects else "\\" + following)
            at_start, kept = False, len(parts)
            index += 1
        elif not quote and character == "\n":
            break
        elif not quote and at_start and character in {'"', "'"}:
            quote = character
        elif quote or character not in " \t\r":
            parts.append(character)
            at_start, kept = False, len(parts)
        elif not at_start:
            parts.append(character)
        index += 1
    return "".join(parts[:kept]), index
