# SPDX-License-Identifier: Apache-2.0
"""`sparkctl orphans`: what is left of engines that nobody supervises, and its end."""

import os
import sys
from argparse import Namespace

from sparkd.adapters import config_view, orphan_processes
from sparkd.cli.answers import print_json
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.status_view import size
from sparkd.cli.terminal import columns, neutralise, paint_for
from sparkd.core.config import ConfigErrors
from sparkd.core.orphans import Orphan


def run(args: Namespace) -> int:
    """List them; with --kill end those whose parent is gone.

    Returns:
        OK; FAILURE when one that was to be ended is still there.

    Raises:
        CliError: there is nobody to ask.
    """
    if args.yes and not args.kill:
        raise CliError("--yes says something only with --kill", Exit.USAGE)
    found = orphan_processes.look(_ports())
    if args.json:
        print_json([_json(orphan) for orphan in found])
    else:
        print("\n".join(_lines(found)))
    left = [orphan for orphan in found if orphan.is_left_behind]
    if not args.kill or not left:
        return Exit.OK
    if not args.yes and not _agreed(left):
        return Exit.OK
    failed = orphan_processes.end(left)
    for orphan, reason in failed:
        print(f"sparkctl: PID {orphan.key.pid}: {reason}", file=sys.stderr)
    ended = len(left) - len(failed)
    print(f"sparkctl: ended {ended} of {len(left)}", file=sys.stderr)
    return Exit.FAILURE if failed else Exit.OK


def _ports() -> dict[int, tuple[str, str]]:
    """The engines' ports; a broken configuration only costs their names."""
    try:
        config = config_view.load(config_view.Paths().config)
    except ConfigErrors:
        print("sparkctl: the configuration has errors: ports are not looked at", file=sys.stderr)
        return {}
    return {engine.port: (engine.name, engine.host) for engine in config.engines}


def _agreed(left: list[Orphan]) -> bool:
    if not sys.stdin.isatty():
        raise CliError("nobody to ask here: say --yes to end them", Exit.USAGE)
    pids = ", ".join(str(orphan.key.pid) for orphan in left)
    print(f"End {len(left)} processes ({pids})? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _lines(found: list[Orphan]) -> list[str]:
    if not found:
        return ["no orphans"]
    rows = [("PID", "USER", "MEMORY", "PROCESS", "WHY")]
    for orphan in found:
        row = (str(orphan.key.pid), orphan.user, size(orphan.rss), orphan.name, orphan.reason)
        rows.append(tuple(map(neutralise, row)))  # type: ignore[arg-type]  # of five again
    paint = paint_for(sys.stdout, os.environ)
    head, *lines = columns(rows, right=frozenset({0, 2}))
    return [paint("bold", head), *lines]


def _json(orphan: Orphan) -> dict[str, object]:
    return {
        "pid": orphan.key.pid,
        "start_ticks": orphan.key.start,
        "name": orphan.name,
        "command": orphan.command,
        "user": orphan.user,
        "rss_bytes": orphan.rss,
        "owner": orphan.owner,
        "port": orphan.port or None,
        "left_behind": orphan.is_left_behind,
        "reason": orphan.reason,
    }
