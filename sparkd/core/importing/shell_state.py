# SPDX-License-Identifier: Apache-2.0
"""What is known while a script is read, and why something in it cannot be known."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from sparkd.core.importing import codes
from sparkd.core.importing.model import Notebook, Origin, Surroundings, Word

# What a subshell sets of these ends with it.
_SCOPE = ("variables", "exported", "positional", "directory", "venv", "conda", "exports_all",
          "tainted", "unset", "lost", "unknown_positional")  # fmt: skip


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
class State:
    """The state of a script while it is read; `invocations` is what it would run.

    `written` are the files that the script itself writes: what stands in them today does not count.
    `conda` is the prefix of the conda that it made known. `blocks` are the compound commands around
    the current one. `is_conditional`: the current command may not run, or runs in a subshell.

    `tainted` says of a variable why its value cannot be known, `unset` why one that nothing sets
    may be set all the same, `lost` and `unknown_positional` why the working directory and the
    positional parameters cannot be known. `set_by_functions` is what a call of one taints.
    """

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
    written: set[str] = field(default_factory=set)
    conda: str = ""
    exports_all: bool = False
    blocks: list[str] = field(default_factory=list)
    is_conditional: bool = False
    tainted: dict[str, str] = field(default_factory=dict)
    unset: str = ""
    lost: str = ""
    unknown_positional: str = ""
    functions: set[str] = field(default_factory=set)
    set_by_functions: dict[str, str] = field(default_factory=dict)

    def at(self, line: int) -> Origin:
        """Return the place of a line of the text that is being read."""
        return Origin(self.source, self.first_line + line - 1)

    def lookup(self, name: str) -> Value | None:
        """Return a variable's value; None where the script does not set it."""
        if name in self.tainted:
            return Word(f"${name}", Origin(self.source), self.tainted[name])
        if name in self.variables:
            return self.variables[name]
        if name == "HOME" and self.home:
            return Word(self.home, Origin(self.source))
        if name == "PWD" and self.directory and not self.lost:
            return Word(self.directory, Origin(self.source))
        return None

    def environment(self) -> dict[str, Word]:
        """Return what a program gets that is run now."""
        return {
            key: value
            for key in sorted(self.exported)
            if isinstance(value := self.lookup(key), Word)
        }

    def forget(self, name: str, line: int, what: str) -> None:
        """A variable is set to what only a shell could tell."""
        self.tainted[name] = f"{name} is set by `{what}` at line {self.at(line).line}"
        self.remember_in_function(name, self.tainted[name])

    def forget_all(self, line: int, what: str) -> None:
        """Every variable may have been set by something that cannot be followed."""
        origin = self.at(line)
        reason = f"`{what}` at line {origin.line} may set it"
        for name in self.variables:
            self.tainted[name] = f"{name} cannot be known: {reason}"
        self.unset = reason
        self.notebook.add(
            origin, codes.UNKNOWN_VALUE, f"which variables `{what}` sets only a shell can tell"
        )

    def remember_in_function(self, name: str, reason: str) -> None:
        """In the body of a function: whoever calls it does not know the variable any more."""
        if "function" in self.blocks:
            self.set_by_functions[name] = reason

    def call_function(self) -> None:
        """A function of the script is called: whatever functions set is not known any more."""
        self.tainted |= self.set_by_functions
        self.lost = self.set_by_functions.get("PWD", self.lost)

    def scope(self) -> dict[str, object]:
        """Return a copy of what a subshell cannot change for its parent."""
        return {name: copy(getattr(self, name)) for name in _SCOPE}

    def restore(self, scope: Mapping[str, object]) -> None:
        """Leave a subshell."""
        for name, value in scope.items():
            setattr(self, name, value)
