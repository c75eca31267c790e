# SPDX-License-Identifier: Apache-2.0
"""vLLM's own metrics, by its names and labels, moved by the steps that the engine reports."""

import time
from collections.abc import Iterable

_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)
_WHOLE = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_REASONS = ("stop", "length", "abort", "error", "repetition")


class Histogram:
    """Observations counted in cumulative buckets."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * len(self.bounds)
        self._count = 0
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._count += 1
        self._sum += value
        for index, bound in enumerate(self.bounds):
            if value <= bound:
                self._counts[index] += 1

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The samples, buckets first."""
        for bound, count in zip(self.bounds, self._counts, strict=True):
            yield f'{name}_bucket{{{labels},le="{float(bound)}"}} {float(count)}'
        yield f'{name}_bucket{{{labels},le="+Inf"}} {float(self._count)}'
        yield f"{name}_count{{{labels}}} {float(self._count)}"
        yield f"{name}_sum{{{labels}}} {self._sum}"


class Metrics:
    """What `/metrics` shows.

    The gauges are as old as the engine's last step, as in vLLM: a frozen engine freezes them.
    """

    def __init__(self, model_name: str) -> None:
        escaped = model_name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        self._labels = f'engine="0",model_name="{escaped}"'
        self._created = time.time()
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys(_REASONS, 0)
        self.iteration_tokens = Histogram(_TOKENS)
        self.time_to_first_token = Histogram(_FIRST)
        self.inter_token_latency = Histogram(_BETWEEN)
        self.request_latency = Histogram(_WHOLE)
        self._http: dict[tuple[str, str, str], int] = {}

    def step(
        self, *, prompt: int, generated: int, running: int, waiting: int, kv_usage: float
    ) -> None:
        """Take over what one engine step reported."""
        self.running = running
        self.waiting = waiting
        self.kv_usage = kv_usage
        self.prompt_tokens += prompt
        self.generation_tokens += generated
        self.iteration_tokens.observe(prompt + generated)

    def http(self, handler: str, method: str, status: int) -> None:
        """Count one answered HTTP request."""
        key = (handler, method, f"{status // 100}xx")
        self._http[key] = self._http.get(key, 0) + 1

    def text(self) -> str:
        """Prometheus text format 0.0.4."""
        lines: list[str] = []
        self._gauges(lines)
        self._counters(lines)
        for name, what, histogram in (
            ("iteration_tokens_total", "tokens per engine_step", self.iteration_tokens),
            ("time_to_first_token_seconds", "time to first token", self.time_to_first_token),
            ("inter_token_latency_seconds", "inter-token latency", self.inter_token_latency),
            ("e2e_request_latency_seconds", "e2e request latency", self.request_latency),
        ):
            _head(lines, f"vllm:{name}", "histogram", f"Histogram of {what}.")
            lines.extend(histogram.lines(f"vllm:{name}", self._labels))
        _head(lines, "http_requests_total", "counter", "Requests by method, status and handler.")
        for (handler, method, status), count in sorted(self._http.items()):
            labels = f'handler="{handler}",method="{method}",status="{status}"'
            lines.append(f"http_requests_total{{{labels}}} {float(count)}")
        return "\n".join(lines) + "\n"

    def _gauges(self, lines: list[str]) -> None:
        for name, help_text, value in (
            (
                "num_requests_running",
                "Number of requests in model execution batches.",
                self.running,
            ),
            ("num_requests_waiting", "Number of requests waiting to be processed.", self.waiting),
            ("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", self.kv_usage),
        ):
            _head(lines, f"vllm:{name}", "gauge", help_text)
            lines.append(f"vllm:{name}{{{self._labels}}} {float(value)}")
        _head(lines, "vllm:engine_sleep_state", "gauge", "Engine sleep state.")
        for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)):
            lines.append(
                f'vllm:engine_sleep_state{{{self._labels},sleep_state="{state}"}} {float(value)}'
            )

    def _counters(self, lines: list[str]) -> None:
        for name, help_text, value in (
            ("num_preemptions", "Cumulative number of preemption from the engine.", 0),
            ("prompt_tokens", "Number of prefill tokens processed.", self.prompt_tokens),
            ("generation_tokens", "Number of generation tokens processed.", self.generation_tokens),
        ):
            _head(lines, f"vllm:{name}_total", "counter", help_text)
            lines.append(f"vllm:{name}_total{{{self._labels}}} {float(value)}")
            _head(lines, f"vllm:{name}_created", "gauge", help_text)
            lines.append(f"vllm:{name}_created{{{self._labels}}} {self._created}")
        _head(
            lines,
            "vllm:request_success_total",
            "counter",
            "Count of successfully processed requests.",
        )
        lines.extend(
            f'vllm:request_success_total{{{self._labels},finished_reason="{reason}"}} {count}.0'
            for reason, count in self.finished.items()
        )


def _head(lines: list[str], name: str, kind: str, help_text: str) -> None:
    lines.append(f"# HELP {name} {help_text}")
    lines.append(f"# TYPE {name} {kind}")
