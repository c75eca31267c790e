# SPDX-License-Identifier: Apache-2.0
"""What a launch script does when nothing in it is conditional: assignments, then commands.

Nothing is run. Straight-line assignments, arrays, `export`, `source` of environments and of `.env`
files are followed; whatever stands under a condition, in a loop or in a function is reported and
taints the variables that it sets.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkd.core.importing import codes
from sparkd.core.importing.model import Notebook, Origin, RefusalError, Surroundings, Word
from sparkd.core.importing.shell_commands import (
    FOREVER,
    GROUP,
    SUBSHELL,
    Arithmetic,
    Closes,
    Cutter,
    Defines,
    Opens,
    Simple,
    set_by_arithmetic,
)
from sparkd.core.importing.shell_fields import MAX_TEXT, Fields, as_quoted, as_written, join
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
# Builtins that set the variables that they name, to what only a run could tell.
_SETTING = frozenset({"read", "mapfile", "readarray", "getopts", "let", "printf"})
_CHANGING_DIRECTORY = frozenset({"cd", "pushd", "popd"})
# Nothing that matters to a server is set by these, whatever they are called by.
_HARMLESS_FILES = ("/bin/activate", "/etc/profile.d/conda.sh", "/bin/conda", "/.bashrc",
                   "/.profile", "/.bash_profile", "/nvm.sh")  # fmt: skip
# What a subshell sets of these ends with it.
_SCOPE = ("variables", "exported", "positional", "directory", "venv", "_conda", "_exports_all",
          "_tainted", "_unset", "_lost", "_unknown_positional")  # fmt: skip
_SUBSCRIPT = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z")
_FILE_TESTS = frozenset({"-f", "-e", "-r", "-s"})
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
    # The files that the script itself writes: what stands in them today does not count.
    written: set[str] = field(default_factory=set)
    _conda: str = ""
    _exports_all: bool = False
    _blocks: list[str] = field(default_factory=list)
    _tainted: dict[str, str] = field(default_factory=dict)
    # Why a variable that nothing sets may be set all the same.
    _unset: str = ""
    # Why the working directory, or the positional parameters, cannot be known.
    _lost: str = ""
    _unknown_positional: str = ""
    _functions: set[str] = field(default_factory=set)
    _set_by_functions: dict[str, str] = field(default_factory=dict)
    _outside: list[dict[str, object] | None] = field(default_factory=list)
    _tested: str = ""
    _is_conditional: bool = False
    _is_first: bool = False
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
        if "\r\n" in text:
            self.notebook.add(
                Origin(self.source), codes.DERIVED, "its lines end in CR LF: a shell takes the CR"
                " for a part of the last word, so the file does not run as it is; it is left out"
                " here"
            )  # fmt: skip
        was_conditional = False
        pipeline: list[Simple] = []
        for step in Cutter(tokens).steps():
            if isinstance(step, Opens):
                self._open(step)
            elif isinstance(step, Closes):
                self._close()
            elif isinstance(step, Arithmetic):
                for name in step.names:
                    self._forget(name, step.line, "(( … ))")
                was_conditional, self._tested = True, ""
            elif isinstance(step, Defines):
                self._functions.add(as_written(step.tokens))
            else:
                pipeline.append(step)
                if step.ended_by not in {"|", "|&"}:
                    was_conditional = self._pipeline(pipeline, after_condition=was_conditional)
                    pipeline = []
        if pipeline:
            self._pipeline(pipeline, after_condition=was_conditional)

    def _open(self, step: Opens) -> None:
        self._blocks.append(step.block)
        kept = {name: copy(getattr(self, name)) for name in _SCOPE}
        self._outside.append(kept if step.block == SUBSHELL else None)
        self._is_first = step.block == "if"
        for name in step.names:
            self._tainted[name] = f"{name} is set by a loop"

    def _close(self) -> None:
        self._blocks.pop()
        self._tested = ""
        outside = self._outside.pop()
        for name, value in (outside or {}).items():
            setattr(self, name, value)

    def _forget(self, name: str, line: int, what: str) -> None:
        """A variable is set to what only a shell could tell."""
        place = self._at(line).line
        self._tainted[name] = f"{name} is set by `{what}` at line {place}"
        if self._blocks and "function" in self._blocks:
            self._set_by_functions[name] = self._tainted[name]

    def _forget_all(self, line: int, what: str) -> None:
        """Every variable may have been set by something that cannot be followed."""
        origin = self._at(line)
        reason = f"`{what}` at line {origin.line} may set it"
        for name in self.variables:
            self._tainted[name] = f"{name} cannot be known: {reason}"
        self._unset = reason
        self.notebook.add(
            origin, codes.UNKNOWN_VALUE, f"which variables `{what}` sets only a shell can tell"
        )

    def _at(self, line: int) -> Origin:
        return Origin(self.source, self.first_line + line - 1)

    def _is_inside(self) -> bool:
        # `while true` around a server is somebody's own Restart=always: it always runs.
        return any(block not in {FOREVER, GROUP, SUBSHELL} for block in self._blocks)

    def _pipeline(self, pipeline: Sequence[Simple], *, after_condition: bool) -> bool:
        """Follow one pipeline; return whether what `&&` joins to it is conditional."""
        first = pipeline[0]
        for word in (word for simple in pipeline for word in simple.writes_to):
            self.written |= {join(self.directory, target.text) for target in self.expand(word)}
        joined = first.joined_by
        conditional = self._is_inside() or joined == "||" or (joined == "&&" and after_condition)
        # In a pipeline of several commands each is in a subshell.
        self._is_conditional = conditional or len(pipeline) > 1
        piped_into = ""
        if len(pipeline) > 1:
            piped_into = as_written(pipeline[1].tokens) or "a pipe"
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
            self._tested = ""
            for assignment in assignments if simple.ended_by != "&" else ():
                self._assign(assignment, conditional=conditional)
            return False
        head = tokens[0]
        name = head.bare if isinstance(head, ShellWord) else None
        line = head.line
        # What `||` joins runs when the file is not there.
        tested = "" if simple.joined_by == "||" else self._tested
        self._tested = self._test(name, tokens, conditional=conditional)
        self._read_in(name, tokens[1:], line)
        if name in _DECLARING:
            self._declare(name or "", tokens[1:], conditional=conditional)
            return False
        if conditional and name in {"exit", "return"}:
            if name == "exit" and as_written(tokens[1:]) in {"", "0"}:
                self.notebook.add(
                    self._at(line), codes.EXITS_0, "the script ends with status 0 under a condition"
                )
            return True
        argv = self._argv(tokens)
        prefix = {item.name: self._single(item.words[0]) for item in assignments if item.words}
        if not conditional and self._builtin(argv, line):
            return name in _TESTS
        if argv and conditional and self._builtin_under_condition(argv, tokens, tested):
            return True
        if not argv or (argv[0].text in _SILENT and not argv[0].problem):
            return False
        if argv[0].text in self._functions:
            self._tainted |= self._set_by_functions
            self._lost = self._set_by_functions.get("PWD", self._lost)
            return False
        environment = {
            key: value
            for key in sorted(self.exported)
            if isinstance(value := self.lookup(key), Word)
        }
        self.invocations.append(
            Invocation(
                tuple(argv), {**environment, **prefix}, self.venv,
                "" if self._lost else self.directory, conditional,
                simple.ended_by == "&", piped_into, simple.redirected, self._at(line),
            )
        )  # fmt: skip
        return name in _TESTS or name == "!"

    def _test(self, name: str | None, tokens: Sequence[Token], *, conditional: bool) -> str:
        """Return the file whose existence this command tests, if that is all it does."""
        decides = not conditional or (
            self._is_first and not any(
                block not in {FOREVER, GROUP, SUBSHELL} for block in self._blocks[:-1]
            )
        )  # fmt: skip
        self._is_first = False
        words = [token for token in tokens[1:] if isinstance(token, ShellWord)]
        if name in {"[", "[["} and words and words[-1].bare in {"]", "]]"}:
            words.pop()
        elif name != "test":
            return ""
        if not decides or len(words) != 2 or words[0].bare not in _FILE_TESTS:
            return ""
        path = self._single(words[1])
        return "" if path.problem else join(self.directory, path.text)

    def _builtin_under_condition(
        self, argv: Sequence[Word], tokens: Sequence[Token], tested: str
    ) -> bool:
        """Follow what a builtin under a condition may change; return whether it was one."""
        name, line = argv[0].text, argv[0].origin.line - self.first_line + 1
        shown = f"`{as_written(tokens)}` depends on a condition and was not followed"
        origin = self._at(line)
        if name in {"source", "."} and len(argv) > 1:
            path = join(self.directory, argv[1].text)
            if tested and tested == path and self.surroundings.read(path) is not None:
                # The condition is that the file is there, and it is.
                self._source(argv[1], line)
                return True
            self.notebook.add(origin, codes.CONDITIONAL, shown)
            self._source(argv[1], line, conditional=True)
        elif name in _CHANGING_DIRECTORY:
            self._lost = f"`{as_written(tokens)}` at line {origin.line} depends on a condition"
            if "function" in self._blocks:
                self._set_by_functions["PWD"] = self._lost
        elif name in {"set", "shift"}:
            if name == "shift" or any(word.text == "--" for word in argv):
                self._unknown_positional = f"they are changed under a condition at line {line}"
        elif name == "unset":
            for word in argv[1:]:
                reason = f"{word.text} is unset under a condition at line {origin.line}"
                self._tainted[word.text] = reason
        elif name == "eval" and "conda" not in shown and "mamba" not in shown:
            self._forget_all(line, as_written(tokens))
            return False
        else:
            return False
        return True

    def _read_in(self, name: str | None, tokens: Sequence[Token], line: int) -> None:
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
                self._forget(text, line, name)
            elif NAME.fullmatch(text.removeprefix("$")):  # read "$name"
                self._forget_all(line, f"{name} {text}")

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
        fields = self.expand(ShellWord([as_quoted(part) for part in word.parts], word.line))
        tilde = word.parts and word.parts[0] == Literal("~", False)
        if tilde and self.home and fields:
            return fields[0]._replace(text=self.home + fields[0].text[1:])
        return fields[0] if fields else Word("", self._at(word.line))

    def _assign(self, item: Assignment, *, conditional: bool) -> None:
        if conditional:
            self._taint(item)
            return
        if item.has_subscripts:
            what = f"{item.name}=([…]=…)" if item.is_array else f"{item.name}[…]=…"
            self._forget(item.name, item.line, what)
            return
        old = self.variables.get(item.name)
        if item.appends and isinstance(old, Array) and not item.is_array:
            self._forget(item.name, item.line, f"{item.name}+=…")
            return
        if item.is_array:
            values = tuple(value for word in item.words for value in self.expand(word))
            before = old.items if isinstance(old, Array) and item.appends else ()
            if len(before) + len(values) > _MAX_ITEMS:
                raise RefusalError(self._at(item.line), "its arrays grow beyond all bounds")
            self.variables[item.name] = Array((*before, *values))
        else:
            value = self._single(item.words[0])
            if item.appends and isinstance(old, Word):
                if len(old.text) + len(value.text) > MAX_TEXT:
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
            raw = " ".join(as_written([word]) for word in item.words)
            text = f"`{item.name}+=({raw})` depends on a condition and is not carried over"
            self.notebook.add(origin, codes.CONDITIONAL, text)
            if "function" in self._blocks:
                reason = f"{item.name} grows in a function at line {origin.line}"
                self._set_by_functions[item.name] = reason
            return
        value = as_written(item.words)
        text = f"`{item.name}={value}` depends on a condition and was not followed"
        self.notebook.add(origin, codes.CONDITIONAL, text)
        self._tainted[item.name] = f"{item.name} is set under a condition at line {origin.line}"
        if "function" in self._blocks:
            self._set_by_functions[item.name] = self._tainted[item.name]

    def _declare(self, command: str, tokens: Sequence[Token], *, conditional: bool) -> None:
        exports = command == "export"
        for token in tokens:
            if isinstance(token, Assignment):
                self._assign(token, conditional=conditional)
                name = token.name
            elif isinstance(token, ShellWord) and (bare := token.bare) is not None:
                if bare.startswith("-"):
                    exports = exports or "x" in bare
                    if "n" in bare and command != "export":  # a name for another variable
                        self._forget_all(token.line, f"{command} {bare}")
                    continue
                name = bare
            else:
                if isinstance(token, ShellWord):
                    self._declare_word(command, token, exports=exports, conditional=conditional)
                continue
            if exports and NAME.fullmatch(name):
                self.exported.add(name)

    def _declare_word(
        self, command: str, token: ShellWord, *, exports: bool, conditional: bool
    ) -> None:
        """`export "$line"`, `export $(grep -v '^#' .env)`: what is set shows when expanded."""
        for word in self.expand(token):
            name, equals, value = word.text.partition("=")
            if not NAME.fullmatch(name):
                self._forget_all(token.line, f"{command} {as_written([token])}")
                continue
            if equals and conditional:
                self._forget(name, token.line, f"{command} {name}=…")
            elif equals:
                self.variables[name] = word._replace(text=value)
                self._tainted.pop(name, None)
            if exports:
                self.exported.add(name)

    def _builtin(self, argv: Sequence[Word], line: int) -> bool:
        if not argv:
            return False
        name, rest = argv[0].text, argv[1:]
        if name in {"source", "."} and rest:
            self._source(rest[0], line)
        elif name in _CHANGING_DIRECTORY:
            self._change_directory(name, rest, line)
        elif name in {"conda", "mamba", "micromamba"} and [w.text for w in rest[:1]] == [
            "activate"
        ]:
            self._activate_conda(rest[1:], line)
        elif name == "eval":
            self._eval(rest, line)
        elif name == "set":
            self._set(rest)
        elif name == "unset":
            self._unset_names(rest, line)
        elif name == "shift" and self.positional:
            count = int(rest[0].text) if rest and rest[0].text.isdigit() else 1
            self.positional = self.positional[count:]
        else:
            return False
        return True

    def _change_directory(self, name: str, words: Sequence[Word], line: int) -> None:
        places = [word for word in words if word.text not in {"-L", "-P", "-e", "--"}]
        if name == "cd" and not places and self.home:
            places = [Word(self.home, self._at(line))]
        if name == "popd" or not places or places[0].text.startswith(("-", "+")):
            shown = " ".join([name, *(word.text for word in words)])
            self._lost = f"`{shown}` at line {self._at(line).line} goes where only a shell can tell"
            return
        target = places[0]
        if target.problem:
            self._lost = f"`{name}` at line {self._at(line).line}: {target.problem}"
        elif target.text.startswith("/") or not self._lost:
            self.directory, self._lost = join(self.directory, target.text), ""

    def _unset_names(self, words: Sequence[Word], line: int) -> None:
        for word in words:
            name, bracket, _ = word.text.partition("[")
            if bracket:
                self._forget(name, line, f"unset {word.text}")
                continue
            self.variables.pop(name, None)
            self._tainted.pop(name, None)
            self.exported.discard(name)

    def _set(self, words: Sequence[Word]) -> None:
        for index, word in enumerate(words):
            text, following = word.text, words[index + 1].text if words[index + 1 :] else ""
            if text == "--" or not text.startswith(("-", "+")):
                is_value = index > 0 and words[index - 1].text.endswith("o")
                if text == "--" or not is_value:
                    self.positional = tuple(words[index + (text == "--") :])
                    self._unknown_positional = ""
                    return
            elif "a" in text[1:] or ("o" in text[1:] and following == "allexport"):
                self._exports_all = text.startswith("-")

    def _source(self, word: Word, line: int, *, conditional: bool = False) -> None:
        origin = self._at(line)
        lost = self._lost and not word.text.startswith("/")
        if word.problem or lost:
            self.notebook.add(origin, codes.UNKNOWN_VALUE, f"`source`: {word.problem or lost}")
            if not word.text.endswith(_HARMLESS_FILES):
                self._forget_all(line, f"source {word.text}")
            return
        path = join(self.directory, word.text)
        if conditional and path.endswith(_HARMLESS_FILES):
            return
        if path in self.written:
            self._forget_all(line, f"source {word.text}, which the script itself writes")
            return
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
            self.source, self.first_line = path, 1
            self._blocks = ["if"] if conditional else []
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
            self._forget_all(line, f"eval {raw}")
            self.invocations.append(
                Invocation((Word("eval", self._at(line)), *rest), {}, self.venv, "",
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
        if name == "PWD" and self.directory and not self._lost:
            return Word(self.directory, Origin(self.source))
        return None

    def expand(self, word: ShellWord) -> list[Word]:
        """Return the fields that a word becomes."""
        fields = Fields(self._at(word.line))
        parts = word.parts
        if parts and parts[0] == Literal("~", False):
            following = parts[1] if len(parts) > 1 else Literal("/", False)
            if isinstance(following, Literal) and following.text == "/":
                self._add_home(fields)
                parts = parts[1:]
        self._check_patterns(word, fields)
        lone = len([part for part in parts if part != Literal("", True)]) == 1
        empty_texts = len([part for part in parts if part == Literal("", True)])
        fields.is_kept = empty_texts > len(
            [p for p in parts if isinstance(p, Variable) and p.quoted]
        )
        for part in parts:
            if isinstance(part, Literal):
                fields.add(part.text, quoted=part.quoted)
            elif isinstance(part, Opaque):
                self._add_opaque(part, fields)
            else:
                self._add_variable(part, fields, lone=lone)
        return fields.finish()

    def _add_home(self, fields: Fields) -> None:
        if self.home:
            fields.add(self.home, quoted=True)
        else:
            fields.fail("~ is the home of whoever runs it")

    def _check_patterns(self, word: ShellWord, fields: Fields) -> None:
        bare = "".join(
            part.text if isinstance(part, Literal) and not part.quoted else "\0"
            for part in word.parts
        )
        if _BRACES.search(bare):
            fields.fail("the shell expands unquoted braces")
        elif "*" in bare or ("?" in bare and len(bare) > 1 and "=" not in bare):
            fields.fail("the shell expands the pattern")

    def _add_opaque(self, part: Opaque, fields: Fields) -> None:
        compact = re.sub(r"[\s\"']", "", part.raw)
        if _OWN_DIRECTORY.match(compact) and self.source.startswith("/"):
            fields.add(self.source.rpartition("/")[0] or "/", quoted=True)
        elif compact == "$(pwd)" and self.directory and not self._lost:
            fields.add(self.directory, quoted=True)
        else:
            fields.fail(f"only a shell can tell what {part.raw} is", part.raw)

    def _add_variable(self, part: Variable, fields: Fields, *, lone: bool) -> None:
        if not part.quoted and "IFS" in (self.variables.keys() | self._tainted.keys()):
            fields.splits_elsewhere = True
        if part.name in {"@", "*"}:
            self._add_arguments(part, fields)
            return
        if part.name.isdigit():
            index = int(part.name) - 1
            if self._unknown_positional and index >= 0:
                fields.fail(f"${part.name}: {self._unknown_positional}", f"${part.name}")
                return
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
            if not _SUBSCRIPT.match(part.subscript or "0"):
                raw = f"${{{part.name}[{part.subscript}]}}"
                fields.fail(f"only a shell can tell what {raw} is", raw)
                return
            number = int(part.subscript or "0")
            value = value.items[number] if number < len(value.items) else None
        self._add_scalar(part, value, fields, lone=lone)

    def _add_arguments(self, part: Variable, fields: Fields) -> None:
        raw = f"${part.name}"
        if self._unknown_positional:
            fields.fail(f"{raw}: {self._unknown_positional}", raw)
            return
        if self.positional is None:
            text = f"{raw}: whoever calls the script may give arguments; it is read without any"
            self.notebook.add(fields.origin, codes.UNKNOWN_VALUE, text)
        self._add_array(self.positional or (), part, fields)

    def _add_array(self, values: Sequence[Word], part: Variable, fields: Fields) -> None:
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
        self, part: Variable, value: Value | None, fields: Fields, *, lone: bool
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
        elif self._unset and not part.name.isdigit():
            fields.fail(f"${part.name} cannot be known: {self._unset}", f"${part.name}")
        elif operator in {"-", "="}:
            text = f"${part.name} is not set here: the fallback written in the script is taken"
            self.notebook.add(fields.origin, codes.FALLBACK, text)
            if operator == "=":
                fields.add_value(self._set_default(part, fields), quoted=part.quoted, lone=False)
            else:
                self._add_operand(part, fields)
        else:
            fields.fail(f"${part.name} is set by nothing that is known here", f"${part.name}")

    def _set_default(self, part: Variable, fields: Fields) -> Word:
        """`${NAME:=word}` also sets the variable."""
        value = self._single(ShellWord(list(part.operand), 1))._replace(origin=fields.origin)
        if self._is_conditional:
            self._tainted[part.name] = f"{part.name} is set under a condition"
        else:
            self.variables[part.name] = value
            if self._exports_all:
                self.exported.add(part.name)
        return value

    def _add_operand(self, part: Variable, fields: Fields) -> None:
        """Add the word of `${NAME:-word}`: its blanks split and its `~` counts unless quoted."""
        operand = part.operand
        if not part.quoted:
            self._check_patterns(ShellWord(list(operand), 1), fields)
            if operand[:1] == (Literal("~", False),) and operand[1:2] in {
                (),
                (Literal("/", False),),
            }:
                self._add_home(fields)
                operand = operand[1:]
        for item in operand:
            is_quoted = part.quoted or item.quoted
            if isinstance(item, Variable):
                self._add_variable(item._replace(quoted=is_quoted), fields, lone=False)
            elif isinstance(item, Opaque):
                self._add_opaque(item, fields)
            elif is_quoted or not item.text.isspace():
                fields.add(item.text, quoted=is_quoted)
            else:
                fields.separate()
