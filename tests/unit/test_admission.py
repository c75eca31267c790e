# SPDX-License-Identifier: Apache-2.0
"""What a start will take: learned, estimated, refused with the arithmetic."""

import json

import pytest

from sparkd.core import admission
from sparkd.core.admission import GIB, Estimate, Kind, Memory, Need, Room

PRINT = {"vllm": "0.27.1", "torch": "2.9.0", "cuda": "13.0", admission.LAUNCH: "sha256:1"}
CACHES = ("/var/cache/vllm/m/.cache/flashinfer",)
SPARK = Estimate(utilization=0.45, total=120 * GIB, weights=20 * GIB, compilers=16 * GIB)
SMALL = SPARK._replace(utilization=0.1)


def learned(*peaks: int, kind: Kind = Kind.WARM) -> Memory:
    memory = Memory()
    for peak in peaks:
        memory = admission.learn(memory, PRINT, kind, peak * GIB, CACHES)
    return memory


def test_the_first_start_is_cold():
    seen = admission.outlook(Memory(), PRINT, CACHES)
    assert seen.kind is Kind.COLD
    assert "no start" in seen.reason


def test_the_same_again_is_warm():
    assert admission.outlook(learned(50), PRINT, CACHES) == (Kind.WARM, "")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("vllm", "0.28.0", "vllm 0.27.1 to 0.28.0"),
        ("cuda", "", "cuda 13.0 to none"),
        ("driver", "580.95", "driver none to 580.95"),
        (admission.LAUNCH, "sha256:2", "its flags or environment"),
    ],
)
def test_each_component_makes_the_next_start_cold(name, value, says):
    seen = admission.outlook(learned(50), {**PRINT, name: value}, CACHES)
    assert seen.kind is Kind.COLD
    assert says in seen.reason
    assert "sha256" not in seen.reason


def test_a_lost_cache_makes_the_next_start_cold_and_a_new_one_does_not():
    assert admission.outlook(learned(50), PRINT, ()).reason == f"the cache {CACHES[0]} is gone"
    assert admission.outlook(learned(50), PRINT, (*CACHES, "/more")).kind is Kind.WARM


def test_going_back_to_known_versions_is_warm():
    other = {**PRINT, "vllm": "0.28.0"}
    memory = admission.learn(learned(50), other, Kind.COLD, 70 * GIB, CACHES)
    assert admission.outlook(memory, PRINT, CACHES).kind is Kind.WARM
    assert admission.need(memory, PRINT, Kind.WARM, SMALL).peak == 50 * GIB


def test_the_largest_of_the_last_starts_counts_and_old_ones_are_forgotten():
    assert admission.need(learned(60, 50, 55), PRINT, Kind.WARM, SMALL).peak == 60 * GIB
    later = learned(90, *[50] * admission.STARTS_KEPT)
    assert admission.need(later, PRINT, Kind.WARM, SMALL).peak == 50 * GIB


def test_kinds_are_learned_apart():
    memory = learned(74, kind=Kind.COLD)
    assert admission.need(memory, PRINT, Kind.COLD, SPARK).peak == 74 * GIB
    assert "estimated" in admission.need(memory, PRINT, Kind.WARM, SPARK).origin


def test_what_vllm_claims_is_the_estimate_where_it_is_the_most():
    seen = admission.estimated(Kind.COLD, SPARK)
    assert seen.peak == seen.lasting == int(0.45 * 120 * GIB)
    assert "0.45 of 120.0 GiB" in seen.origin


def test_compilers_count_beside_weights_in_the_peak_of_a_cold_start():
    small = SPARK._replace(utilization=0.25)
    cold, warm = (admission.estimated(kind, small) for kind in (Kind.COLD, Kind.WARM))
    assert cold.peak == 36 * GIB
    assert "20.0 GiB of weights and 16.0 GiB for compilers" in cold.origin
    assert cold.lasting == warm.lasting == warm.peak == 30 * GIB


def test_what_is_learned_is_the_peak_and_not_what_lasts():
    seen = admission.need(learned(80), PRINT, Kind.WARM, SPARK)
    assert (seen.peak, seen.lasting) == (80 * GIB, int(0.45 * 120 * GIB))
    low = admission.need(learned(1), PRINT, Kind.WARM, SPARK)
    assert low.peak == low.lasting, "a neighbour that went away meanwhile makes no start smaller"


def test_what_a_start_keeps_leaves_the_reserve_to_the_byte():
    wanted = Need(50 * GIB, 50 * GIB, "x")
    room = Room(120 * GIB, 70 * GIB, 20 * GIB, 7 * GIB)
    assert admission.refusal(wanted, room) is None
    sentence, never = admission.refusal(wanted, room._replace(available=70 * GIB - 1))
    assert not never
    assert "keeps 50.0 GiB (x)" in sentence
    assert "20.0 GiB must be left (host.reserve)" in sentence


def test_its_peak_may_enter_the_reserve_but_not_the_floor():
    """Two engines that just fill the plan: the second must be able to start again."""
    wanted = Need(63 * GIB, 50 * GIB, "x")
    room = Room(120 * GIB, 70 * GIB, 20 * GIB, 7 * GIB)
    assert admission.refusal(wanted, room) is None
    sentence, never = admission.refusal(wanted._replace(peak=63 * GIB + 1), room)
    assert not never
    assert "takes at its peak 63.0 GiB" in sentence
    assert "memory.floor" in sentence


@pytest.mark.parametrize(
    ("wanted", "key"),
    [(Need(101 * GIB, 101 * GIB, "x"), "host.reserve"), (Need(114 * GIB, 1, "x"), "memory.floor")],
)
def test_what_never_fits_says_so_with_the_arithmetic(wanted, key):
    room = Room(120 * GIB, 120 * GIB, 20 * GIB, 7 * GIB)
    sentence, never = admission.refusal(wanted, room)
    assert never
    assert key in sentence
    assert "120.0 GiB" in sentence


def test_a_learned_peak_never_refuses_but_is_what_is_waited_for():
    """The neighbours' part in it grows on a busy machine until it is the whole of it."""
    room = Room(120 * GIB, 119 * GIB, 20 * GIB, 7 * GIB)
    wanted = admission.need(learned(118), PRINT, Kind.WARM, SPARK)
    sentence, never = admission.refusal(wanted, room)
    assert not never
    assert "takes at its peak 118.0 GiB (the most that 1 earlier warm start took)" in sentence
    assert admission.refusal(wanted.firm, room) is None
    assert admission.on_the_estimate(wanted) == (
        "its learned peak of 118.0 GiB (the most that 1 earlier warm start took) does not fit;"
        " going ahead on the estimate: 54.0 GiB (0.45 of 120.0 GiB, which vLLM claims)"
    )


def test_what_is_estimated_is_refused_whatever_was_learned():
    large = SPARK._replace(utilization=0.9)
    room = Room(120 * GIB, 119 * GIB, 20 * GIB, 7 * GIB)
    for peaks in ((), (50,), (119,)):
        sentence, never = admission.refusal(
            admission.need(learned(*peaks), PRINT, Kind.WARM, large), room
        )
        assert never
        assert "keeps 108.0 GiB (estimated: 0.9 of" in sentence


def test_a_learned_peak_below_the_estimate_counts_instead_of_it():
    """The compilers were fewer than was feared: then nothing is waited for in their name."""
    small = SPARK._replace(utilization=0.1)
    seen = admission.need(learned(25, kind=Kind.COLD), PRINT, Kind.COLD, small)
    assert (seen.peak, seen.firm.peak) == (25 * GIB, 25 * GIB)
    assert admission.estimated(Kind.COLD, small).peak == 36 * GIB


def test_a_peak_of_more_than_the_machine_is_one_of_the_machine():
    seen = admission.need(learned(4000), PRINT, Kind.WARM, SPARK)
    assert seen.peak == SPARK.total


def test_the_file_comes_back():
    memory = admission.learn(learned(50, 60), {**PRINT, "vllm": "1"}, Kind.COLD, 7, ())
    assert admission.from_json(json.loads(json.dumps(admission.to_json(memory)))) == memory


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"starts": 3},
        {"starts": [None, {}, {"fingerprint": [], "caches": []}]},
    ],
)
def test_a_damaged_file_counts_as_empty(value):
    assert admission.from_json(value) == Memory()


def test_absurd_peaks_are_left_out():
    row = {
        "fingerprint": PRINT, "caches": [], "cold_peak_bytes": [float("nan"), -1, "x", 5],
        "warm_peak_bytes": [float("inf")],
    }  # fmt: skip
    (known,) = admission.from_json({"starts": [row]}).known
    assert (known.cold, known.warm) == ((5,), ())


def test_only_so_many_fingerprints_are_kept():
    memory = Memory()
    for number in range(10):
        memory = admission.learn(memory, {"vllm": str(number)}, Kind.COLD, 1, ())
    assert [k.fingerprint["vllm"] for k in memory.known] == ["6", "7", "8", "9"]


@pytest.mark.parametrize(("text", "size"), [("16%", 160), ("0", 0), ("12345", 12345)])
def test_sizes_of_the_units_options(text, size):
    assert admission.size_of(text, 1000) == size
