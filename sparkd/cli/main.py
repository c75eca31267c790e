# SPDX-License-Identifier: Apache-2.0
"""sparkctl: find the verb in the table, read its arguments, import its module, run it."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from sparkd import __version__
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import neutralise
from sparkd.cli.verbs import BY_NAME, VERBS, Verb


class _Formatter(argparse.HelpFormatter):
    """Knows its width: argparse would import shutil for it, 6 ms, whenever a parser is built."""

    def __init__(self, prog: str) -> None:
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns - 2
        except (OSError, ValueError):
            width = 78
        super().__init__(prog, width=max(40, width))


class _Parser(argparse.ArgumentParser):
    """Errors are one line that says where to look; the full help only when asked for."""

    def error(self, message: str) -> NoReturn:
        raise CliError(f"{message}; see '{self.prog} --help'", Exit.USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Run sparkctl and return its exit status; errors go to standard error."""
    if argv is None:
        argv = sys.argv[1:]
        # As every tool in a pipe: end quietly when the reader is gone or somebody presses ^C.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(list(argv))
        sys.stdout.flush()
    except CliError as error:
        for line in error.message.split("\n"):
            print(f"sparkctl: {neutralise(line)}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"sparkctl: {neutralise(str(error))}", file=sys.stderr)
        return Exit.FAILURE
    return code


def _run(argv: list[str]) -> int:
    if not argv:
        raise CliError("no verb; try 'sparkctl status', or 'sparkctl --help'", Exit.USAGE)
    word, *rest = argv
    if word in {"-h", "--help", "help"}:
        print(overview())
        return Exit.OK
    if word == "--version":
        print(f"sparkctl {__version__}")
        return Exit.OK
    verb = BY_NAME.get(word)
    if verb is None:
        raise CliError(_unknown(word), Exit.USAGE)
    try:
        arguments = parser(verb).parse_args(rest)
    except SystemExit:  # --help has printed
        return Exit.OK
    arguments.verb = verb.name
    code: int = import_module(f"sparkd.cli.{verb.module}").run(arguments)
    return code


def _unknown(word: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415  (only a mistake pays for it)

    near = get_close_matches(word, BY_NAME, n=1)
    hint = f"did you mean '{near[0]}'?" if near else "see 'sparkctl --help'"
    kind = "option" if word.startswith("-") else "verb"
    return f"no {kind} {word!r}; {hint}"


def parser(verb: Verb) -> argparse.ArgumentParser:
    """The parser of one verb, from its row in the table."""
    if verb.own_arguments:
        built = _Parser(prog="sparkctl")
        verbs = built.add_subparsers()
        import_module(f"sparkd.cli.{verb.module}").add_parser(verbs)
        return verbs.choices[verb.name]
    built = _Parser(
        prog=f"sparkctl {verb.name}",
        description=f"{verb.summary}.",
        allow_abbrev=False,
        formatter_class=_Formatter,
    )
    groups: dict[str, argparse._MutuallyExclusiveGroup] = {}
    for option in verb.options:
        target: argparse._ActionsContainer = built
        if option.excludes:
            if option.excludes not in groups:
                groups[option.excludes] = built.add_mutually_exclusive_group()
            target = groups[option.excludes]
        text = option.help.replace("%", "%%")
        if option.metavar:
            target.add_argument(*option.flags, help=text, metavar=option.metavar)
        else:
            target.add_argument(*option.flags, help=text, action="store_true")
    if verb.argument is not None:
        extra = {"nargs": verb.argument.nargs} if verb.argument.nargs else {}
        built.add_argument(
            verb.positional_name,
            metavar=verb.argument.metavar,
            help=verb.argument.help,
            **extra,  # type: ignore[arg-type]  # typeshed wants a literal
        )
    return built


def overview() -> str:
    """What `sparkctl --help` prints."""
    width = max(len(verb.name) for verb in VERBS)
    rows = [f"  {verb.name.ljust(width)}  {verb.summary}" for verb in VERBS]
    return "\n".join(
        [
            "usage: sparkctl VERB [ARGUMENTS]",
            "       sparkctl VERB --help",
            "       sparkctl --version",
            "",
            "Control the vLLM engines of this host and see how they are.",
            "",
            *rows,
            "",
            "Exit statuses and examples: man sparkctl",
        ]
    )
