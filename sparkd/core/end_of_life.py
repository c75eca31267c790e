# SPDX-License-Identifier: Apache-2.0
"""What one ended invocation was: asked for or not, how it ended, and why.

This is the record that `post-mortem` writes for each end of life and everything else reads.
"""

import signal
from typing import TYPE_CHECKING, NamedTuple

from sparkd.core.exit_state import EXTERNAL_STOP, ExitState

if TYPE_CHECKING:  # `await-slot` needs a Finding and no classifier
    from sparkd.core.classify import Verdict


class UnitAtEnd(NamedTuple):
    """What systemd says of the unit while ExecStopPost= runs; times are CLOCK_MONOTONIC in µs."""

    job: str
    """Type of the job on the unit: 'stop', 'restart', 'start', '' for none."""
    main_exit: int
    """ExecMainExitTimestampMonotonic; 0 when no main process ever ended."""
    active_enter: int
    """ActiveEnterTimestampMonotonic: when this unit last became active; 0 for never."""
    active_exit: int
    """ActiveExitTimestampMonotonic: when this unit last left active; 0 for never."""
    inactive_exit: int
    """InactiveExitTimestampMonotonic: when this invocation began."""
    main_pid: int = 0
    """ExecMainPID; 0 when no main process was ever started."""
    cgroup: str = ""
    """ControlGroup, without which a kernel line cannot be told from one about a neighbour."""


DAEMON = "sparkd"
"""The finder of a finding that says why the daemon ended a process that does not serve."""
HOST = "host"
"""The finder of a finding that says that the host went down, and the engine with it."""
ENDED_IT = frozenset({DAEMON, HOST, "memory-guard", "earlyoom", "systemd-oomd"})
"""Whose finding is the cause of the end: they ended the process themselves."""


class Finding(NamedTuple):
    """What an earlier helper of the same invocation, or the daemon, concluded."""

    helper: str
    cls: str
    reason: str
    permanent: bool


HOST_WENT_DOWN = Finding(
    HOST, "host-went-down", "the host went down while it started", permanent=False
)
"""Of a start that an earlier boot began and nobody ended."""


class Record(NamedTuple):
    """One end of life."""

    engine: str
    unit: str
    invocation_id: str
    time: float
    """Seconds since the epoch."""
    requested: bool
    result: str
    """systemd's $SERVICE_RESULT."""
    exit_code: int | None
    """Exit status of the main process; None when a signal ended it or it never ran."""
    signal: str | None
    """Signal that ended the main process, such as 'KILL'; None for an exit."""
    cls: str
    signature: str | None
    evidence: str | None
    reason: str
    """One sentence: what ended it."""
    action: str
    """'restart', 'hold' or 'none'."""
    action_reason: str
    """One sentence: why that follows."""
    hint: str
    """One sentence: what a person should do; may be empty."""
    was_ready: bool


class Explanation(NamedTuple):
    """Why a life ended."""

    cls: str
    reason: str
    permanent: bool
    """Whether another start would fail in the same way."""
    signature: str = ""
    evidence: str = ""
    hint: str = ""


def was_requested(unit: UnitAtEnd, finding: Finding | None = None) -> bool:
    """Whether somebody asked systemd for this end.

    A stop or restart job on the unit is the proof: systemd queues none when a process dies by
    itself, and a signal from a stranger queues none either. A job that came after the process had
    already died does not make the death a requested one: then the main process ended before the
    unit left the active state, while a stop makes the unit leave it first. For a start that failed
    the helper's finding says so: a helper that is stopped leaves none.
    """
    if unit.job not in {"stop", "restart"} or (finding is not None and finding.helper != DAEMON):
        return False
    became_active = unit.active_enter >= unit.inactive_exit > 0
    left_active = unit.active_exit >= unit.active_enter
    died_first = became_active and left_active and 0 < unit.main_exit <= unit.active_exit
    return not died_first


def was_ready(unit: UnitAtEnd) -> bool:
    """Whether the gate had passed in this invocation."""
    return unit.active_enter >= unit.inactive_exit > 0


def exit_code_of(exit_state: ExitState) -> int | None:
    """The main process's exit status, if it exited."""
    if exit_state.code == "exited" and exit_state.status.isdigit():
        return int(exit_state.status)
    return None


def signal_of(exit_state: ExitState) -> str | None:
    """The name of the signal that ended the main process ('KILL'), if one did."""
    if exit_state.code not in {"killed", "dumped"}:
        return None
    if exit_state.status.isdigit():
        try:
            return signal.Signals(int(exit_state.status)).name[len("SIG") :]
        except ValueError:
            return exit_state.status
    return exit_state.status or None


def explain(verdict: "Verdict", finding: Finding | None, *, requested: bool) -> Explanation:
    """What is recorded of an end, from the log's verdict and what a helper or the daemon found.

    A helper's finding names the symptom (the gate's deadline, a busy port); a signature in the log
    names the cause and wins over it, unless only the helper knows that it will fail again. The
    daemon's finding says why it ended the process itself: the log then tells of a stop that nobody
    asked for, which is no cause.
    """
    permanent = not requested and (
        verdict.answer.holds or (finding is not None and finding.permanent)
    )
    from_log = Explanation(
        verdict.cls, verdict.summary, permanent, verdict.signature, verdict.evidence, verdict.hint
    )
    if requested or finding is None or not finding.cls:
        return from_log
    if finding.helper in ENDED_IT:
        if finding.cls == verdict.cls:
            return from_log._replace(reason=finding.reason)
        return Explanation(finding.cls, finding.reason, finding.permanent)
    if verdict.cls == EXTERNAL_STOP:
        # When a helper has failed systemd itself sends SIGTERM, without any job: no stranger did.
        return Explanation(finding.cls, finding.reason, finding.permanent)
    if verdict.signature and not (finding.permanent and not verdict.answer.holds):
        return from_log
    return from_log._replace(cls=finding.cls, reason=finding.reason)


def to_json(record: Record) -> dict[str, object]:
    """The record as plain JSON values, with the names of the scripts' contract."""
    value: dict[str, object] = record._asdict()
    value["class"] = value.pop("cls")
    return value


def from_json(value: dict[str, object]) -> Record:
    """The record from plain JSON values.

    Raises:
        TypeError: a member is missing or unknown.
    """
    known = dict(value)
    known["cls"] = known.pop("class", "")
    return Record(**known)  # type: ignore[arg-type]  # the members are checked by the caller's schema
