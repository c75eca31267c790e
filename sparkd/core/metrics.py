# SPDX-License-Identifier: Apache-2.0
"""What `/metrics` says, from a status and the database's counters: values in, families out.

Label values are bounded: engines are named by the configuration, classes by the signature
catalogue. An engine that is gone has no series.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from sparkd.core.guards import GuardFacts
from sparkd.core.memory_guard import Step
from sparkd.core.status import EngineStatus, Status
from sparkd.core.unit_state import State

LABEL_MAX = 200
"""Characters of a label value; a model's path is the only one that can be long."""


class Type(StrEnum):
    """The kinds of metrics that sparkd has."""

    GAUGE = "gauge"
    COUNTER = "counter"
    INFO = "info"
    """Always 1; what it says is in its labels."""


class Sample(NamedTuple):
    """One value, with its label values in the family's order."""

    labels: tuple[str, ...]
    value: float


class Family(NamedTuple):
    """A metric and its samples."""

    name: str
    """With `_total` for a counter and `_info` for an info."""
    type: Type
    help: str
    label_names: tuple[str, ...]
    samples: tuple[Sample, ...]


class Totals(NamedTuple):
    """Counters of one engine and class since the database was made."""

    engine: str
    cls: str
    deaths: int
    restarts: int


class Alerts(NamedTuple):
    """The queue of alerts."""

    totals: Mapping[tuple[str, str], int] = MappingProxyType({})
    """By kind and result."""
    queued: int = 0
    in_memory: bool = False
    """Whether the disk refuses them."""


class Snapshot(NamedTuple):
    """Everything that one scrape shows; never changed after it was published."""

    status: Status
    totals: Sequence[Totals] = ()
    projection_failed: bool = False
    """Whether the last batch of journal entries could not be written to the database."""
    dark: Mapping[str, float] = MappingProxyType({})
    """Seconds in which an engine was down although nobody had asked for it."""
    alerts: Alerts = Alerts()


def families(snapshot: Snapshot) -> list[Family]:
    """Every family, in the order in which it is shown."""
    status = snapshot.status
    return [
        Family(
            "sparkd_build_info",
            Type.INFO,
            "Version of the running sparkd.",
            ("version",),
            (Sample((status.facts.version,), 1.0),),
        ),
        *_about_sight(snapshot),
        *_about_host(status),
        *_about_guards(status.facts.host.guards),
        *_about_engines(status),
        *_about_progress(status),
        *_about_deaths(snapshot),
        *_about_alerts(snapshot.alerts),
    ]


def _about_sight(snapshot: Snapshot) -> Iterator[Family]:
    facts = snapshot.status.facts
    yield _one(
        "sparkd_systemd_visible",
        "1 while sparkd sees systemd; else the rest is old.",
        not facts.blind,
    )
    yield _one(
        "sparkd_last_sample_time_seconds", "When systemd was last seen, Unix time.", facts.seen_at
    )
    yield _one(
        "sparkd_config_errors", "Errors in the configuration on disk.", len(facts.config_errors)
    )
    yield _one(
        "sparkd_database_failing",
        "1 while incidents cannot be written to the database.",
        snapshot.projection_failed,
    )


def _about_host(status: Status) -> Iterator[Family]:
    host = status.facts.host
    yield _one(
        "sparkd_start_slot_waiting", "Engines that wait for the start slot.", len(status.waiting)
    )
    yield _one("sparkd_host_memory_total_bytes", "MemTotal.", host.memory_total)
    yield _one("sparkd_host_memory_available_bytes", "MemAvailable.", host.memory_available)
    if host.pressure_full_avg10 is not None:
        yield _one(
            "sparkd_host_memory_pressure_full_ratio",
            "Share of the last 10 s in which every task waited for memory.",
            host.pressure_full_avg10 / 100,
        )
    yield _one("sparkd_host_compilers", "Running compiler processes.", host.compilers)
    yield _one("sparkd_host_compilers_resident_bytes", "Their resident memory.", host.compilers_rss)
    yield _one(
        "sparkd_orphan_processes",
        "Processes of vLLM and compilers whose parent is gone and that no unit holds.",
        host.orphans,
    )


def _about_guards(facts: GuardFacts | None) -> Iterator[Family]:
    if facts is None:
        return
    by_state = {"running": facts.running, "frozen": facts.frozen, "paused": facts.paused}
    yield _gauge(
        "sparkd_compiler_processes",
        "Compilers: running, frozen by sparkd until it is their turn, or paused by somebody else.",
        ("state",),
        [Sample((state,), float(number)) for state, number in by_state.items()],
    )
    yield Family(
        "sparkd_compilers_frozen_total",
        Type.COUNTER,
        "How often a compiler was frozen.",
        (),
        (Sample((), float(facts.freezes)),),
    )
    yield _one("sparkd_starts_held", "1 while the memory guard holds starts.", facts.holding)
    taken = dict(facts.steps)
    yield Family(
        "sparkd_memory_guard_steps_total",
        Type.COUNTER,
        "Steps of the memory guard.",
        ("step",),
        tuple(Sample((step.value,), float(taken.get(step.value, 0))) for step in Step),
    )


def _about_engines(status: Status) -> Iterator[Family]:
    engines = status.engines
    yield Family(
        "sparkd_engine_info",
        Type.INFO,
        "One per engine.",
        ("engine", "unit", "port", "model"),
        tuple(_info(engine) for engine in engines),
    )
    yield _gauge(
        "sparkd_engine_state",
        "1 for the state that the engine is in.",
        ("engine", "state"),
        [
            Sample((engine.name, state), float(engine.state is state))
            for engine in engines
            for state in State
        ],
    )
    yield _per_engine(
        "sparkd_engine_ready",
        "1 while the engine serves.",
        [(e, float(e.state is State.READY)) for e in engines],
    )
    yield _per_engine(
        "sparkd_engine_config_current",
        "1 while it runs what is configured.",
        [(e, float(e.config.state == "current")) for e in engines],
    )
    yield _per_engine(
        "sparkd_engine_state_since_seconds",
        "When its unit last changed, Unix time.",
        [
            (e, e.facts.unit.state_change)
            for e in engines
            if e.facts.unit is not None and e.facts.unit.state_change
        ],
    )
    yield _per_engine(
        "sparkd_engine_restarts_remaining",
        "Unrequested ends of life left before the engine is held.",
        [(e, float(max(0, e.budget.limit - e.budget.used))) for e in engines],
    )
    yield _per_engine(
        "sparkd_engine_start_duration_seconds",
        "How long the last successful start took, from launch to ready.",
        [(e, e.facts.boot.seconds) for e in engines if e.facts.boot is not None],
    )


def _about_progress(status: Status) -> Iterator[Family]:
    watched = [(e, e.facts.progress) for e in status.engines]
    seen = [(engine, shown) for engine, shown in watched if shown is not None]
    yield _per_engine(
        "sparkd_engine_last_progress_time_seconds",
        "When tokens were last seen to flow, or the engine first to serve, Unix time.",
        [(engine, shown.last_progress) for engine, shown in seen if shown.last_progress],
    )
    yield _counted(
        "sparkd_engine_stalled_seconds_total",
        "Time without progress although there was work, as far as it was seen.",
        [(engine, shown.stalled_seconds) for engine, shown in seen],
    )
    yield _counted(
        "sparkd_engine_log_lines_dropped_total",
        "Log lines of a serving engine that were passed over because there were too many.",
        [(engine, float(shown.lines_dropped)) for engine, shown in seen],
    )


def _info(engine: EngineStatus) -> Sample:
    facts = engine.facts
    unit = f"vllm-{facts.name}.service" if facts.unit is None else facts.unit.unit
    port = "" if facts.port is None else str(facts.port)
    return Sample((facts.name, unit, port, (facts.model or "")[:LABEL_MAX]), 1.0)


def _about_deaths(snapshot: Snapshot) -> Iterator[Family]:
    engines = snapshot.status.engines
    names = [engine.name for engine in engines]
    totals = [total for total in snapshot.totals if total.engine in names]
    # A counter that appears with 1 has not increased: rate() and increase() miss that death. So
    # each class that was ever seen here is there for every engine, and the sum is always there.
    seen = sorted({total.cls for total in snapshot.totals})
    deaths = {(name, cls): 0 for name in names for cls in seen}
    deaths |= {(total.engine, total.cls): total.deaths for total in totals}
    yield Family(
        "sparkd_engine_deaths_total",
        Type.COUNTER,
        "Unrequested ends of life by class; a class shows once it was seen on this host.",
        ("engine", "class"),
        tuple(
            Sample((name, cls[:LABEL_MAX]), float(count)) for (name, cls), count in deaths.items()
        ),
    )
    failures, restarts = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for total in totals:
        failures[total.engine] += total.deaths
        restarts[total.engine] += total.restarts
    yield _counted(
        "sparkd_engine_failures_total",
        "Unrequested ends of life of any class; there from 0 on, so alert on its increase().",
        [(engine, float(failures[engine.name])) for engine in engines],
    )
    yield _counted(
        "sparkd_engine_restarts_total",
        "Ends of life after which systemd was let start the engine again.",
        [(engine, float(restarts[engine.name])) for engine in engines],
    )
    yield _counted(
        "sparkd_engine_unavailable_seconds_total",
        "Time from ends of life that nobody asked for until ready again or stopped on request.",
        [(engine, round(snapshot.dark.get(engine.name, 0.0), 3)) for engine in engines],
    )


def _about_alerts(queue: Alerts) -> Iterator[Family]:
    yield Family(
        "sparkd_alerts_total",
        Type.COUNTER,
        "Alerts by what became of them: sent and refused count once for each destination.",
        ("kind", "result"),
        tuple(Sample(key, float(count)) for key, count in sorted(queue.totals.items())),
    )
    yield _one("sparkd_alerts_queued", "Alerts that wait for a destination.", queue.queued)
    yield _one(
        "sparkd_alerts_in_memory",
        "1 while the disk refuses the queue of alerts, and a reboot would lose them.",
        queue.in_memory,
    )


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: list[Sample]) -> Family:
    return Family(name, Type.GAUGE, text, labels, tuple(samples))


def _one(name: str, text: str, value: float) -> Family:
    return _gauge(name, text, (), [Sample((), float(value))])


def _counted(name: str, text: str, values: list[tuple[EngineStatus, float]]) -> Family:
    samples = tuple(Sample((engine.name,), value) for engine, value in values)
    return Family(name, Type.COUNTER, text, ("engine",), samples)


def _per_engine(name: str, text: str, values: list[tuple[EngineStatus, float]]) -> Family:
    return _gauge(name, text, ("engine",), [Sample((e.name,), value) for e, value in values])
