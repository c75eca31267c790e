# SPDX-License-Identifier: Apache-2.0
"""`.env` files and `${…}` interpolation as Compose does them."""

import re
from collections.abc import Callable, Mapping
from typing import IO, NamedTuple, cast

from dotenv.parser import parse_stream

from sparkd.core.importing import codes
from sparkd.core.importing.model import (
    Context,
    Notebook,
    Origin,
    Word,
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = (":-", ":?", ":+", "-", "?", "+")

# Each line of a .env file can double the one before.
_MAX_TEXT = 1 << 18

Lookup = Callable[[str], Word | None]


class _Text(NamedTuple):
    """Stands for the open file that python-dotenv reads in one go."""

    text: str

    def read(self) -> str:
        return self.text


def parse(text: str, path: str, notebook: Notebook, outer: Mapping[str, Word]) -> dict[str, Word]:
    """Return the variables of a `.env` file; values may use earlier ones and those of `outer`."""
    variables: dict[str, Word] = {}
    # Compose and Docker skip the byte order mark that some editors write.
    for binding in parse_stream(cast("IO[str]", _Text(text.removeprefix("\ufeff")))):
        origin = Origin(path, binding.original.line)
        raw = binding.original.string.strip()
        if binding.error:
            notebook.add(origin, codes.UNKNOWN_VALUE, "this line is no assignment")
        elif binding.key is not None:
            value = binding.value or ""
            # Between single quotes Compose leaves ${…} alone.
            literal = raw.partition("=")[2].lstrip().startswith("'")
            known = variables | dict(outer)
            word = Word(value, origin)
            variables[binding.key] = word if literal else interpolate(word, known.get, notebook)
    return variables


def docker_env_file(word: Word, context: Context) -> dict[str, Word]:
    """Return the variables of `docker run --env-file`: raw lines, nothing is quoted or expanded."""
    path = word.text
    if not path.startswith("/") and context.directory:
        path = f"{context.directory}/{path.removeprefix('./')}"
    text = None if word.problem else context.surroundings.read(path)
    if text is None:
        message = f"the file {path} was not read: its variables are unknown here"
        context.notebook.add(word.origin, codes.UNKNOWN_VALUE, message)
        return {}
    variables: dict[str, Word] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        stripped = line.lstrip()
        if not stripped or stripped.startswith("#"):
            continue
        key, equals, value = stripped.partition("=")
        origin = Origin(path, number)
        if not _NAME.fullmatch(key):
            message = "this line begins with no name of a variable: Docker refuses the file"
            context.notebook.add(origin, codes.UNKNOWN_VALUE, message)
        elif equals:
            variables[key] = Word(value, origin)
        elif key in context.environment:
            variables[key] = context.environment[key]
        else:
            problem = f"{key} is taken from the caller's environment"
            variables[key] = Word("", origin, problem)
    return variables


def interpolate(word: Word, lookup: Lookup, notebook: Notebook) -> Word:
    """Expand `$NAME`, `${NAME}`, `${NAME:-fallback}` and their kin; `$$` is a dollar sign."""
    if "$" not in word.text or word.problem:
        return word
    parts: list[str] = []
    text, index = word.text, 0
    origin = word.origin
    while index < len(text):
        if text[index] != "$":
            parts.append(text[index])
            index += 1
            continue
        following = text[index + 1 : index + 2]
        if following == "$":
            parts.append("$")
            index += 2
        elif following == "{":
            end = _closing(text, index + 2)
            if end < 0:
                return word._replace(problem="a `${` is never closed")
            value = _braced(text[index + 2 : end], word, lookup, notebook)
            if value.problem:
                return value
            parts.append(value.text)
            if index == 0 and end + 1 == len(text):
                origin = value.origin
            index = end + 1
        elif match := _NAME.match(text, index + 1):
            value = _plain(match[0], word, lookup)
            if value.problem:
                return value
            parts.append(value.text)
            index = match.end()
        else:
            parts.append("$")
            index += 1
    if sum(map(len, parts)) > _MAX_TEXT:
        return word._replace(problem="its variables grow beyond all bounds")
    return Word("".join(parts), origin)


def _closing(text: str, index: int) -> int:
    depth = 1
    while index < len(text):
        if text.startswith("${", index):
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return -1


def _plain(name: str, word: Word, lookup: Lookup) -> Word:
    value = lookup(name)
    if value is None:
        problem = f"${name} is set neither in .env nor in the file itself"
        return word._replace(problem=problem)
    return value


def _braced(content: str, word: Word, lookup: Lookup, notebook: Notebook) -> Word:
    match = _NAME.match(content)
    if match is None:
        return word._replace(problem=f"`${{{content}}}` names no variable")
    name, rest = match[0], content[match.end() :]
    operator = next((sign for sign in _OPERATORS if rest.startswith(sign)), "")
    if rest and not operator:
        return word._replace(problem=f"`${{{content}}}` is no form that Compose knows")
    operand = word._replace(text=rest[len(operator) :])
    value = lookup(name)
    is_set = value is not None and (bool(value.text or value.problem) or operator[:1] != ":")
    if operator.endswith("+"):
        return interpolate(operand, lookup, notebook) if is_set else word._replace(text="")
    if is_set and value is not None:
        return value
    if operator.endswith("-"):
        text = f"${name} is not set here: the fallback written in the source is taken"
        notebook.add(word.origin, codes.FALLBACK, text)
        return interpolate(operand, lookup, notebook)
    return _plain(name, word, lambda _: None)
