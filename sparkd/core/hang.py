# SPDX-License-Identifier: Apache-2.0
"""Does a serving engine make progress, and what follows when it does not?

A hung vLLM answers /health with 200 and its gauges stand still, often at 0. What tells is that
nothing moves although there is work: the gauges' or the log's requests, or a request of our own of
one token (the canary). Stalls of up to 28 minutes that end by themselves have been reported, so
observing is the rule, and acting comes late and never on what could not be seen.

Only time that was watched counts: a suspended machine, a daemon that was away or a probe that
failed for our own reasons adds nothing.
"""

from enum import StrEnum
from typing import NamedTuple

from sparkd.core.burst import seconds_text
from sparkd.core.progress import Counters, moved

GAP_S = 120.0
"""Between two looks; after more (suspend, clock jump) the next look only begins anew."""
EXCUSE_MAX_S = 3600.0
"""A compiler that still runs after so long is no longer why the engine stands."""
LEARNED_FROM_S = 20.0
"""Shorter silences teach nothing."""
LEARNED_FACTOR = 1.5
LEARNED_MAX_S = 7200.0
"""One very long stall must not switch acting off for ever."""


class Policy(NamedTuple):
    """`[hang]` of an engine; seconds."""

    act: bool = False
    after: float = 300.0
    """Without progress although there is work: stalled."""
    act_after: float = 2700.0
    """At least so long until the unit is ended, where acting is allowed."""
    canary: float = 600.0
    """An engine that did nothing for so long is asked for one token; 0 for never."""


class Canary(StrEnum):
    """What became of the last request for one token."""

    NONE = "none"
    OPEN = "open"
    ANSWERED = "answered"
    FAILED = "failed"
    """No answer in time, or the server says that its engine is dead (503)."""
    INCONCLUSIVE = "inconclusive"
    """Refused before it reached the engine: an API key, no such task; or it could not be sent."""


class Look(NamedTuple):
    """One look at an engine."""

    at: float
    """CLOCK_BOOTTIME, seconds."""
    wall: float
    """Seconds since the epoch, for people."""
    counters: Counters | None = None
    """None: not seen."""
    silent: bool = False
    """The engine's server does not answer at all: accepted and silent, or nobody listens."""
    compilers: int = 0
    """Compilers in the unit's control group: they run inside a step that looks like a hang."""
    log_moved: bool = False
    """A statistics line since the last look says that tokens flowed."""
    log_requests: int = 0
    """Requests in the last statistics line."""
    canary: Canary = Canary.NONE


class Progress(NamedTuple):
    """What is remembered of one invocation; seconds, and wall times in seconds since the epoch."""

    looked_at: float
    moved_wall: float
    counters: Counters | None = None
    still: float = 0.0
    """Watched time without progress."""
    worked: float = 0.0
    """The part of it in which there was work."""
    excused: float = 0.0
    excuse: str = ""
    asked_at: float = 0.0
    """`still` when the last canary was sent, 0 if none was since the engine last moved."""
    canary: Canary = Canary.NONE
    stalled_wall: float | None = None
    """Since when it counts as stalled."""
    stalled_seconds: float = 0.0
    """Time in that state, over the whole invocation."""
    longest: float = 0.0
    """The longest stall that ended by itself, over the engine's history."""
    reason: str = ""


class Shown(NamedTuple):
    """What is shown of one engine, over its invocations since the daemon came up."""

    last_progress: float
    """Seconds since the epoch; when nothing moved yet, when it was first seen to serve."""
    stalled_since: float | None = None
    """Seconds since the epoch."""
    trouble: str = ""
    """Why it does not count as serving although its process lives; '' when it does."""
    stalled_seconds: float = 0.0
    longest_stall: float = 0.0
    """Seconds of the longest stall that ended by itself; 0 for none."""
    lines_dropped: int = 0
    """Log lines passed over because there were too many."""
    excuse: str = ""
    """Why standing still is no stall now."""


def to_json(shown: Shown) -> dict[str, object]:
    """The shape of an engine's `progress` in `sparkctl status --json`."""
    return {
        "last_progress": round(shown.last_progress, 3),
        "stalled_since": shown.stalled_since,
        "stalled_seconds_total": round(shown.stalled_seconds, 1),
        "longest_recovered_stall_seconds": round(shown.longest_stall, 1),
        "log_lines_dropped": shown.lines_dropped,
        "excuse": shown.excuse or None,
    }


class Event(StrEnum):
    """What a look brought about."""

    STALLED = "stalled"
    RECOVERED = "recovered"


class Step(NamedTuple):
    """The state after a look, and what is to be done."""

    state: Progress
    event: Event | None = None
    ask: bool = False
    """Send a canary."""
    end: bool = False
    """Save evidence, then end the unit's main process."""
    lasted: float = 0.0
    """With RECOVERED: how long nothing had moved."""


def begin(look: Look, *, longest: float = 0.0) -> Progress:
    """The state when an engine has become ready or is first seen."""
    return Progress(look.at, look.wall, look.counters, longest=longest)


def act_bound(policy: Policy, longest: float) -> float:
    """Seconds of a stall before the unit may be ended."""
    return max(policy.act_after, policy.after, min(LEARNED_FACTOR * longest, LEARNED_MAX_S))


def step(state: Progress, look: Look, policy: Policy) -> Step:
    """Take one look into account."""
    elapsed = look.at - state.looked_at
    is_fresh = not 0 <= elapsed <= GAP_S
    elapsed = 0.0 if is_fresh else elapsed
    state = _seen(state, look)
    if _progressed(state, look):
        return _moved(state, look)
    if look.counters is not None:
        state = state._replace(counters=look.counters)
        if look.counters.asleep:
            return _asleep(state, look)
    excuse = _excuse(look)
    if excuse and state.excused + elapsed <= EXCUSE_MAX_S:
        excused = state.excused + elapsed
        return Step(state._replace(excused=excused, excuse=excuse, stalled_wall=None, reason=""))
    if look.counters is None and not look.silent:
        return Step(state)  # unknown is not still
    has_work = _has_work(state, look)
    state = state._replace(
        excuse="",
        still=state.still + elapsed,
        worked=state.worked + (elapsed if has_work else 0.0),
        stalled_seconds=state.stalled_seconds
        + (elapsed if state.stalled_wall is not None else 0.0),
    )
    if is_fresh:
        return Step(state)
    return _judge(state, look, policy, has_work=has_work)


def _seen(state: Progress, look: Look) -> Progress:
    """What became of a canary stands until something moves or another one ends."""
    ended = state.canary in {Canary.FAILED, Canary.INCONCLUSIVE}
    stands = ended and look.canary in {Canary.NONE, Canary.OPEN}
    return state._replace(looked_at=look.at, canary=state.canary if stands else look.canary)


def _progressed(state: Progress, look: Look) -> bool:
    if look.log_moved or look.canary is Canary.ANSWERED:
        return True
    before, after = state.counters, look.counters
    return before is not None and after is not None and moved(before, after)


def _moved(state: Progress, look: Look) -> Step:
    longest = state.longest
    if state.worked >= LEARNED_FROM_S:
        longest = max(longest, state.worked)
    fresh = Progress(
        look.at,
        look.wall,
        look.counters or state.counters,
        longest=longest,
        stalled_seconds=state.stalled_seconds,
    )
    if state.stalled_wall is None:
        return Step(fresh)
    return Step(fresh, Event.RECOVERED, lasted=state.worked)


def _asleep(state: Progress, look: Look) -> Step:
    """Somebody put it to sleep: it is not expected to do anything until it is woken."""
    return Step(
        Progress(
            look.at,
            state.moved_wall,
            look.counters,
            excuse="asleep",
            stalled_seconds=state.stalled_seconds,
            longest=state.longest,
        )
    )


def _excuse(look: Look) -> str:
    if look.compilers:
        return f"{look.compilers} compilers run in its unit"
    return ""


def _has_work(state: Progress, look: Look) -> bool:
    hinted = look.log_requests > 0 or (look.counters is not None and look.counters.work > 0)
    asked = look.canary is Canary.OPEN or state.canary is Canary.FAILED
    return hinted or asked or look.silent


def _judge(state: Progress, look: Look, policy: Policy, *, has_work: bool) -> Step:
    ask = _canary_is_due(state, look, policy, has_work=has_work)
    if ask:
        state = state._replace(asked_at=state.still)
    # The gauges of an idle engine may be stuck at the last request that a client gave up: where the
    # engine can be asked itself, its silence has to confirm them.
    is_confirmed = look.silent or state.canary is not Canary.NONE or not policy.canary
    if state.worked < policy.after or not is_confirmed:
        return Step(state, ask=ask)
    reason = _reason(state, look, policy)
    if state.stalled_wall is None:
        stalled = state._replace(stalled_wall=look.wall, reason=reason)
        return Step(stalled, Event.STALLED, ask=ask)
    return Step(state._replace(reason=reason), ask=ask, end=_may_end(state, policy))


def _canary_is_due(state: Progress, look: Look, policy: Policy, *, has_work: bool) -> bool:
    if not policy.canary or look.canary is Canary.OPEN or look.silent:
        return False
    if not state.asked_at:
        return state.still >= (min(policy.after / 2, policy.canary) if has_work else policy.canary)
    # Again and again: an engine that came back has nothing else to show it when nobody asks.
    pause = min(policy.canary, policy.after) if state.canary is Canary.FAILED else policy.canary
    return state.still - state.asked_at >= pause


def _may_end(state: Progress, policy: Policy) -> bool:
    if not policy.act or state.worked < act_bound(policy, state.longest):
        return False
    return state.canary is Canary.FAILED or not policy.canary


def _reason(state: Progress, look: Look, policy: Policy) -> str:
    parts = [f"no progress for {seconds_text(state.worked)} although there is work"]
    if look.silent:
        parts.append("its server does not answer")
    elif state.canary is Canary.FAILED:
        parts.append("a request for one token was not answered")
    elif state.canary is Canary.OPEN:
        parts.append("a request for one token is not answered yet")
    elif state.canary is Canary.INCONCLUSIVE and policy.canary:
        parts.append("a request for one token does not reach the engine")
    requests = max(look.log_requests, 0 if look.counters is None else look.counters.work)
    if requests:
        parts.append(f"{requests} requests are open")
    if state.longest:
        parts.append(f"the longest stall that ended by itself was {seconds_text(state.longest)}")
    parts.append(_next(state, policy))
    return "; ".join(parts)


def _next(state: Progress, policy: Policy) -> str:
    if not policy.act:
        return "hang.mode is observe, so it is left alone"
    bound = act_bound(policy, state.longest)
    if state.canary is Canary.INCONCLUSIVE and policy.canary:
        return "it is not ended, because what the engine does cannot be seen"
    return f"it is ended after {seconds_text(bound)}"
