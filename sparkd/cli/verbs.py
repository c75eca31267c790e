# SPDX-License-Identifier: Apache-2.0
"""The verbs of sparkctl: one table for the parser, --help, completion and the man page's test."""

from typing import NamedTuple


class Option(NamedTuple):
    """One option of a verb."""

    flags: tuple[str, ...]
    help: str
    metavar: str = ""
    """Name of its value; '' for a switch."""
    excludes: str = ""
    """Options of a verb with the same word here exclude each other."""


class Argument(NamedTuple):
    """The positional argument of a verb."""

    metavar: str
    nargs: str
    """As in argparse: '' for exactly one, '?', '*' or '+'."""
    help: str


class Verb(NamedTuple):
    """One verb."""

    name: str
    module: str
    """Module of sparkd.cli whose `run(args)` does it; imported only then."""
    summary: str
    argument: Argument | None = None
    options: tuple[Option, ...] = ()
    positional_name: str = "engines"
    """The attribute of the parsed arguments that holds the positional."""
    own_arguments: bool = False
    """The module's `add_parser(subparsers)` builds the parser; a test compares it with this row."""


JSON = Option(("--json",), "print JSON, the stable interface for scripts")
ALL = Option(("--all",), "every engine that this makes sense for, instead of naming them")
WAIT = Option(("--wait",), "return when it is done, with the reason when it failed", "", "wait")
NO_BLOCK = Option(("--no-block",), "return as soon as systemd has the job", "", "wait")
WHY_CHANGE = Option(("--why",), "the reason, kept in the history", "TEXT")
ENGINES = Argument("ENGINE", "*", "names of engines")
ENGINE = Argument("ENGINE", "", "name of the engine")

VERBS: tuple[Verb, ...] = (
    Verb(
        "status",
        "status",
        "show every engine, or some in detail",
        ENGINES,
        (
            JSON,
            Option(("--names",), "print only the names of the engines, without asking anybody"),
        ),
    ),
    Verb(
        "start",
        "lifecycle",
        "start engines; forgets their earlier deaths and releases them when held",
        ENGINES,
        (ALL, WAIT, NO_BLOCK, JSON),
    ),
    Verb(
        "stop",
        "lifecycle",
        "stop engines and wait for their end; they stay stopped",
        ENGINES,
        (ALL, WAIT, NO_BLOCK, JSON),
    ),
    Verb(
        "restart",
        "lifecycle",
        "restart engines; forgets their earlier deaths and releases them when held",
        ENGINES,
        (ALL, WAIT, NO_BLOCK, JSON),
    ),
    Verb(
        "apply",
        "apply",
        "write units from the configuration; never restarts an engine",
        None,
        (
            Option(("--dry-run",), "only show what would change"),
            Option(("--force",), "replace units that were edited by hand; never foreign ones"),
            Option(("--prune",), "remove the units of engines gone from the configuration"),
            WHY_CHANGE,
            JSON,
        ),
    ),
    Verb(
        "history",
        "history",
        "show every change of the units: who, when, why, and what the starts after it showed",
        None,
        (Option(("--limit",), "at most this many (default 20)", "N"), JSON),
    ),
    Verb(
        "diff",
        "history",
        "show what a revision changed; without one, what changed since the newest",
        Argument("REV", "?", "the number of a revision, as in history"),
        (JSON,),
        "revision",
    ),
    Verb(
        "rollback",
        "rollback",
        "bring back the units and TOML of a revision, byte for byte; never restarts an engine",
        Argument("REV", "?", "the revision whose state is wanted (default: before the newest one)"),
        (
            Option(("--dry-run",), "only show what would change"),
            Option(("--force",), "replace units that were edited by hand; never foreign ones"),
            WHY_CHANGE,
            JSON,
        ),
        "revision",
    ),
    Verb(
        "note",
        "history",
        "add a dated note to a revision, such as what it really did; earlier ones stay",
        Argument("REV TEXT", "", "the number of a revision, and what to note"),
        (JSON,),
        "revision",
        own_arguments=True,
    ),
    Verb(
        "run",
        "run",
        "launch an engine by hand: one start at a time, under the caps, in a scope",
        Argument("COMMAND", "+", "the program and its arguments, after --"),
        (
            Option(("--engine",), "it takes as much memory as this engine", "ENGINE", "memory"),
            Option(
                ("--memory",), "it takes this much memory at most, such as 60G", "SIZE", "memory"
            ),
            Option(("--user",), "run it as this user (default: who called sudo)", "USER"),
            Option(("--wait",), "wait until it may start instead of refusing"),
        ),
        "command",
    ),
    Verb(
        "caps",
        "caps",
        "show which launch paths have the compile caps, and which do not",
        None,
        (JSON,),
    ),
    Verb(
        "orphans",
        "orphans",
        "show vLLM processes, compilers and ports that belong to no unit or guest",
        None,
        (
            Option(("--kill",), "end them; asks first"),
            Option(("--yes",), "with --kill: do not ask"),
            JSON,
        ),
    ),
    Verb(
        "init",
        "init",
        "propose engines for the models and environments that are here; overwrites nothing",
        Argument("DIRECTORY", "*", "further folders to look in for models and environments"),
        (
            Option(("--venv",), "the environment to use, instead of looking for one", "DIRECTORY"),
            Option(("--write",), "write the proposals to /etc/sparkd/engines.d"),
            JSON,
        ),
        "directories",
    ),
    Verb(
        "import",
        "import_",
        "propose engines from what starts vLLM today, and hand units over when told",
        Argument("SOURCE", "*", "a unit, compose file, quadlet, script or quoted docker line"),
        (
            Option(("--write",), "write the files that can be applied"),
            Option(("--replace",), "write, apply, and put the imported unit out of service"),
            Option(("--adopt-running",), "with --replace: what runs serves on for now", "", "old"),
            Option(("--stop",), "with --replace: stop what runs", "", "old"),
            Option(("--undo",), "give back the unit that was replaced last, or the named one"),
            Option(("--venv",), "the environment where a source names none here", "DIRECTORY"),
            Option(("--config-dir",), "where files are written", "DIRECTORY"),
            JSON,
        ),
        "sources",
        own_arguments=True,
    ),
    Verb(
        "check",
        "check",
        "check and lint the configuration; needs neither the daemon nor systemd",
        Argument("PATH", "?", "a folder like /etc/sparkd, or a single file"),
        (
            Option(("--memory-total",), "check against a machine with this much memory", "SIZE"),
            Option(("--no-ask",), "do not run the environments' vllm to ask for its flags"),
            Option(("--explain",), "explain a lint rule and check nothing", "CODE"),
            Option(("--document",), "print every lint rule as Markdown"),
            JSON,
        ),
        "path",
        own_arguments=True,
    ),
    Verb(
        "doctor",
        "doctor",
        "look at everything once: host, caps, engines, units, next boot; ends with its findings",
        None,
        (
            Option(("--values",), "also show the values that are at their defaults"),
            Option(("--document",), "print every code as Markdown"),
            JSON,
        ),
    ),
    Verb(
        "incidents",
        "incidents",
        "show how engines ended, newest first",
        None,
        (
            Option(("--engine",), "only this engine", "ENGINE"),
            Option(("--since",), "only after this time: 2h, 3d, 2026-11-29", "TIME"),
            Option(("--limit",), "at most this many (default 20)", "N"),
            JSON,
        ),
    ),
    Verb(
        "incident",
        "incident",
        "show everything about one end: load, fatal lines, what followed, how long it was dark",
        Argument("ID", "", "an id from incidents, more of the invocation, or a row's number"),
        (JSON,),
        "identity",
    ),
    Verb(
        "alerts",
        "alerts",
        "show who was told what, newest first, and what still waits",
        None,
        (Option(("--limit",), "at most this many (default 20)", "N"), JSON),
    ),
    Verb(
        "alert",
        "alerts",
        "send a test alert to every destination, and say what each did with it",
        Argument("ACTION", "", "only 'test'"),
        (JSON,),
        "action",
    ),
    Verb(
        "logs",
        "logs",
        "show an engine's log from the journal",
        ENGINE,
        (
            Option(("-f", "--follow"), "go on with new lines as they come"),
            Option(("-n", "--lines"), "at most the last N lines, or 'all' (default 100)", "N"),
            Option(("--invocation",), "only the life with this invocation ID", "ID", "life"),
            Option(("--last-death",), "only the life that ended last", "", "life"),
        ),
        "engine",
    ),
    Verb(
        "classify",
        "classify",
        "say what a log tells about its engine; needs neither the daemon nor systemd",
        Argument("FILE", "*", "a log file, or - for standard input"),
        (
            JSON,
            Option(("--unit",), "heed systemd's lines about this unit only", "UNIT"),
            Option(
                ("--cgroup",), "count kernel lines only if they name this control group", "CGROUP"
            ),
            Option(("--document",), "print the catalogue of signatures as a Markdown table"),
        ),
        "files",
        own_arguments=True,
    ),
    Verb(
        "hold",
        "holding",
        "keep an engine from being started again; does not stop it",
        ENGINE,
        (Option(("--why",), "the reason, shown in status", "TEXT"), JSON),
        "engine",
    ),
    Verb(
        "release",
        "holding",
        "end a hold and forget earlier deaths; does not start the engine",
        ENGINE,
        (JSON,),
        "engine",
    ),
)

BY_NAME = {verb.name: verb for verb in VERBS}
