# SPDX-License-Identifier: Apache-2.0
"""How far a start has come, and what it told about itself on the way.

Pure accumulation: framed lines and their times in, a status text and facts out. The readiness gate
shows the text with `systemctl status` and writes the facts down once the engine serves.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from sparkd.core.lines import Line, Source


class Phase(StrEnum):
    """Phases of a start in their order; not every start prints every one."""

    CONFIG = "reading the configuration"
    ENGINE = "starting the engine process"
    LOADING = "loading weights"
    COMPILING = "compiling"
    PROFILING = "measuring memory"
    TUNING = "tuning kernels"
    CAPTURING = "capturing CUDA graphs"
    SERVER = "starting the HTTP server"
    READY = "ready"


class Compile(StrEnum):
    """Whether torch.compile found its cache."""

    UNKNOWN = ""
    COLD = "cold"
    WARM = "warm"


class Facts(NamedTuple):
    """What one start told about itself; None and '' where it said nothing.

    Attributes:
        phases: seconds spent in each phase that was seen, in the order of arrival; the last one is
            open and not listed until the start is ready.
        vllm_version: as the engine or the server prints it.
        max_model_len: tokens of one request.
        weights_gib: memory of the loaded model.
        kv_cache_gib: memory left for the KV cache.
        kv_cache_tokens: tokens that fit into it.
        max_concurrency: requests of `max_model_len` tokens that fit at once.
        graph_gib: memory of the captured CUDA graphs.
        moe_backend: chosen kernel family for mixture-of-experts layers.
        linear_backend: chosen kernel family for quantized linear layers.
        attention_backend: chosen attention kernels.
        compile: whether the compile cache was cold.
        compile_seconds: time that torch.compile reports.
        engine_init_seconds: time from the engine's start to its warm-up's end, as it reports it.
    """

    phases: tuple[tuple[Phase, float], ...]
    vllm_version: str
    max_model_len: int | None
    weights_gib: float | None
    kv_cache_gib: float | None
    kv_cache_tokens: int | None
    max_concurrency: float | None
    graph_gib: float | None
    moe_backend: str
    linear_backend: str
    attention_backend: str
    compile: Compile
    compile_seconds: float | None
    engine_init_seconds: float | None

    def to_json(self) -> dict[str, object]:
        """The facts as plain JSON values; what was not seen is null."""
        said = {name: None if value == "" else value for name, value in self._asdict().items()}
        said["phases"] = {str(phase): round(seconds, 1) for phase, seconds in self.phases}
        return said


class _Rule(NamedTuple):
    """`literal` must be in the message before `pattern` is tried; each group names a fact."""

    literal: str
    pattern: re.Pattern[str]
    phase: Phase | None


def _rule(literal: str, pattern: str, phase: Phase | None = None) -> _Rule:
    return _Rule(literal, re.compile(pattern), phase)


# vLLM 0.11 to 0.33; where the wording changed, both forms are here.
_RULES = (
    _rule("version ", r"^vLLM API server version (?P<vllm_version>\S{1,64})", Phase.CONFIG),
    _rule("version ", r"[▄▀█] +version (?P<vllm_version>\d\S{0,63})", Phase.CONFIG),
    _rule("non-default args: ", r"^non-default args: \{", Phase.CONFIG),
    _rule("Using max model len ", r"^Using max model len (?P<max_model_len>\d{1,12})"),
    _rule(
        "Initializing a V1 LLM engine",
        r"^Initializing a V1 LLM engine \(v(?P<vllm_version>[^)]{1,64})\)",
        Phase.ENGINE,
    ),
    _rule("Starting to load model ", r"^Starting to load model ", Phase.LOADING),
    _rule(
        "shards: ",
        r"oading .{0,40}shards: +\d{1,3}% Completed \| (?P<done>\d{1,6})/(?P<total>\d{1,6})",
        Phase.LOADING,
    ),
    _rule(
        "Model loading took ",
        r"^Model loading took (?P<weights_gib>\d+(?:\.\d+)?) ?GiB",
        Phase.COMPILING,
    ),
    _rule("attention backend out of", r"^Using (?P<attention_backend>\S{1,64}) attention backend"),
    _rule("backend on V1 engine", r"^Using (?P<attention_backend>.{1,40}) backend on V1 engine"),
    _rule(" MoE backend", r"^Using '?(?P<moe_backend>\w{1,64})'? \w{1,20} MoE backend"),
    _rule(" backend for NvFp4 MoE", r"^Using (?P<moe_backend>\S{1,64}) backend for NvFp4 MoE"),
    _rule("FusedMoE", r"^Using (?P<moe_backend>.{1,60}) kernels? for \w{0,60}FusedMoE"),
    _rule("NVFP4 GEMM", r"^Using (?P<linear_backend>\S{1,80}) for NVFP4 GEMM"),
    _rule("LinearKernel for ", r"^Selected (?P<linear_backend>\w{1,80}LinearKernel) for "),
    _rule("Dynamo bytecode", r"^Dynamo bytecode transform time", Phase.COMPILING),
    _rule("Compiling a graph for ", r"^Compiling a graph for (?P<cold>)", Phase.COMPILING),
    _rule("Cache the graph", r"^Cache the graph (?P<cold>)", Phase.COMPILING),
    _rule("Directly load ", r"^Directly load (?P<warm>)", Phase.COMPILING),
    _rule(
        "torch.compile t",
        r"^torch\.compile t(?:akes|ook) (?P<compile_seconds>\d+(?:\.\d+)?) s in total",
        Phase.PROFILING,
    ),
    _rule(
        "Available KV cache memory: ",
        r"^Available KV cache memory: (?P<kv_cache_gib>-?\d+(?:\.\d+)?) GiB",
        Phase.PROFILING,
    ),
    _rule("KV cache size: ", r"KV cache size: (?P<kv_cache_tokens>\d[\d,]{0,20}) tokens"),
    _rule(
        "Maximum concurrency for ",
        r"Maximum concurrency for [\d,]{1,20} tokens per request:"
        r" (?P<max_concurrency>\d+(?:\.\d+)?)x",
    ),
    _rule("[Autotuner]: ", r"\[Autotuner\]: (?:Autotuning process starts|Tuning )", Phase.TUNING),
    _rule("Capturing CUDA graphs", r"^Capturing CUDA graphs", Phase.CAPTURING),
    _rule(
        "Graph capturing finished in ",
        r"^Graph capturing finished in \d+ secs, took (?P<graph_gib>-?\d+(?:\.\d+)?) GiB",
        Phase.CAPTURING,
    ),
    _rule(
        "init engine (profile, ",
        r"^init engine \(profile, create kv cache, warmup model\) took"
        r" (?P<engine_init_seconds>\d+(?:\.\d+)?) s",
        Phase.SERVER,
    ),
    _rule("Starting vLLM ", r"^Starting vLLM (?:API )?server", Phase.SERVER),
    _rule("Application startup complete", r"^INFO: +Application startup complete\.", Phase.READY),
)
_ORDER = {phase: place for place, phase in enumerate(Phase)}


def _tokens(text: str) -> int:
    return int(text.replace(",", ""))


_CONVERT: dict[str, Callable[[str], int | float]] = {
    "max_model_len": int,
    "weights_gib": float,
    "kv_cache_gib": float,
    "kv_cache_tokens": _tokens,
    "max_concurrency": float,
    "graph_gib": float,
    "compile_seconds": float,
    "engine_init_seconds": float,
}
_EMPTY = Facts((), "", None, None, None, None, None, None, "", "", "", Compile.UNKNOWN, None, None)


class BootProgress:
    """Accumulates one start. Bounded: one value of each fact, one time of each phase."""

    def __init__(self) -> None:
        self._facts = _EMPTY
        self._phase: Phase | None = None
        self._since: float | None = None
        self._spent: dict[Phase, float] = {}
        self._shards = (0, 0)

    @property
    def phase(self) -> Phase | None:
        """The phase that the start is in; None before the first line of one."""
        return self._phase

    @property
    def facts(self) -> Facts:
        """What is known so far."""
        return self._facts._replace(phases=tuple(self._spent.items()))

    @property
    def status(self) -> str:
        """One short line for `STATUS=`: the phase, with a count where there is one."""
        if self._phase is None:
            return "waiting for the engine's first words"
        if self._phase is Phase.LOADING and self._shards[1]:
            return f"{self._phase} {self._shards[0]}/{self._shards[1]}"
        if self._phase is Phase.COMPILING and self._facts.compile is Compile.COLD:
            return f"{self._phase} (cold cache)"
        return self._phase.value

    def feed(self, line: Line, at: float | None = None) -> bool:
        """Take one line; tell whether status or facts changed.

        Args:
            line: a framed line. Records above INFO and lines of kernel and systemd tell nothing.
            at: when it was written, in seconds of any one clock; without it phases get no duration.
        """
        if line.source is not Source.ENGINE or line.level not in ("", "INFO"):
            return False
        message, changed = line.message, False
        for rule in _RULES:
            if rule.literal in message:
                found = rule.pattern.search(message)
                if found:
                    changed |= self._learn(found.groupdict())
                    changed |= rule.phase is not None and self._enter(rule.phase, at)
        return changed

    def _learn(self, groups: dict[str, str | None]) -> bool:
        before = (self._facts, self._shards)
        for name, text in groups.items():
            if text is None:
                continue
            if name in ("cold", "warm"):
                if self._facts.compile is not Compile.COLD:  # one graph compiled anew is enough
                    self._facts = self._facts._replace(compile=Compile(name))
            elif name == "done":
                self._shards = (int(text), int(groups["total"] or 0))
            elif name != "total":
                value = _CONVERT[name](text) if name in _CONVERT else text
                self._facts = self._facts._replace(**{name: value})  # type: ignore[arg-type]
        return (self._facts, self._shards) != before

    def _enter(self, phase: Phase, at: float | None) -> bool:
        """Move on to `phase`; a start never goes back, several workers report the same things."""
        if self._phase is not None and _ORDER[phase] <= _ORDER[self._phase]:
            return False
        if self._phase is not None and self._since is not None and at is not None:
            self._spent[self._phase] = max(0.0, at - self._since)
        self._phase, self._since = phase, at
        return True
