# SPDX-License-Identifier: Apache-2.0
"""Whatever the history, the window bounds, and whatever the file holds, it can be read."""

import json

from hypothesis import given
from hypothesis import strategies as st

from sparkd.core import burst
from sparkd.core.burst import Begun, Death, HeldBy, Hold, Ledger, Moment, Policy

times = st.floats(0, 1e9)
moments = st.builds(Moment, st.sampled_from(["boot-a", "boot-b"]), times, times)
deaths = st.builds(Death, st.text(max_size=8), moments, st.text(max_size=8))
holds = st.builds(Hold, st.sampled_from(HeldBy), st.text(max_size=8), st.text(max_size=8), times)
ledgers = st.builds(
    Ledger,
    st.lists(deaths, max_size=9).map(tuple),
    st.none() | holds,
    st.integers(0, 30),
    st.none() | moments,
    st.none() | st.builds(Begun, st.text(max_size=8), moments),
)
policies = st.builds(Policy, st.integers(1, 20), st.floats(1, 1e6))
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["deaths", "held", "invocation_id", "class", "boot_id", "boottime", "wall", "by",
             "reason", "since", "version", "streak", "ready_at", "begun"]
        ),
        inner,
        max_size=8,
    ),
    max_leaves=25,
)  # fmt: skip


@given(st.lists(st.floats(0, 5000), min_size=1, max_size=40), policies)
def test_never_more_starts_in_any_window_than_the_burst(gaps, policy):
    """Between two holds no window of the length `window` holds `burst` deaths."""
    ledger, now, alive = Ledger(), 0.0, []
    served_long = Moment("b", -burst.PROVEN_S, 0)
    for number, gap in enumerate(gaps):
        now += gap
        died = Death(str(number), Moment("b", now, 0), "c")
        ledger = ledger._replace(ready_at=served_long)
        outcome = burst.after_death(ledger, died, policy, was_ready=True)
        alive.append(now)
        recent = [time for time in alive if now - time < policy.window]
        assert outcome.hold == (len(recent) >= policy.burst)
        assert (outcome.ledger.held is not None) == outcome.hold
        ledger = outcome.ledger
        if outcome.hold:  # somebody releases it
            ledger, alive = Ledger(), []


lives = st.tuples(st.floats(0, 1e6), st.floats(0, burst.PROVEN_S - 1))


@given(st.lists(lives, min_size=20, max_size=30), policies)
def test_an_engine_that_never_serves_is_held_at_the_burst_th_end_at_the_latest(lives, policy):
    """Whatever each attempt takes, and whether or not it was ready for a moment."""
    ledger, now = Ledger(), 0.0
    for number, (load, served) in enumerate(lives, start=1):
        now += load
        ledger = burst.before_start(ledger, Moment("b", now, now))
        if served:
            ledger = burst.after_ready(ledger, Moment("b", now, now))
        now += served
        died = Death(str(number), Moment("b", now, now), "c")
        outcome = burst.after_death(ledger, died, policy, was_ready=bool(served))
        ledger = outcome.ledger
        assert outcome.hold == (number >= policy.burst)
        if outcome.hold:
            break


@given(ledgers, moments, policies)
def test_the_budget_agrees_with_what_the_next_death_does(ledger, now, policy):
    used = burst.budget(ledger, now, policy).used
    known = {death.invocation_id for death in ledger.deaths}
    fresh = next(name for name in map(str, range(100)) if name not in known)
    outcome = burst.after_death(ledger._replace(held=None), Death(fresh, now, "c"), policy)
    assert outcome.hold == (used + 1 >= policy.burst)
    assert outcome.reason


@given(ledgers, deaths, policies)
def test_entering_a_death_twice_is_entering_it_once(ledger, death, policy):
    once = burst.after_death(ledger, death, policy)
    twice = burst.after_death(once.ledger, death, policy)
    assert twice.ledger.deaths == once.ledger.deaths
    assert twice.hold == once.hold


@given(ledgers, deaths, policies)
def test_a_hold_is_never_lost_by_a_death(ledger, death, policy):
    outcome = burst.after_death(ledger, death, policy)
    assert outcome.hold == (outcome.ledger.held is not None)
    assert outcome.hold or ledger.held is None


@given(ledgers, moments, policies, st.floats(0, 1e7))
def test_waiting_never_uses_more(ledger, now, policy, wait):
    later = Moment(now.boot_id, now.boottime + wait, now.wall + wait)
    before, after = burst.budget(ledger, now, policy), burst.budget(ledger, later, policy)
    assert after.used <= before.used
    assert after.frees_in is None or 0 < after.frees_in <= policy.window


@given(ledgers)
def test_json_round_trip(ledger):
    assert burst.from_json(json.loads(json.dumps(burst.to_json(ledger)))) == ledger


@given(any_json)
def test_any_json_is_a_ledger_or_a_value_error(value):
    try:
        ledger = burst.from_json(value)
    except ValueError:
        assert not isinstance(value, dict)
        return
    policy = Policy(3, 3600.0)
    now = Moment("b", 1.0, 1.0)
    assert burst.budget(ledger, now, policy).used <= max(len(ledger.deaths), ledger.streak)
    assert burst.from_json(json.loads(json.dumps(burst.to_json(ledger), allow_nan=False))) == ledger
