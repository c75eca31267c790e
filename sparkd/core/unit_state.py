# SPDX-License-Identifier: Apache-2.0
"""One engine's state and the sentence that explains it, from what systemd and the helpers say."""

from enum import StrEnum
from typing import NamedTuple

from sparkd.core.burst import Ledger
from sparkd.core.end_of_life import Record
from sparkd.core.slot import Claim, Waiter


class State(StrEnum):
    """The public states of an engine; scripts depend on these names."""

    STOPPED = "stopped"
    WAITING = "waiting"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    STALLED = "stalled"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    HELD = "held"


class UnitFacts(NamedTuple):
    """What systemd says of an engine's unit. Times are seconds since the epoch, 0 for never."""

    unit: str
    load_state: str = ""
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    main_pid: int = 0
    invocation_id: str = ""
    status_text: str = ""
    unit_file_state: str = ""
    fragment_path: str = ""
    drop_ins: tuple[str, ...] = ()
    need_daemon_reload: bool = False
    n_restarts: int = 0
    job_type: str = ""
    """Type of the queued or running job: 'start', 'stop', 'restart'; '' for none."""
    state_change: float = 0.0
    active_enter: float = 0.0
    inactive_exit: float = 0.0
    main_start: float = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether the unit is neither on its way up or down nor waiting for its restart."""
        return self.active_state in {"active", "inactive", "failed"} and not _restarts(self)


class Slot(NamedTuple):
    """The start slot as the waiting engine sees it: who has it, and who queues."""

    claim: Claim | None = None
    """Only a claim that counts; a stale one is no claim."""
    waiters: tuple[Waiter, ...] = ()


class Judgement(NamedTuple):
    """A state and why."""

    state: State
    reason: str

    def __str__(self) -> str:
        if self.reason.startswith(self.state):  # "ready after 1 s"
            return self.reason
        return f"{self.state}: {self.reason}"


def judge(
    unit: UnitFacts, ledger: Ledger, last: Record | None, slot: Slot, *, trouble: str = ""
) -> Judgement:
    """The public state of an engine.

    Args:
        unit: What systemd says.
        ledger: What the helpers remember of its ends of life; a hold counts while it is down.
        last: Its last end of life.
        slot: Who starts now and who waits.
        trouble: Why it does not serve although systemd calls it active; '' when it does.
    """
    match unit.active_state:
        case "active" | "reloading" | "refreshing" | "maintenance":
            if trouble:
                return Judgement(State.STALLED, trouble)
            return Judgement(State.READY, unit.status_text or "the readiness gate passed")
        case "activating":
            return _activating(unit, last, slot)
        case "deactivating":
            return _deactivating(unit, last)
    if _restarts(unit):
        return _restarting(unit, last)
    if unit.job_type in {"start", "restart"}:
        return Judgement(State.WAITING, "its start is queued behind another unit's")
    if ledger.held is not None:
        fix = f"`sparkctl restart {engine_of(unit.unit)}` releases it"
        return Judgement(State.HELD, f"{ledger.held.reason}; {fix}")
    if unit.active_state == "failed":
        return _failed(unit, last)
    return Judgement(State.STOPPED, _why_stopped(unit, last))


def engine_of(unit: str) -> str:
    """The engine's name in 'vllm-NAME.service'; any other unit's own name."""
    if unit.startswith("vllm-") and unit.endswith(".service"):
        return unit.removeprefix("vllm-").removesuffix(".service")
    return unit


def unit_of(engine: str) -> str:
    """The name of an engine's unit."""
    return f"vllm-{engine}.service"


def _restarts(unit: UnitFacts) -> bool:
    # auto-restart, auto-restart-queued; since systemd 254 also {dead,failed}-before-auto-restart
    return "auto-restart" in unit.sub_state


def _activating(unit: UnitFacts, last: Record | None, slot: Slot) -> Judgement:
    if _restarts(unit):
        return _restarting(unit, last)
    if unit.sub_state == "start-post":
        return Judgement(State.LOADING, unit.status_text or "the readiness gate asks the engine")
    if unit.sub_state != "start-pre":
        return Judgement(State.STARTING, unit.status_text or "launching the engine")
    mine = Claim(unit.unit, unit.invocation_id)
    if slot.claim == mine:
        return Judgement(State.STARTING, "has the start slot and is being launched")
    for waiter in slot.waiters:
        if (waiter.unit, waiter.invocation_id) == mine:
            return Judgement(State.WAITING, waiter.blocked or _waits_for(unit, slot))
    if slot.claim is not None:
        return Judgement(State.WAITING, _waits_for(unit, slot))
    # Only who has the slot is starting: an engine that still looks around lets others pass.
    return Judgement(State.WAITING, unit.status_text or "checks whether the start can work")


def _waits_for(unit: UnitFacts, slot: Slot) -> str:
    if slot.claim is not None:
        return f"waits for the start slot: {engine_of(slot.claim.unit)} is starting"
    return unit.status_text or "waits for its turn to start"


def _deactivating(unit: UnitFacts, last: Record | None) -> Judgement:
    if unit.job_type == "stop":
        return Judgement(State.STOPPING, "is being stopped")
    if unit.job_type == "restart":
        return Judgement(State.STOPPING, "is being stopped, to be started again")
    if last is not None and last.invocation_id == unit.invocation_id:
        return Judgement(State.RESTARTING, f"dead: {last.reason}; {last.action_reason}")
    return Judgement(State.RESTARTING, "dead: its last words are being read")


def _restarting(unit: UnitFacts, last: Record | None) -> Judgement:
    if last is not None and last.invocation_id == unit.invocation_id and not last.requested:
        return Judgement(State.RESTARTING, f"dead: {last.reason}; {last.action_reason}")
    return Judgement(State.RESTARTING, "it ended; systemd starts it again")


def _failed(unit: UnitFacts, last: Record | None) -> Judgement:
    name = engine_of(unit.unit)
    if last is not None and last.invocation_id == unit.invocation_id and last.requested:
        return Judgement(State.STOPPED, _stopped_at(last))
    if unit.result == "start-limit-hit" or unit.n_restarts:
        why = f"systemd gave up after {unit.n_restarts} automatic restarts (Result={unit.result})"
        return Judgement(State.HELD, f"{why}; `sparkctl restart {name}` starts it again")
    why = f"failed (Result={unit.result}) and systemd does not start it again"
    return Judgement(State.HELD, f"{why}; see `sparkctl logs {name}`")


def _why_stopped(unit: UnitFacts, last: Record | None) -> str:
    name = engine_of(unit.unit)
    match unit.load_state:
        case "not-found":
            return f"there is no {unit.unit}; `sparkctl apply` writes it"
        case "masked":
            return f"masked by the administrator; `systemctl unmask {unit.unit}` allows it again"
        case "bad-setting" | "error":
            return f"systemd refuses the unit file; see `systemctl status {unit.unit}`"
    if last is not None and not last.requested and last.invocation_id == unit.invocation_id:
        return f"ended: {last.reason}; systemd does not start it again"
    is_disabled = unit.unit_file_state == "disabled"
    disabled = " (disabled: it does not start at boot)" if is_disabled else ""
    if last is not None and last.requested:
        return _stopped_at(last) + disabled
    since_boot = "stopped" if unit.inactive_exit else "not started since boot"
    return f"{since_boot}; `sparkctl start {name}` starts it{disabled}"


def _stopped_at(last: Record) -> str:
    return f"stopped on request: {last.reason}" if last.reason else "stopped on request"
