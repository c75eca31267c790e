# SPDX-License-Identifier: Apache-2.0
"""Configurations and facts for the tests of lint."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparkd.core.config import Source, load
from sparkd.core.lint.checkpoint import Checkpoint
from sparkd.core.lint.engine import lint
from sparkd.core.lint.facts import EngineFacts, Facts, HostFacts
from sparkd.core.lint.model import Finding
from sparkd.core.lint.vllm_help import Flag

GIB = 1 << 30
SPARK_BYTES = int(121.7 * GIB)
NOTHING = HostFacts()
SPARK = HostFacts(
    memory_total=SPARK_BYTES,
    memory_available=int(115 * GIB),
    swap_total=16 * GIB,
    min_free=66 << 20,
    gpu="NVIDIA GB10",
    gpu_count=1,
)
FLAGS: Mapping[str, Flag] = {
    "cudagraph-capture-sizes": Flag(),
    "disable-cascade-attn": Flag(deprecation="--disable-cascade-attn is deprecated."),
    "enable-chunked-prefill": Flag(),
    "enable-prefix-caching": Flag(),
    "gpu-memory-utilization": Flag(),
    "kv-cache-dtype": Flag(choices=("auto", "bfloat16", "fp8", "fp8_e5m2")),
    "max-model-len": Flag(),
    "max-num-batched-tokens": Flag(),
    "max-num-seqs": Flag(),
    "served-model-name": Flag(),
}
NEMOTRON = Checkpoint(
    model_type="nemotron_h", quantization="modelopt", algorithm="NVFP4", weight_only=False,
    kv_quantization="FP8", is_mamba2=True, is_hybrid=True, max_positions=262144,
    weights=18 * GIB, shards=5,
)  # fmt: skip
DENSE = Checkpoint(
    model_type="qwen3", quantization="compressed-tensors", algorithm="nvfp4-pack-quantized",
    weight_only=False, max_positions=262144, weights=17 * GIB, shards=4,
)  # fmt: skip
GDN = DENSE._replace(model_type="qwen3_5", is_hybrid=True, has_vision=True)
PLAIN = Checkpoint(model_type="llama", max_positions=131072)


def engine_text(
    serve: str = "", *, top: str = "", runtime: str = "", env: str = "", rest: str = "",
    port: int = 8001, share: str = "gpu-memory-utilization = 0.25\n",
) -> str:  # fmt: skip
    """An engine's file; every part is TOML lines. It has no finding by itself."""
    return (
        f'model = "/models/m"\nport = {port}\n{top}[runtime]\nvenv = "/opt/vllm"\n{runtime}'
        f"[serve]\n{share}{serve}[env]\n{env}{rest}"
    )


def run(
    engines: Mapping[str, str], host_text: str = "", host: HostFacts = NOTHING,
    facts: Mapping[str, EngineFacts] | None = None, *, check_memory: bool = False,
) -> Sequence[Finding]:  # fmt: skip
    """Load and lint; `engines` maps names to their files' texts."""
    sources = [Source("sparkd.toml", host_text)]
    sources += [Source(f"{name}.toml", text, name) for name, text in engines.items()]
    config = load(sources, host.memory_total if check_memory else None)
    return lint(sources, config, Facts(host, facts or {}))


def codes(findings: Sequence[Finding]) -> list[str]:
    return [finding.code for finding in findings if not finding.ignored]


def facts(**known: Any) -> dict[str, EngineFacts]:
    return {"m": EngineFacts(**known)}
