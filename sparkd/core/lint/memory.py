# SPDX-License-Identifier: Apache-2.0
"""SPK2xx: memory that the GPU and the host share."""

from collections.abc import Iterator
from typing import Any

from sparkd.core.lint.facts import Need
from sparkd.core.lint.model import VLLM, Hit, HostSubject, Rule, Severity, Subject
from sparkd.core.quantities import format_size

_GIB = 1 << 30
_HIGH_SHARE = 0.90
# Reserves that operators of this machine arrived at are 6 to 20 GiB; 6 is the smallest that held.
_SMALLEST_RESERVE = 6 * _GIB
# What holds for 128 GB says little about a test machine.
_SMALL_MACHINE = 64 * _GIB
# One compiler of FlashInfer's kernels takes 3.3 to 8 GiB (measured): the smaller figure is certain.
_COMPILER = int(3.3 * _GIB)
_HIGH_MIN_FREE = _GIB

# Larger numbers than this are mistakes that vLLM itself reports.
_IMPOSSIBLE = 1 << 60

_SHARE = ("serve", "gpu-memory-utilization")


def _high_share(subject: Subject) -> Iterator[Hit]:
    share = subject.engine.memory_utilization
    if share >= _HIGH_SHARE and (subject.host.gpu is None or subject.host.is_gb10):
        given = "gpu-memory-utilization" in subject.serve
        origin = f"{share:g}" if given else f"vLLM's default of {share:g}"
        sentence = (
            f"{origin} of memory that the GPU shares with the whole host is more than is free"
            " after a boot, and a start that passes leaves nothing for anything else"
        )
        yield Hit(_SHARE, sentence)


def _share_cannot_pass(subject: Subject) -> Iterator[Hit]:
    available = subject.host.memory_available or 0
    share = subject.engine.memory_utilization
    need = int(share * subject.memory_total)
    if need > available:
        passing = int(100 * available / subject.memory_total) / 100
        sentence = (
            f"vLLM wants {format_size(need)} ({share:g} of {format_size(subject.memory_total)})"
            f" and, with no engine running, {format_size(available)} is available"
        )
        advice = f"at most {passing:g}, or find out what holds the rest"
        yield Hit(_SHARE, sentence, advice if passing > 0 else "find out what holds the memory")


def _small_reserve(subject: HostSubject) -> Iterator[Hit]:
    if "reserve" not in subject.table.get("host", {}):
        return
    limit, total = subject.whole.host.reserve, subject.host.memory_total
    if total is not None and total < _SMALL_MACHINE:
        return
    reserve = limit.bytes if total is None else limit.of(total)
    if reserve is not None and reserve < _SMALLEST_RESERVE:
        sentence = f"{format_size(reserve)} is kept for the system and for starting engines"
        yield Hit(("host", "reserve"), sentence)


def _compilers(subject: HostSubject) -> Iterator[Hit]:
    caps = subject.whole.host.compile
    shares = [e.memory_utilization for e in subject.whole.engines if e.autostart]
    tenants = subject.whole.host.tenants_of(subject.memory_total)
    room = int(subject.memory_total * (1 - sum(shares))) - tenants
    compilers = caps.max_jobs * caps.nvcc_threads
    if subject.memory_total >= _SMALL_MACHINE and compilers * _COMPILER > room > 0:
        who = "engines and tenants" if tenants else "the engines"
        sentence = (
            f"{caps.max_jobs} jobs with {caps.nvcc_threads} nvcc threads are {compilers} compilers"
            f" of 3.3 to 8 GiB, and {who} leave {format_size(room)}"
        )
        fitting = max(1, room // (8 * _GIB) // caps.nvcc_threads)
        yield Hit(("compile", "max_jobs"), sentence, f"max_jobs = {fitting}")


def _high_without_swap(subject: HostSubject) -> Iterator[Hit]:
    if subject.whole.host.memory_high is not None and subject.host.swap_total == 0:
        sentence = "the host has no swap, so sparkd writes no MemoryHigh="
        yield Hit(("memory", "high"), sentence)


def _limit_below_share(subject: Subject) -> Iterator[Hit]:
    limit = subject.engine.memory_max
    if limit is None:
        return
    share = int(subject.engine.memory_utilization * subject.memory_total)
    if limit.of(subject.memory_total) < share:
        sentence = (
            f"{limit} is less than the {format_size(share)} that the engine takes on the GPU,"
            " and does not bound that: it bounds compilers and host memory"
        )
        yield Hit(("memory", "max"), sentence)


def _limit_above_memory(subject: HostSubject) -> Iterator[Hit]:
    limit = subject.whole.host.memory_max
    if limit.of(subject.memory_total) >= subject.memory_total:
        sentence = f"{limit} is all of the machine's {format_size(subject.memory_total)} or more"
        yield Hit(("memory", "max"), sentence)


def _kv_bytes(subject: Subject) -> int | None:
    value = subject.serve.get("kv-cache-memory-bytes")
    return value if type(value) is int and 0 < value < _IMPOSSIBLE else None


def _kv_without_share(subject: Subject) -> Iterator[Hit]:
    if "kv-cache-memory-bytes" in subject.serve and "gpu-memory-utilization" not in subject.serve:
        sentence = (
            "the size of the KV cache is fixed and gpu-memory-utilization is not set: vLLM's start"
            " check still wants its default share of the memory"
        )
        yield Hit(("serve", "kv-cache-memory-bytes"), sentence)


def _kv_above_share(subject: Subject) -> Iterator[Hit]:
    kv = _kv_bytes(subject)
    if kv is None:
        return
    weights = subject.facts.checkpoint.weights if subject.facts.checkpoint else 0
    share = int(subject.engine.memory_utilization * subject.memory_total)
    if kv + weights > share:
        parts = f"{format_size(kv)} of KV cache"
        if weights:
            parts += f" and {format_size(weights)} of weights"
        sentence = f"{parts} are more than the {format_size(share)} that the plan counts"
        least = -(-100 * (kv + weights) // subject.memory_total) / 100
        yield Hit(_SHARE, sentence, f"at least gpu-memory-utilization = {least:g}")


def _skipped_check(subject: Subject) -> Iterator[Hit]:
    name = "VLLM_SKIP_INIT_MEMORY_CHECK"
    if subject.env.get(name, "0") not in {"0", ""}:
        sentence = "vLLM does not look whether the memory it is about to take is there"
        yield Hit(("env", name), sentence)


def _offloading(subject: Subject) -> Iterator[Hit]:
    if not subject.host.is_gb10:
        return
    for name in ("cpu-offload-gb", "swap-space", "kv-offloading-size"):
        value: Any = subject.serve.get(name)
        if type(value) in {int, float} and 0 < value < _IMPOSSIBLE:
            sentence = (
                f"{value:g} GiB would move from the GPU's memory to the host's, and here they are"
                " the same memory"
            )
            yield Hit(("serve", name), sentence)


def _min_free(subject: HostSubject) -> Iterator[Hit]:
    value = subject.host.min_free or 0
    if value > _HIGH_MIN_FREE:
        sentence = (
            f"vm.min_free_kbytes keeps {format_size(value)} from being counted as available, which"
            " is what vLLM's start check looks at"
        )
        yield Hit(("host", "reserve"), sentence)


RULES = (
    Rule(
        code="SPK201",
        severity=Severity.WARNING,
        title="a share of 0.90 or more of unified memory",
        why="On a DGX Spark the share is taken from the host's memory. Of 121.7 GiB, 101 to 102"
        " were free after a boot on one machine, so 0.87 never passed; and profiling at start needs"
        " more than the share itself: at 0.70 it reached 112 GiB and froze the host.",
        instead="the weights plus the KV cache that is needed, plus 7 GiB, as a share",
        reference=f"{VLLM}/issues/46307",
        engine=_high_share,
    ),
    Rule(
        code="SPK202",
        severity=Severity.WARNING,
        title="a share that is not available",
        why="vLLM refuses to start when its share of the total is more than what is available, and"
        " sparkd waits for it before. Judged only while no engine runs.",
        instead="a smaller share",
        reference="https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
        needs=(Need.AVAILABLE,),
        engine=_share_cannot_pass,
    ),
    Rule(
        code="SPK203",
        severity=Severity.WARNING,
        title="almost no reserve",
        why="When the unified memory is used up, no OOM kill follows: the driver fails and the host"
        " stops answering. Operators keep 6 to 20 GiB. Not judged on machines of less than 64 GiB.",
        instead='host.reserve = "16%", the default, or "20G"',
        reference="https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1358",
        host=_small_reserve,
    ),
    Rule(
        code="SPK204",
        severity=Severity.WARNING,
        title="more compilers than memory",
        why="Jobs and nvcc threads multiply, and each compiler of FlashInfer's kernels takes 3.3 to"
        " 8 GiB. It counts what tenants and all engines started at boot leave; 3.3 GiB is assumed."
        " Not judged on machines of less than 64 GiB.",
        instead="fewer compile.max_jobs, and compile.nvcc_threads = 1",
        reference="https://github.com/flashinfer-ai/flashinfer/issues/3634",
        needs=(Need.TOTAL,),
        host=_compilers,
    ),
    Rule(
        code="SPK205",
        severity=Severity.INFO,
        title="memory.high without swap",
        why="Without swap there is nothing to reclaim into: an engine over MemoryHigh= stalls"
        " instead of being slowed. So sparkd leaves the line out.",
        instead="remove it, or add swap",
        reference="sparkd.toml(5), memory.high",
        needs=(Need.SWAP,),
        host=_high_without_swap,
    ),
    Rule(
        code="SPK206",
        severity=Severity.INFO,
        title="a limit that looks like a guard",
        why="On GB10 the kernel does not charge CUDA's unified allocations to a control group: an"
        " engine took 12 GiB under a limit of 8, and memory.current showed 409 MB.",
        instead="gpu-memory-utilization for the GPU; memory.max for compilers and host memory",
        reference="https://github.com/Blackwellboy/model-serving-minefield/issues/57",
        needs=(Need.TOTAL,),
        engine=_limit_below_share,
    ),
    Rule(
        code="SPK207",
        severity=Severity.WARNING,
        title="a fixed KV cache without a share",
        why="--kv-cache-memory-bytes skips profiling, and the check at start goes on to use the"
        " share. sparkd plans with the share as well.",
        instead="gpu-memory-utilization beside it: weights, KV cache and 7 GiB",
        reference="https://github.com/NVIDIA/xr-ai/issues/462",
        engine=_kv_without_share,
    ),
    Rule(
        code="SPK208",
        severity=Severity.WARNING,
        title="a KV cache larger than the plan",
        why="A fixed KV cache is allocated whatever the share says, so the plan counts too little"
        " and the next engine's start finds less than it was promised.",
        instead="a share that covers weights, KV cache and 7 GiB",
        reference="https://github.com/defilantech/LLMKube/issues/1857",
        needs=(Need.TOTAL,),
        engine=_kv_above_share,
    ),
    Rule(
        code="SPK209",
        severity=Severity.WARNING,
        title="vLLM's memory check is switched off",
        why="On unified memory that check is what stands between a mistake and a frozen host.",
        instead="remove the variable and set a share that passes",
        reference=f"{VLLM}/issues/48140",
        engine=_skipped_check,
    ),
    Rule(
        code="SPK210",
        severity=Severity.WARNING,
        title="offloading into the same memory",
        why="On GB10 host and GPU share one memory. Offloading frees nothing and copies.",
        instead="remove the flag, and raise the share by what it was meant to add",
        reference="https://github.com/LMCache/LMCache/issues/4759",
        needs=(Need.GPU,),
        engine=_offloading,
    ),
    Rule(
        code="SPK211",
        severity=Severity.WARNING,
        title="a large vm.min_free_kbytes",
        why="What it keeps free does not count as available: raising it made vLLM's start check"
        " fail by 6.2 GiB on one machine.",
        instead="a smaller value; host.reserve is for what must stay free",
        reference="https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark/issues/19",
        host=_min_free,
    ),
    Rule(
        code="SPK212",
        severity=Severity.WARNING,
        title="a limit above the machine's memory",
        why="MemoryMax= then bounds nothing, and a compile storm takes the host down.",
        instead='memory.max = "92%"',
        reference="sparkd.toml(5), memory.max",
        needs=(Need.TOTAL,),
        host=_limit_above_memory,
    ),
)
