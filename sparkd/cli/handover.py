# SPDX-License-Identifier: Apache-2.0
"""The part of `sparkctl import` that changes what runs: `--replace` and `--undo`."""

import os
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sparkd.adapters import applying, handover, operations
from sparkd.adapters.handover import HandoverError, Places
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.systemctl_manager import Systemctl
from sparkd.adapters.unit_files import ApplyBusyError, ApplyError
from sparkd.cli.absent import author
from sparkd.cli.exits import CliError, Exit
from sparkd.core import handover as rules
from sparkd.core.config import ConfigErrors
from sparkd.core.handover import Wish
from sparkd.core.unit_state import unit_of

if TYPE_CHECKING:
    from sparkd.core.importing.plan import Document, Plan


T = TypeVar("T")


def wish_of(args: Namespace) -> Wish:
    """What to do with an old unit that runs."""
    return Wish(args.stop, args.adopt_running)


def require_root() -> None:
    """Refuse early.

    Raises:
        CliError: not root.
    """
    if os.geteuid() != 0:
        raise CliError("only root may hand a unit over; run it with sudo", Exit.NOT_PERMITTED)


def check(document: "Document", plan: "Plan", wish: Wish) -> None:
    """Refuse before anything is written.

    Raises:
        CliError: with the reason.
    """
    if plan.refused:
        raise CliError("\n".join(f"{one.source}: {one.reason}" for one in plan.refused))
    if not document.name.endswith(".service"):
        raise CliError(f"{document.path} is no service unit: only those can be handed over")
    old = _attempt(lambda: Systemctl().unit(document.name))
    names = [engine.name for engine in plan.engines]
    if reason := rules.obstacle(old, document.path, wish, names):
        raise CliError(reason)


def replace(document: "Document", plan: "Plan", wish: Wish, write: Callable[[], str]) -> list[str]:
    """Write the engine's file, put the old unit out of service and apply.

    Args:
        document: the old unit.
        plan: with the one engine that it became.
        wish: what to do if it runs.
        write: writes the engine's file and says so.

    Returns:
        A sentence for each thing that was done.

    Raises:
        CliError: a step failed; `sparkctl import --undo` gives back what was done before.
    """
    engine = plan.engines[0]
    manager, places = Systemctl(), Places()
    outcome = write()
    if not outcome.startswith("written"):
        raise CliError(outcome)
    record = _attempt(
        lambda: handover.begin(manager, document.name, engine.name, engine.config, author(), places)
    )
    record = _attempt(lambda: handover.take(manager, record, wish, places))
    flags = applying.Flags(why=f"handed over from {document.name}")
    answer = _attempt(lambda: applying.apply(manager, flags, author()))
    unit = unit_of(engine.name)
    if unit not in _names(answer, "written"):
        raise CliError(f"{unit} was not written; 'sparkctl import --undo' gives {record.unit} back")
    return [outcome, *_sentences(record, wish, unit)]


def _names(answer: dict[str, object], key: str) -> list[str]:
    value = answer.get(key)
    return [str(item) for item in value] if isinstance(value, list) else []


def _sentences(record: rules.Record, wish: Wish, unit: str) -> list[str]:
    said = [f"{unit} is written and starts at boot, {record.unit} no longer does"]
    if record.is_same_name:
        said = [f"{unit} is sparkd's now; what was there is kept"]
    elif record.moved:
        said.append(f"{record.path} is out of the way and kept")
    if record.was_active and not wish.stop:
        said.append(
            f"{record.unit} serves on; 'sparkctl restart {record.engine}' stops it and starts anew"
        )
    else:
        said.append(f"'sparkctl start {record.engine}' starts it")
    return [*said, f"'sparkctl import --undo {record.unit}' gives it back"]


def undo(names: list[str], config_dir: Path) -> list[str]:
    """Give the last unit back that was handed over, or the last one of a name.

    Raises:
        CliError: there is none, or it cannot be done now.
    """
    require_root()
    places = Places()
    if len(names) > 1:
        raise CliError("--undo gives one unit back at a time", Exit.USAGE)
    found = [record for record in _attempt(lambda: handover.records(places)) if not record.undone]
    if names:
        wanted = names[0]
        found = [one for one in found if wanted in {one.unit, one.path, one.engine}]
    if not found:
        raise CliError("no unit is handed over" + (f" as {names[0]}" if names else ""))
    record = found[-1]
    file = config_dir / f"{record.engine}.toml"
    return _attempt(lambda: handover.undo(Systemctl(), record, file, places))


def _attempt(step: Callable[[], T]) -> T:
    try:
        return step()
    except ConfigErrors as refused:
        raise CliError("\n".join(map(str, refused.errors)), Exit.CONFIG) from None
    except ApplyBusyError as error:
        raise CliError(str(error), Exit.BUSY) from None
    except (HandoverError, ApplyError, BusError, OSError) as error:
        raise CliError(operations.describe_failure(error)) from None
