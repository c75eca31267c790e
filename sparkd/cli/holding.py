# SPDX-License-Identifier: Apache-2.0
"""`sparkctl hold` and `release`: by hand what the restart bound does by itself.

Both write the engine's ledger, which needs no daemon: `await-slot` reads it before every start.
"""

import os
import time
from argparse import Namespace

from sparkd.adapters import journal
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.state_files import StateFiles
from sparkd.adapters.systemctl_manager import Systemctl
from sparkd.cli import engines
from sparkd.cli.answers import print_json
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import neutralise
from sparkd.core import burst, events
from sparkd.core.unit_state import unit_of

WHY_MAX = 500


def run(args: Namespace) -> int:
    """Hold or release one engine.

    Raises:
        CliError: no such engine, not root, or the state folder cannot be written.
    """
    engines.require([args.engine], engines.names())
    if os.geteuid() != 0:
        raise CliError(f"only root may {args.verb} an engine; run it with sudo", Exit.NOT_PERMITTED)
    files = StateFiles()
    try:
        with files.locked("ledger"):
            before = files.ledger(args.engine)
            after, sentence = decide(args, before, time.time())
            files.write_ledger(args.engine, after)
    except OSError as error:
        raise CliError(f"cannot write the ledger of {args.engine}: {error}") from None
    if args.verb == "release":
        _forget_failure(args.engine)
    _record(args, sentence)
    if args.json:
        print_json({"engine": args.engine, "held": after.held is not None, "reason": sentence})
    else:
        print(neutralise(f"{args.engine}: {sentence}"))
    return Exit.OK


def _forget_failure(engine: str) -> None:
    # A unit that systemd calls failed would go on being shown as held.
    try:
        Systemctl().reset_failed(unit_of(engine))
    except BusError as error:
        raise CliError(f"{engine}: released, but systemd still calls it failed: {error}") from None


def decide(args: Namespace, ledger: burst.Ledger, now: float) -> tuple[burst.Ledger, str]:
    """The ledger afterwards and what to tell the operator.

    Raises:
        CliError: a hold without a reason.
    """
    if args.verb == "release":
        was = "released" if ledger.held else "was not held"
        return burst.released(ledger), f"{was}; 'sparkctl start {args.engine}' starts it"
    why = " ".join((args.why or "").split())[:WHY_MAX]
    if not why:
        raise CliError("say why, for whoever finds the engine held: --why 'TEXT'", Exit.USAGE)
    held = burst.Hold(burst.HeldBy.OPERATOR, "operator", f"held by an operator: {why}", now)
    told = (
        f"held: {why}; a running engine runs on ('sparkctl stop {args.engine}' ends it), and"
        f" 'sparkctl release {args.engine}' lets it start again"
    )
    return ledger._replace(held=held), told


def _record(args: Namespace, sentence: str) -> None:
    event = events.Event.HELD if args.verb == "hold" else events.Event.RELEASED
    fields = {
        events.ENGINE: args.engine,
        events.UNIT: unit_of(args.engine),
        events.REASON: sentence,
    }
    journal.send(event, f"{args.engine}: {sentence}", priority=journal.Priority.NOTICE, **fields)
