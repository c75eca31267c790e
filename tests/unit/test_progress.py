# SPDX-License-Identifier: Apache-2.0
"""vLLM's counters out of whatever /metrics holds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.core import progress
from sparkd.core.progress import Counters, Stats
from sparkd.sim.metrics import Metrics

HEAD = "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
PAGE = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="a",reason="capacity"} 9.0
vllm:prompt_tokens_total{engine="0",model_name="a"} 1.2e+06
vllm:prompt_tokens_created{engine="0",model_name="a"} 1.79e+09
vllm:generation_tokens_total{engine="0",model_name="a"} 345.0
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="a"} 7.0
vllm:iteration_tokens_total_count{engine="0",model_name="a"} 70.0
vllm:iteration_tokens_total_sum{engine="0",model_name="a"} 7000.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="a"} 5.0
python_gc_objects_collected_total{generation="0"} 1.0
"""


def test_the_few_metrics_that_count_are_found() -> None:
    seen = progress.parse(PAGE)
    assert seen == Counters(70.0, 345.0, 1.2e6, 2.0, 1.0)
    assert seen.work == 3
    assert not seen.is_blank


def test_the_simulated_engine_speaks_the_same() -> None:
    engine = Metrics('na"me')
    before = progress.parse(engine.text().encode())
    assert before == Counters(0.0, 0.0, 0.0, 0.0, 0.0)
    engine.step(prompt=3, generated=1, running=1, waiting=0, kv_usage=0.1)
    after = progress.parse(engine.text().encode())
    assert progress.moved(before, after)
    assert after.work == 1


def test_ranks_are_told_apart_and_summed_and_of_a_doubled_series_the_last_counts() -> None:
    page = (
        b'vllm:generation_tokens_total{engine="0"} 5\n'
        b'vllm:generation_tokens_total{engine="1"} 6 1790000000000\n'
        b'vllm:generation_tokens_total{engine="1"} 7\n'
    )
    ranks = (("0", Counters(generation=5.0)), ("1", Counters(generation=7.0)))
    assert progress.parse(page) == Counters(generation=12.0, ranks=ranks)


def test_one_rank_is_none_and_what_names_no_rank_is_not_split() -> None:
    assert progress.parse(PAGE).ranks == ()
    two = PAGE + PAGE.replace(b'engine="0"', b'engine="10"').replace(b"345.0", b"5.0")
    seen = progress.parse(two)
    assert [rank for rank, _ in seen.ranks] == ["0", "10"]
    assert [one.generation for _, one in seen.ranks] == [345.0, 5.0]
    assert (seen.generation, seen.running) == (350.0, 4.0)
    assert progress.parse(two + b"vllm:generation_tokens_total 1\n").ranks == ()
    many = "".join(f'vllm:generation_tokens_total{{engine="{n}"}} 1\n' for n in range(5000))
    assert progress.parse(many.encode()) == Counters(generation=5000.0)


def test_the_sleep_of_one_rank_is_its_own() -> None:
    page = b"".join(
        b'vllm:engine_sleep_state{engine="%d",sleep_state="awake"} %d\n'
        b'vllm:engine_sleep_state{engine="%d",sleep_state="discard_all"} %d\n'
        % (rank, 1 - rank, rank, rank)
        for rank in (0, 1)
    )
    assert [one.asleep for _, one in progress.parse(page).ranks] == [False, True]


def test_the_record_names_the_ranks_only_where_there_are_several() -> None:
    assert "ranks" not in progress.to_json(progress.parse(PAGE))
    two = progress.parse(PAGE + PAGE.replace(b'engine="0"', b'engine="1"'))
    assert json.loads(json.dumps(progress.to_json(two)))["ranks"]["1"]["iterations"] == 70.0


@pytest.mark.parametrize(
    "line",
    [
        b'vllm:generation_tokens_total{engine="0"} NaN',
        b"vllm:generation_tokens_total +Inf",
        b"vllm:generation_tokens_total 1e999",
        b"vllm:generation_tokens_total",
        b"vllm:generation_tokens_total x",
        b"vllm:generation_tokens_total{a=\xff} 1 2 3",
        b"vllm:generation_tokens_total{" + b"a" * 70_000 + b"} 1",
    ],
)
def test_a_line_that_cannot_be_read_is_dropped_and_counted(line: bytes) -> None:
    seen = progress.parse(line + b"\n" + PAGE.replace(b"vllm:generation", b"vllm:other"))
    assert seen.generation is None
    assert seen.dropped == 1
    assert seen.iterations == 70.0


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_no_page_is_too_strange(page: bytes) -> None:
    progress.parse(page)
    progress.parse(b"vllm:iteration_tokens_total_count" + page)


@pytest.mark.parametrize("page", [b"", b"<html>", b"{}", b"\xff\xfe\x00", b"# only comments\n"])
def test_absent_is_not_zero(page: bytes) -> None:
    seen = progress.parse(page)
    assert seen == Counters()
    assert seen.is_blank
    assert not progress.moved(seen, seen)
    assert not progress.moved(seen, progress.parse(PAGE)), "appearing is no progress"


@pytest.mark.parametrize(
    ("states", "asleep"),
    [
        ({"awake": 1, "weights_offloaded": 0, "discard_all": 0}, False),
        ({"awake": 0, "weights_offloaded": 1, "discard_all": 0}, True),
        ({"awake": 0, "weights_offloaded": 0, "discard_all": 1}, True),
        ({}, False),
    ],
)
def test_sleep(states, asleep):
    rows = [
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{state}"}} {value}'
        for state, value in states.items()
    ]
    assert progress.parse("\n".join(rows).encode()).asleep is asleep


def test_a_counter_that_fell_was_begun_anew() -> None:
    assert progress.moved(Counters(iterations=9.0), Counters(iterations=1.0))
    assert not progress.moved(Counters(iterations=9.0), Counters(iterations=9.0, running=4.0))


@pytest.mark.parametrize(
    ("message", "stats"),
    [
        (
            f"{HEAD}0.0 tokens/s, Running: 2 reqs, Waiting: 1 reqs, GPU KV cache usage: 3.1%",
            Stats(False, 3),
        ),
        (
            f"{HEAD}0.5 tokens/s, Running: 1 reqs, Waiting: 0 reqs, Preemptions: 0, CPU KV: 1%",
            Stats(True, 1),
        ),
        ("he said: Engine 000: Avg prompt throughput: 1.0 tokens/s", None),
        ("", None),
    ],
)
def test_the_statistics_line(message: str, stats: Stats | None) -> None:
    assert progress.stats(message) == stats


def test_no_page_makes_a_sum_that_is_no_number():
    rows = [
        f'vllm:num_requests_{kind}{{engine="{rank}"}} {value}'
        for kind in ("running", "waiting") for rank in range(3) for value in ("1e308",)
    ]  # fmt: skip
    found = progress.parse("\n".join(rows).encode())
    assert (found.work, found.dropped) == (0, 6)
    most = progress.parse("\n".join(rows).replace("1e308", "9e18").encode())
    assert most.work > 0
