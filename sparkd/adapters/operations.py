# SPDX-License-Identifier: Apache-2.0
"""What an operator can order: start, stop, restart, apply. The daemon and sparkctl share it.

None of it needs the daemon. Every order leaves an entry in the journal that says who gave it.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import config_files, journal
from sparkd.adapters.config_view import Paths, host_facts, load
from sparkd.adapters.service_manager import BusError, ServiceManager
from sparkd.adapters.state_files import StateFiles, write_atomic
from sparkd.adapters.unit_files import LOCK_FILE, ApplyError, UnitDirectory, apply_lock
from sparkd.core import apply_plan, events, units
from sparkd.core.apply_plan import Kind, Plan
from sparkd.core.burst import Ledger
from sparkd.core.config import ConfigErrors
from sparkd.core.unit_state import unit_of

UNFINISHED = Path("/var/lib/sparkd/apply-unfinished.json")
"""There while unit files may be newer than what systemd has loaded and enabled."""
STOPPED = frozenset({"inactive", "failed"})


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
        if before != Ledger():
            files.write_ledger(engine, Ledger())
    if before.held is not None:
        text = f"{engine}: no longer held; it was: {before.held.reason}"
        journal.send(events.Event.RELEASED, text, priority=journal.Priority.NOTICE, **fields)


class Flags(NamedTuple):
    """How to apply."""

    dry_run: bool = False
    force: bool = False
    prune: bool = False


def apply(
    manager: ServiceManager,
    flags: Flags,
    author: str,
    *,
    paths: Paths | None = None,
    unfinished: Path = UNFINISHED,
    lock: Path = LOCK_FILE,
) -> dict[str, object]:
    """Bring the unit files to what the configuration says; no engine is started or restarted.

    Returns:
        The contract of `sparkctl apply --json`.

    Raises:
        ConfigErrors: nothing was changed.
        ApplyBusyError: another apply is running.
        ApplyError: a file could not be written; systemd was not reloaded.
        BusError: systemd cannot be seen, or refused a step after the files were written.
    """
    paths = paths or Paths()
    if flags.dry_run:
        return _report(_plan(manager, flags, paths), flags)
    with apply_lock(lock):
        plan = _plan(manager, flags, paths)
        left = _unfinished(unfinished)
        if not plan.changes_nothing or left is not None:
            enable = sorted({*plan.enable, *(left or ())})
            # If this process dies in between, the next one reloads and enables what is missing.
            _write_unfinished(unfinished, enable)
            _carry_out(manager, plan, paths)
            _finish(manager, enable, paths, unfinished)
            _tell(plan, author)
        return _report(plan, flags)


def finish_interrupted(
    manager: ServiceManager,
    *,
    paths: Paths | None = None,
    unfinished: Path = UNFINISHED,
    lock: Path = LOCK_FILE,
) -> bool:
    """Have systemd load and enable what an interrupted apply had already written.

    Returns:
        Whether there was anything to finish.

    Raises:
        ApplyBusyError: that apply is still running.
        ApplyError: the lock or the unit directory cannot be opened.
        BusError: systemd refuses.
    """
    if _unfinished(unfinished) is None:
        return False
    with apply_lock(lock):
        left = _unfinished(unfinished)
        if left is not None:
            _finish(manager, left, paths or Paths(), unfinished)
    return left is not None


def _plan(manager: ServiceManager, flags: Flags, paths: Paths) -> Plan:
    config = load(paths.config)
    if errors := config_files.credential_errors(config):
        raise ConfigErrors(errors)
    on_disk = UnitDirectory(paths.units).read()
    desired = units.render(config, host_facts())
    services = {name for name in {*desired, *on_disk} if name.endswith(".service")}
    return apply_plan.plan(
        desired,
        on_disk,
        _running(manager, services),
        enabled_when_new=units.units_enabled_when_new(config),
        force=flags.force,
        prune=flags.prune,
    )


def _running(manager: ServiceManager, services: Iterable[str]) -> set[str]:
    return {name for name in services if manager.unit(name).active_state not in STOPPED}


def _carry_out(manager: ServiceManager, plan: Plan, paths: Paths) -> None:
    gone = [removal.name for removal in plan.removals]
    if gone:
        manager.disable(gone)
    UnitDirectory(paths.units).apply(plan)


def _finish(manager: ServiceManager, enable: list[str], paths: Paths, unfinished: Path) -> None:
    on_disk = UnitDirectory(paths.units).read()
    there = [name for name in enable if name in on_disk and on_disk[name].kind is Kind.REGULAR]
    if there:
        manager.enable(there)
    manager.reload()
    # The target's Wants= keep a dead engine's properties readable; alone it starts no engine.
    manager.start(units.TARGET, "ignore-dependencies")
    unfinished.unlink(missing_ok=True)


def _unfinished(path: Path) -> list[str] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    with contextlib.suppress(ValueError):
        match json.loads(text):
            case {"enable": [*names]}:
                return [name for name in names if isinstance(name, str)]
    return []


def _write_unfinished(path: Path, enable: list[str]) -> None:
    try:
        write_atomic(path, json.dumps({"enable": enable}) + "\n")
    except OSError as error:
        raise ApplyError(f"cannot write {path}: {error.strerror}") from error


def _tell(plan: Plan, author: str) -> None:
    written = [write.name for write in plan.writes]
    removed = [removal.name for removal in plan.removals]
    parts = [f"wrote {', '.join(written)}" if written else ""]
    parts.append(f"removed {', '.join(removed)}" if removed else "")
    summary = "; ".join(filter(None, parts)) or "finished an interrupted apply"
    record = {"time": time.time(), "author": author, "summary": summary}
    journal.send(
        events.Event.APPLIED,
        f"configuration applied by {author}: {summary}",
        priority=journal.Priority.NOTICE,
        **{
            events.REASON: summary,
            events.RECORD: json.dumps(record),
            "SPARKD_AUTHOR": author,
            "SPARKD_DIFF": plan.diff[:100_000],
        },
    )


def _report(plan: Plan, flags: Flags) -> dict[str, object]:
    return {
        "dry_run": flags.dry_run,
        "diff": plan.diff,
        "written": [write.name for write in plan.writes],
        "removed": [removal.name for removal in plan.removals],
        "enabled": list(plan.enable),
        "refused": [
            {"unit": refusal.name, "reason": refusal.reason, "diff": refusal.diff}
            for refusal in plan.refused
        ],
        "orphans": list(plan.orphans),
        "pending": list(plan.pending),
    }


def describe_failure(error: Exception) -> str:
    """One sentence about an order that could not be carried out."""
    if isinstance(error, BusError):
        return f"systemd: {error}" if error.name else f"cannot see systemd: {error}"
    return str(error)
