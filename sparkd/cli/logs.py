# SPDX-License-Identifier: Apache-2.0
"""`sparkctl logs`: journalctl with the right matches."""

import os
import re
import sys
from argparse import Namespace

from sparkd.adapters import bus_client
from sparkd.cli import engines
from sparkd.cli.answers import refusal
from sparkd.cli.exits import CliError, Exit

_INVOCATION = re.compile(r"[0-9a-f]{32}\Z")
LINES_DEFAULT = "100"


def run(args: Namespace) -> int:
    """Become journalctl; returns only when that is not possible.

    Raises:
        CliError: no such engine, a malformed argument, or no journalctl.
    """
    engines.require([args.engine], engines.names())
    invocation = _last_death(args.engine) if args.last_death else args.invocation
    command = argv(args.engine, invocation=invocation, lines=args.lines, follow=args.follow)
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)  # noqa: S606  (no shell is the point)
    except OSError as error:
        raise CliError(f"cannot run journalctl: {error.strerror}") from None


def argv(engine: str, *, invocation: str | None, lines: str | None, follow: bool) -> list[str]:
    """The command line of journalctl.

    Raises:
        CliError: a malformed invocation ID or number of lines.
    """
    count = LINES_DEFAULT if lines is None else lines
    if not (count == "all" or (count.isascii() and count.isdigit() and len(count) < 10)):
        raise CliError(f"--lines {count!r} is neither a number nor 'all'", Exit.USAGE)
    command = ["journalctl", f"--lines={count}"]
    if follow:
        command.append("--follow")
    if invocation is None:
        return [*command, f"--unit=vllm-{engine}.service"]
    if not _INVOCATION.match(invocation):
        raise CliError(
            f"--invocation {invocation!r} is no invocation ID (32 of 0-9a-f); 'sparkctl incidents"
            " --json' lists them",
            Exit.USAGE,
        )
    # The engine's own lines carry the first field, systemd's lines about that life the second.
    return [
        *command,
        f"_SYSTEMD_INVOCATION_ID={invocation}",
        "+",
        f"INVOCATION_ID={invocation}",
        f"UNIT=vllm-{engine}.service",
    ]


def _last_death(engine: str) -> str:
    try:
        rows = bus_client.incidents(100, engine)
    except bus_client.DaemonError as error:
        raise refusal(error) from None
    except bus_client.DaemonAbsentError:
        from sparkd.cli import absent  # noqa: PLC0415  (the daemon is usually there)

        rows = absent.incidents(100, engine)
    deaths = [row for row in rows if not row["requested"]]
    if not deaths:
        raise CliError(f"{engine}: no death is recorded; leave out --last-death")
    return str(deaths[0]["invocation_id"])
