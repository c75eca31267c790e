# SPDX-License-Identifier: Apache-2.0
"""post-mortem (ExecStopPost=): say how this invocation ended, and whether another may follow.

systemd runs it once for every ended invocation, before the restart, and waits for it. It is the
only hook that sees every death: properties are wiped when the next process is forked, and
OnFailure= does not fire for an exit status of 0 (measured).
"""

import argparse
import contextlib
import heapq
import json
import os
import time
import traceback
from collections.abc import Mapping
from typing import NamedTuple

from sparkd.adapters import clock, journal, notify, systemctl
from sparkd.adapters.catalogue import load_catalogue
from sparkd.adapters.ended_log import EndedLog
from sparkd.adapters.state_files import StateFiles
from sparkd.core import burst, end_of_life, events, killers
from sparkd.core.classify import STOP_TIMED_OUT, Classifier, ExitState
from sparkd.core.end_of_life import Finding, Record, UnitAtEnd
from sparkd.core.lines import frame
from sparkd.core.signatures import Label
from sparkd.core.stop_survivors import StopSurvivors
from sparkd.helpers import unit as own_unit

KERNEL_S = 3600.0
"""A kernel line that explains a death is not older than this."""

LOOKS, LOOK_S = 5, 1.0
"""How often systemd is asked about the unit, and the seconds between."""

NOT_SEEN = UnitAtEnd("", 0, 0, 0, 0)
PROPERTIES = (
    "ExecMainExitTimestampMonotonic",
    "ActiveEnterTimestampMonotonic",
    "ActiveExitTimestampMonotonic",
    "InactiveExitTimestampMonotonic",
    "ExecMainPID",
    "ControlGroup",
)


def parser() -> argparse.ArgumentParser:
    """The command line; the rendered unit is its only caller that matters."""
    p = argparse.ArgumentParser(prog="post-mortem", description=__doc__.splitlines()[0])
    p.add_argument("--engine", required=True)
    p.add_argument("--unit", required=True)
    p.add_argument("--burst", type=int, default=3)
    p.add_argument("--window", type=float, default=3600.0, metavar="SECONDS")
    p.add_argument(
        "--lost",
        default="",
        metavar="INVOCATION",
        help="record the end of an earlier invocation for which no post-mortem was run",
    )
    p.add_argument(
        "--host-went-down",
        action="store_true",
        help="with --lost: it was starting when the host went down",
    )
    return p


class Ending(NamedTuple):
    """An ended invocation, as far as systemd tells of it."""

    invocation_id: str
    unit: UnitAtEnd
    exit_state: ExitState | None
    """None: only the journal knows."""
    requested: bool | None
    """None: only the journal knows."""


def main(argv: list[str] | None = None) -> int:
    """Write the record of one end of life and let systemd restart the engine, or not.

    Returns:
        0, always: a failing ExecStopPost= would turn a clean stop into a failed unit.
    """
    options = parser().parse_args(argv)
    for attempt in (_post_mortem, _count_only):
        try:
            attempt(options)
        except Exception:  # noqa: BLE001  (whatever happens here must not change the unit's fate)
            own_unit.fail(traceback.format_exc())
        else:
            break
    return 0


def _post_mortem(options: argparse.Namespace) -> None:
    files = StateFiles()
    invocation = options.lost or own_unit.invocation_id()
    finding = files.finding(options.unit, invocation)
    ending = _lost(invocation) if options.lost else _just_ended(options.unit, finding)
    if options.host_went_down:
        # A shutdown that somebody asked for and that came to its end has its own post-mortem.
        finding, ending = end_of_life.HOST_WENT_DOWN, ending._replace(requested=False)
    if finding is not None and finding.cls == "held":
        # Nothing lived: `await-slot` refused a held engine. Only the restart has to be cancelled.
        systemctl.stop_no_block(options.unit)
        return
    record = judge(options, files, ending, finding)
    if record.action == "hold" and not options.lost:
        systemctl.stop_no_block(options.unit)
    _tell(record)
    files.drop_started(options.unit)


def _count_only(options: argparse.Namespace) -> None:
    """What must not be lost when everything else fails: the limit on unrequested ends."""
    files, invocation = StateFiles(), options.lost or own_unit.invocation_id()
    if systemctl.job_type(options.unit) in {"stop", "restart"}:
        _close(options.engine, files, invocation)
        return
    death = burst.Death(invocation, clock.moment(), "post-mortem-failed")
    if _count(options, files, death, hold_reason="", was_ready=False).hold:
        systemctl.stop_no_block(options.unit)


def _just_ended(unit: str, finding: Finding | None) -> Ending:
    at_end = _unit_at_end(unit)
    exit_state = ExitState(
        os.environ.get("SERVICE_RESULT", ""),
        os.environ.get("EXIT_CODE", ""),
        os.environ.get("EXIT_STATUS", ""),
    )
    if at_end is None:
        own_unit.fail("systemd does not answer: the log decides whether this end was requested")
        return Ending(own_unit.invocation_id(), NOT_SEEN, exit_state, None)
    requested = end_of_life.was_requested(at_end, finding)
    return Ending(own_unit.invocation_id(), at_end, exit_state, requested)


def _lost(invocation_id: str) -> Ending:
    """Of an earlier invocation systemd keeps nothing: its lines in the journal must do."""
    return Ending(invocation_id, NOT_SEEN, None, None)


def _unit_at_end(unit: str) -> UnitAtEnd | None:
    """What systemd says of the unit; None when it does not answer, not even after some seconds."""
    for _ in range(LOOKS):
        seen = systemctl.show([unit], PROPERTIES)
        job = systemctl.job_type(unit)
        if seen is not None and job is not None:
            return _as_seen(seen[0], job)
        time.sleep(LOOK_S)  # it re-executes itself, or the bus is being restarted
    return None


def _as_seen(row: Mapping[str, str], job: str) -> UnitAtEnd:
    def number(name: str) -> int:
        text = row.get(name, "")
        return int(text) if text.isdigit() else 0

    return UnitAtEnd(
        job=job,
        main_exit=number("ExecMainExitTimestampMonotonic"),
        active_enter=number("ActiveEnterTimestampMonotonic"),
        active_exit=number("ActiveExitTimestampMonotonic"),
        inactive_exit=number("InactiveExitTimestampMonotonic"),
        main_pid=number("ExecMainPID"),
        cgroup=row.get("ControlGroup", ""),
    )


class Told(NamedTuple):
    """What the logs say of an ended invocation."""

    log: Classifier
    survivors: StopSurvivors


def _read_log(name: str, ending: Ending) -> Told:
    """Take in what the invocation and the kernel logged, in the order of time."""
    unit = ending.unit
    pids = frozenset({unit.main_pid} - {0})
    classifier = Classifier(
        load_catalogue(), pids=pids, cgroup=unit.cgroup, unit=name,
        has_served=end_of_life.was_ready(unit),
    )  # fmt: skip
    told = Told(classifier, StopSurvivors(unit.main_pid))
    if not ending.invocation_id:
        return told
    try:
        journal.sync()
        log = EndedLog(journal.InvocationLog(ending.invocation_id))
        kernel = journal.kernel_lines(_since(ending))
        for entry in heapq.merge(log, kernel, key=lambda entry: entry.realtime):
            for line in frame(entry.message, entry.source):
                classifier.feed(line)
                told.survivors.feed(line)
        if log.passed_over:
            own_unit.say(
                "post-mortem: the log is too long to be read in time, some was passed over"
            )
    except Exception:  # noqa: BLE001  (the end counts towards the limit, whatever can be read of it)
        own_unit.fail(f"cannot read the journal to its end:\n{traceback.format_exc()}")
    return told


def _since(ending: Ending) -> float:
    return max(_wall_time(ending.unit.inactive_exit), time.time() - KERNEL_S)


def _wall_time(monotonic_us: int) -> float:
    """The wall-clock time of a moment on CLOCK_MONOTONIC, as the wall clock stands now."""
    return time.time() - (time.monotonic() - monotonic_us / 1e6)


def judge(
    options: argparse.Namespace, files: StateFiles, ending: Ending, finding: Finding | None
) -> Record:
    """The record of one end of life, which is counted when nobody had asked for it.

    Raises:
        OSError: the ledger could be written nowhere.
    """
    log, survivors = _read_log(options.unit, ending)
    verdict = log.verdict(exit_state=ending.exit_state, requested=ending.requested)
    exit_state = ending.exit_state or log.exit_state or ExitState("", "", "")
    requested = verdict.label == Label.CLEAN_STOP if ending.requested is None else ending.requested
    if finding is None and not requested:
        told = journal.lines_of(killers.UNITS, _since(ending))
        finding = killers.find(told, log.is_ours, ending.unit.cgroup)
    why = end_of_life.explain(verdict, finding, requested=requested)
    why = why._replace(reason=_whole_reason(why.reason, survivors, options))
    was_ready = log.ready if ending.unit is NOT_SEEN else end_of_life.was_ready(ending.unit)
    was_ready &= not options.host_went_down  # whatever its log says: the gate had not passed
    now = clock.moment()
    if requested:
        _close(options.engine, files, ending.invocation_id)
        action, action_reason = "none", "the stop was requested"
    else:
        death = burst.Death(ending.invocation_id, now, why.cls)
        hold_reason = why.reason if why.permanent else ""
        outcome = _count(options, files, death, hold_reason=hold_reason, was_ready=was_ready)
        action, action_reason = ("hold" if outcome.hold else "restart"), outcome.reason
    return Record(
        engine=options.engine,
        unit=options.unit,
        invocation_id=ending.invocation_id,
        time=now.wall,
        requested=requested,
        result=exit_state.result,
        exit_code=end_of_life.exit_code_of(exit_state),
        signal=end_of_life.signal_of(exit_state),
        cls=why.cls,
        signature=why.signature or None,
        evidence=why.evidence or None,
        reason=why.reason,
        action=action,
        action_reason=action_reason,
        hint=why.hint or log.hint(why.cls),
        was_ready=was_ready,
    )


def _whole_reason(reason: str, survivors: StopSurvivors, options: argparse.Namespace) -> str:
    """What ended it, and what has to be known beside that."""
    if survivors.found:
        reason += f"; {survivors.reason}"
    if options.lost and not options.host_went_down:
        reason += " (found by the next start: no post-mortem was run for it)"
    return reason


def _close(engine: str, files: StateFiles, invocation_id: str) -> None:
    """Forget that this invocation was starting, without counting its end."""
    with contextlib.suppress(OSError), files.locked("ledger"):
        before = files.ledger(engine)
        after = burst.after_end(before, invocation_id)
        if after != before:
            files.write_ledger(engine, after)


def _count(
    options: argparse.Namespace,
    files: StateFiles,
    death: burst.Death,
    *,
    hold_reason: str,
    was_ready: bool,
) -> burst.Outcome:
    policy = burst.Policy(options.burst, options.window)
    with files.locked("ledger"):
        ledger = files.ledger(options.engine)
        outcome = burst.after_death(
            ledger, death, policy, hold_reason=hold_reason, was_ready=was_ready
        )
        files.write_ledger(options.engine, outcome.ledger)
    return outcome


def _tell(record: Record) -> None:
    if record.requested:
        in_time = record.cls != STOP_TIMED_OUT
        text = f"{record.engine}: stopped on request"
        text += "" if in_time else f", and not in time: {record.reason}"
        priority = journal.Priority.INFO if in_time else journal.Priority.WARNING
    else:
        ready = "" if record.was_ready else " before it was ready"
        text = f"{record.engine}: died{ready}: {record.reason}; {record.action_reason}"
        held = record.action == "hold"
        priority = journal.Priority.CRITICAL if held else journal.Priority.ERROR
        notify.status(f"{'held' if held else 'dead'}: {record.reason}; {record.action_reason}")
    journal.send(
        events.Event.END_OF_LIFE,
        text,
        priority=priority,
        **{
            events.ENGINE: record.engine,
            events.UNIT: record.unit,
            events.INVOCATION_ID: record.invocation_id,
            events.REASON: record.reason,
            events.RECORD: json.dumps(end_of_life.to_json(record)),
            "SPARKD_CLASS": record.cls,
            "SPARKD_SIGNATURE": record.signature or "",
            "SPARKD_ACTION": record.action,
            "SPARKD_REQUESTED": "1" if record.requested else "0",
        },
    )
