# SPDX-License-Identifier: Apache-2.0
"""Long histories of engines that stall, recover, compile, sleep and die, with a clock passed in."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.core import hang
from sparkd.core.hang import Canary, Look, Policy, Progress, Step
from sparkd.core.progress import Counters

MINUTE = 60.0
EVERY = 30.0
OBSERVE = Policy()
ACT = Policy(act=True)
IDLE = Counters(10.0, 10.0, 10.0, 0.0, 0.0)
BUSY = Counters(10.0, 10.0, 10.0, 2.0, 1.0)


class Engine(NamedTuple):
    """What an engine shows at a time, in seconds since it became ready."""

    counters: Callable[[float], Counters | None] = lambda _at: IDLE
    answers: Callable[[float], bool] = lambda _at: True
    silent: Callable[[float], bool] = lambda _at: False
    compilers: Callable[[float], int] = lambda _at: 0
    refuses: bool = False
    """Whether a canary is refused before it reaches the engine."""
    log_requests: int = 0


class Run(NamedTuple):
    """What came of watching."""

    state: Progress
    events: list[tuple[float, hang.Event]]
    asked: list[float]
    ended: list[float]


def watch(
    engine: Engine,
    policy: Policy,
    minutes: float,
    *,
    longest: float = 0.0,
    gaps: Callable[[float], float] = lambda _at: EVERY,
) -> Run:
    """Watch an engine for so long; a canary is answered at the next look, or fails in time."""
    at, canary, sent = 0.0, Canary.NONE, 0.0
    extra = 0.0  # tokens of answered canaries
    state = hang.begin(_look(engine, 0.0, Canary.NONE, 0.0), longest=longest)
    events, asked, ended = [], [], []
    while at < minutes * MINUTE:
        at += gaps(at)
        if canary is Canary.OPEN:
            if engine.refuses:
                canary = Canary.INCONCLUSIVE
            elif engine.answers(at):
                canary, extra = Canary.ANSWERED, extra + 1
            elif at - sent >= policy.after:
                canary = Canary.FAILED
        step: Step = hang.step(state, _look(engine, at, canary, extra), policy)
        state = step.state
        if canary is not Canary.OPEN:
            canary = Canary.NONE
        if step.ask:
            asked.append(at)
            canary, sent = Canary.OPEN, at
        if step.event is not None:
            events.append((at, step.event))
        if step.end:
            ended.append(at)
    return Run(state, events, asked, ended)


def _look(engine: Engine, at: float, canary: Canary, extra: float) -> Look:
    seen = engine.counters(at)
    if seen is not None and seen.iterations is not None:
        seen = seen._replace(iterations=seen.iterations + extra)
    return Look(
        1000.0 + at, 1e9 + at, seen, engine.silent(at), engine.compilers(at),
        False, engine.log_requests, canary,
    )  # fmt: skip


def flowing(at: float) -> Counters:
    return BUSY._replace(iterations=at)


def flat_between(begin: float, end: float, shown: Counters = BUSY) -> Callable[[float], Counters]:
    """Tokens flow, but for a time."""
    return lambda at: shown._replace(iterations=begin if begin <= at < end else at)


def within(begin: float, end: float) -> Callable[[float], bool]:
    return lambda at: not begin <= at < end


def test_an_idle_engine_is_asked_rarely_and_never_stalled() -> None:
    run = watch(Engine(), ACT, 24 * 60)
    assert run.events == []
    assert run.ended == []
    assert 24 * 5 <= len(run.asked) <= 24 * 6


def test_a_busy_engine_is_never_asked() -> None:
    """Nor does a canary that waits behind long prefills count while counters move."""
    run = watch(Engine(flowing, answers=lambda _at: False), ACT, 24 * 60)
    assert (run.events, run.asked, run.ended) == ([], [], [])


def test_a_hang_under_load_is_seen_after_five_minutes_and_left_alone() -> None:
    run = watch(Engine(flat_between(600, 1e9), answers=lambda _at: False), OBSERVE, 17 * 60)
    [(at, event)] = run.events
    assert event is hang.Event.STALLED
    assert 300 <= at - 600 <= 360
    assert run.ended == []
    assert "left alone" in run.state.reason
    assert "17 h" not in run.state.reason
    assert "3 requests are open" in run.state.reason
    assert run.state.stalled_seconds > 16 * 3600


def test_a_hang_from_idle_with_gauges_at_0_is_seen_by_the_canary() -> None:
    """The gauges of an engine that froze while idle stay at 0, for 17 hours in one report."""
    run = watch(Engine(answers=lambda at: at < 3600), OBSERVE, 17 * 60)
    [(at, event)] = run.events
    assert event is hang.Event.STALLED
    assert at - 3600 <= 600 + 300 + 2 * EVERY
    assert "a request for one token was not answered" in run.state.reason


def test_gauges_stuck_after_a_client_left_convict_nobody() -> None:
    """A request that a client gave up stays in the gauges until the next step."""
    run = watch(Engine(lambda _at: BUSY), ACT, 24 * 60)
    assert run.events == []
    assert run.asked
    blind = watch(Engine(lambda _at: BUSY, refuses=True), ACT, 600)
    assert [event for _, event in blind.events] == [hang.Event.STALLED]
    assert blind.ended == [], "never on what cannot be seen"
    assert "cannot be seen" in blind.state.reason


def test_a_refused_canary_is_no_hang_of_an_idle_engine() -> None:
    assert watch(Engine(refuses=True), ACT, 24 * 60).events == []


@pytest.mark.parametrize("minutes", [6, 16, 28])
def test_stalls_that_end_by_themselves_are_told_learned_and_never_acted_upon(minutes: int) -> None:
    begin, end = 3600.0, 3600.0 + minutes * MINUTE
    engine = Engine(flat_between(begin, end), within(begin, end))
    run = watch(engine, ACT, 180)
    assert [event for _, event in run.events] == [hang.Event.STALLED, hang.Event.RECOVERED]
    assert run.ended == []
    assert abs(run.state.longest - minutes * MINUTE) <= 2 * EVERY
    assert hang.act_bound(ACT, run.state.longest) >= run.state.longest * 1.4


def test_acting_comes_after_its_bound_and_the_learned_one() -> None:
    engine = Engine(flat_between(0, 1e9), lambda _at: False)
    assert watch(engine, ACT, 44).ended == []
    first = watch(engine, ACT, 60).ended[0]
    assert 45 * MINUTE <= first <= 47 * MINUTE
    patient = watch(engine, ACT, 120, longest=40 * MINUTE).ended[0]
    assert 60 * MINUTE <= patient <= 62 * MINUTE
    once_long = watch(engine, ACT, 240, longest=5 * 3600.0).ended[0]
    assert once_long <= hang.LEARNED_MAX_S + 120, "one long stall does not switch it off"


def test_without_a_canary_the_gauges_are_believed() -> None:
    never = Policy(act=True, canary=0.0)
    run = watch(Engine(flat_between(0, 1e9)), never, 60)
    assert run.asked == []
    assert run.ended
    assert watch(Engine(), never, 24 * 60).events == []


def test_compiling_after_ready_is_no_hang_until_it_is_absurd() -> None:
    stuck = Engine(flat_between(0, 1e9), lambda _at: False, compilers=lambda _at: 4)
    run = watch(stuck, ACT, 50)
    assert run.events == []
    assert run.state.excuse == "4 compilers run in its unit"
    late = watch(stuck, OBSERVE, 120).events[0][0]
    assert late > hang.EXCUSE_MAX_S


def test_a_sleeping_engine_is_neither_asked_nor_hung() -> None:
    asleep = IDLE._replace(asleep=True)
    run = watch(Engine(lambda at: asleep if at > 60 else IDLE, lambda _at: False), ACT, 24 * 60)
    assert (run.events, run.asked) == ([], [])
    assert run.state.excuse == "asleep"


def test_a_server_that_does_not_answer_is_not_serving() -> None:
    engine = Engine(lambda at: flowing(at) if at < 600 else None, silent=lambda at: at >= 600)
    run = watch(engine, OBSERVE, 30)
    assert [event for _, event in run.events] == [hang.Event.STALLED]
    assert "its server does not answer" in run.state.reason


def test_what_cannot_be_seen_is_not_judged() -> None:
    run = watch(Engine(lambda _at: None), ACT, 24 * 60)
    assert (run.events, run.asked, run.ended) == ([], [], [])


def test_metrics_without_counters_leave_it_to_the_canary() -> None:
    blank = Engine(lambda _at: Counters(), lambda at: at < 3600)
    run = watch(blank, OBSERVE, 120)
    assert [event for _, event in run.events] == [hang.Event.STALLED]
    assert run.events[0][0] > 3600


def test_requests_in_the_log_are_work_too() -> None:
    run = watch(Engine(refuses=True, log_requests=2), OBSERVE, 30)
    assert [event for _, event in run.events] == [hang.Event.STALLED]
    assert "2 requests are open" in run.state.reason


def test_a_night_of_suspend_convicts_nobody() -> None:
    """CLOCK_BOOTTIME jumps by hours between two looks."""
    engine = Engine(flat_between(120, 8 * 3600 + 240), lambda at: at > 8 * 3600 + 240)
    run = watch(engine, ACT, 600, gaps=lambda at: 8 * 3600.0 if at == 180 else EVERY)
    assert run.events == []
    assert run.ended == []


@pytest.mark.parametrize("jump", [-5.0, -1e9, hang.GAP_S + 1])
def test_the_look_after_a_jump_only_begins_anew(jump: float) -> None:
    state = hang.begin(Look(1000.0, 0.0, BUSY))._replace(still=1e6, worked=1e6)
    step = hang.step(state, Look(1000.0 + jump, 0.0, BUSY, canary=Canary.FAILED), ACT)
    assert (step.event, step.ask, step.end) == (None, False, False)
    assert step.state.worked == 1e6


looks = st.builds(
    Look,
    st.floats(0, 1e7),
    st.floats(0, 1e9),
    st.none()
    | st.builds(Counters, *[st.none() | st.floats(0, 9) for _ in range(5)], st.booleans()),
    st.booleans(),
    st.integers(0, 3),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(Canary),
)
policies = st.builds(
    Policy, st.booleans(), st.floats(5, 1e4), st.floats(5, 1e4), st.just(0.0) | st.floats(5, 1e4)
)


@given(st.lists(looks, min_size=1, max_size=60), policies)
def test_it_acts_only_when_allowed_after_the_bound_and_on_a_failed_canary(
    history: list[Look], policy: Policy
) -> None:
    state = hang.begin(history[0])
    for look in history[1:]:
        step = hang.step(state, look, policy)
        if step.end:
            assert policy.act
            assert step.state.worked >= hang.act_bound(policy, step.state.longest)
            assert step.state.stalled_wall is not None
            assert step.state.canary is Canary.FAILED or not policy.canary
        if step.event is hang.Event.STALLED:
            assert step.state.worked >= policy.after
            assert step.state.reason
        assert not (step.ask and look.canary is Canary.OPEN), "one canary at a time"
        assert step.state.longest >= state.longest
        assert step.state.stalled_seconds >= state.stalled_seconds
        state = step.state
