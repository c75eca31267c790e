# SPDX-License-Identifier: Apache-2.0
"""What to do when the machine runs out of memory, before the kernel or a frozen host decides.

On GB10 the last is the likelier: CUDA's unified allocations belong to no control group, the
driver's failed allocation is followed by a host that does not answer, and no OOM kill comes
(reported for several of these machines). So the guard looks at MemAvailable, which counts
everything, and at the kernel's pressure figures, and acts while there is still something left.

The steps, mildest first: let one compiler run at a time; hold starts that wait; end what is
starting, the least important first; and only where the operator said so, end what serves. One step
at a time, then a pause in which its effect can show. No step follows from a single sample.

The driver's NV_ERR_NO_MEMORY also appears in starts that go well. So it ends nothing by itself; it
takes the two mild steps at once, for a minute, and shortens the wait for the next. Said again and
again where there is plenty, as by a driver that fails at something else than the host's memory, it
would hold every start for good: after some minutes of that it counts no longer, until it has been
quiet, or memory comes near the floor after all.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

GIB = 1024**3

PRESSED_S = 2.0
SAMPLES_MIN = 3
"""Memory must have been short for so long, and seen so often."""
ALARMED_S = 1.0
"""And only for so long when the driver has failed an allocation just before."""
CALM_S = 10.0
CALM_SHARE = 1.25
"""Over is what stays above the floor by a quarter for so long."""
STALL = 10.0
STALL_OVER = 5.0
"""Percent of ten seconds in which every task waited for memory (PSI, full avg10)."""
ALARM_S = 60.0
"""How long after the driver's failed allocation starts are held."""
HEARD_S = 300.0
"""For how long the driver's repeated word counts while there is plenty of memory: more than the
minute or so in which the KV cache and the graphs of one start are allocated."""
SILENCE_S = 300.0
"""A word of the driver after so long without one is news again. More than ALARM_S, so that one that
comes back each minute or two cannot hold all starts most of the time."""
PAUSE_S = 2.0
PAUSE_AFTER_END_S = 20.0
"""Unified memory comes back seconds after its process is gone."""


class Mode(StrEnum):
    """How far the guard may go."""

    OFF = "off"
    OBSERVE = "observe"
    PROTECT = "protect"
    ACT = "act"


class Step(StrEnum):
    """What the guard does."""

    THROTTLE = "throttle-compilers"
    HOLD_STARTS = "hold-starts"
    END_STARTING = "end-starting"
    END_SERVING = "end-serving"
    NOTHING_LEFT = "nothing-left"
    RELAX = "relax"


class Sample(NamedTuple):
    """The machine at one moment."""

    now: float
    """Seconds on CLOCK_MONOTONIC."""
    available: int
    """MemAvailable in bytes."""
    stall: float = 0.0
    """PSI full avg10 of the host, percent; 0 where the kernel has no PSI."""
    driver_refused: bool = False
    """The kernel logged NV_ERR_NO_MEMORY since the last sample."""


class Life(NamedTuple):
    """An engine or guest that could be ended."""

    unit: str
    name: str
    invocation_id: str
    order: int
    """As configured: the higher, the less important."""
    starting: bool
    guest: bool = False
    """Started by hand through sparkctl: less important than any engine."""


class Policy(NamedTuple):
    """What is configured."""

    mode: Mode
    floor: int
    """Bytes that must stay available."""


class State(NamedTuple):
    """What is remembered between two samples."""

    short_since: float | None = None
    short_samples: int = 0
    calm_since: float | None = None
    alarm_until: float = 0.0
    refused_since: float | None = None
    """The first of the driver's repeated words since which there was plenty of memory; kept from
    one spell of shortage to the next."""
    refused_at: float = float("-inf")
    """The last of them, whether it counted or not."""
    acted_at: float = float("-inf")
    pause: float = 0.0
    throttled: bool = False
    holding: bool = False
    exhausted: bool = False
    """It was said that nothing is left to do."""
    ended: frozenset[str] = frozenset()
    """Invocations that this spell of shortage has ended, or would have."""

    @property
    def quiet(self) -> bool:
        """Whether nothing is going on."""
        return self.short_since is None and not self.throttled and not self.holding


class Decision(NamedTuple):
    """At most one step, its victim, and the sentence with the figures."""

    state: State
    step: Step | None = None
    victim: Life | None = None
    reason: str = ""


def decide(state: State, sample: Sample, lives: Sequence[Life], policy: Policy) -> Decision:
    """Say what to do now."""
    if policy.mode is Mode.OFF:
        return Decision(State())
    state = _remember(state, sample, policy)
    figures = _figures(sample, policy)
    if _is_over(state, sample):
        relaxed = State(refused_since=state.refused_since, refused_at=state.refused_at)
        if state.throttled or state.holding:
            return Decision(relaxed, Step.RELAX, reason=_why_relaxed(state, sample, figures))
        return Decision(relaxed)
    alarmed = sample.now < state.alarm_until
    if alarmed:
        figures += "; the NVIDIA driver could not get memory"
    if not _may_act(state, sample, alarmed=alarmed):
        return Decision(state)
    step, victim = _next_step(state, lives, policy, short=_is_short_for_good(state, sample))
    if step is None:
        return Decision(state)
    return Decision(_after(state, step, victim, sample), step, victim, _why(step, victim, figures))


def _remember(state: State, sample: Sample, policy: Policy) -> State:
    short = _is_short(sample, policy)
    calm = _is_calm(sample, policy)
    state = _hear_driver(state, sample, policy)
    if short and state.short_since is None:
        state = state._replace(short_since=sample.now, short_samples=0)
    if short:
        state = state._replace(short_samples=state.short_samples + 1, calm_since=None)
    elif not calm:
        # Between the two thresholds a shortage neither begins nor ends; its samples start anew.
        state = state._replace(short_samples=0, calm_since=None)
        if not state.throttled and not state.holding:
            state = state._replace(short_since=None)
    elif state.calm_since is None:
        state = state._replace(short_samples=0, short_since=None, calm_since=sample.now)
    return state


def _hear_driver(state: State, sample: Sample, policy: Policy) -> State:
    """Raise the alarm at the driver's word, unless it only repeats it where there is plenty."""
    if sample.available < 2 * policy.floor or not _is_repeated(state, sample):
        state = state._replace(refused_since=None)
    if not sample.driver_refused:
        return state
    if state.refused_since is None:
        state = state._replace(refused_since=sample.now)
    state = state._replace(refused_at=sample.now)
    if _is_unheard(state, sample):
        return state
    return state._replace(alarm_until=sample.now + ALARM_S)


def _is_repeated(state: State, sample: Sample) -> bool:
    return sample.now - state.refused_at < SILENCE_S


def _is_unheard(state: State, sample: Sample) -> bool:
    return state.refused_since is not None and sample.now - state.refused_since >= HEARD_S


def _is_short(sample: Sample, policy: Policy) -> bool:
    """Little is available; or rather little, and everybody waits for it.

    Pressure alone proves nothing about the host: one unit at its own limit stalls as well.
    """
    if sample.available < policy.floor:
        return True
    return sample.stall >= STALL and sample.available < 2 * policy.floor


def _is_calm(sample: Sample, policy: Policy) -> bool:
    """More than enough is available, and where it is rather little, nobody waits for it.

    Above twice the floor pressure cannot begin a shortage, so it cannot make one last either: a
    unit that stalls at its own limit for days would hold every start of the host for as long.
    """
    if sample.available >= 2 * policy.floor:
        return True
    return sample.available >= CALM_SHARE * policy.floor and sample.stall < STALL_OVER


def _is_over(state: State, sample: Sample) -> bool:
    calm = state.calm_since is not None and sample.now - state.calm_since >= CALM_S
    return calm and sample.now >= state.alarm_until


def _is_short_for_good(state: State, sample: Sample) -> bool:
    if state.short_since is None or state.short_samples < SAMPLES_MIN:
        return False
    needed = ALARMED_S if sample.now < state.alarm_until else PRESSED_S
    return sample.now - state.short_since >= needed


def _may_act(state: State, sample: Sample, *, alarmed: bool) -> bool:
    # The driver's word starts the two mild steps at once: the host may be gone in seconds.
    if alarmed and not (state.throttled and state.holding):
        return True
    return _is_short_for_good(state, sample) and sample.now - state.acted_at >= state.pause


def _next_step(
    state: State, lives: Sequence[Life], policy: Policy, *, short: bool
) -> tuple[Step | None, Life | None]:
    if not state.throttled:
        return Step.THROTTLE, None
    if not state.holding:
        return Step.HOLD_STARTS, None
    if not short:
        return None, None
    left = [life for life in lives if life.invocation_id not in state.ended]
    starting = [life for life in left if life.starting]
    if starting:
        return Step.END_STARTING, max(starting, key=_expendable)
    serving = [life for life in left if not life.starting]
    if serving and policy.mode is Mode.ACT:
        return Step.END_SERVING, max(serving, key=_expendable)
    return (None if state.exhausted else Step.NOTHING_LEFT), None


def _expendable(life: Life) -> tuple[bool, int, str]:
    return life.guest, life.order, life.name


def _after(state: State, step: Step, victim: Life | None, sample: Sample) -> State:
    state = state._replace(acted_at=sample.now, pause=PAUSE_S)
    match step:
        case Step.THROTTLE:
            return state._replace(throttled=True)
        case Step.HOLD_STARTS:
            return state._replace(holding=True)
        case Step.NOTHING_LEFT:
            return state._replace(exhausted=True)
    ended = state.ended | {victim.invocation_id} if victim is not None else state.ended
    # It must be short again, seen as often as the first time, before another one goes.
    return state._replace(
        ended=ended, pause=PAUSE_AFTER_END_S, short_since=None, short_samples=0, exhausted=False
    )


def _why(step: Step, victim: Life | None, figures: str) -> str:
    match step:
        case Step.THROTTLE:
            return f"{figures}: one compiler may run at a time"
        case Step.HOLD_STARTS:
            return f"{figures}: no start goes ahead until memory is back"
        case Step.END_STARTING | Step.END_SERVING if victim is not None:
            kind = "guest" if victim.guest else "engine"
            does = "starting" if victim.starting else "serving"
            return f"{figures}: ends the {does} {kind} {victim.name}, the least important one"
    return (
        f"{figures}: compilers are throttled, starts are held, nothing is starting that could be"
        " ended, and memory.mode does not permit to end what serves"
    )


def _why_relaxed(state: State, sample: Sample, figures: str) -> str:
    if not _is_unheard(state, sample) or sample.now - state.refused_at >= ALARM_S:
        return f"memory is back: {figures}"
    return (
        f"{figures}: the NVIDIA driver has said for {HEARD_S / 60:.0f} min that it could not get"
        f" memory while there was plenty; that counts no longer until it is silent for"
        f" {SILENCE_S / 60:.0f} min"
    )


def _figures(sample: Sample, policy: Policy) -> str:
    stall = f", all tasks stalled for memory {sample.stall:.0f} % of the last 10 s"
    return (
        f"{sample.available / GIB:.1f} GiB available, memory.floor is {policy.floor / GIB:.1f} GiB"
        + (stall if sample.stall >= 1 else "")
    )
