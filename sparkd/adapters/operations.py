# SPDX-License-Identifier: Apache-2.0
"""What an operator can order of an engine: start, stop, restart. The daemon and sparkctl share it.

None of it needs the daemon. Every order leaves an entry in the journal that says who gave it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sparkd.adapters import journal
from sparkd.adapters.service_manager import BusError, ServiceManager
from sparkd.adapters.state_files import StateFiles
from sparkd.core import burst, events
from sparkd.core.unit_state import unit_of


class Verb(NamedTuple):
    """An order about one engine."""

    name: str
    releases: bool
    """Whether it forgets the engine's deaths and its hold: somebody has looked at it."""


START = Verb("start", releases=True)
RESTART = Verb("restart", releases=True)
STOP = Verb("stop", releases=False)
VERBS = {verb.name: verb for verb in (START, RESTART, STOP)}


def operate(
    manager: ServiceManager, files: StateFiles, verb: Verb, engine: str, author: str
) -> str:
    """Queue the job of an order.

    systemd's own start limit counts manual starts too: without `reset_failed` the fourth manual
    restart of a healthy engine would stop it and then be refused.

    Returns:
        The job's object path.

    Raises:
        BusError: systemd refuses or does not answer.
        OSError: the ledger can be written nowhere.
    """
    unit = unit_of(engine)
    fields = {events.ENGINE: engine, events.UNIT: unit, "SPARKD_AUTHOR": author}
    if verb.releases:
        _release(files, engine, fields)
        manager.reset_failed(unit)
    reason = f"{verb.name} ordered by {author}"
    journal.send(
        events.Event.OPERATOR,
        f"{engine}: {reason}",
        priority=journal.Priority.NOTICE,
        **{**fields, events.REASON: reason, "SPARKD_VERB": verb.name},
    )
    orders = {"start": manager.start, "restart": manager.restart, "stop": manager.stop}
    return orders[verb.name](unit)


def _release(files: StateFiles, engine: str, fields: Mapping[str, str]) -> None:
    with files.locked("ledger"):
        before = files.ledger(engine)
        after = burst.released(before)
        if before != after:
            files.write_ledger(engine, after)
    if before.held is not None:
        text = f"{engine}: no longer held; it was: {before.held.reason}"
        journal.send(events.Event.RELEASED, text, priority=journal.Priority.NOTICE, **fields)


def describe_failure(error: Exception) -> str:
    """One sentence about an order that could not be carried out."""
    if isinstance(error, BusError):
        return f"systemd: {error}" if error.name else f"cannot see systemd: {error}"
    return str(error)
