# SPDX-License-Identifier: Apache-2.0
"""The fields that a shell word becomes, and words and paths as a person would write them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from sparkd.core.importing.model import Origin, RefusalError, Word
from sparkd.core.importing.shell_words import (
    Assignment,
    Literal,
    Opaque,
    Part,
    ShellWord,
    Token,
)

# A script that doubles a variable thirty times must not fill the memory.
MAX_TEXT = 1 << 18


@dataclass(slots=True)
class Fields:
    """Collects the fields of one word.

    `splits_elsewhere`: IFS is not the usual. `is_kept`: the word holds an empty text of its own.
    """

    origin: Origin
    done: list[Word] = field(default_factory=list)
    text: str = ""
    exists: bool = False
    problem: str = ""
    place: Origin | None = None
    splits_elsewhere: bool = False
    is_kept: bool = False

    def add(self, text: str, *, quoted: bool) -> None:
        """Add text that stands for itself."""
        if len(self.text) + len(text) > MAX_TEXT:
            raise RefusalError(self.origin, "its variables grow beyond all bounds")
        self.text += text
        self.exists = self.exists or quoted or text != ""

    def add_value(self, value: Word, *, quoted: bool, lone: bool) -> None:
        """Add a variable's value; unquoted it is split. `lone`: nothing else is in the word."""
        if value.problem:
            self.fail(value.problem, value.text)
            return
        if lone:
            self.place = value.origin
        if quoted:
            self.add(value.text, quoted=True)
            return
        if self.splits_elsewhere and re.search(r"[\s,:;|/]", value.text):
            self.fail("IFS is changed, and only a shell can tell where it is split", value.text)
            return
        pieces = value.text.split()
        for number, piece in enumerate(pieces):
            if number or (value.text[:1].isspace() and self.exists):
                self.separate()
                self.place = value.origin if lone else None
            self.add(piece, quoted=False)

    def fail(self, problem: str, raw: str = "") -> None:
        """The word cannot be known; `raw` is shown in its place."""
        self.problem = self.problem or problem
        self.add(raw, quoted=True)

    def vanish(self) -> None:
        """An empty "$@" is no field at all, unless something else stands beside it."""
        if self.text == "" and not self.is_kept:
            self.exists = False

    def separate(self) -> None:
        """End a field."""
        if self.exists:
            self.done.append(Word(self.text, self.place or self.origin, self.problem))
        self.text, self.exists, self.problem, self.place = "", False, "", None

    def finish(self) -> list[Word]:
        """Return the fields."""
        self.separate()
        return self.done


def as_quoted(part: Part) -> Part:
    """Return a part as it would be between double quotation marks."""
    return part if isinstance(part, Literal) else part._replace(quoted=True)


def join(directory: str, path: str) -> str:
    """Return a path as seen from a directory; as it stands where the directory is unknown."""
    if path.startswith("/") or not directory:
        return path
    path = path.removeprefix("./")
    while path.startswith("../"):
        directory, path = directory.rpartition("/")[0], path[3:]
    return f"{directory}/{path}" if path not in {"", "."} else directory


def as_written(tokens: Iterable[Token]) -> str:
    """Return the tokens as a person would write them, for messages."""
    words: list[str] = []
    for token in tokens:
        if isinstance(token, ShellWord):
            words.append("".join(_part_as_written(part) for part in token.parts))
        elif isinstance(token, Assignment):
            value = " ".join(as_written([word]) for word in token.words)
            words.append(f"{token.name}={f'({value})' if token.is_array else value}")
    return " ".join(words)


def _part_as_written(part: Part) -> str:
    if isinstance(part, Literal):
        return part.text
    if isinstance(part, Opaque):
        return part.raw
    return f"${part.name}"
