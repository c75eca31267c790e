# SPDX-License-Identifier: Apache-2.0
"""sparkctl without the daemon: looks at systemd, the files, the database and the journal itself.

Orders go straight to systemd, for root. What the daemon would have taken into the database since
it went away is read from the journal.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from sparkd.adapters import applying, database, incident_lookup, operations
from sparkd.adapters.bus_client import Watch
from sparkd.adapters.config_view import ConfigView
from sparkd.adapters.database import Detail
from sparkd.adapters.journal import EventReader
from sparkd.adapters.observe import NO_HISTORY, History, Observer
from sparkd.adapters.service_manager import BusError, Viewer
from sparkd.adapters.state_files import StateFiles
from sparkd.adapters.systemctl_manager import Systemctl
from sparkd.adapters.unit_files import ApplyBusyError, ApplyError
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.job_end import Verdict, judge
from sparkd.cli.terminal import neutralise
from sparkd.core import status as core_status
from sparkd.core.config import ConfigErrors
from sparkd.core.end_of_life import Record
from sparkd.core.projection import project
from sparkd.core.status import Boot
from sparkd.core.unit_state import unit_of

POLL_S = 0.5
"""Shorter than the shortest restart delay (1 s), so that no end of a start goes unseen."""
BLIND_MAX_S = 30.0
"""How long a wait goes on while systemd does not answer."""
_BATCH = 500


def say(why: str) -> None:
    """Tell on standard error that the daemon had no part in what follows."""
    print(f"sparkctl: {neutralise(why)}: going on without it", file=sys.stderr)


def status(why: str) -> dict[str, Any]:
    """The status as sparkctl sees it by itself; `stale` when systemd does not answer."""
    observer = Observer(Systemctl(), ConfigView(), StateFiles(), daemon="absent")
    observer.look()
    notes = [f"{why}; this is what systemd and the files say"]
    try:
        history = _history()
    except database.DatabaseError as error:
        history = NO_HISTORY
        notes.append(str(error))
    if os.geteuid() != 0:
        notes.append("not root: holds, deaths and used restarts may be missing here")
    facts = observer.facts(history)._replace(notes=notes)
    return core_status.to_json(core_status.build(facts))


def _history() -> History:
    with database.reader() as known:
        deaths = {} if known is None else known.last_deaths()
        boots = {} if known is None else known.last_boots()
        cursor = None if known is None else known.cursor()
    for row in _since(cursor):
        if isinstance(row, Record):
            deaths[row.engine] = row
        else:
            boots[row.engine] = row
    return History(deaths, boots)


def incidents(limit: int, engine: str) -> list[dict[str, Any]]:
    """As the daemon's Incidents, with what has come into the journal since it went away.

    Raises:
        CliError: the database cannot be read.
    """
    try:
        with database.reader() as known:
            stored = [] if known is None else known.incidents(limit, engine)
            cursor = None if known is None else known.cursor()
    except database.DatabaseError as error:
        raise CliError(str(error)) from None
    there = {(one.record.engine, one.record.invocation_id) for one in stored}
    newer = [
        database.Incident(row, None)
        for row in _since(cursor)
        if isinstance(row, Record)
        and engine in {"", row.engine}
        and (row.engine, row.invocation_id) not in there
    ]
    newest_first = sorted([*newer, *stored], key=lambda one: one.record.time, reverse=True)
    return [core_status.incident_json(*one) for one in newest_first[:limit]]


def incident(identity: str) -> dict[str, Any]:
    """As the daemon's Incident, also for one that came into the journal since it went away.

    Raises:
        CliError: there is no such incident, or more than one, or the database cannot be read.
    """
    try:
        with database.reader() as known:
            is_id = incident_lookup.is_id(identity)
            found = known.find(identity) if known is not None and is_id else []
            cursor = None if known is None else known.cursor()
    except database.DatabaseError as error:
        raise CliError(str(error)) from None
    there = {detail.incident.record.invocation_id for detail in found}
    for row in _since(cursor) if is_id else ():
        # Before the daemon has taken it in it has no number, and nothing has been added up.
        if (
            isinstance(row, Record)
            and row.invocation_id.startswith(identity)
            and row.invocation_id not in there
        ):
            found.append(Detail(0, database.Incident(row, None), None, None, 0, None))
    if len(found) != 1:
        raise CliError(incident_lookup.refusal(identity, found), Exit.NO_SUCH_ENGINE)
    return incident_lookup.to_json(found[0])


def _since(cursor: str | None) -> Iterator[Record | Boot]:
    reader = EventReader(cursor)
    try:
        while batch := reader.read(_BATCH):
            for _, fields in batch:
                entry = project(fields)
                if entry is not None and isinstance(entry.row, Record | Boot):
                    yield entry.row
    finally:
        reader.close()


def operate(
    verb: str, engines: Sequence[str], watch: Watch, *, wait: bool
) -> Iterator[dict[str, Any]]:
    """Order it from systemd, as the daemon would have; replies as the daemon's.

    Raises:
        CliError: not root.
    """
    if not engines:
        return
    _require_root(verb)
    manager, files = Systemctl(), StateFiles()
    queued = []
    for engine in engines:
        try:
            operations.operate(manager, files, operations.VERBS[verb], engine, author())
        except (BusError, OSError) as error:
            reason = operations.describe_failure(error)
            yield _reply(engine, Verdict(done=False, reason=reason))
        else:
            queued.append(engine)
    for engine in queued:
        if wait:
            yield _reply(engine, _until_over(manager, files, verb, engine, watch))
        else:
            yield _reply(engine, Verdict(done=True, reason=""), result="queued")


def follow(verb: str, engine: str, watch: Watch, *, wait: bool) -> dict[str, Any]:
    """Take over from a daemon that went away in the middle of an order."""
    manager, files = Systemctl(), StateFiles()
    if wait:
        return _reply(engine, _until_over(manager, files, verb, engine, watch))
    try:
        job = manager.unit(unit_of(engine)).job_type
    except BusError as error:
        return _reply(engine, Verdict(done=False, reason=f"cannot see systemd: {error}"))
    if job:
        return _reply(engine, Verdict(done=True, reason=""), result="queued")
    reason = "it is not known whether sparkd passed it on; see 'sparkctl status'"
    return _reply(engine, Verdict(done=False, reason=reason))


def _until_over(
    manager: Viewer, files: StateFiles, verb: str, engine: str, watch: Watch
) -> Verdict:
    """Watch the unit until the order is carried out or has failed; systemd's limits bound it."""
    seen_at = time.monotonic()
    while True:
        try:
            unit = manager.unit(unit_of(engine))
            seen_at = time.monotonic()
        except BusError as error:
            if time.monotonic() - seen_at > BLIND_MAX_S:
                return Verdict(done=False, reason=f"cannot see systemd: {error}")
        else:
            verdict = judge(verb, unit, files.ledger(engine).held)
            if verdict is not None:
                return verdict
            watch({engine: unit.status_text or unit.sub_state})
        time.sleep(POLL_S)


def apply(*, dry_run: bool, force: bool, prune: bool, why: str = "") -> dict[str, Any]:
    """Write the units as the daemon would.

    Raises:
        CliError: not root, errors in the configuration (each on a line), or a failure.
    """
    _require_root("apply for")
    flags = applying.Flags(dry_run, force, prune, why)
    try:
        return applying.apply(Systemctl(), flags, author())
    except ConfigErrors as refused:
        raise CliError("\n".join(map(str, refused.errors)), Exit.CONFIG) from None
    except ApplyBusyError as error:
        raise CliError(str(error), Exit.BUSY) from None
    except (ApplyError, BusError) as error:
        raise CliError(operations.describe_failure(error)) from None


def _reply(engine: str, verdict: Verdict, *, result: str = "") -> dict[str, Any]:
    return {
        "engine": engine,
        "result": result or ("done" if verdict.done else "failed"),
        "reason": verdict.reason,
        "state": verdict.state or None,
        "code": Exit.OK if verdict.done else Exit.FAILURE,
    }


def _require_root(verb: str) -> None:
    if os.geteuid() != 0:
        raise CliError(
            f"sparkd is not running, and only root may {verb} an engine without it",
            Exit.NOT_PERMITTED,
        )


def author() -> str:
    """Who runs this, as an order is signed."""
    user = os.environ.get("SUDO_USER")
    return f"root ({neutralise(user)[:32]} by sudo)" if user else "root"
