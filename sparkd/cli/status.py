# SPDX-License-Identifier: Apache-2.0
"""`sparkctl status`: every engine at a glance, or some in detail."""

import os
import sys
import time
from argparse import Namespace
from typing import Any

from sparkd import __version__
from sparkd.adapters import bus_client
from sparkd.cli import engines, status_view
from sparkd.cli.answers import print_json, refusal
from sparkd.cli.exits import Exit
from sparkd.cli.terminal import paint_for


def run(args: Namespace) -> int:
    """Print the status.

    Returns:
        OK; with names, NOT_RUNNING when one of these engines is not ready; FAILURE when systemd
        cannot be seen.
    """
    if args.names:
        sys.stdout.writelines(f"{name}\n" for name in engines.names())
        return Exit.OK
    status = fetch()
    wanted = list(dict.fromkeys(args.engines))
    if wanted:
        by_name = {engine["name"]: engine for engine in status["engines"]}
        engines.require(wanted, by_name)
        status["engines"] = [by_name[name] for name in wanted]
    _print(status, detailed=bool(wanted), as_json=args.json)
    if status.get("stale"):
        return Exit.FAILURE
    all_ready = all(engine["ready"] for engine in status["engines"])
    return Exit.NOT_RUNNING if wanted and not all_ready else Exit.OK


def fetch() -> dict[str, Any]:
    """The status from the daemon or, when that does not answer, from systemd and the files.

    Raises:
        CliError: the caller may not see it.
    """
    try:
        return bus_client.status()
    except bus_client.DaemonError as error:
        raise refusal(error) from None
    except bus_client.DaemonAbsentError as error:
        from sparkd.cli import absent  # noqa: PLC0415  (the daemon is usually there)

        return absent.status(str(error))


def _print(status: dict[str, Any], *, detailed: bool, as_json: bool) -> None:
    if as_json:
        print_json(status)
        return
    now, paint = time.time(), paint_for(sys.stdout, os.environ)
    if not detailed:
        print("\n".join(status_view.overview(status, now, paint, __version__)))
        return
    blocks = ["\n".join(status_view.details(e, now, paint)) for e in status["engines"]]
    print("\n\n".join(blocks))
    if status["daemon"] != "running":
        print("\ndaemon absent: shown from systemd and the database")
