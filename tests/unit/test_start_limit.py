# SPDX-License-Identifier: Apache-2.0
"""systemd's limit must never trip before sparkd's own: tried against an adversary's histories."""

import random

import pytest

from sparkd.core.start_limit import STOP_TIMEOUT_SECONDS, StartLimit, backstop


def test_defaults() -> None:
    # ceil((4 h + 191 s) / 1 h) = 5 windows, 2 restarts in each; 1 start by boot, 10 by hand.
    assert backstop(burst=3, window_seconds=3600, delay_seconds=5) == StartLimit(14400, 21)


def test_burst_one_never_restarts_by_itself() -> None:
    assert backstop(burst=1, window_seconds=3600, delay_seconds=5).burst == 11


def trips(limit: StartLimit, starts: list[float]) -> bool:
    """Tell whether more than `burst` starts fall into any interval, a stricter rule than systemd's.

    systemd's interval begins with a start and is fixed; a sliding one contains every such.
    """
    first = 0
    for last, start in enumerate(starts):
        while starts[first] <= start - limit.interval_seconds:
            first += 1
        if last - first + 1 > limit.burst:
            return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_no_history_that_sparkd_permits_trips_it(seed: int) -> None:
    dice = random.Random(seed)
    burst = dice.randint(1, 8)
    window = dice.choice([10, 60, 600, 3600, 86_400])
    delay = dice.randint(1, min(600, window - 1))
    limit = backstop(burst, window, delay)
    longest_lag = 3 * STOP_TIMEOUT_SECONDS + delay * 1.1 + 5

    starts, deaths = [0.0], []
    for _ in range(2000):
        # The worst an engine can do: die as early as the window lets it be restarted.
        earliest = starts[-1] + 0.001
        if burst > 1 and len(deaths) >= burst - 1:
            earliest = max(earliest, deaths[-(burst - 1)] + window + 0.001)
        if burst == 1:
            break
        death = earliest + (dice.random() * window if dice.random() < 0.1 else 0)
        deaths.append(death)
        # Lags that bunch starts together: long before, short after.
        lag = longest_lag if dice.random() < 0.5 else delay
        starts.append(max(starts[-1] + 0.001, death + lag))
    assert not trips(limit, starts)


def test_it_does_trip_when_nobody_counts() -> None:
    """Without the helpers, a unit that fails at once is stopped within a few minutes."""
    limit = backstop(burst=3, window_seconds=3600, delay_seconds=5)
    starts = [index * 5.2 for index in range(60)]
    assert trips(limit, starts)
    assert limit.burst * 5.2 < 180


def test_slow_loops_trip_it_too() -> None:
    """The loop that took a box down every six minutes is bounded by the backstop as well."""
    limit = backstop(burst=3, window_seconds=3600, delay_seconds=5)
    assert trips(limit, [index * 365.0 for index in range(60)])
