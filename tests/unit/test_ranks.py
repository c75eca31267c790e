# SPDX-License-Identifier: Apache-2.0
"""Data parallelism: a rank that is stuck beside a busy one is seen, and nothing else is blamed."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from sparkd.core import hang, ranks
from sparkd.core.hang import Canary, Event, Look, Policy
from sparkd.core.progress import Counters
from sparkd.core.ranks import Ranks

EVERY = 30.0
OBSERVE = Policy()
ACT = Policy(act=True)
IDLE = Counters(10.0, 10.0, 10.0, 0.0, 0.0)
BUSY = Counters(10.0, 10.0, 10.0, 2.0, 1.0)


def flows(at: float) -> Counters:
    return BUSY._replace(iterations=at)


def idle(_at: float) -> Counters:
    return IDLE


def stuck(begin: float, end: float = 1e9, shown: Counters = BUSY) -> Callable[[float], Counters]:
    return lambda at: shown._replace(iterations=begin if begin <= at < end else at)


class Run(NamedTuple):
    state: Ranks
    events: list[tuple[float, Event]]
    asked: list[tuple[float, str]]
    ended: list[float]


def watch(
    engines: list[Callable[[float], Counters]],
    minutes: float,
    *,
    policy: Policy = OBSERVE,
    answers: Callable[[str, float], bool] = lambda _rank, _at: True,
    heeds_header: bool = True,
) -> Run:
    """As the daemon does: one canary at a time, answered at the next look or failed in time."""
    at, canary, sent = 0.0, Canary.NONE, 0.0
    extra = [0.0] * len(engines)

    def look() -> Look:
        ones = tuple(
            (str(n), one(at)._replace(generation=extra[n])) for n, one in enumerate(engines)
        )
        whole = Counters(iterations=at, running=9.0, ranks=ones)
        # The log's line and the sum move all the time: one rank is busy.
        return Look(1000.0 + at, 1e9 + at, whole, False, 0, True, 5, canary)

    state = ranks.begin(look())
    events, asked, ended = [], [], []
    while at < minutes * 60:
        at += EVERY
        if canary is Canary.OPEN:
            rank = state.asked
            if not heeds_header:
                canary = Canary.ANSWERED
                extra[0] += 1
            elif answers(rank, at):
                canary = Canary.ANSWERED
                extra[int(rank)] += 1
            elif at - sent >= policy.after:
                canary = Canary.FAILED
        state, step = ranks.step(state, look(), policy)
        if canary is not Canary.OPEN:
            canary = Canary.NONE
        if step.ask:
            asked.append((at, state.asked))
            canary, sent = Canary.OPEN, at
        if step.event is not None:
            events.append((at, step.event))
        if step.end:
            ended.append(at)
    return Run(state, events, asked, ended)


def deaf(rank: str, since: float) -> Callable[[str, float], bool]:
    return lambda asked, at: asked != rank or at < since


def test_a_stuck_rank_beside_a_busy_one_is_seen_and_asked_itself() -> None:
    run = watch([flows, stuck(600)], 60, answers=deaf("1", 600))
    [(at, event)] = run.events
    assert (event, 300 <= at - 600 <= 390) == (Event.STALLED, True)
    assert {rank for _, rank in run.asked} == {"1"}
    assert run.state.shown.reason.startswith("data-parallel rank 1: no progress for")
    assert "a request for one token was not answered" in run.state.shown.reason
    assert run.ended == []


def test_a_rank_that_froze_while_idle_is_seen_by_its_canary() -> None:
    run = watch([flows, idle], 60, answers=deaf("1", 0))
    assert [event for _, event in run.events] == [Event.STALLED]
    assert {rank for _, rank in run.asked} == {"1"}


def test_a_stuck_rank_ends_the_engine_where_acting_is_allowed() -> None:
    run = watch([stuck(600), flows], 120, policy=ACT, answers=deaf("0", 600))
    assert 2700 <= run.ended[0] - 600 <= 2800


@pytest.mark.parametrize("engines", [[flows, flows], [flows, idle], [idle, idle], [idle] * 8])
def test_ranks_that_work_or_idle_are_left_in_peace(
    engines: list[Callable[[float], Counters]],
) -> None:
    run = watch(engines, 24 * 60, policy=ACT)
    assert (run.events, run.ended) == ([], [])
    idlers = {str(n) for n, one in enumerate(engines) if one is idle}
    assert {rank for _, rank in run.asked} == idlers, "each in its turn"


def test_gauges_stuck_after_a_client_left_convict_no_rank() -> None:
    run = watch([flows, lambda _at: BUSY], 24 * 60, policy=ACT)
    assert (run.events, run.ended) == ([], [])


def test_a_rank_that_recovers_is_told_once_and_learned_from() -> None:
    run = watch([flows, stuck(600, 1800)], 60, answers=lambda _rank, at: not 600 <= at < 1800)
    assert [event for _, event in run.events] == [Event.STALLED, Event.RECOVERED]
    assert run.state.shown.longest > 1000
    assert run.state.shown.stalled_wall is None


def test_two_stuck_ranks_are_one_stall() -> None:
    run = watch([stuck(600), stuck(900), flows], 60, answers=lambda _rank, _at: False)
    assert [event for _, event in run.events] == [Event.STALLED]
    assert run.state.shown.reason.startswith("data-parallel rank 0: ")


def test_an_older_vllm_that_lets_any_rank_answer_ends_nothing() -> None:
    run = watch([flows, stuck(600)], 24 * 60, policy=ACT, heeds_header=False)
    assert [event for _, event in run.events] == [Event.STALLED]
    assert "does not reach the engine" in run.state.shown.reason
    assert run.ended == []


def test_one_rank_is_judged_as_an_engine() -> None:
    one = Look(0.0, 0.0, IDLE, log_requests=2, canary=Canary.NONE)
    state = ranks.begin(one)
    assert state.states == {"": hang.begin(one)}
    for number in range(1, 40):
        look = one._replace(at=number * EVERY, wall=number * EVERY)
        expected = hang.step(state.states[""], look, OBSERVE)
        state, step = ranks.step(state, look, OBSERVE)
        assert step == expected


def test_what_cannot_be_seen_is_no_progress_and_no_standstill() -> None:
    one = Look(0.0, 0.0, Counters(ranks=(("0", BUSY), ("1", BUSY))))
    state = ranks.begin(one)
    for number in range(1, 100):
        blind = Look(number * EVERY, number * EVERY, None)
        state, step = ranks.step(state, blind, ACT)
        assert (step.event, step.ask, step.end) == (None, False, False)
    assert set(state.states) == {"0", "1"}
    assert state.shown.worked == 0.0


def test_a_silent_server_stalls_every_rank_and_ranks_may_come_and_go() -> None:
    one = Look(0.0, 0.0, Counters(ranks=(("0", IDLE), ("1", IDLE))))
    state = ranks.begin(one)
    events = []
    for number in range(1, 20):
        state, step = ranks.step(
            state, Look(number * EVERY, number * EVERY, None, silent=True), OBSERVE
        )
        events += [step.event] if step.event else []
    assert events == [Event.STALLED]
    grown = Counters(ranks=(("0", flows(1)), ("1", flows(2)), ("2", IDLE)))
    state, step = ranks.step(state, Look(600.0, 600.0, grown), OBSERVE)
    assert step.event is Event.RECOVERED
    state, _ = ranks.step(state, Look(630.0, 630.0, IDLE), OBSERVE)
    assert set(state.states) == {""}
