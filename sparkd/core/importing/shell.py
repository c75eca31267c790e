# SPDX-License-Identifier: Apache-2.0
"""What a launch script does when nothing in it is conditional: assignments, then commands.

Nothing is run. Straight-line assignments, arrays, `export`, `source` of environments and of `.env`
files are followed; whatever stands under a condition, in a loop or in a function is reported and
taints the variables that it sets.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkd.core.importing import codes
from sparkd.core.importing.model import Notebook, Origin, RefusalError, Surroundings, Word
from sparkd.core.importing.shell_commands import (
    FOREVER,
    GROUP,
    Closes,
    Cutter,
    Defines,
    Opens,
    Simple,
)
from sparkd.core.importing.shell_words import (
    NAME,
    Assignment,
    HereDocument,
    Lexer,
    Literal,
    Opaque,
    Part,
    ShellSyntaxError,
    ShellWord,
    Token,
    Variable,
)

# A script that doubles a variable thirty times must not fill the memory.
_MAX_TEXT = 1 << 18
_MAX_ITEMS = 4096
_TESTS = frozenset({"[", "[[", "test", "command", "type", "which", "grep", "pgrep", "curl", "nc",
                    "systemctl", "docker", "podman", "nvidia-smi", "false"})  # fmt: skip
_DECLARING = frozenset({"export", "declare", "typeset", "readonly", "local"})
_SILENT = frozenset({"echo", "printf", "set", "shopt", "true", ":", "wait", "exit", "return"})
_SELF = r"(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?\})"
_OWN_DIRECTORY = re.compile(
    rf"\$\((?:dirname(?:--)?{_SELF}"
    rf"|cd(?:--)?\$\(dirname(?:--)?{_SELF}\)(?:&?>/dev/null(?:2>&1)?)?&&pwd(?:-P)?)\)\Z"
)
_CONDA_HOOK = re.compile(r"(/[^\s\"'$()]+)/bin/(?:conda|mamba|micromamba)\b")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")


class Invocation(NamedTuple):
    """A command that the script runs as a program of its own."""

    argv: tuple[Word, ...]
    environment: Mapping[str, Word]
    venv: Word | None
    directory: str
    is_conditional: bool
    in_background: bool
    piped_into: str
    redirected: bool
    origin: Origin


@dataclass(frozen=True, slots=True)
class Array:
    """The value of an array variable."""

    items: tuple[Word, ...]


Value = Word | Array


@dataclass(slots=True)
class Shell:
    """The state of a script while it is read; `invocations` is what it would run."""

    source: str
    notebook: Notebook
    surroundings: Surroundings
    variables: dict[str, Value] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    positional: tuple[Word, ...] | None = None
    home: str | None = None
    directory: str = ""
    first_line: int = 1
    venv: Word | None = None
    invocations: list[Invocation] = field(default_factory=list)
    _conda: str = ""
    _exports_all: bool = False
    _blocks: list[str] = field(default_factory=list)
    _tainted: dict[str, str] = field(default_factory=dict)
    _functions: set[str] = field(default_factory=set)
    _depth: int = 0

    def run(self, text: str) -> None:
        """Follow `text`.

        Raises:
            RefusalError: the text is no shell script that could be read to its end.
        """
        try:
            tokens = Lexer(text).tokens()
        except ShellSyntaxError as error:
            raise RefusalError(
                self._at(error.line), f"cannot be read as a script: {error}"
            ) from None
        was_conditional = False
        pipeline: list[Simple] = []
        for step in Cutter(tokens).steps():
            if isinstance(step, Opens):
                self._blocks.append(step.block)
            elif isinstance(step, Closes):
                self._blocks.pop()
            elif isinstance(step, Defines):
                self._functions.add(_raw(step.tokens))
            else:
                pipeline.append(step)
                if step.ended_by not in {"|", "|&"}:
                    was_conditional = self._pipeline(pipeline, after_condition=was_conditional)
                    pipeline = []
        if pipeline:
            self._pipeline(pipeline, after_condition=was_conditional)

    def _at(self, line: int) -> Origin:
        return Origin(self.source, self.first_line + line - 1)

    def _is_inside(self) -> bool:
        # `while true` around a server is somebody's own Restart=always: it always runs.
        return any(block not in {FOREVER, GROUP} for block in self._blocks)

    def _pipeline(self, pipeline: Sequence[Simple], *, after_condition: bool) -> bool:
        """Follow one pipeline; return whether what `&&` joins to it is conditional."""
        first = pipeline[0]
        joined = first.joined_by
        conditional = self._is_inside() or joined == "||" or (joined == "&&" and after_condition)
        piped_into = ""
        if len(pipeline) > 1:
            piped_into = _raw(pipeline[1].tokens) or "a pipe"
        is_test = self._command(first, conditional=conditional, piped_into=piped_into)
        return conditional or is_test

    def _command(self, simple: Simple, *, conditional: bool, piped_into: str) -> bool:
        tokens = [token for token in simple.tokens if not isinstance(token, HereDocument)]
        if not tokens:
            return False
        assignments: list[Assignment] = []
        while tokens and isinstance(tokens[0], Assignment):
            assignments.append(tokens.pop(0))  # type: ignore[arg-type]
        if not tokens:
            for assignment in assignments:
                self._assign(assignment, conditional=conditional)
            return False
        head = tokens[0]
        name = head.bare if isinstance(head, ShellWord) else None
        line = head.line
        if name in _DECLARING:
            self._declare(name or "", tokens[1:], conditional=conditional)
            return False
        if conditional and name in {"exit", "return"}:
            if name == "exit" and _raw(tokens[1:]) in {"", "0"}:
                self.notebook.add(
                    self._at(line), codes.EXITS_0, "the script ends with status 0 under a condition"
                )
            return True
        argv = self._argv(tokens)
        prefix = {item.name: self._single(item.words[0]) for item in assignments if item.words}
        if not conditional and self._builtin(argv, line):
            return name in _TESTS
        if not argv or (argv[0].text in _SILENT and not argv[0].problem):
            return False
        if argv[0].text in self._functions:
            return False
        if conditional and argv[0].text in {"source", "."}:
            self.notebook.add(
                self._at(line), codes.CONDITIONAL,
                f"`{_raw(tokens)}` depends on a condition and was not followed",
            )  # fmt: skip
            return True
        environment = {
            key: value
            for key in sorted(self.exported)
            if isinstance(value := self.lookup(key), Word)
        }
        self.invocations.append(
            Invocation(
                tuple(argv), {**environment, **prefix}, self.venv, self.directory, conditional,
                simple.ended_by == "&", piped_into, simple.redirected, self._at(line),
            )
        )  # fmt: skip
        return name in _TESTS or name == "!"

    def _argv(self, tokens: Iterable[Token]) -> list[Word]:
        words: list[Word] = []
        for token in tokens:
            if isinstance(token, ShellWord):
                words += self.expand(token)
            elif isinstance(token, Assignment):
                if token.is_array:
                    words.append(Word(token.name, self._at(token.line), "an array as an argument"))
                    continue
                equals = "+=" if token.appends else "="
                value = token.words[0]
                parts: list[Part] = [Literal(token.name + equals, False), *value.parts]
                words += self.expand(ShellWord(parts, token.line))
        return words

    def _single(self, word: ShellWord) -> Word:
        """Expand the right side of an assignment, which is never split."""
        fields = self.expand(ShellWord([_quoted(part) for part in word.parts], word.line))
        tilde = word.parts and word.parts[0] == Literal("~", False)
        if tilde and self.home and fields:
            return fields[0]._replace(text=self.home + fields[0].text[1:])
        return fields[0] if fields else Word("", self._at(word.line))

    def _assign(self, item: Assignment, *, conditional: bool) -> None:
        if conditional:
            self._taint(item)
            return
        old = self.variables.get(item.name)
        if item.is_array:
            values = tuple(value for word in item.words for value in self.expand(word))
            before = old.items if isinstance(old, Array) and item.appends else ()
            if len(before) + len(values) > _MAX_ITEMS:
                raise RefusalError(self._at(item.line), "its arrays grow beyond all bounds")
            self.variables[item.name] = Array((*before, *values))
        else:
            value = self._single(item.words[0])
            if item.appends and isinstance(old, Word):
                if len(old.text) + len(value.text) > _MAX_TEXT:
                    raise RefusalError(self._at(item.line), "its variables grow beyond all bounds")
                value = Word(old.text + value.text, value.origin, old.problem or value.problem)
            self.variables[item.name] = value
        if not item.appends:
            self._tainted.pop(item.name, None)
        if self._exports_all:
            self.exported.add(item.name)

    def _taint(self, item: Assignment) -> None:
        origin = self._at(item.line)
        if item.is_array and item.appends:
            raw = " ".join(_raw([word]) for word in item.words)
            text = f"`{item.name}+=({raw})` depends on a condition and is not carried over"
            self.notebook.add(origin, codes.CONDITIONAL, text)
            return
        value = _raw(item.words)
        text = f"`{item.name}={value}` depends on a condition and was not followed"
        self.notebook.add(origin, codes.CONDITIONAL, text)
        self._tainted[item.name] = f"{item.name} is set under a condition at line {origin.line}"

    def _declare(self, command: str, tokens: Sequence[Token], *, conditional: bool) -> None:
        exports = command == "export"
        for token in tokens:
            if isinstance(token, Assignment):
                self._assign(token, conditional=conditional)
                name = token.name
            elif isinstance(token, ShellWord) and (bare := token.bare) is not None:
                if bare.startswith("-"):
                    exports = exports or "x" in bare
                    continue
                name = bare
            else:
                continue
            if exports and NAME.fullmatch(name):
                self.exported.add(name)

    def _builtin(self, argv: Sequence[Word], line: int) -> bool:
        if not argv:
            return False
        name, rest = argv[0].text, argv[1:]
        if name in {"source", "."} and rest:
            self._source(rest[0], line)
        elif name == "cd" and rest:
            target = rest[-1]
            if not target.problem:
                self.directory = _join(self.directory, target.text)
        elif name in {"conda", "mamba", "micromamba"} and [w.text for w in rest[:1]] == [
            "activate"
        ]:
            self._activate_conda(rest[1:], line)
        elif name == "eval":
            self._eval(rest, line)
        elif name == "set":
            words = [word.text for word in rest]
            self._exports_all = ("-a" in words or "allexport" in words) and "+a" not in words
        elif name == "unset":
            for word in rest:
                self.variables.pop(word.text, None)
                self.exported.discard(word.text)
        elif name == "shift":
            count = int(rest[0].text) if rest and rest[0].text.isdigit() else 1
            self.positional = self.positional[count:] if self.positional else self.positional
        else:
            return False
        return True

    def _source(self, word: Word, line: int) -> None:
        origin = self._at(line)
        if word.problem:
            self.notebook.add(origin, codes.UNKNOWN_VALUE, f"`source`: {word.problem}")
            return
        path = _join(self.directory, word.text)
        if path.endswith("/bin/activate"):
            self.venv = Word(path.removesuffix("/bin/activate"), origin)
        elif path.endswith("/etc/profile.d/conda.sh"):
            self._conda = path.removesuffix("/etc/profile.d/conda.sh")
        elif path.endswith("/bin/conda"):
            self._conda = path.removesuffix("/bin/conda")
        else:
            text = self.surroundings.read(path)
            if text is None or self._depth > 4:
                message = f"{path} was not read: what it sets is unknown here"
                self.notebook.add(origin, codes.UNKNOWN_VALUE, message)
                return
            outer = self.source, self.first_line, self._blocks, self._depth
            self.source, self.first_line, self._blocks = path, 1, []
            self._depth += 1
            self.run(text)
            self.source, self.first_line, self._blocks, self._depth = outer

    def _activate_conda(self, rest: Sequence[Word], line: int) -> None:
        name = rest[0] if rest else Word("base", self._at(line))
        origin = self._at(line)
        if name.problem:
            return
        if name.text.startswith("/"):
            self.venv = Word(name.text, origin)
        elif self._conda:
            tail = "" if name.text == "base" else f"/envs/{name.text}"
            self.venv = Word(self._conda + tail, origin)
        else:
            reason = f"the prefix of conda's environment {name.text} is not in the script"
            self.venv = Word(name.text, origin, reason)

    def _eval(self, rest: Sequence[Word], line: int) -> None:
        raw = " ".join(word.text for word in rest)
        if match := _CONDA_HOOK.search(raw):
            self._conda = match[1]
        elif "conda" not in raw and "mamba" not in raw:
            self.invocations.append(
                Invocation((Word("eval", self._at(line)), *rest), {}, self.venv, self.directory,
                           False, False, "", False, self._at(line))
            )  # fmt: skip

    def lookup(self, name: str) -> Value | None:
        """Return a variable's value; None where the script does not set it."""
        if name in self._tainted:
            return Word(f"${name}", Origin(self.source), self._tainted[name])
        if name in self.variables:
            return self.variables[name]
        if name == "HOME" and self.home:
            return Word(self.home, Origin(self.source))
        if name == "PWD" and self.directory:
            return Word(self.directory, Origin(self.source))
        return None

    def expand(self, word: ShellWord) -> list[Word]:
        """Return the fields that a word becomes."""
        fields = _Fields(self._at(word.line))
        parts = word.parts
        if parts and parts[0] == Literal("~", False):
            following = parts[1] if len(parts) > 1 else Literal("/", False)
            if isinstance(following, Literal) and following.text == "/":
                self._add_home(fields)
                parts = parts[1:]
        self._check_patterns(word, fields)
        lone = len([part for part in parts if part != Literal("", True)]) == 1
        for part in parts:
            if isinstance(part, Literal):
                fields.add(part.text, quoted=part.quoted)
            elif isinstance(part, Opaque):
                self._add_opaque(part, fields)
            else:
                self._add_variable(part, fields, lone=lone)
        return fields.finish()

    def _add_home(self, fields: "_Fields") -> None:
        if self.home:
            fields.add(self.home, quoted=True)
        else:
            fields.fail("~ is the home of whoever runs it")

    def _check_patterns(self, word: ShellWord, fields: "_Fields") -> None:
        bare = "".join(
            part.text if isinstance(part, Literal) and not part.quoted else "\0"
            for part in word.parts
        )
        if _BRACES.search(bare):
            fields.fail("the shell expands unquoted braces")
        elif "*" in bare or ("?" in bare and len(bare) > 1 and "=" not in bare):
            fields.fail("the shell expands the pattern")

    def _add_opaque(self, part: Opaque, fields: "_Fields") -> None:
        compact = re.sub(r"[\s\"']", "", part.raw)
        if _OWN_DIRECTORY.match(compact) and self.source.startswith("/"):
            fields.add(self.source.rpartition("/")[0] or "/", quoted=True)
        elif compact == "$(pwd)" and self.directory:
            fields.add(self.directory, quoted=True)
        else:
            fields.fail(f"only a shell can tell what {part.raw} is", part.raw)

    def _add_variable(self, part: Variable, fields: "_Fields", *, lone: bool) -> None:
        if part.name in {"@", "*"}:
            self._add_array(self.positional or (), part, fields)
            return
        if part.name.isdigit():
            index = int(part.name) - 1
            known = self.positional or ()
            value: Value | None = known[index] if 0 <= index < len(known) else None
            if index == -1:
                value = Word(self.source, Origin(self.source))
        else:
            value = self.lookup(part.name)
        if isinstance(value, Array):
            if part.subscript in {"@", "*"}:
                self._add_array(value.items, part, fields)
                return
            number = int(part.subscript) if part.subscript.isdigit() else 0
            value = value.items[number] if number < len(value.items) else None
        self._add_scalar(part, value, fields, lone=lone)

    def _add_array(self, values: Sequence[Word], part: Variable, fields: "_Fields") -> None:
        if part.operator == "+":
            # ${args[@]+"${args[@]}"}: the idiom for an array that may be empty under set -u.
            if values:
                for inner in part.operand:
                    if isinstance(inner, Variable):
                        self._add_variable(inner, fields, lone=True)
            return
        joins = part.quoted and "*" in {part.name, part.subscript}
        for number, value in enumerate(values):
            if number and joins:
                fields.add(" ", quoted=True)
            elif number:
                fields.separate()
            fields.add_value(value, quoted=part.quoted, lone=not joins)
        if not values:
            fields.vanish()

    def _add_scalar(
        self, part: Variable, value: Value | None, fields: "_Fields", *, lone: bool
    ) -> None:
        empty_counts = part.operator.startswith(":")
        is_set = isinstance(value, Word) and not (
            empty_counts and value.text == "" and not value.problem
        )
        operator = part.operator.lstrip(":")
        if operator == "+":
            if is_set:
                self._add_operand(part, fields)
            return
        if is_set and isinstance(value, Word):
            fields.add_value(value, quoted=part.quoted, lone=lone)
        elif operator in {"-", "="}:
            text = f"${part.name} is not set here: the fallback written in the script is taken"
            self.notebook.add(fields.origin, codes.FALLBACK, text)
            self._add_operand(part, fields)
        else:
            fields.fail(f"${part.name} is set by nothing that is known here", f"${part.name}")

    def _add_operand(self, part: Variable, fields: "_Fields") -> None:
        for value in self.expand(ShellWord([_quoted(item) for item in part.operand], 1)):
            moved = value._replace(origin=fields.origin)
            fields.add_value(moved, quoted=part.quoted, lone=False)


@dataclass(slots=True)
class _Fields:
    """Collects the fields of one word."""

    origin: Origin
    done: list[Word] = field(default_factory=list)
    text: str = ""
    exists: bool = False
    problem: str = ""
    place: Origin | None = None

    def add(self, text: str, *, quoted: bool) -> None:
        if len(self.text) + len(text) > _MAX_TEXT:
            raise RefusalError(self.origin, "its variables grow beyond all bounds")
        self.text += text
        self.exists = self.exists or quoted or text != ""

    def add_value(self, value: Word, *, quoted: bool, lone: bool) -> None:
        if value.problem:
            self.fail(value.problem, value.text)
            return
        if lone:
            self.place = value.origin
        if quoted:
            self.add(value.text, quoted=True)
            return
        pieces = value.text.split()
        for number, piece in enumerate(pieces):
            if number or (value.text[:1].isspace() and self.exists):
                self.separate()
                self.place = value.origin if lone else None
            self.add(piece, quoted=False)

    def fail(self, problem: str, raw: str = "") -> None:
        self.problem = self.problem or problem
        self.add(raw, quoted=True)

    def vanish(self) -> None:
        """An empty "$@" is no field at all, unless something else stands beside it."""
        if self.text == "":
            self.exists = False

    def separate(self) -> None:
        if self.exists:
            self.done.append(Word(self.text, self.place or self.origin, self.problem))
        self.text, self.exists, self.problem, self.place = "", False, "", None

    def finish(self) -> list[Word]:
        self.separate()
        return self.done


def _quoted(part: Part) -> Part:
    return part if isinstance(part, Literal) else part._replace(quoted=True)


def _join(directory: str, path: str) -> str:
    if path.startswith("/") or not directory:
        return path
    path = path.removeprefix("./")
    while path.startswith("../"):
        directory, path = directory.rpartition("/")[0], path[3:]
    return f"{directory}/{path}" if path not in {"", "."} else directory


def _raw(tokens: Iterable[Token]) -> str:
    """Return the tokens as a person would write them, for messages."""
    words: list[str] = []
    for token in tokens:
        if isinstance(token, ShellWord):
            words.append("".join(_raw_part(part) for part in token.parts))
        elif isinstance(token, Assignment):
            value = " ".join(_raw([word]) for word in token.words)
            words.append(f"{token.name}={f'({value})' if token.is_array else value}")
    return " ".join(words)


def _raw_part(part: Part) -> str:
    if isinstance(part, Literal):
        return part.text
    if isinstance(part, Opaque):
        return part.raw
    return f"${part.name}"
