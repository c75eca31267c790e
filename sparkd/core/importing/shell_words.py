# SPDX-License-Identifier: Apache-2.0
"""The lexical part of POSIX shell and bash that launch scripts are made of.

Nothing is run. A word is kept as parts, so that quoting is still known when variables are
expanded; what cannot be known without running something becomes an `Opaque` part.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[^\]\s]*\])?(\+?)=")
_SUBSCRIPTED = re.compile(r"\[[^\]\n]*\]\+?=")
_DESCRIPTOR = re.compile(r"[0-9](?=[<>])")
_OPERATORS = ("&&", "||", ";;", "|&", "&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", "<>", ">|",
              ";", "&", "|", "(", ")", "<", ">")  # fmt: skip
_PARAMETER = re.compile(
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?$!-])"
    r"(?:\[(?P<index>[^\]]*)\])?(?P<operator>:?[-=+?])?(?P<rest>.*)\Z",
    re.DOTALL,
)


_AFTER_DOLLAR = re.compile(r"[A-Za-z_](?:(?:\\\n)*[A-Za-z0-9_])*|[0-9@*#?$!-]")

# What a backslash protects between double quotation marks, and the `}` of a parameter.
_PROTECTED = frozenset({"$", "`", '"', "\\", "}", "\n"})
# Fallbacks nest, and each level is read again: nobody writes one this long.
_MAX_PARAMETER = 4096


class Literal(NamedTuple):
    """Text that stands for itself."""

    text: str
    quoted: bool


class Variable(NamedTuple):
    """`$NAME`, `${NAME}`, `${NAME:-word}`, `${NAME[@]}`; `subscript` is "" without brackets."""

    name: str
    quoted: bool
    subscript: str = ""
    operator: str = ""
    operand: "tuple[Part, ...]" = ()


class Opaque(NamedTuple):
    """What only a shell could tell: `$(…)`, `<(…)`, backticks, arithmetic, substring operators."""

    raw: str
    quoted: bool


Part = Literal | Variable | Opaque


@dataclass(slots=True)
class ShellWord:
    """One word and the line at which it begins."""

    parts: list[Part]
    line: int

    @property
    def bare(self) -> str | None:
        """The text of a word without quotes and variables; None for any other."""
        if all(isinstance(part, Literal) and not part.quoted for part in self.parts):
            return "".join(part.text for part in self.parts if isinstance(part, Literal))
        return None


@dataclass(slots=True)
class Assignment:
    """`NAME=value`, `NAME+=value` or `NAME=(…)`; `words` is one word unless it `is_array`.

    `has_subscripts` marks `NAME[…]=value` and `NAME=([…]=value …)`.
    """

    name: str
    appends: bool
    is_array: bool
    words: list[ShellWord]
    line: int
    has_subscripts: bool = False


class Operator(NamedTuple):
    """A control or redirection operator, or a newline."""

    text: str
    line: int


@dataclass(slots=True)
class HereDocument:
    """The text after `<<WORD`."""

    text: str
    line: int


Token = ShellWord | Assignment | Operator | HereDocument


class ShellSyntaxError(ValueError):
    """The text ends inside a quotation mark or bracket; `line` is where that began."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class Lexer:
    """Cuts a text into tokens."""

    text: str
    line: int = 1
    index: int = 0
    pending: list[tuple[str, bool]] = field(default_factory=list)

    def tokens(self) -> list[Token]:
        """Return every token.

        Raises:
            ShellSyntaxError: a quotation mark or bracket is never closed.
        """
        found: list[Token] = []
        while (token := self._next()) is not None:
            found.append(token)
            if isinstance(token, Operator) and token.text == "\n" and self.pending:
                found += self._here_documents()
        return found

    def _next(self) -> Token | None:
        self._skip_blanks()
        if self.index >= len(self.text):
            return None
        line = self.line
        if self.text[self.index] == "\n":
            self._advance(1)
            return Operator("\n", line)
        if descriptor := _DESCRIPTOR.match(self.text, self.index):
            self._advance(len(descriptor[0]))  # 2>&1
        if self.text.startswith(("<(", ">("), self.index):
            sign = self._advance(1)
            return ShellWord([Opaque(sign + self._bracketed("(", ")"), False)], line)
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.index):
                self._advance(len(operator))
                if operator in {"<<", "<<-"}:
                    self._expect_here_document(strips_tabs=operator == "<<-")
                return Operator(operator, line)
        return self._assignment(line) or self._word()

    def _skip_blanks(self) -> None:
        while self.index < len(self.text):
            if self.text.startswith("\\\n", self.index):
                self._advance(2)
            elif self.text.startswith("\\\r\n", self.index):
                self._advance(3)
            elif self.text[self.index] in " \t\r":
                self._advance(1)
            elif self.text[self.index] == "#":
                end = self.text.find("\n", self.index)
                self._advance((end if end >= 0 else len(self.text)) - self.index)
            else:
                return

    def _advance(self, count: int) -> str:
        taken = self.text[self.index : self.index + count]
        self.line += taken.count("\n")
        self.index += count
        return taken

    def _assignment(self, line: int) -> Assignment | None:
        match = _ASSIGNMENT.match(self.text, self.index)
        if match is None:
            return None
        self._advance(len(match[0]))
        subscripted = match[2] is not None
        if not self.text.startswith("(", self.index):
            return Assignment(match[1], bool(match[3]), False, [self._word()], line, subscripted)
        self._advance(1)
        words: list[ShellWord] = []
        while True:
            self._skip_blanks()
            if self.index >= len(self.text):
                raise ShellSyntaxError("an array is never closed", line)
            if self.text[self.index] == ")":
                self._advance(1)
                return Assignment(match[1], bool(match[3]), True, words, line, subscripted)
            if self.text[self.index] == "\n":
                self._advance(1)
            else:
                start = self.index
                subscripted = subscripted or bool(_SUBSCRIPTED.match(self.text, start))
                words.append(self._word())
                if self.index == start:
                    raise ShellSyntaxError("an array holds what is no word", line)

    def _word(self) -> ShellWord:
        word = ShellWord([], self.line)
        while self.index < len(self.text):
            character = self.text[self.index]
            if character in " \t\r\n;&|<>()":
                break
            word.parts += self.part(character)
        return word

    def part(self, character: str) -> list[Part]:
        """Return the parts that begin with `character`, which stands at `index`."""
        if character == "'":
            return [Literal(self._until("'", 1), True)]
        if character == '"':
            return self._double_quoted()
        if character == "\\":
            taken = self._advance(2)
            return [] if taken == "\\\n" else [Literal(taken[1:], True)]
        if character == "`":
            return [Opaque("`" + self._until("`", 1) + "`", False)]
        if character == "$":
            return [self._dollar(quoted=False)]
        return [Literal(self._advance(1), False)]

    def _until(self, closing: str, skip: int) -> str:
        line = self.line
        end = self.text.find(closing, self.index + skip)
        if end < 0:
            raise ShellSyntaxError(f"the quotation mark {closing} is never closed", line)
        taken = self._advance(end + 1 - self.index)
        return taken[skip:-1]

    def _double_quoted(self) -> list[Part]:
        line = self.line
        self._advance(1)
        parts: list[Part] = [Literal("", True)]
        while self.index < len(self.text):
            character = self.text[self.index]
            if character == '"':
                self._advance(1)
                return parts
            if character == "\\":
                taken = self._advance(2)
                if taken != "\\\n":
                    protected = taken[1:] in {"$", "`", '"', "\\"}
                    parts.append(Literal(taken[1:] if protected else taken, True))
            elif character == "`":
                parts.append(Opaque("`" + self._until("`", 1) + "`", True))
            elif character == "$":
                parts.append(self._dollar(quoted=True))
            else:
                parts.append(Literal(self._advance(1), True))
        raise ShellSyntaxError('the quotation mark " is never closed', line)

    def _dollar(self, *, quoted: bool) -> Part:
        if self.text.startswith("$(", self.index):
            return Opaque("$" + self._bracketed("(", ")"), quoted)
        if self.text.startswith("${", self.index):
            content = self._bracketed("{", "}", quoted=quoted)[1:-1]
            return parameter(content, self.line, quoted=quoted)
        if self.text.startswith("$'", self.index) and not quoted:
            self._advance(1)
            raw = self._until("'", 1)
            return Literal(raw, True) if "\\" not in raw else Opaque(f"$'{raw}'", True)
        self._advance(1)
        if match := _AFTER_DOLLAR.match(self.text, self.index):
            # A backslash and a newline inside a name are gone before the shell reads the name.
            return Variable(self._advance(len(match[0])).replace("\\\n", ""), quoted)
        return Literal("$", quoted)

    def _bracketed(self, opening: str, closing: str, *, quoted: bool = False) -> str:
        """Return a bracketed text with its brackets; quotes and nested brackets are respected.

        The first `}` ends a `${`: only another `${` nests, and between double quotation marks an
        apostrophe is an ordinary character.
        """
        line = self.line
        if self.text[self.index] == "$":
            self._advance(1)
        start, depth, quote = self.index, 0, ""
        while self.index < len(self.text):
            character = self.text[self.index]
            if character == "\\":
                self._advance(1)
            elif quote:
                quote = "" if character == quote else quote
            elif character == '"' or (character == "'" and not quoted):
                quote = character
            elif character == opening and (
                opening == "(" or self.index == start or self.text[self.index - 1] == "$"
            ):
                depth += 1
            elif character == closing:
                depth -= 1
            self._advance(1)
            if depth == 0:
                return self.text[start : self.index]
        raise ShellSyntaxError(f"the bracket {opening} is never closed", line)

    def _expect_here_document(self, *, strips_tabs: bool) -> None:
        rest = self.text[self.index :]
        match = re.match(r"[ \t]*(['\"]?)([A-Za-z0-9_!+-]+)\1", rest)
        if match:
            self.pending.append((match[2], strips_tabs))

    def _here_documents(self) -> list[Token]:
        documents: list[Token] = []
        for delimiter, strips_tabs in self.pending:
            line, lines = self.line, []
            while self.index < len(self.text):
                end = self.text.find("\n", self.index)
                raw = self._advance((end + 1 if end >= 0 else len(self.text)) - self.index)
                content = raw.rstrip("\r\n")
                if (content.lstrip("\t") if strips_tabs else content) == delimiter:
                    break
                lines.append(raw)
            documents.append(HereDocument("".join(lines), line))
        self.pending = []
        return documents


def parameter(content: str, line: int, *, quoted: bool) -> Part:
    """Return the part for what stands between `${` and `}`."""
    match = _PARAMETER.match(content)
    too_long = len(content) > _MAX_PARAMETER
    if too_long or match is None or (match["rest"] and not match["operator"]):
        return Opaque("${" + content + "}", quoted)
    operand: tuple[Part, ...] = ()
    if match["operator"]:
        lexer = Lexer(match["rest"], line)
        while lexer.index < len(lexer.text):
            character = lexer.text[lexer.index]
            # Blanks and operators are ordinary characters here.
            if character in " \t\r\n;&|<>()":
                operand = (*operand, Literal(lexer.text[lexer.index], quoted))
                lexer.index += 1
            elif quoted and character == "'":
                operand = (*operand, Literal("'", True))
                lexer.index += 1
            elif (
                quoted and character == "\\" and lexer.text[lexer.index + 1 :][:1] not in _PROTECTED
            ):
                operand = (*operand, Literal("\\", True))
                lexer.index += 1
            else:
                operand = (*operand, *lexer.part(character))
    return Variable(match["name"], quoted, match["index"] or "", match["operator"] or "", operand)
