# SPDX-License-Identifier: Apache-2.0
"""What stands in the way of a start, and whether time can remove it."""

import pytest

from sparkd.core import admission, preflight
from sparkd.core.preflight import GIB, Facts

CLEAR = Facts(
    executable="/opt/vllm/bin/vllm",
    executable_usable=True,
    model="/models/m",
    model_usable=True,
    user="vllm",
    port=8000,
    utilization=0.25,
    memory_total=120 * GIB,
    memory_available=30 * GIB,
)


def test_nothing_in_the_way():
    assert preflight.obstacle(CLEAR) is None


@pytest.mark.parametrize(
    ("change", "cls", "permanent", "names"),
    [
        ({"executable_usable": None}, "no-such-user", True, "'vllm'"),
        ({"executable_usable": False}, "executable-unusable", True, "/opt/vllm/bin/vllm"),
        ({"model_usable": False}, "model-missing", True, "/models/m"),
        ({"home": "/var/c", "home_writable": False}, "cache-unwritable", True, "/var/c"),
        ({"port_holders": ("nc (PID 7)",)}, "port-in-use", False, "8000 is still held by nc (PID"),
        ({"memory_available": 30 * GIB - 1}, "memory-not-available", False, "needs 30.0 GiB"),
        (
            {"memory_available": 0, "memory_holders": ("VLLM::EngineCore (PID 9) 29.0 GiB",)},
            "memory-not-available",
            False,
            "held by VLLM::EngineCore (PID 9) 29.0 GiB",
        ),
    ],
)
def test_each_obstacle(change, cls, permanent, names):
    seen = preflight.obstacle(CLEAR._replace(**change))
    assert (seen.cls, seen.permanent) == (cls, permanent)
    assert names in seen.reason


def test_a_peak_that_leaves_no_reserve_is_waited_for_and_one_that_never_fits_is_not():
    wanted = admission.Need(25 * GIB, 25 * GIB, "estimated: a test")
    fits = CLEAR._replace(need=wanted, reserve=5 * GIB)
    assert preflight.obstacle(fits) is None
    short = fits._replace(reserve=6 * GIB, memory_holders=("hog (PID 7) 60.0 GiB",))
    seen = preflight.obstacle(short)
    assert (seen.cls, seen.permanent) == ("memory-not-available", False)
    assert "keeps 25.0 GiB (estimated: a test), and there is room for 24.0 GiB" in seen.reason
    assert seen.reason.endswith("held by hog (PID 7) 60.0 GiB")
    never = preflight.obstacle(fits._replace(reserve=100 * GIB))
    assert (never.cls, never.permanent) == ("memory-never-enough", True)


GUESS = admission.Need(25 * GIB, 25 * GIB, "estimated: a test")
LEARNED = admission.learned(119 * GIB, GUESS, "the most that 1 earlier warm start took")


def test_a_learned_peak_is_waited_for_and_may_be_passed_by():
    busy = CLEAR._replace(need=LEARNED, floor=7 * GIB, memory_available=90 * GIB)
    seen = preflight.obstacle(busy)
    assert (seen.permanent, seen.passable) == (False, True)
    assert "takes at its peak 119.0 GiB (the most that 1 earlier warm start took)" in seen.reason
    assert preflight.is_short(busy), "who holds the memory is worth to be known"


def test_what_the_estimate_lacks_is_no_matter_of_the_learned_peak():
    tight = CLEAR._replace(need=LEARNED, reserve=6 * GIB, floor=6 * GIB)
    seen = preflight.obstacle(tight)
    assert (seen.cls, seen.passable) == ("memory-not-available", False)
    assert "keeps 25.0 GiB (estimated: a test)" in seen.reason
    busy_port = CLEAR._replace(need=LEARNED, port_holders=("nc",))
    assert preflight.obstacle(busy_port).cls == "port-in-use"


def obstacle(*, passable):
    return preflight.Obstacle("x", "y", permanent=False, passable=passable)


def test_an_obstacle_that_went_away_is_waited_for_anew():
    port = obstacle(passable=False)
    patience = preflight.Patience(300.0).seeing(port, 10.0)
    assert not patience.seeing(port, 310.0).is_over(port, 310.0)
    assert patience.seeing(port, 311.0).is_over(port, 311.0)
    later = patience.seeing(None, 200.0).seeing(port, 290.0).seeing(port, 400.0)
    assert (later.lasted(port, 400.0), later.is_over(port, 400.0)) == (110.0, False)


def test_the_learned_peak_has_a_clock_of_its_own_that_is_never_set_back():
    peak, memory = obstacle(passable=True), obstacle(passable=False)
    patience = preflight.Patience(300.0).seeing(memory, 0.0).seeing(peak, 250.0)
    assert not patience.seeing(peak, 550.0).is_over(peak, 550.0)
    patience = patience.seeing(None, 400.0).seeing(peak, 551.0)
    assert patience.is_over(peak, 551.0)
    patience = patience.seeing(memory, 552.0)
    assert not patience.is_over(memory, 552.0), "what is short now has not been waited for yet"


def test_what_cannot_heal_comes_before_what_can():
    """Waiting five minutes for a port only to find no executable wastes five minutes."""
    everything = CLEAR._replace(
        executable_usable=False, port_holders=("nc",), memory_available=0, model_usable=False
    )
    assert preflight.obstacle(everything).cls == "executable-unusable"
    assert preflight.obstacle(everything._replace(executable_usable=True)).cls == "model-missing"
    healing = CLEAR._replace(port_holders=("nc",), memory_available=0)
    assert preflight.obstacle(healing).cls == "port-in-use"


def test_the_message_stays_short():
    seen = preflight.obstacle(CLEAR._replace(port_holders=tuple(f"p{n}" for n in range(99))))
    assert "p2" in seen.reason
    assert "p3" not in seen.reason
