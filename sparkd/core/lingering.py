# SPDX-License-Identifier: Apache-2.0
"""Dead inside, alive outside: the log says that the engine died, and its process does not end.

vLLM's server ends itself within 5 s of its engine's death, unless VLLM_KEEP_ALIVE_ON_ENGINE_DEATH
keeps it, or its shutdown waits for a worker that is stuck in the driver. systemd sees a healthy
process then, and `Restart=` never acts.

A line alone never ends a process: a prompt may quote it, a version may word it differently. The
engine's server has to fail as well, several times over some seconds.
"""

from enum import StrEnum
from typing import NamedTuple

from sparkd.core.burst import seconds_text

GRACE_S = 15.0
"""From the fatal line on; the process ends by itself within about 5."""
FAILURES = 3
"""Probes in a row that must fail,"""
FAILING_S = 5.0
"""over at least so long."""
REST_S = 60.0
"""Between probes of an engine that answers all the same."""


class Health(StrEnum):
    """What /health said."""

    HEALTHY = "healthy"
    FAILING = "failing"
    """503, refused, or accepted and not answered in time."""
    UNKNOWN = "unknown"
    """The question could not be asked."""


class Suspicion(NamedTuple):
    """What is remembered between looks; CLOCK_BOOTTIME, seconds."""

    since: float
    """When the fatal line was first known."""
    failures: int = 0
    first_failure: float = 0.0
    asked_at: float = 0.0
    is_healthy: bool = False


class Decision(NamedTuple):
    """The state after a look, and what is to be done."""

    state: Suspicion | None
    ask: bool = False
    end: bool = False
    reason: str = ""
    """Why the engine does not count as serving; '' when it does."""


def look(state: Suspicion | None, now: float, fatal: str) -> Decision:
    """What to do now.

    Args:
        state: As the last look or answer left it.
        now: CLOCK_BOOTTIME, seconds.
        fatal: What the log says that the engine died of; '' when it does not.
    """
    if not fatal:
        return Decision(None)
    if state is None:
        return Decision(Suspicion(now))
    failing_for = now - state.first_failure
    if state.failures >= FAILURES and failing_for >= FAILING_S and now - state.since >= GRACE_S:
        return Decision(state, end=True, reason=_reason(state, now, fatal))
    pause = REST_S if state.is_healthy else FAILING_S / 2
    ask = now - state.asked_at >= pause
    if ask:
        state = state._replace(asked_at=now)
    reason = _reason(state, now, fatal) if state.failures else ""
    return Decision(state, ask=ask, reason=reason)


def answered(state: Suspicion, now: float, health: Health) -> Suspicion:
    """Take an answer of /health into account; what could not be asked changes nothing."""
    match health:
        case Health.HEALTHY:
            return state._replace(failures=0, first_failure=0.0, is_healthy=True)
        case Health.FAILING:
            first = state.first_failure if state.failures else now
            return state._replace(
                failures=state.failures + 1, first_failure=first, is_healthy=False
            )
        case Health.UNKNOWN:
            return state


def _reason(state: Suspicion, now: float, fatal: str) -> str:
    return (
        f"{fatal}, but its process has not ended for {seconds_text(now - state.since)}"
        f" and its server failed {state.failures} probes in a row"
    )
