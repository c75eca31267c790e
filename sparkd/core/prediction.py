# SPDX-License-Identifier: Apache-2.0
"""What the next start of an engine should show, said before it, so that it can be held against it.

Of unified memory vLLM takes `gpu-memory-utilization` times the total; weights and its own overhead
come out of that, the rest is KV cache. On GB10 that overhead was 5.4 to 6.7 GiB in other people's
measurements. Where a new launch changes nothing that a figure depends on, the last one is expected.
"""

from collections.abc import Mapping
from typing import NamedTuple

GIB = 1 << 30
OVERHEAD_GIB = 6.0
"""What an engine takes beyond weights and KV cache."""

_CARRIED = ("kv_cache_tokens", "max_concurrency", "seconds", "memory_peak_gib")


class Launch(NamedTuple):
    """What the figures of a start depend on."""

    utilization: float
    memory_total: int
    weights: int
    """Bytes on disk; 0 where unknown."""
    kv_cache_bytes: int | None = None
    """A fixed size that the operator set."""
    is_same: bool = False
    """Whether the engine is launched with the same command and environment as at its last start."""


def predict(launch: Launch, last: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Expected figures by name, each with where it comes from: `estimate` or `previous start`.

    Args:
        launch: the engine as configured now.
        last: figures of its last start, empty where there was none.
    """
    expected: dict[str, dict[str, object]] = {}
    measured = last.get("kv_cache_gib")
    if launch.is_same and isinstance(measured, int | float):
        expected["kv_cache_gib"] = {"value": measured, "from": "previous start"}
    elif (estimate := _kv_cache_gib(launch)) is not None:
        expected["kv_cache_gib"] = {"value": estimate, "from": "estimate"}
    if launch.is_same:
        for name in _CARRIED:
            value = last.get(name)
            if isinstance(value, int | float):
                expected[name] = {"value": value, "from": "previous start"}
    else:
        seconds = last.get("seconds")
        if isinstance(seconds, int | float):
            expected["seconds"] = {"value": seconds, "from": "previous start"}
        _scale_tokens(expected, last)
    return expected


def _kv_cache_gib(launch: Launch) -> float | None:
    if launch.kv_cache_bytes:
        return round(launch.kv_cache_bytes / GIB, 2)
    if not launch.weights or not launch.memory_total:
        return None
    share = launch.utilization * launch.memory_total
    # May be negative: then the start will fail for want of KV cache, and that is the prediction.
    return round((share - launch.weights) / GIB - OVERHEAD_GIB, 2)


def _scale_tokens(expected: dict[str, dict[str, object]], last: Mapping[str, object]) -> None:
    """The pool in tokens grows with its bytes, as long as the model and KV type stay the same."""
    new, old, tokens = (
        expected.get("kv_cache_gib", {}).get("value"), last.get("kv_cache_gib"),
        last.get("kv_cache_tokens"),
    )  # fmt: skip
    figures = (new, old, tokens)
    if not all(isinstance(figure, int | float) for figure in figures):
        return
    before, after, count = float(old), float(new), float(tokens)  # type: ignore[arg-type]
    if before > 0 and after > 0:
        value = round(count * after / before)
        expected["kv_cache_tokens"] = {"value": value, "from": "estimate"}
