# SPDX-License-Identifier: Apache-2.0
"""From shell tokens to simple commands and the compound commands around them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkd.core.importing.shell_words import NAME, Assignment, Operator, ShellWord, Token

FOREVER = "forever"
"""The block of `while true`: it always runs."""
GROUP = "{"
"""`{ … }`: it runs once, where it stands."""
SUBSHELL = "("
"""`( … )`: it runs once, where it stands; what it sets ends with it."""

_OPENING = {"if": "if", "for": "for", "while": "while", "until": "while", "case": "case",
            "select": "for", "{": GROUP}  # fmt: skip
_ALWAYS = {"while": ("true", ":"), "until": ("false",)}
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_INNER = frozenset({"then", "else", "elif", "do", "!", "time"})
_REDIRECTIONS = frozenset({">", ">>", "<", ">&", "<&", "<>", ">|", "&>", "&>>", "<<", "<<-", "<<<"})
_FUNCTION_HEAD = "function-head"
_SETS = re.compile(
    rf"(?:\+\+|--)\s*({NAME.pattern})"
    rf"|({NAME.pattern})\s*(?:\[[^\]]*\]\s*)?(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?\s*=(?!\s*=))"
)


@dataclass(slots=True)
class Simple:
    """A simple command as it stands; how it is joined to the one before and after it."""

    tokens: list[Token] = field(default_factory=list)
    joined_by: str = ""
    redirected: bool = False
    writes_to: list[ShellWord] = field(default_factory=list)
    ended_by: str = ""


class Opens(NamedTuple):
    """A compound command begins; `names` are the variables that its head sets (`for NAME in`)."""

    block: str
    names: tuple[str, ...] = ()


class Closes(NamedTuple):
    """The innermost compound command ends."""


class Defines(NamedTuple):
    """A function is defined; its body is the next block."""

    tokens: Sequence[Token]


class Arithmetic(NamedTuple):
    """`(( … ))` as a command; `names` are the variables that it sets."""

    names: tuple[str, ...]
    line: int


Step = Simple | Opens | Closes | Defines | Arithmetic


@dataclass(slots=True)
class Cutter:
    """Walks over the tokens of a script once."""

    tokens: Sequence[Token]
    _index: int = 0
    _stack: list[str] = field(default_factory=list)
    _current: Simple = field(default_factory=Simple)

    def steps(self) -> Iterator[Step]:
        """Yield simple commands and the beginnings and ends of what is around them."""
        while self._index < len(self.tokens):
            token = self.tokens[self._index]
            self._index += 1
            if isinstance(token, Operator):
                yield from self._operator(token)
            elif isinstance(token, ShellWord) and not self._current.tokens:
                yield from self._first_word(token)
            else:
                self._current.tokens.append(token)
        yield from self._end(";")

    def _end(self, operator: str) -> Iterator[Step]:
        if self._current.tokens:
            self._current.ended_by = operator
            yield self._current
        self._current = Simple()

    def _operator(self, token: Operator) -> Iterator[Step]:
        if token.text in _REDIRECTIONS:
            self._current.redirected = True
            following = self._following()
            if ">" in token.text and isinstance(following, ShellWord):
                self._current.writes_to.append(following)
            self._index += isinstance(self._following(), (ShellWord, Assignment))
        elif token.text == "(":
            yield from self._opening_bracket()
        elif token.text == ")":
            if self._stack[-1:] == ["("]:
                yield from self._end(";")
                self._stack.pop()
                yield Closes()
            else:
                self._current = Simple()  # the pattern of a case
        else:
            joined = token.text if token.text in {"&&", "||"} else ""
            if token.text == "\n" and not self._current.tokens:
                joined = self._current.joined_by  # `&&` at the end of a line joins the next line
            yield from self._end(token.text)
            self._current.joined_by = joined

    def _opening_bracket(self) -> Iterator[Step]:
        following = self._following()
        is_head = isinstance(following, Operator) and following.text == ")"
        if len(self._current.tokens) == 1 and is_head:
            yield Defines(self._current.tokens)
            self._current = Simple()
            self._index += 1
            self._stack.append(_FUNCTION_HEAD)
            yield Opens("function")
        elif isinstance(following, Operator) and following.text == "(":
            yield from self._end(";")
            yield Arithmetic(set_by_arithmetic(self._skip_arithmetic()), following.line)
        else:
            self._stack.append("(")
            yield Opens(SUBSHELL)

    def _first_word(self, token: ShellWord) -> Iterator[Step]:
        bare = token.bare
        if bare in _INNER:
            return
        if bare is not None and bare in _OPENING:
            yield from self._opening_word(bare, _OPENING[bare])
        elif bare in _CLOSING:
            if self._stack:
                self._stack.pop()
                yield Closes()
        else:
            self._current.tokens.append(token)

    def _opening_word(self, word: str, block: str) -> Iterator[Step]:
        if block == GROUP and self._stack[-1:] == [_FUNCTION_HEAD]:
            self._stack[-1] = "function"
            return
        following = self._following()
        condition = following.bare if isinstance(following, ShellWord) else None
        if condition in _ALWAYS.get(word, ()):
            block = FOREVER
        self._stack.append(block)
        names: tuple[str, ...] = ()
        if block == "for" and isinstance(following, Operator) and following.text == "(":
            self._index += 1
            names = set_by_arithmetic(self._skip_arithmetic())
        elif block == "for" and isinstance(following, ShellWord):
            names = (following.bare or "",)
        yield Opens(block, names)
        if block in {"for", "case", FOREVER}:
            self._skip_to("in" if block == "case" else "do")

    def _following(self) -> Token | None:
        return self.tokens[self._index] if self._index < len(self.tokens) else None

    def _skip_to(self, word: str) -> None:
        while self._index < len(self.tokens):
            token = self.tokens[self._index]
            self._index += 1
            if isinstance(token, ShellWord) and token.bare == word:
                return

    def _skip_arithmetic(self) -> str:
        """Skip to the two brackets that close `((`; return what stands before them."""
        parts: list[str] = []
        depth = 0
        while self._index < len(self.tokens):
            token = self.tokens[self._index]
            self._index += 1
            text = _raw_text(token)
            parts.append(text)
            if isinstance(token, Operator) and text in {"(", ")"}:
                depth += 1 if text == "(" else -1
                if depth < 0:
                    break
        return " ".join(parts)


def _raw_text(token: Token) -> str:
    if isinstance(token, Operator):
        return token.text
    if isinstance(token, Assignment):
        sign = "+=" if token.appends else "="
        return token.name + sign + " ".join(word.bare or "" for word in token.words)
    return (token.bare or "") if isinstance(token, ShellWord) else ""


def set_by_arithmetic(text: str) -> tuple[str, ...]:
    """Return the variables that an arithmetic expression sets."""
    return tuple(match[1] or match[2] for match in _SETS.finditer(text))
