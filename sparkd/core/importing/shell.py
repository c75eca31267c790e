# SPDX-License-Identifier: Apache-2.0
"""What a launch script does when nothing in it is conditional: assignments, then commands.

Nothing is run. Straight-line assignments, arrays, `export`, `source` of environments and of `.env`
files are followed; whatever stands under a condition, in a loop or in a function is reported and
taints the variables that it sets.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkd.core.importing import codes, shell_builtins
from sparkd.core.importing.model import Origin, RefusalError, Word
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
    Step,
)
from sparkd.core.importing.shell_environments import enter_by_file
from sparkd.core.importing.shell_expansion import expand, expand_all, expand_value
from sparkd.core.importing.shell_fields import as_written, join
from sparkd.core.importing.shell_state import Invocation, State
from sparkd.core.importing.shell_variables import DECLARING, assign, declare, forget_what_is_read
from sparkd.core.importing.shell_words import (
    Assignment,
    HereDocument,
    Lexer,
    ShellSyntaxError,
    ShellWord,
    Token,
)

_TESTS = frozenset({"[", "[[", "test", "command", "type", "which", "grep", "pgrep", "curl", "nc",
                    "systemctl", "docker", "podman", "nvidia-smi", "false"})  # fmt: skip
_SILENT = frozenset({"echo", "printf", "set", "shopt", "true", ":", "wait", "exit", "return"})
# Nothing that matters to a server is set by these, whatever they are called by.
_HARMLESS_FILES = ("/bin/activate", "/etc/profile.d/conda.sh", "/bin/conda", "/.bashrc",
                   "/.profile", "/.bash_profile", "/nvm.sh")  # fmt: skip
_FILE_TESTS = frozenset({"-f", "-e", "-r", "-s"})


@dataclass(slots=True)
class Shell:
    """Walks through a script once; `state` is then what is known of it.

    `_outside` is what each open block leaves behind when it ends. `_tested` is the file whose
    existence the command before has tested. `_is_first`: the next command is the one behind `if`.
    """

    state: State
    _outside: list[Mapping[str, object]] = field(default_factory=list)
    _tested: str = ""
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
                self.state.at(error.line), f"cannot be read as a script: {error}"
            ) from None
        if "\r\n" in text:
            self.state.notebook.add(
                Origin(self.state.source), codes.DERIVED, "its lines end in CR LF: a shell takes"
                " the CR for a part of the last word, so the file does not run as it is; it is left"
                " out here"
            )  # fmt: skip
        was_conditional = False
        pipeline: list[Simple] = []
        for step in Cutter(tokens).steps():
            if isinstance(step, Simple):
                pipeline.append(step)
                if step.ended_by not in {"|", "|&"}:
                    was_conditional = self._pipeline(pipeline, after_condition=was_conditional)
                    pipeline = []
            else:
                self._block(step)
                was_conditional = was_conditional or isinstance(step, Arithmetic)
        if pipeline:
            self._pipeline(pipeline, after_condition=was_conditional)

    def _block(self, step: Step) -> None:
        """Follow what is no simple command: where a block begins or ends, `(( … ))`, a function."""
        state = self.state
        if isinstance(step, Opens):
            state.blocks.append(step.block)
            self._outside.append(state.scope() if step.block == SUBSHELL else {})
            self._is_first = step.block == "if"
            for name in step.names:
                state.tainted[name] = f"{name} is set by a loop"
        elif isinstance(step, Closes):
            state.blocks.pop()
            self._tested = ""
            state.restore(self._outside.pop())
        elif isinstance(step, Arithmetic):
            self._tested = ""
            for name in step.names:
                state.forget(name, step.line, "(( … ))")
        elif isinstance(step, Defines):
            state.functions.add(as_written(step.tokens))

    def _pipeline(self, pipeline: Sequence[Simple], *, after_condition: bool) -> bool:
        """Follow one pipeline; return whether what `&&` joins to it is conditional."""
        state, first = self.state, pipeline[0]
        for word in (word for simple in pipeline for word in simple.writes_to):
            state.written |= {join(state.directory, target.text) for target in expand(word, state)}
        joined = first.joined_by
        conditional = (
            _may_not_run(state.blocks) or joined == "||" or (joined == "&&" and after_condition)
        )
        # In a pipeline of several commands each is in a subshell.
        state.is_conditional = conditional or len(pipeline) > 1
        piped_into = ""
        if len(pipeline) > 1:
            piped_into = as_written(pipeline[1].tokens) or "a pipe"
        is_test = self._command(first, conditional=conditional, piped_into=piped_into)
        return conditional or is_test

    def _command(self, simple: Simple, *, conditional: bool, piped_into: str) -> bool:
        """Follow a command; return whether it is a test, so that what `&&` joins is conditional."""
        state = self.state
        tokens = [token for token in simple.tokens if not isinstance(token, HereDocument)]
        if not tokens:
            return False
        assignments: list[Assignment] = []
        while tokens and isinstance(tokens[0], Assignment):
            assignments.append(tokens.pop(0))  # type: ignore[arg-type]
        if not tokens:
            self._tested = ""
            for assignment in assignments if simple.ended_by != "&" else ():
                assign(assignment, state, conditional=conditional)
            return False
        head = tokens[0]
        name = head.bare if isinstance(head, ShellWord) else None
        # What `||` joins runs when the file is not there.
        tested = "" if simple.joined_by == "||" else self._tested
        self._tested = self._test(name, tokens, conditional=conditional)
        forget_what_is_read(name, tokens[1:], head.line, state)
        if name in DECLARING:
            declare(name or "", tokens[1:], state, conditional=conditional)
            return False
        if conditional and name in {"exit", "return"}:
            self._note_exit(name, tokens)
            return True
        argv = expand_all(tokens, state)
        prefix = {i.name: expand_value(i.words[0], state) for i in assignments if i.words}
        if not argv:
            return False
        if self._builtin(argv, tokens, tested, conditional=conditional):
            return conditional
        if argv[0].text in _SILENT and not argv[0].problem:
            return False
        if argv[0].text in state.functions:
            state.call_function()
            return False
        state.invocations.append(
            Invocation(
                tuple(argv), {**state.environment(), **prefix}, state.venv,
                "" if state.lost else state.directory, conditional,
                simple.ended_by == "&", piped_into, simple.redirected, state.at(head.line),
            )
        )  # fmt: skip
        return name in _TESTS or name == "!"

    def _note_exit(self, name: str, tokens: Sequence[Token]) -> None:
        if name == "exit" and as_written(tokens[1:]) in {"", "0"}:
            origin = self.state.at(tokens[0].line)
            text = "the script ends with status 0 under a condition"
            self.state.notebook.add(origin, codes.EXITS_0, text)

    def _test(self, name: str | None, tokens: Sequence[Token], *, conditional: bool) -> str:
        """Return the file whose existence this command tests, if that is all it does."""
        state = self.state
        decides = not conditional or (self._is_first and not _may_not_run(state.blocks[:-1]))
        self._is_first = False
        words = [token for token in tokens[1:] if isinstance(token, ShellWord)]
        if name in {"[", "[["} and words and words[-1].bare in {"]", "]]"}:
            words.pop()
        elif name != "test":
            return ""
        if not decides or len(words) != 2 or words[0].bare not in _FILE_TESTS:
            return ""
        path = expand_value(words[1], state)
        return "" if path.problem else join(state.directory, path.text)

    def _builtin(
        self, argv: Sequence[Word], tokens: Sequence[Token], tested: str, *, conditional: bool
    ) -> bool:
        """Follow a builtin; return whether it was one."""
        state, line = self.state, tokens[0].line
        if conditional:
            line = argv[0].origin.line - state.first_line + 1
        if argv[0].text in {"source", "."} and len(argv) > 1:
            if conditional:
                self._source_under_condition(argv[1], tokens, tested, line)
            else:
                self._source(argv[1], line)
            return True
        if conditional:
            return shell_builtins.follow_under_condition(argv, tokens, line, state)
        return shell_builtins.follow(argv, line, state)

    def _source_under_condition(
        self, word: Word, tokens: Sequence[Token], tested: str, line: int
    ) -> None:
        state = self.state
        path = join(state.directory, word.text)
        if tested and tested == path and state.surroundings.read(path) is not None:
            # The condition is that the file is there, and it is.
            self._source(word, line)
            return
        shown = f"`{as_written(tokens)}` depends on a condition and was not followed"
        state.notebook.add(state.at(line), codes.CONDITIONAL, shown)
        self._source(word, line, conditional=True)

    def _source(self, word: Word, line: int, *, conditional: bool = False) -> None:
        state, origin = self.state, self.state.at(line)
        lost = "" if word.text.startswith("/") else state.lost
        if word.problem or lost:
            state.notebook.add(origin, codes.UNKNOWN_VALUE, f"`source`: {word.problem or lost}")
            if not word.text.endswith(_HARMLESS_FILES):
                state.forget_all(line, f"source {word.text}")
            return
        path = join(state.directory, word.text)
        if conditional and path.endswith(_HARMLESS_FILES):
            return
        if path in state.written:
            state.forget_all(line, f"source {word.text}, which the script itself writes")
            return
        if enter_by_file(path, origin, state):
            return
        text = state.surroundings.read(path)
        if text is None or self._depth > 4:
            message = f"{path} was not read: what it sets is unknown here"
            state.notebook.add(origin, codes.UNKNOWN_VALUE, message)
            return
        outer = state.source, state.first_line, state.blocks, self._depth
        state.source, state.first_line = path, 1
        state.blocks = ["if"] if conditional else []
        self._depth += 1
        self.run(text)
        state.source, state.first_line, state.blocks, self._depth = outer


def _may_not_run(blocks: Iterable[str]) -> bool:
    # `while true` around a server is somebody's own Restart=always: it always runs.
    return any(block not in {FOREVER, GROUP, SUBSHELL} for block in blocks)
