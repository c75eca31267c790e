# SPDX-License-Identifier: Apache-2.0
"""What `sparkctl status` and `/metrics` show: pure, from facts that an adapter gathered.

`to_json` is a contract for scripts: keys may be added, none is renamed or removed. Times are
seconds since the epoch, durations seconds, sizes bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparkd.core import burst, config_state, end_of_life, guards, hang, slot, unit_state
from sparkd.core.config_state import ConfigFacts, ConfigJudgement
from sparkd.core.end_of_life import Record
from sparkd.core.guards import GuardFacts
from sparkd.core.unit_state import Judgement, State, UnitFacts, engine_of

ID_LENGTH = 8
"""Digits of an incident's short id: the beginning of its invocation."""
STATUS_LINE_MAX = 200
"""Characters of the one line that `systemctl status sparkd` shows."""


class Boot(NamedTuple):
    """What the readiness gate saw of the last start that became ready; None is "not seen"."""

    engine: str
    invocation_id: str
    time: float
    seconds: float
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    vllm_version: str | None = None
    kind: str | None = None
    """'cold' when it had to compile what a warm start finds."""
    kind_reason: str | None = None
    memory_peak: int | None = None
    """Bytes by which available memory fell at most during the start."""


class HostFacts(NamedTuple):
    """The machine. On GB10 `/proc/meminfo` holds the only memory figures to trust."""

    memory_total: int
    memory_available: int
    pressure_full_avg10: float | None
    """Percent of time in which every task waited for memory; None without PSI."""
    compilers: int
    compilers_rss: int
    guards: GuardFacts | None = None
    """None where no daemon guards."""
    orphans: int = 0
    """Processes of vLLM and compilers whose parent is gone and that no unit holds."""


class EngineFacts(NamedTuple):
    """Everything known of one engine."""

    name: str
    unit: UnitFacts | None
    """As last seen; None when systemd has never been seen by this observer."""
    ledger: burst.Ledger
    config: ConfigFacts
    port: int | None = None
    model: str | None = None
    last: Record | None = None
    boot: Boot | None = None
    progress: hang.Shown | None = None
    """Only the daemon watches it."""


class GuestFacts(NamedTuple):
    """An engine that somebody launched by hand with `sparkctl run`, or that waits to be."""

    unit: str
    state: str
    """'waiting', 'starting' or 'ready'."""
    invocation_id: str = ""
    pid: int = 0
    user: str = ""
    command: str = ""
    port: int = 0
    """0: not known."""
    peak: int = 0
    """Bytes that it was admitted for; 0 while it waits."""
    since: float = 0.0
    """Seconds since the epoch; 0 while it waits."""
    reason: str = ""
    """What it waits for."""


class Facts(NamedTuple):
    """Everything known of the host at one moment."""

    version: str
    daemon: str
    """'running' when the daemon observed this, 'absent' when sparkctl did."""
    now: burst.Moment
    host: HostFacts
    engines: Sequence[EngineFacts]
    policy: burst.Policy
    claim: slot.Claim | None = None
    claim_phase: slot.Phase | None = None
    waiters: Sequence[slot.Waiter] = ()
    guests: Sequence[GuestFacts] = ()
    blind: str = ""
    """Why systemd cannot be seen now; '' when it can."""
    seen_at: float = 0.0
    """Seconds since the epoch of the last complete look at systemd."""
    config_errors: Sequence[str] = ()
    notes: Sequence[str] = ()
    """What else an operator should know, a sentence each."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One engine, judged."""

    facts: EngineFacts
    judgement: Judgement
    config: ConfigJudgement
    budget: burst.Budget

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.facts.name

    @property
    def state(self) -> State:
        """Its public state."""
        return self.judgement.state


@dataclass(frozen=True, slots=True)
class Status:
    """The host and its engines, judged."""

    facts: Facts
    engines: tuple[EngineStatus, ...]
    holder: str | None
    waiting: tuple[str, ...]

    def engine(self, name: str) -> EngineStatus | None:
        """The engine of that name."""
        return next((engine for engine in self.engines if engine.name == name), None)


def build(facts: Facts) -> Status:
    """Judge every engine."""
    counts = slot.claim_counts(facts.claim, facts.claim_phase)
    claim = facts.claim if counts else None
    waiters = tuple(sorted(_alive(facts), key=slot.precedence))
    seen = unit_state.Slot(claim, waiters)
    engines = tuple(_engine_status(facts, engine, seen) for engine in facts.engines)
    holder = None if claim is None else engine_of(claim.unit)
    # Who waits for the slot, then who waits for its job: systemd orders engines by After= first.
    queued = [engine.name for engine in engines if engine.state is State.WAITING]
    waiting = tuple(dict.fromkeys([*(engine_of(waiter.unit) for waiter in waiters), *queued]))
    return Status(facts, engines, holder, waiting)


def _alive(facts: Facts) -> list[slot.Waiter]:
    """The waiters who are still in ExecStartPre=; one whose unit cannot be seen counts."""
    units = {engine.unit.unit: engine.unit for engine in facts.engines if engine.unit}
    found = []
    for waiter in facts.waiters:
        unit = None if facts.blind else units.get(waiter.unit)
        phase = None if unit is None else slot.Phase(unit.invocation_id, unit.sub_state)
        if slot.waiter_counts(waiter, phase):
            found.append(waiter)
    return found


def _engine_status(facts: Facts, engine: EngineFacts, seen: unit_state.Slot) -> EngineStatus:
    config = config_state.judge(engine.config, engine.name)
    budget = burst.budget(engine.ledger, facts.now, facts.policy)
    return EngineStatus(engine, _judgement(facts, engine, seen), config, budget)


def _judgement(facts: Facts, engine: EngineFacts, seen: unit_state.Slot) -> Judgement:
    if engine.unit is None:
        # Nothing was ever seen: the only state that claims nothing about a running process.
        blind = facts.blind or "it has not answered yet"
        return Judgement(State.STOPPED, f"unknown, cannot see systemd: {blind}")
    trouble = "" if engine.progress is None else engine.progress.trouble
    known = unit_state.judge(engine.unit, engine.ledger, engine.last, seen, trouble=trouble)
    if not facts.blind:
        return known
    age = burst.seconds_text(max(0.0, facts.now.wall - facts.seen_at))
    reason = f"cannot see systemd: {facts.blind}; {age} ago it was {known.state}: {known.reason}"
    return Judgement(known.state, reason)


def status_line(status: Status) -> str:
    """The daemon's STATUS=: '2/3 ready, 1 held (q38: …)'."""
    ready = sum(engine.state is State.READY for engine in status.engines)
    parts = [f"{ready}/{len(status.engines)} ready"] if status.engines else ["no engines"]
    shown = [s for s in State if s not in {State.READY, State.STOPPED}]
    for state in (State.HELD, *(s for s in shown if s is not State.HELD)):
        names = [engine.name for engine in status.engines if engine.state is state]
        if not names:
            continue
        detail = ", ".join(names)
        if state is State.HELD:
            first = status.engine(names[0])
            detail += f": {first.judgement.reason}" if first else ""
        parts.append(f"{len(names)} {state} ({detail})")
    line = ", ".join(parts)
    if status.facts.blind:
        line = f"blind ({status.facts.blind}); last seen: {line}"
    elif status.facts.config_errors:
        line += f"; {len(status.facts.config_errors)} configuration errors"
    line = " ".join(line.split())
    return line if len(line) <= STATUS_LINE_MAX else line[: STATUS_LINE_MAX - 1] + "…"


def to_json(status: Status) -> dict[str, object]:
    """The contract of `sparkctl status --json`."""
    facts = status.facts
    return {
        "version": facts.version,
        "daemon": facts.daemon,
        "time": round(facts.now.wall, 3),
        "stale": bool(facts.blind),
        "stale_reason": facts.blind or None,
        "stale_seconds": round(max(0.0, facts.now.wall - facts.seen_at), 1) if facts.blind else 0,
        "host": {
            "memory_total_bytes": facts.host.memory_total,
            "memory_available_bytes": facts.host.memory_available,
            "pressure_memory_full_avg10": facts.host.pressure_full_avg10,
            "compilers": {"count": facts.host.compilers, "rss_bytes": facts.host.compilers_rss},
            "orphans": facts.host.orphans,
            "guards": None if facts.host.guards is None else guards.to_json(facts.host.guards),
        },
        "slot": {"holder": status.holder, "waiting": list(status.waiting)},
        "engines": [_engine_json(facts, engine) for engine in status.engines],
        "guests": [_guest_json(guest) for guest in facts.guests],
        "config_errors": list(facts.config_errors),
        "notes": [*facts.notes, *_guard_notes(facts.host)],
    }


def _engine_json(facts: Facts, engine: EngineStatus) -> dict[str, object]:
    known = engine.facts
    unit = known.unit or UnitFacts(unit_state.unit_of(known.name))
    frees_in = engine.budget.frees_in
    return {
        "name": known.name,
        "unit": unit.unit,
        "port": known.port,
        "model": known.model,
        "state": engine.state,
        "reason": engine.judgement.reason,
        "since": unit.state_change or None,
        "pid": unit.main_pid or None,
        "invocation_id": unit.invocation_id or None,
        "ready": engine.state is State.READY,
        "config": engine.config.state,
        "config_reason": engine.config.reason or None,
        "restarts": {
            "used": engine.budget.used,
            "limit": engine.budget.limit,
            "window_seconds": engine.budget.window,
            "frees_at": None if frees_in is None else round(facts.now.wall + frees_in, 3),
            "in_a_row": known.ledger.streak,
        },
        "last_death": None if known.last is None else death_json(known.last),
        "boot": None if known.boot is None else _boot_json(known.boot),
        "progress": None if known.progress is None else hang.to_json(known.progress),
        "enabled": unit.unit_file_state or None,
        "drop_ins": list(unit.drop_ins),
    }


def _guest_json(guest: GuestFacts) -> dict[str, object]:
    return {
        "unit": guest.unit,
        "state": guest.state,
        "invocation_id": guest.invocation_id or None,
        "pid": guest.pid or None,
        "user": guest.user or None,
        "command": guest.command or None,
        "port": guest.port or None,
        "memory_bytes": guest.peak or None,
        "since": guest.since or None,
        "reason": guest.reason or None,
    }


def _guard_notes(host: HostFacts) -> Sequence[str]:
    notes = [] if host.guards is None else list(guards.notes(host.guards))
    if host.orphans:
        what = "process" if host.orphans == 1 else "processes"
        notes.append(
            f"{host.orphans} {what} of vLLM left behind without a unit: see `sparkctl orphans`"
        )
    return notes


_DEATH_KEYS = (
    "time", "class", "signature", "exit_code", "signal", "result", "requested", "evidence",
    "reason", "hint", "action", "action_reason", "was_ready",
)  # fmt: skip


def death_json(record: Record) -> dict[str, object]:
    """The shape of `last_death`."""
    value = end_of_life.to_json(record)
    return {key: value[key] for key in _DEATH_KEYS}


def incident_json(record: Record, dark_seconds: float | None) -> dict[str, object]:
    """One element of `sparkctl incidents --json`: a death, whose, and how long it was dark.

    `id` is what `sparkctl incident` takes; it is made of the invocation, so it never changes.
    """
    whose = {
        "id": record.invocation_id[:ID_LENGTH],
        "engine": record.engine,
        "unit": record.unit,
        "invocation_id": record.invocation_id,
    }
    return {**death_json(record), **whose, "dark_seconds": dark_seconds}


def detail_json(
    record: Record,
    dark_seconds: float | None,
    *,
    number: int | None,
    boot: Mapping[str, object] | None,
    next_boot: Boot | None,
    earlier: int,
    last_earlier: float | None,
) -> dict[str, object]:
    """What `sparkctl incident --json` shows of the database; the journal's part comes on top."""
    return {
        **incident_json(record, dark_seconds),
        "number": number,
        "boot": None if boot is None else dict(boot),
        "next_ready": None if next_boot is None else _boot_json(next_boot),
        "same_class_before": {"count": earlier, "last": last_earlier},
    }


def _boot_json(boot: Boot) -> dict[str, object]:
    return {
        "seconds": boot.seconds,
        "kv_cache_tokens": boot.kv_cache_tokens,
        "max_concurrency": boot.max_concurrency,
        "vllm_version": boot.vllm_version,
        "kind": boot.kind,
        "kind_reason": boot.kind_reason,
        "memory_peak_bytes": boot.memory_peak,
        "time": boot.time,
        "invocation_id": boot.invocation_id,
    }


def boot_from_json(value: Mapping[str, object]) -> Boot | None:
    """The boot facts in a READY entry's record; None when they are not recognisable."""
    match value:
        case {
            "engine": str(engine),
            "invocation_id": str(invocation),
            "time": int() | float() as time,
            "seconds": int() | float() as seconds,
        }:
            tokens, version = value.get("kv_cache_tokens"), value.get("vllm_version")
            concurrency, peak = value.get("max_concurrency"), value.get("memory_peak_bytes")
            kind, reason = value.get("kind"), value.get("kind_reason")
            return Boot(
                engine,
                invocation,
                float(time),
                float(seconds),
                tokens if isinstance(tokens, int) else None,
                float(concurrency) if isinstance(concurrency, int | float) else None,
                version if isinstance(version, str) else None,
                kind if isinstance(kind, str) else None,
                reason if isinstance(reason, str) else None,
                peak if isinstance(peak, int) else None,
            )
    return None
