# SPDX-License-Identifier: Apache-2.0
"""Apply, rollback, and the repair of either when it was cut short. Nothing here restarts an engine.

The order of steps makes each crash repairable: first the revision with every text before and
after, then the unit files, all or none, then (rollback) the TOML, then systemd, then the revision's
end. Whoever finds a revision without its end knows from the files how far it came.
"""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sparkd import __version__
from sparkd.adapters import (
    caps_files,
    config_files,
    config_restore,
    database,
    journal,
    model_files,
    proc,
)
from sparkd.adapters.config_view import Paths, host_facts
from sparkd.adapters.revision_files import FOLDER, Revisions
from sparkd.adapters.service_manager import ServiceManager
from sparkd.adapters.unit_files import LOCK_FILE, ApplyError, UnitDirectory, apply_lock
from sparkd.core import apply_plan, caps, events, marker, revisions, units
from sparkd.core import config as core_config
from sparkd.core.apply_plan import DiskUnit, Kind, Plan, Removal, Write, text_hash
from sparkd.core.config import Config, ConfigErrors, EngineConfig
from sparkd.core.prediction import Launch, predict
from sparkd.core.revisions import Figures, Repair, Revision, State
from sparkd.core.unit_state import unit_of

STOPPED = frozenset({"inactive", "failed"})
DIFF_MAX = 100_000
"""Characters of a diff in the journal; the revision has all of it."""


class Flags(NamedTuple):
    """How to apply, and why."""

    dry_run: bool = False
    force: bool = False
    prune: bool = False
    why: str = ""


class Places(NamedTuple):
    """Where an apply works; tests put it elsewhere."""

    paths: Paths = Paths()
    revisions: Path = FOLDER
    lock: Path = LOCK_FILE
    database: str = database.PATH


class NothingToRollBackError(Exception):
    """There is no such revision; the message is for the operator."""


def apply(
    manager: ServiceManager, flags: Flags, author: str, places: Places | None = None
) -> dict[str, object]:
    """Bring the unit files to what the configuration says; no engine is started or restarted.

    Returns:
        The contract of `sparkctl apply --json`.

    Raises:
        ConfigErrors: nothing was changed.
        ApplyBusyError: another apply is running.
        ApplyError: a file could not be written; every unit file is as it was.
        BusError: systemd cannot be seen, or refused a step after the files were written; the next
            apply or start of the daemon takes it from there.
    """
    places = places or Places()
    if flags.dry_run:
        _, config, plan = _planned(manager, flags, places)
        wanted = _caps_plan(config, flags, places)
        return {**_report(plan, dry_run=True), "caps": _caps_report(wanted)}
    with apply_lock(places.lock):
        repaired = _repair(manager, places)
        sources, config, plan = _planned(manager, flags, places)
        if plan.changes_nothing:
            capped = _apply_caps(config, flags, author, places)
            if capped["written"] or capped["removed"]:
                manager.reload()
            return {**_report(plan, repaired=repaired), "caps": capped}
        revision = _begin(
            manager, places, plan, kind=revisions.Kind.APPLY, author=author, why=flags.why,
            sources=sources, config=config,
        )  # fmt: skip
        # Before the units: the reload that ends this one is for both.
        capped = _apply_caps(config, flags, author, places)
        revision = _carry_out(manager, places, revision, plan)
        _tell(revision, _summary(revision, plan))
        return {**_report(plan, revision=revision, repaired=repaired), "caps": capped}


def rollback(
    manager: ServiceManager,
    number: int | None,
    flags: Flags,
    author: str,
    places: Places | None = None,
) -> dict[str, object]:
    """Bring back the units and the TOML of an earlier revision, byte for byte.

    The TOML comes with them, or the next apply would quietly undo the rollback. What is replaced is
    kept in the new revision. No engine is restarted.

    Args:
        manager: gives the orders to systemd.
        number: the revision whose state is wanted; None for the state before the newest one.
        flags: `force` also replaces units that were edited by hand.
        author: who asked for it.
        places: where everything is.

    Returns:
        The contract of `sparkctl rollback --json`.

    Raises:
        NothingToRollBackError: there is no such revision.
        ConfigErrors, ApplyBusyError, ApplyError, BusError: as for apply.
    """
    places = places or Places()
    if flags.dry_run:
        plan, texts, change = _rollback_plan(manager, places, number, flags)
        return {**_report(plan, dry_run=True), **_restored(texts, change)}
    with apply_lock(places.lock):
        repaired = _repair(manager, places)
        plan, texts, change = _rollback_plan(manager, places, number, flags)
        if plan.changes_nothing and not change.changed:
            return {**_report(plan, repaired=repaired), **_restored(texts, change)}
        revision = _begin(
            manager, places, plan, kind=revisions.Kind.ROLLBACK, author=author, why=flags.why,
            sources=change.after, sources_before=change.before, restores=texts,
        )  # fmt: skip
        revision = _carry_out(manager, places, revision, plan)
        _tell(revision, f"brought back {texts}; {_summary(revision, plan)}")
        report = _report(plan, revision=revision, repaired=repaired)
        return {**report, **_restored(texts, change)}


def repair(manager: ServiceManager, places: Places | None = None) -> str:
    """Finish or take back what a crash has cut short, and have systemd load what it missed.

    Returns:
        What was done, in a sentence for the log; '' when there was nothing to do.

    Raises:
        ApplyBusyError: that apply is still running.
        ApplyError: a file cannot be read or written.
        BusError: systemd refuses.
    """
    places = places or Places()
    if _begun(places) is not None:
        with apply_lock(places.lock):
            return _repair(manager, places)
    return _reload_missed(manager, places)


# the compile caps, outside of the units and their revisions: they follow from sparkd.toml alone


def _caps_plan(config: Config, flags: Flags, places: Places) -> caps.Plan:
    on_disk = caps_files.read(places.paths.root)
    return caps.plan(caps.render(config.host.compile), on_disk, force=flags.force)


def _apply_caps(config: Config, flags: Flags, author: str, places: Places) -> dict[str, object]:
    """Bring the caps to the other launch paths; what fails here does not keep the units back."""
    plan = caps.Plan()
    try:
        plan = _caps_plan(config, flags, places)
        caps_files.carry_out(plan, places.paths.root)
    except ApplyError as error:
        refusal = caps.Refusal("compile caps", f"not on every launch path: {error}")
        return _caps_report(caps.Plan(refused=(*plan.refused, refusal)))
    if plan.changes:
        text = f"compile caps: wrote or removed {', '.join(c.path for c in plan.changes)}"
        fields = {events.REASON: text, "SPARKD_AUTHOR": author, "SPARKD_VERB": "apply"}
        priority = journal.Priority.NOTICE
        journal.send(events.Event.OPERATOR, f"{text} (by {author})", priority=priority, **fields)
    return _caps_report(plan)


def _caps_report(plan: caps.Plan) -> dict[str, object]:
    return {
        "written": [change.path for change in plan.changes if change.text is not None],
        "removed": [change.path for change in plan.changes if change.text is None],
        "refused": [refusal._asdict() for refusal in plan.refused],
    }


# the plan


def _planned(
    manager: ServiceManager, flags: Flags, places: Places
) -> tuple[dict[str, str], Config, Plan]:
    found = config_files.read_sources(places.paths.config)
    config = core_config.load(found, proc.memory().total)
    if errors := config_files.credential_errors(config):
        raise ConfigErrors(errors)
    plan = _plan(
        manager, places, units.render(config, host_facts()),
        enabled_when_new=units.units_enabled_when_new(config), force=flags.force,
        prune=flags.prune,
    )  # fmt: skip
    return config_restore.texts(places.paths.config, found), config, plan


def _rollback_plan(
    manager: ServiceManager, places: Places, number: int | None, flags: Flags
) -> tuple[Plan, str, config_restore.Restore]:
    try:
        kept = Revisions(places.revisions).all()
        target, sources, words = revisions.target_of(kept, number)
    except ValueError as error:
        raise NothingToRollBackError(str(error)) from None
    except OSError as error:
        raise ApplyError(f"cannot read {places.revisions}: {error.strerror}") from error
    enabled = revisions.enabled_later(kept, target) | {units.TARGET}
    plan = _plan(
        manager, places, target,
        enabled_when_new=enabled, force=flags.force, prune=True, exact=True,
    )  # fmt: skip
    return plan, words, config_restore.plan(places.paths.config, sources)


def _plan(
    manager: ServiceManager,
    places: Places,
    desired: Mapping[str, str],
    *,
    enabled_when_new: Iterable[str],
    force: bool,
    prune: bool,
    exact: bool = False,
) -> Plan:
    on_disk = UnitDirectory(places.paths.units).read()
    services = {name for name in {*desired, *on_disk} if name.endswith(".service")}
    running = {name for name in services if manager.unit(name).active_state not in STOPPED}
    return apply_plan.plan(
        desired, on_disk, running,
        enabled_when_new=frozenset(enabled_when_new), force=force, prune=prune, exact=exact,
    )  # fmt: skip


# the steps


def _begin(
    manager: ServiceManager,
    places: Places,
    plan: Plan,
    *,
    kind: revisions.Kind,
    author: str,
    why: str,
    sources: Mapping[str, str],
    sources_before: Mapping[str, str] | None = None,
    restores: str = "",
    config: Config | None = None,
) -> Revision:
    """Write down everything that the change needs, before its first step."""
    before = _ours(UnitDirectory(places.paths.units).read())
    gone = [removal.name for removal in plan.removals]
    after = {name: text for name, text in before.items() if name not in gone}
    after |= {write.name: write.text for write in plan.writes}
    figures = _figures(places)
    store = Revisions(places.revisions)
    try:
        number = max(store.numbers(), default=0) + 1
        revision = Revision(
            number=number,
            kind=kind,
            state=State.BEGUN,
            time=time.time(),
            author=author,
            why=why[: revisions.WHY_MAX],
            version=__version__,
            before=before,
            after=after,
            sources=sources,
            sources_before=sources_before or {},
            enable=plan.enable,
            disabled=[name for name in gone if _is_enabled(manager, name)],
            figures=figures,
            predictions={} if config is None else _predictions(config, before, after, figures),
            restores=restores,
        )
        store.write(revision)
    except OSError as error:
        raise ApplyError(
            f"cannot record the change in {places.revisions}: {error.strerror}; nothing was changed"
        ) from error
    return revision


def _carry_out(manager: ServiceManager, places: Places, revision: Revision, plan: Plan) -> Revision:
    directory = UnitDirectory(places.paths.units)
    gone = [removal.name for removal in plan.removals]
    try:
        if gone:
            manager.disable(gone)
        directory.apply(plan)
        try:
            _restore_config(places, revision)
        except ApplyError:
            directory.apply(_steps(revision.after, revision.before, revision.changed))
            raise
    except ApplyError as error:
        if revision.disabled:
            manager.enable(list(revision.disabled))
            manager.reload()
        _end(places, revision, State.ABANDONED, str(error))
        raise
    return _finish(manager, places, revision)


def _restore_config(places: Places, revision: Revision) -> str:
    """Bring the TOML of a rollback back; what somebody changed meanwhile stays."""
    if revision.kind is not revisions.Kind.ROLLBACK or not revision.sources:
        return ""
    change = config_restore.Restore(revision.sources_before, revision.sources)
    return config_restore.carry_out(places.paths.config, change)


def _finish(
    manager: ServiceManager, places: Places, revision: Revision, remark: str = ""
) -> Revision:
    on_disk = UnitDirectory(places.paths.units).read()
    there = [
        name for name in revision.enable if name in on_disk and on_disk[name].kind is Kind.REGULAR
    ]
    if there:
        manager.enable(there)
    manager.reload()
    # The target's Wants= keep a dead engine's properties readable; alone it starts no engine.
    manager.start(units.TARGET, "ignore-dependencies")
    return _end(places, revision, State.APPLIED, remark)


def _end(places: Places, revision: Revision, state: State, remark: str = "") -> Revision:
    ended = revision.ended(state, remark)
    try:
        Revisions(places.revisions).write(ended)
    except OSError as error:
        raise ApplyError(
            f"revision {revision.number} is {state}, and its end cannot be recorded in"
            f" {places.revisions}: {error.strerror}; sparkd's next start records it"
        ) from error
    return ended


# after a crash


def _begun(places: Places) -> Revision | None:
    try:
        return Revisions(places.revisions).begun()
    except OSError as error:
        raise ApplyError(f"cannot read {places.revisions}: {error.strerror}") from error


def _repair(manager: ServiceManager, places: Places) -> str:
    revision = _begun(places)
    if revision is None:
        return ""
    directory = UnitDirectory(places.paths.units)
    found = _texts(directory.read())
    decision, names, reason = revisions.repair(revision, found)
    begun = f"revision {revision.number} ({revision.kind} by {revision.author}) was cut short"
    if decision is Repair.ABANDON:
        directory.apply(Plan())  # sweeps what was written beside the files
        if revision.disabled:
            manager.enable(list(revision.disabled))
            manager.reload()
        sentence = f"{begun} and is abandoned: {reason}"
        ended = _end(places, revision, State.ABANDONED, reason)
    else:
        directory.apply(_steps(revision.before, revision.after, names))
        kept = _restore_config(places, revision)
        sentence = "; ".join(filter(None, [f"{begun} and is now complete: {reason}", kept]))
        ended = _finish(manager, places, revision, reason)
    _tell(ended, sentence)
    return sentence


def _steps(before: Mapping[str, str], after: Mapping[str, str], names: Iterable[str]) -> Plan:
    """The steps that bring these files from one state to the other."""
    writes, removals = [], []
    for name in names:
        old, new = before.get(name), after.get(name)
        if new is not None:
            writes.append(Write(name, new, None if old is None else text_hash(old)))
        elif old is not None:
            removals.append(Removal(name, text_hash(old)))
    return Plan(writes=tuple(writes), removals=tuple(removals))


def _reload_missed(manager: ServiceManager, places: Places) -> str:
    """Have systemd load unit files of sparkd's that are newer than what it has in memory.

    A hand edit is left alone: who made it may not be done with it.
    """
    on_disk = UnitDirectory(places.paths.units).read()
    stale = [
        name
        for name, text in sorted(_ours(on_disk).items())
        if not marker.is_hand_edited(text) and manager.unit(name).need_daemon_reload
    ]
    if not stale:
        return ""
    manager.reload()
    return f"systemd had an older text of {', '.join(stale)}: reloaded, nothing was restarted"


# what is known


def _texts(on_disk: Mapping[str, DiskUnit]) -> dict[str, str]:
    """Present texts; what is no regular file stands under a text that no unit has."""
    return {
        name: unit.text if unit.kind is Kind.REGULAR else f"\0{unit.kind}"
        for name, unit in on_disk.items()
        if unit.kind is not Kind.ELSEWHERE
    }


def _ours(on_disk: Mapping[str, DiskUnit]) -> dict[str, str]:
    return {
        name: unit.text
        for name, unit in on_disk.items()
        if unit.kind is Kind.REGULAR and marker.marker_of(unit.text) is not None
    }


def _is_enabled(manager: ServiceManager, name: str) -> bool:
    return manager.unit(name).unit_file_state == "enabled"


def _figures(places: Places) -> Figures:
    """Each engine's last start; a database that cannot be read only costs the comparison."""
    try:
        with database.reader(places.database) as known:
            boots = {} if known is None else known.boot_records()
    except database.DatabaseError:
        return {}
    return {engine: revisions.figures_of(boot) for engine, boot in boots.items()}


def _predictions(
    config: Config, before: Mapping[str, str], after: Mapping[str, str], figures: Figures
) -> Figures:
    total = proc.memory().total
    expected = {}
    for engine in config.engines:
        old, new = (marker.launch_hash(texts.get(engine.unit, "")) for texts in (before, after))
        launch = launch_of(engine, total, is_same=new is not None and old == new)
        expected[engine.name] = predict(launch, figures.get(engine.name, {}))
    return expected


def launch_of(engine: EngineConfig, memory_total: int, *, is_same: bool = False) -> Launch:
    """What an engine's figures depend on."""
    files = model_files.look(Path(engine.model)) if engine.model.startswith("/") else None
    return Launch(
        utilization=engine.memory_utilization,
        memory_total=memory_total,
        weights=0 if files is None else files.whole_weights,
        kv_cache_bytes=_fixed_kv_cache(engine.serve),
        is_same=is_same,
    )


def _fixed_kv_cache(serve: Iterable[str]) -> int | None:
    arguments = list(serve)
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--kv-cache-memory-bytes":
            text = value if equals else "".join(arguments[index + 1 : index + 2])
            return int(text) if text.isascii() and text.isdigit() else None
    return None


# what is told


def _summary(revision: Revision, plan: Plan) -> str:
    written = [write.name for write in plan.writes]
    removed = [removal.name for removal in plan.removals]
    parts = [
        f"wrote {', '.join(written)}" if written else "",
        f"removed {', '.join(removed)}" if removed else "",
        f"why: {' '.join(revision.why.split())}" if revision.why else "",
    ]
    return "; ".join(filter(None, parts)) or "no unit file changed"


def _tell(revision: Revision, summary: str) -> None:
    text = f"revision {revision.number}: {summary}"
    record = {"time": revision.time, "author": revision.author, "summary": text}
    journal.send(
        events.Event.APPLIED,
        f"{revision.kind} by {revision.author}: {text}",
        priority=journal.Priority.NOTICE,
        **{
            events.REASON: text,
            events.RECORD: json.dumps(record),
            "SPARKD_AUTHOR": revision.author,
            "SPARKD_REVISION": str(revision.number),
            "SPARKD_DIFF": revision.diff[:DIFF_MAX].encode("utf-8", "backslashreplace").decode(),
        },
    )


def _report(
    plan: Plan, *, revision: Revision | None = None, repaired: str = "", dry_run: bool = False
) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "revision": None if revision is None else revision.number,
        "repaired": repaired or None,
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


def _restored(words: str, change: config_restore.Restore) -> dict[str, object]:
    return {
        "restores": words,
        "config_known": bool(change.after),
        "config_changed": change.changed,
        "config_diff": change.diff,
    }


# outcomes


def record_boot(boot: Mapping[str, object], folder: Path = FOLDER) -> list[int]:
    """Write what a start showed beside every revision that it is the first measurement of.

    Returns:
        The numbers of those revisions.

    Raises:
        OSError: the disk refuses.
    """
    match boot:
        case {
            "engine": str(engine),
            "invocation_id": str(invocation),
            "time": int() | float() as ready,
            "seconds": int() | float() as seconds,
        }:
            pass
        case _:
            return []
    store = Revisions(folder)
    kept = store.all()
    known = [
        revision.number
        for revision in kept
        if any(row.get("engine") == engine for row in store.outcomes(revision.number))
    ]
    numbers = revisions.awaits_outcome(kept, known, unit_of(engine), ready - seconds)
    row = {
        "engine": engine,
        "invocation_id": invocation,
        "time": ready,
        "figures": revisions.figures_of(boot),
    }
    for number in numbers:
        store.add_outcome(number, row)
    return numbers
