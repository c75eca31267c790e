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
