# SPDX-License-Identifier: Apache-2.0
"""What the shell makes of a word: variables, `~` and fallbacks expanded, then split into fields."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkd.core.importing import codes
from sparkd.core.importing.model import Origin, Word
from sparkd.core.importing.shell_fields import Fields, as_quoted
from sparkd.core.importing.shell_state import Array, State, Value
from sparkd.core.importing.shell_words import (
    Assignment,
    Literal,
    Opaque,
    Part,
    ShellWord,
    Token,
    Variable,
)

_SELF = r"(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?\})"
_OWN_DIRECTORY = re.compile(
    rf"\$\((?:dirname(?:--)?{_SELF}"
    rf"|cd(?:--)?\$\(dirname(?:--)?{_SELF}\)(?:&?>/dev/null(?:2>&1)?)?&&pwd(?:-P)?)\)\Z"
)
_SUBSCRIPT = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")


def expand(word: ShellWord, state: State) -> list[Word]:
    """Return the fields that a word becomes."""
    fields = Fields(state.at(word.line))
    _Expansion(state, fields).add_word(word)
    return fields.finish()


def expand_value(word: ShellWord, state: State) -> Word:
    """Expand the right side of an assignment, which is never split."""
    fields = expand(ShellWord([as_quoted(part) for part in word.parts], word.line), state)
    tilde = word.parts and word.parts[0] == Literal("~", False)
    if tilde and state.home and fields:
        return fields[0]._replace(text=state.home + fields[0].text[1:])
    return fields[0] if fields else Word("", state.at(word.line))


def expand_all(tokens: Iterable[Token], state: State) -> list[Word]:
    """Return the program and the arguments that the words of a command become."""
    words: list[Word] = []
    for token in tokens:
        if isinstance(token, ShellWord):
            words += expand(token, state)
        elif isinstance(token, Assignment):
            if token.is_array:
                words.append(Word(token.name, state.at(token.line), "an array as an argument"))
                continue
            equals = "+=" if token.appends else "="
            value = token.words[0]
            parts: list[Part] = [Literal(token.name + equals, False), *value.parts]
            words += expand(ShellWord(parts, token.line), state)
    return words


@dataclass(slots=True)
class _Expansion:
    """Adds the parts of one word to its fields."""

    state: State
    fields: Fields

    def add_word(self, word: ShellWord) -> None:
        parts = word.parts
        if parts and parts[0] == Literal("~", False):
            following = parts[1] if len(parts) > 1 else Literal("/", False)
            if isinstance(following, Literal) and following.text == "/":
                self._add_home()
                parts = parts[1:]
        self._check_patterns(word.parts)
        lone = len([part for part in parts if part != Literal("", True)]) == 1
        empty_texts = len([part for part in parts if part == Literal("", True)])
        self.fields.is_kept = empty_texts > len(
            [p for p in parts if isinstance(p, Variable) and p.quoted]
        )
        for part in parts:
            if isinstance(part, Literal):
                self.fields.add(part.text, quoted=part.quoted)
            elif isinstance(part, Opaque):
                self._add_opaque(part)
            else:
                self._add_variable(part, lone=lone)

    def _add_home(self) -> None:
        if self.state.home:
            self.fields.add(self.state.home, quoted=True)
        else:
            self.fields.fail("~ is the home of whoever runs it")

    def _check_patterns(self, parts: Iterable[Part]) -> None:
        bare = "".join(
            part.text if isinstance(part, Literal) and not part.quoted else "\0" for part in parts
        )
        if _BRACES.search(bare):
            self.fields.fail("the shell expands unquoted braces")
        elif "*" in bare or ("?" in bare and len(bare) > 1 and "=" not in bare):
            self.fields.fail("the shell expands the pattern")

    def _add_opaque(self, part: Opaque) -> None:
        state, compact = self.state, re.sub(r"[\s\"']", "", part.raw)
        if _OWN_DIRECTORY.match(compact) and state.source.startswith("/"):
            self.fields.add(state.source.rpartition("/")[0] or "/", quoted=True)
        elif compact == "$(pwd)" and state.directory and not state.lost:
            self.fields.add(state.directory, quoted=True)
        else:
            self.fields.fail(f"only a shell can tell what {part.raw} is", part.raw)

    def _add_variable(self, part: Variable, *, lone: bool) -> None:
        state = self.state
        if not part.quoted and "IFS" in (state.variables.keys() | state.tainted.keys()):
            self.fields.splits_elsewhere = True
        if part.name in {"@", "*"}:
            self._add_arguments(part)
            return
        if part.name.isdigit():
            index = int(part.name) - 1
            if state.unknown_positional and index >= 0:
                self.fields.fail(f"${part.name}: {state.unknown_positional}", f"${part.name}")
                return
            known = state.positional or ()
            value: Value | None = known[index] if 0 <= index < len(known) else None
            if index == -1:
                value = Word(state.source, Origin(state.source))
        else:
            value = state.lookup(part.name)
        if isinstance(value, Array):
            if part.subscript in {"@", "*"}:
                self._add_array(value.items, part)
                return
            if not _SUBSCRIPT.match(part.subscript or "0"):
                raw = f"${{{part.name}[{part.subscript}]}}"
                self.fields.fail(f"only a shell can tell what {raw} is", raw)
                return
            number = int(part.subscript or "0")
            value = value.items[number] if number < len(value.items) else None
        self._add_scalar(part, value, lone=lone)

    def _add_arguments(self, part: Variable) -> None:
        raw = f"${part.name}"
        if self.state.unknown_positional:
            self.fields.fail(f"{raw}: {self.state.unknown_positional}", raw)
            return
        if self.state.positional is None:
            text = f"{raw}: whoever calls the script may give arguments; it is read without any"
            self.state.notebook.add(self.fields.origin, codes.UNKNOWN_VALUE, text)
        self._add_array(self.state.positional or (), part)

    def _add_array(self, values: Sequence[Word], part: Variable) -> None:
        if part.operator == "+":
            # ${args[@]+"${args[@]}"}: the idiom for an array that may be empty under set -u.
            if values:
                for inner in part.operand:
                    if isinstance(inner, Variable):
                        self._add_variable(inner, lone=True)
            return
        joins = part.quoted and "*" in {part.name, part.subscript}
        for number, value in enumerate(values):
            if number and joins:
                self.fields.add(" ", quoted=True)
            elif number:
                self.fields.separate()
            self.fields.add_value(value, quoted=part.quoted, lone=not joins)
        if not values:
            self.fields.vanish()

    def _add_scalar(self, part: Variable, value: Value | None, *, lone: bool) -> None:
        fields, unset = self.fields, self.state.unset
        empty_counts = part.operator.startswith(":")
        is_set = isinstance(value, Word) and not (
            empty_counts and value.text == "" and not value.problem
        )
        operator = part.operator.lstrip(":")
        if operator == "+":
            if is_set:
                self._add_operand(part)
            return
        if is_set and isinstance(value, Word):
            fields.add_value(value, quoted=part.quoted, lone=lone)
        elif unset and not part.name.isdigit():
            fields.fail(f"${part.name} cannot be known: {unset}", f"${part.name}")
        elif operator in {"-", "="}:
            text = f"${part.name} is not set here: the fallback written in the script is taken"
            self.state.notebook.add(fields.origin, codes.FALLBACK, text)
            if operator == "=":
                fields.add_value(self._set_default(part), quoted=part.quoted, lone=False)
            else:
                self._add_operand(part)
        else:
            fields.fail(f"${part.name} is set by nothing that is known here", f"${part.name}")

    def _set_default(self, part: Variable) -> Word:
        """`${NAME:=word}` also sets the variable."""
        state = self.state
        value = expand_value(ShellWord(list(part.operand), 1), state)
        value = value._replace(origin=self.fields.origin)
        if state.is_conditional:
            state.tainted[part.name] = f"{part.name} is set under a condition"
        else:
            state.variables[part.name] = value
            if state.exports_all:
                state.exported.add(part.name)
        return value

    def _add_operand(self, part: Variable) -> None:
        """Add the word of `${NAME:-word}`: its blanks split and its `~` counts unless quoted."""
        operand = part.operand
        if not part.quoted:
            self._check_patterns(operand)
            if operand[:1] == (Literal("~", False),) and operand[1:2] in {
                (),
                (Literal("/", False),),
            }:
                self._add_home()
                operand = operand[1:]
        for item in operand:
            is_quoted = part.quoted or item.quoted
            if isinstance(item, Variable):
                self._add_variable(item._replace(quoted=is_quoted), lone=False)
            elif isinstance(item, Opaque):
                self._add_opaque(item)
            elif is_quoted or not item.text.isspace():
                self.fields.add(item.text, quoted=is_quoted)
            else:
                self.fields.separate()
