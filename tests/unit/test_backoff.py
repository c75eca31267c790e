# SPDX-License-Identifier: Apache-2.0
"""Pauses grow with deaths in quick succession and never keep the window from bounding."""

from hypothesis import given
from hypothesis import strategies as st

from sparkd.core import backoff, burst
from sparkd.core.burst import Death, Ledger, Moment, Policy

HOUR = Policy(3, 3600.0)
PATIENT = Policy(20, 86_400.0)


def moment(at: float) -> Moment:
    return Moment("b", at, at)


def ledger(*times: float) -> Ledger:
    return Ledger(tuple(Death(str(time), moment(time), "c") for time in times))


def left(known: Ledger, at: float, policy: Policy = PATIENT) -> float:
    pause = backoff.pause(known, moment(at), policy)
    return 0.0 if pause is None else pause.left


def test_the_first_retry_is_at_once_and_later_ones_wait() -> None:
    assert left(ledger(), 100) == 0
    assert left(ledger(100), 100) == 0
    assert left(ledger(90, 100), 101) == 14
    assert left(ledger(80, 90, 100), 101) == 59
    assert left(ledger(70, 80, 90, 100), 101) == 119
    assert left(ledger(60, 70, 80, 90, 100), 101) == 299
    assert left(ledger(50, 60, 70, 80, 90, 100), 101) == 299


def test_a_pause_ends() -> None:
    assert left(ledger(90, 100), 115) == 0
    assert backoff.pause(ledger(90, 100), moment(115), HOUR) is None


def test_a_pause_ends_also_when_the_clock_of_the_last_boot_was_ahead() -> None:
    ahead = [Death(str(n), Moment("a", n, 1e9), "c") for n in range(3)]
    waits = [left(Ledger(tuple(ahead)), at) for at in (10, 59, 60)]
    assert waits == [50, 1, 0]


def test_slow_failures_wait_no_longer() -> None:
    assert left(ledger(0, 1000), 1001) == 0


def test_the_reason_is_the_same_for_as_long_as_the_pause_lasts() -> None:
    pauses = [backoff.pause(ledger(90, 100), moment(at), HOUR) for at in (100, 107, 114.5)]
    assert {pause.reason for pause in pauses if pause} == {
        "pausing 15 s after the last of 2 ends of life within 15 min"
    }


@given(st.integers(1, 20), st.floats(10, 604_800), st.floats(0, 5))
def test_pauses_never_keep_a_crash_loop_from_being_held(
    limit: int, window: float, life: float
) -> None:
    """Ready for a moment each time, so that only the window bounds."""
    policy = Policy(limit, window)
    life = min(life, window / (4 * limit))
    known, now = Ledger(), 0.0
    for number in range(limit):
        pause = backoff.pause(known, moment(now), policy)
        now += (0.0 if pause is None else pause.left) + life
        known = known._replace(ready_at=moment(now - burst.PROVEN_S))
        died = Death(str(number), moment(now), "c")
        outcome = burst.after_death(known, died, policy, was_ready=True)
        known = outcome.ledger
    assert outcome.hold
