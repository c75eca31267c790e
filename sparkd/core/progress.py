# SPDX-License-Identifier: Apache-2.0
"""Whether tokens flow, from vLLM's own counters and its statistics line.

The heartbeat is the counter of engine steps. Gauges are pushed with a step's results, so a frozen
engine freezes them at their last value, which is 0 when it froze while idle: a gauge may hint at
work, and never proves that there is none.
"""

import math
import re
from typing import NamedTuple

_COUNTERS = {
    "vllm:iteration_tokens_total_count": "iterations",
    "vllm:generation_tokens_total": "generation",
    "vllm:prompt_tokens_total": "prompt",
}
# Not vllm:request_success_total: it also counts requests that clients gave up, which takes no step.
_GAUGES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
}
_SLEEP = "vllm:engine_sleep_state"
_WANTED = frozenset({*_COUNTERS, *_GAUGES, _SLEEP})
_SAMPLE = re.compile(
    r"(vllm:[a-z0-9_]{1,80})(?:\{([^}]{0,1000})\})? +(\S{1,40})(?: +-?\d{1,20})?\Z"
)
_RANK = re.compile(r'(?:^|,)engine="(\d{1,6})"')
NUMBER_MAX = 2.0**63
RANKS_MAX = 256
"""Ranks of data parallelism that are told apart; with more, only the sum counts."""
_SLEEP_STATE = re.compile(r'sleep_state="([^"]{0,80})"')
STATS_FILE = "loggers.py"
"""Whose records they are; those of others may have lines of any text, of a request's name say."""
_STATS = re.compile(
    r"Engine \d+: Avg prompt throughput: ([\d.]{1,20}) tokens/s,"
    r" Avg generation throughput: ([\d.]{1,20}) tokens/s, Running: (\d{1,9}) reqs,"
    r" Waiting: (\d{1,9}) reqs"
)


class Counters(NamedTuple):
    """One reading of /metrics, summed over the engine's ranks; None is "not there", never 0."""

    iterations: float | None = None
    generation: float | None = None
    prompt: float | None = None
    running: float | None = None
    waiting: float | None = None
    asleep: bool = False
    dropped: int = 0
    """Lines of metrics we wanted that could not be read."""
    ranks: "tuple[tuple[str, Counters], ...]" = ()
    """The same of each data-parallel rank, by its number; empty when there is only one."""

    @property
    def counts(self) -> tuple[float | None, float | None, float | None]:
        """What only grows while the engine works."""
        return self.iterations, self.generation, self.prompt

    @property
    def is_blank(self) -> bool:
        """Whether there is no counter at all, as with --disable-log-stats."""
        return all(count is None for count in self.counts)

    @property
    def work(self) -> int:
        """Requests that the gauges hint at."""
        return int((self.running or 0) + (self.waiting or 0))


def to_json(counters: Counters) -> dict[str, object]:
    """As an event's record has them: the sum, and each rank's where there are several."""
    value: dict[str, object] = counters._asdict()
    del value["ranks"]
    if counters.ranks:
        value["ranks"] = {rank: to_json(one) for rank, one in counters.ranks}
    return value


class Stats(NamedTuple):
    """vLLM's statistics line."""

    is_moving: bool
    requests: int
    """Running and waiting."""


def parse(body: bytes) -> Counters:
    """Read the few metrics that are needed out of a Prometheus text page, whatever else is in it.

    A line that cannot be read is dropped and counted; of a series that comes twice the last counts.
    """
    series: dict[str, dict[str, float]] = {}
    ranks: set[str] = set()
    dropped = 0
    for line in body.decode("utf-8", "replace").splitlines():
        if not line.startswith("vllm:"):
            continue
        name = re.split(r"[{ ]", line[:100], maxsplit=1)[0]
        if name not in _WANTED:
            continue
        sample = _SAMPLE.match(line.rstrip())
        value = None if sample is None else _number(sample[3])
        if sample is None or value is None:
            dropped += 1
            continue
        labels = sample[2] or ""
        series.setdefault(name, {})[labels] = value
        ranks.add(_rank_of(labels))
    whole = _summed(series)._replace(dropped=dropped)
    if not 1 < len(ranks) <= RANKS_MAX or "" in ranks:
        return whole
    return whole._replace(
        ranks=tuple((rank, _summed(_of_rank(series, rank))) for rank in sorted(ranks, key=int))
    )


def _rank_of(labels: str) -> str:
    found = _RANK.search(labels)
    return found[1] if found else ""


def _of_rank(series: dict[str, dict[str, float]], rank: str) -> dict[str, dict[str, float]]:
    ours = {
        name: {labels: value for labels, value in rows.items() if _rank_of(labels) == rank}
        for name, rows in series.items()
    }
    return {name: rows for name, rows in ours.items() if rows}


def _summed(series: dict[str, dict[str, float]]) -> Counters:
    total = {
        field: sum(series[name].values()) if name in series else None
        for name, field in {**_COUNTERS, **_GAUGES}.items()
    }
    return Counters(
        total["iterations"],
        total["generation"],
        total["prompt"],
        total["running"],
        total["waiting"],
        asleep=_asleep(series.get(_SLEEP, {})),
    )


def moved(before: Counters, after: Counters) -> bool:
    """Whether the engine worked between two readings; a counter that fell was begun anew."""
    pairs = zip(before.counts, after.counts, strict=True)
    return any(a is not None and b is not None and a != b for a, b in pairs)


def stats(message: str) -> Stats | None:
    """What a line of the log says, if it is the statistics line."""
    found = _STATS.match(message)
    if found is None:
        return None
    flows = any(_number(text) for text in found.group(1, 2))
    return Stats(flows, int(found[3]) + int(found[4]))


def _asleep(series: dict[str, float]) -> bool:
    for labels, value in series.items():
        state = _SLEEP_STATE.search(labels)
        if state is not None and state[1] != "awake" and value > 0:
            return True
    return False


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    # What vLLM counts is far below the bound, and sums of what is below it stay numbers.
    return value if math.isfinite(value) and abs(value) < NUMBER_MAX else None
