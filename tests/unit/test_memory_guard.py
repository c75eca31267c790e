# SPDX-License-Identifier: Apache-2.0
"""The memory guard's ladder: never on one sample, one step at a time, mildest first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.core import memory_guard
from sparkd.core.memory_guard import Life, Mode, Policy, Sample, State, Step, decide

GIB = 1 << 30
POLICY = Policy(Mode.PROTECT, 8 * GIB)
ACT = POLICY._replace(mode=Mode.ACT)
LIVES = [
    Life("vllm-a.service", "a", "1", 10, starting=False),
    Life("vllm-b.service", "b", "2", 20, starting=False),
    Life("vllm-c.service", "c", "3", 5, starting=True),
]


def play(samples, policy=POLICY, lives=LIVES, every=0.2, refused=()):
    """Feed available GiB; returns the steps with the sample's index and the victim's name."""
    state, steps = State(), []
    for index, gib in enumerate(samples):
        sample = Sample(index * every, int(gib * GIB), driver_refused=index in refused)
        decision = decide(state, sample, lives, policy)
        state = decision.state
        if decision.step:
            steps.append((index, decision.step, decision.victim and decision.victim.name))
            assert "GiB available" in decision.reason
    return steps


def names(steps):
    return [step for _, step, _ in steps]


def _first_end(steps):
    return next(index for index, step, _ in steps if step is Step.END_STARTING)


def test_a_dip_is_nothing():
    assert play([20] * 10 + [1, 1] + [20] * 10) == []


def test_few_samples_are_not_enough_however_long_they_took():
    assert play([1, 1], every=60.0) == []


def test_the_ladder():
    steps = play([4] * 400)
    assert names(steps)[:4] == [
        Step.THROTTLE, Step.HOLD_STARTS, Step.END_STARTING, Step.NOTHING_LEFT,
    ]  # fmt: skip
    assert steps[2][2] == "c"
    assert steps[0][0] * 0.2 >= memory_guard.PRESSED_S
    times = [index * 0.2 for index, *_ in steps]
    assert times[1] - times[0] >= memory_guard.PAUSE_S - 0.01
    assert times[3] - times[2] >= memory_guard.PAUSE_AFTER_END_S - 0.01


def test_what_serves_goes_only_in_act_and_the_least_important_first():
    victims = [victim for *_, victim in play([4] * 600, ACT) if victim]
    assert victims == ["c", "b", "a"]
    assert Step.END_SERVING not in names(play([4] * 600))


def test_a_guest_goes_before_any_engine():
    guest = Life("vllm-guest-1.scope", "guest-1", "9", 0, starting=True, guest=True)
    victims = [victim for *_, victim in play([4] * 400, lives=[*LIVES, guest]) if victim]
    assert victims == ["guest-1", "c"]


def test_it_is_over_only_after_a_while_above_the_floor():
    short, between, calm = [4] * 30, [9] * 200, [11] * 100
    assert Step.RELAX not in names(play(short + between))
    steps = play(short + between + calm)
    assert names(steps)[-1] is Step.RELAX
    assert steps[-1][0] * 0.2 >= 230 * 0.2 + memory_guard.CALM_S - 0.01


def test_the_drivers_word_alone_ends_nothing():
    steps = play([60] * 600, ACT, refused={5})
    assert names(steps) == [Step.THROTTLE, Step.HOLD_STARTS, Step.RELAX]
    assert [index for index, *_ in steps[:2]] == [5, 6]
    assert steps[2][0] * 0.2 >= memory_guard.ALARM_S


def said_every(gap, minutes, available=60.0):
    """The driver says it each so many seconds; returns the seconds in which starts were held."""
    state, held, reasons = State(), [], []
    for second in range(int(minutes * 60)):
        sample = Sample(second, int(available * GIB), driver_refused=second % gap == 0)
        decision = decide(state, sample, (), POLICY)
        state = decision.state
        if state.holding:
            held.append(second)
        if decision.step is Step.RELAX:
            reasons.append(decision.reason)
    return held, reasons


@pytest.mark.parametrize("gap", [1, 10, 50, 120, 299])
def test_a_word_repeated_where_there_is_plenty_holds_starts_for_minutes_only(gap):
    held, reasons = said_every(gap, minutes=120)
    assert held[0] <= 2
    assert held[-1] <= memory_guard.HEARD_S + memory_guard.ALARM_S
    if gap < memory_guard.ALARM_S:
        assert len(held) > memory_guard.HEARD_S - gap, "until then it counts"
        assert "counts no longer until it is silent for 5 min" in reasons[-1]


def test_near_the_floor_a_repeated_word_always_counts():
    held, _ = said_every(50, minutes=60, available=15.9)
    assert len(held) > 60 * 60 - 10


def test_a_word_after_a_silence_is_news_again():
    held, _ = said_every(int(memory_guard.SILENCE_S), minutes=60)
    assert len(held) > 11 * 50
    assert held[-1] > 3300


def test_a_word_that_counts_no_longer_counts_when_memory_comes_near_the_floor():
    state = State()
    for second in range(1200):
        state = decide(state, Sample(second, 60 * GIB, driver_refused=True), (), POLICY).state
    assert not state.holding
    decision = decide(state, Sample(1200, 15 * GIB, driver_refused=True), (), POLICY)
    assert decision.step is Step.THROTTLE
    assert "the NVIDIA driver could not get memory" in decision.reason


def test_the_drivers_word_shortens_the_wait():
    with_word = play([60] * 5 + [4] * 40, refused={5})
    without = play([60] * 5 + [4] * 40)
    ended = [_first_end(s) for s in (with_word, without)]
    assert ended[0] < ended[1]


def test_pressure_counts_only_when_little_is_available():
    def first(available, stall):
        state = State()
        for index in range(50):
            sample = Sample(index * 0.2, available, stall=stall)
            decision = decide(state, sample, LIVES, POLICY)
            state = decision.state
            if decision.step:
                return decision.step
        return None

    assert first(60 * GIB, 80.0) is None
    assert first(12 * GIB, 80.0) is Step.THROTTLE
    assert first(12 * GIB, 5.0) is None


def test_pressure_alone_does_not_make_a_shortage_last():
    """A unit that stalls at its own limit would otherwise hold every start for as long."""

    def last_step(available, stall):
        state, last = State(), None
        for index in range(200):
            short = index < 30
            sample = Sample(index * 0.2, 4 * GIB if short else available, stall if not short else 0)
            decision = decide(state, sample, (), POLICY)
            state, last = decision.state, decision.step or last
        return last, state.holding

    assert last_step(60 * GIB, 40.0) == (Step.RELAX, False)
    assert last_step(12 * GIB, 40.0)[1]


def test_off():
    assert play([1] * 100, Policy(Mode.OFF, 8 * GIB), refused={3}) == []


@given(st.lists(st.integers(0, 30), max_size=300), st.sets(st.integers(0, 299), max_size=3))
def test_laws(samples, refused):
    steps = play(samples, ACT, refused=refused)
    held = thrown = False
    for _, step, victim in steps:
        if step in {Step.END_STARTING, Step.END_SERVING, Step.NOTHING_LEFT}:
            assert held
            assert thrown, "nothing is ended before the mild steps"
        thrown = thrown or step is Step.THROTTLE
        held = held or step is Step.HOLD_STARTS
        if step is Step.RELAX:
            held = thrown = False
        assert (victim is not None) == (step in {Step.END_STARTING, Step.END_SERVING})
    victims = [victim for *_, victim in steps if victim]
    relaxed = Step.RELAX in names(steps)
    assert relaxed or len(set(victims)) == len(victims)
