# SPDX-License-Identifier: Apache-2.0
"""What sets the variables of a script: assignments, `export` and its like, `read` and its like."""

from collections.abc import Sequence

from sparkd.core.importing import codes
from sparkd.core.importing.model import RefusalError, Word
from sparkd.core.importing.shell_commands import set_by_arithmetic
from sparkd.core.importing.shell_expansion import expand, expand_value
from sparkd.core.importing.shell_fields import MAX_TEXT, as_written
from sparkd.core.importing.shell_state import Array, State
from sparkd.core.importing.shell_words import NAME, Assignment, ShellWord, Token

DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_MAX_ITEMS = 4096
# Builtins that set the variables that they name, to what only a run could tell.
_SETTING = frozenset({"read", "mapfile", "readarray", "getopts", "let", "printf"})


def assign(item: Assignment, state: State, *, conditional: bool) -> None:
    """Follow an assignment."""
    if conditional:
        _taint(item, state)
        return
    if item.has_subscripts:
        what = f"{item.name}=([…]=…)" if item.is_array else f"{item.name}[…]=…"
        state.forget(item.name, item.line, what)
        return
    old = state.variables.get(item.name)
    if item.appends and isinstance(old, Array) and not item.is_array:
        state.forget(item.name, item.line, f"{item.name}+=…")
        return
    if item.is_array:
        values = tuple(value for word in item.words for value in expand(word, state))
        before = old.items if isinstance(old, Array) and item.appends else ()
        if len(before) + len(values) > _MAX_ITEMS:
            raise RefusalError(state.at(item.line), "its arrays grow beyond all bounds")
        state.variables[item.name] = Array((*before, *values))
    else:
        value = expand_value(item.words[0], state)
        if item.appends and isinstance(old, Word):
            if len(old.text) + len(value.text) > MAX_TEXT:
                raise RefusalError(state.at(item.line), "its variables grow beyond all bounds")
            value = Word(old.text + value.text, value.origin, old.problem or value.problem)
        state.variables[item.name] = value
    if not item.appends:
        state.tainted.pop(item.name, None)
    if state.exports_all:
        state.exported.add(item.name)


def _taint(item: Assignment, state: State) -> None:
    origin = state.at(item.line)
    if item.is_array and item.appends:
        raw = " ".join(as_written([word]) for word in item.words)
        text = f"`{item.name}+=({raw})` depends on a condition and is not carried over"
        state.notebook.add(origin, codes.CONDITIONAL, text)
        reason = f"{item.name} grows in a function at line {origin.line}"
        state.remember_in_function(item.name, reason)
        return
    value = as_written(item.words)
    text = f"`{item.name}={value}` depends on a condition and was not followed"
    state.notebook.add(origin, codes.CONDITIONAL, text)
    state.tainted[item.name] = f"{item.name} is set under a condition at line {origin.line}"
    state.remember_in_function(item.name, state.tainted[item.name])


def declare(command: str, tokens: Sequence[Token], state: State, *, conditional: bool) -> None:
    """Follow `export`, `declare` and the like."""
    exports = command == "export"
    for token in tokens:
        if isinstance(token, Assignment):
            assign(token, state, conditional=conditional)
            name = token.name
        elif isinstance(token, ShellWord) and (bare := token.bare) is not None:
            if bare.startswith("-"):
                exports = exports or "x" in bare
                if "n" in bare and command != "export":  # a name for another variable
                    state.forget_all(token.line, f"{command} {bare}")
                continue
            name = bare
        else:
            if isinstance(token, ShellWord):
                _declare_word(command, token, state, exports=exports, conditional=conditional)
            continue
        if exports and NAME.fullmatch(name):
            state.exported.add(name)


def _declare_word(
    command: str, token: ShellWord, state: State, *, exports: bool, conditional: bool
) -> None:
    """`export "$line"`, `export $(grep -v '^#' .env)`: what is set shows when expanded."""
    for word in expand(token, state):
        name, equals, value = word.text.partition("=")
        if not NAME.fullmatch(name):
            state.forget_all(token.line, f"{command} {as_written([token])}")
            continue
        if equals and conditional:
            state.forget(name, token.line, f"{command} {name}=…")
        elif equals:
            state.variables[name] = word._replace(text=value)
            state.tainted.pop(name, None)
        if exports:
            state.exported.add(name)


def forget_what_is_read(name: str | None, tokens: Sequence[Token], line: int, state: State) -> None:
    """`read NAME`, `printf -v NAME`, `let NAME=…`: the values are not known."""
    if name not in _SETTING:
        return
    texts = [as_written([token]) for token in tokens]
    names: Sequence[str] = texts
    if name == "printf":
        names = texts[1:2] if texts[:1] == ["-v"] else []
    elif name == "let":
        names = set_by_arithmetic(" ; ".join(texts))
    for text in names:
        if NAME.fullmatch(text):
            state.forget(text, line, name)
        elif NAME.fullmatch(text.removeprefix("$")):  # read "$name"
            state.forget_all(line, f"{name} {text}")
