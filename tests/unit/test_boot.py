# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  log lines keep their length
"""A start's progress and facts, in the wordings of old and new vLLM."""

from pathlib import Path

import pytest

from sparkd.core.boot import BootProgress, Compile, Phase
from sparkd.core.lines import frame

CAPTURES = Path(__file__).parent.parent / "corpus" / "captures"

# The wording of 0.11 and of 0.33 for one imagined start each: seconds and text.
OLD = [
    (0, "(APIServer pid=1) INFO 10-02 08:00:00 [api_server.py:1839] vLLM API server version 0.11.1"),
    (5, "(APIServer pid=1) INFO 10-02 08:00:05 [model.py:1510] Using max model len 32768"),
    (9, "(EngineCore_DP0 pid=2) INFO 10-02 08:00:09 [core.py:77] Initializing a V1 LLM engine (v0.11.1) with config: x"),
    (20, "(EngineCore_DP0 pid=2) INFO 10-02 08:00:20 [gpu_model_runner.py:2602] Starting to load model x..."),
    (20, "(EngineCore_DP0 pid=2) INFO 10-02 08:00:20 [cuda.py:366] Using Flash Attention backend on V1 engine."),
    (30, "(EngineCore_DP0 pid=2) Loading safetensors checkpoint shards:  45% Completed | 5/11 [00:10<00:10,  2.0s/it]"),
    (80, "(EngineCore_DP0 pid=2) INFO 10-02 08:01:20 [gpu_model_runner.py:2653] Model loading took 17.2088 GiB and 52.1 seconds"),
    (90, "(EngineCore_DP0 pid=2) INFO 10-02 08:01:30 [backends.py:559] Dynamo bytecode transform time: 5.59 s"),
    (95, "(EngineCore_DP0 pid=2) INFO 10-02 08:01:35 [backends.py:160] Directly load the compiled graph(s) for dynamic shape from the cache, took 3.2 s"),
    (99, "(EngineCore_DP0 pid=2) INFO 10-02 08:01:39 [monitor.py:34] torch.compile takes 26.60 s in total"),
    (100, "(EngineCore_DP0 pid=2) INFO 10-02 08:01:40 [gpu_worker.py:298] Available KV cache memory: 8.31 GiB"),
    (101, "(EngineCore_DP0 pid=2) INFO 10-02 08:01:41 [kv_cache_utils.py:1087] GPU KV cache size: 90,784 tokens"),
    (101, "(EngineCore_DP0 pid=2) INFO 10-02 08:01:41 [kv_cache_utils.py:1091] Maximum concurrency for 32,768 tokens per request: 2.77x"),
    (120, "(EngineCore_DP0 pid=2) INFO 10-02 08:02:00 [gpu_model_runner.py:3480] Graph capturing finished in 9 secs, took 0.61 GiB"),
    (121, "(EngineCore_DP0 pid=2) INFO 10-02 08:02:01 [core.py:210] init engine (profile, create kv cache, warmup model) took 41.03 seconds"),
    (125, "(APIServer pid=1) INFO:     Application startup complete."),
]  # fmt: skip
NEW = [
    (0, "(APIServer pid=1) INFO 10-02 08:00:00 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.33.0"),
    (1, "(EngineCore pid=2) INFO 10-02 08:00:09 [core.py:77] Initializing a V1 LLM engine (v0.33.0) with config: x"),
    (2, "(EngineCore pid=2) INFO 10-02 08:00:20 [cuda.py:366] Using FLASHINFER attention backend out of potential backends: ['FLASHINFER', 'TRITON_ATTN']"),
    (3, "(EngineCore pid=2) INFO 10-02 08:00:20 [nvfp4.py:66] Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential backends: []"),
    (3, "(EngineCore pid=2) INFO 10-02 08:00:20 [nvfp4.py:66] Using NvFp4LinearBackend.FLASHINFER_CUTLASS for NVFP4 GEMM"),
    (4, "(EngineCore pid=2) INFO 10-02 08:00:20 [gpu_model_runner.py:26] Model loading took 17.2 GiB memory and 52.1 seconds"),
    (5, "(EngineCore pid=2) INFO 10-02 08:01:35 [backends.py:160] Compiling a graph for compile range (1, 2048) takes 21.0 s"),
    (6, "(EngineCore pid=2) INFO 10-02 08:01:35 [backends.py:160] Directly load the compiled graph(s) for compile range (1, 8)"),
    (7, "(EngineCore pid=2) INFO 10-02 08:01:41 [kv_cache_planning.py:87] GPU KV cache size: 1,090,784 tokens, Maximum concurrency for 262,144 tokens per request: 4.16x"),
    (8, "(EngineCore pid=2) INFO 10-02 08:02:01 [core.py:210] init engine (profile, create kv cache, warmup model) took 41.03 s (compilation: 21.0 s)"),
    (9, "INFO:     Application startup complete."),
]  # fmt: skip


def run(script):
    boot, seen = BootProgress(), []
    for at, text in script:
        seen += [boot.status for line in frame(text) if boot.feed(line, at)]
    return boot, seen


def test_old_wording():
    boot, seen = run(OLD)
    facts = boot.facts
    assert facts.vllm_version == "0.11.1"
    assert facts.max_model_len == 32768
    assert facts.weights_gib == pytest.approx(17.2088)
    assert facts.kv_cache_gib == pytest.approx(8.31)
    assert facts.kv_cache_tokens == 90784
    assert facts.max_concurrency == pytest.approx(2.77)
    assert facts.graph_gib == pytest.approx(0.61)
    assert facts.attention_backend == "Flash Attention"
    assert facts.compile is Compile.WARM
    assert facts.compile_seconds == pytest.approx(26.6)
    assert facts.engine_init_seconds == pytest.approx(41.03)
    assert "loading weights 5/11" in seen
    assert seen[-1] == "ready"
    assert dict(facts.phases) == {
        Phase.CONFIG: 9, Phase.ENGINE: 11, Phase.LOADING: 60, Phase.COMPILING: 19,
        Phase.PROFILING: 21, Phase.CAPTURING: 1, Phase.SERVER: 4,
    }  # fmt: skip


def test_new_wording():
    boot, seen = run(NEW)
    facts = boot.facts
    assert facts.vllm_version == "0.33.0"
    assert facts.attention_backend == "FLASHINFER"
    assert facts.moe_backend == "FLASHINFER_CUTLASS"
    assert facts.linear_backend == "NvFp4LinearBackend.FLASHINFER_CUTLASS"
    assert facts.kv_cache_tokens == 1090784
    assert facts.max_concurrency == pytest.approx(4.16)
    assert facts.compile is Compile.COLD, "one graph compiled anew makes the cache cold"
    assert "compiling (cold cache)" in seen
    assert boot.phase is Phase.READY


def test_capture_of_a_real_start():
    boot = BootProgress()
    for raw in (CAPTURES / "local-boot-first-lines.txt").read_bytes().split(b"\n"):
        for line in frame(raw):
            boot.feed(line)
    assert boot.status == "loading weights 1/1"
    assert (boot.facts.vllm_version, boot.facts.max_model_len) == ("0.32.0", 1024)
    assert boot.facts.phases == (), "no time was passed in"


@pytest.mark.parametrize(
    "text",
    [
        "(APIServer pid=1) DEBUG 11-29 15:00:00 [request_logger.py:1] Using max model len 5",
        "(APIServer pid=1) INFO 11-29 15:00:00 [request_logger.py:1] prompt: 'Using max model len 5'",
        "Nov 29 15:14:06 spark kernel: Using max model len 5",
    ],
)
def test_other_text_teaches_nothing(text):
    boot = BootProgress()
    assert not any(boot.feed(line, 1.0) for line in frame(text))
    assert boot.status == "waiting for the engine's first words"


def test_a_start_never_goes_back():
    boot, _ = run(NEW)
    line = frame("(Worker pid=3) INFO 10-02 08:00:20 [x.py:1] Starting to load model x...")[0]
    assert not boot.feed(line, 20.0)
    assert boot.phase is Phase.READY
