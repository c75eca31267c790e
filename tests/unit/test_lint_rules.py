# SPDX-License-Identifier: Apache-2.0
"""Every rule finds what it is for, and not its neighbour that is all right."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from lint_helper import (
    DENSE,
    FLAGS,
    GDN,
    GIB,
    NEMOTRON,
    PLAIN,
    SPARK,
    SPARK_BYTES,
    codes,
    engine_text,
    facts,
    run,
)

from sparkd.core.lint.facts import HostFacts
from sparkd.core.lint.registry import RULES

BOX = HostFacts(memory_total=SPARK_BYTES)
MTP = 'speculative-config = { method = "mtp", num_speculative_tokens = 3 }\n'
DFLASH = 'speculative-config = {{ method = "dflash", num_speculative_tokens = {} }}\n'
NGRAM = 'speculative-config = { method = "ngram", num_speculative_tokens = 5 }\n'
TOOLS = 'enable-auto-tool-choice = true\ntool-call-parser = "qwen3_coder"\n'
CACHING = "enable-prefix-caching = true\n"


class Case(NamedTuple):
    """A configuration that has exactly one finding, and its nearest relative that has none.

    `bad` and `good` are arguments of `engine_text`, or with the key "host" the text of sparkd.toml;
    `known` are facts of the engine for both, `machine` the host's, `good_known` overrides.
    """

    code: str
    bad: dict[str, Any]
    good: dict[str, Any]
    known: Mapping[str, Any] = MappingProxyType({})
    machine: HostFacts = HostFacts()
    good_known: dict[str, Any] | None = None
    good_machine: HostFacts | None = None


def serve(text: str) -> dict[str, Any]:
    return {"serve": text}


def env(text: str) -> dict[str, Any]:
    return {"env": text}


def ready(text: str) -> dict[str, Any]:
    return {"rest": f"[ready]\n{text}\n"}


def host(text: str) -> dict[str, Any]:
    return {"host": text}


CASES = [
    Case("SPK101", ready('budget = "30m"'), ready('budget = "29m"')),
    Case("SPK101", host('[restart]\nburst = 3\nwindow = "30m"'), host('[restart]\nburst = 2')),
    Case("SPK102", ready('budget = "120s"'), ready('budget = "130s"'),
         {"checkpoint": DENSE._replace(shards=5)}),
    Case("SPK103", {}, ready('expect-version = "0.27.1"'), {"version": "0.27.1"}),
    Case("SPK104", ready('expect-version = "0.27.1"'), ready('expect-version = "0.28.0"'),
         {"version": "0.28.0+cu130"}),
    Case("SPK105",
         {"runtime": 'cache = "/c"\n', "venv": "/opt/vllm-0.25.1",
          "rest": '[ready]\nexpect-version = "0.1.dev18498"\n'},
         {"venv": "/opt/vllm-0.25.1", "rest": '[ready]\nexpect-version = "0.25.1"\n'},
         {"version": "0.1.dev18498"}, good_known={"version": "0.25.1+cu130"}),
    Case("SPK106", ready("warmup = false"), ready('warmup = "completion"')),
    Case("SPK201", {"share": "gpu-memory-utilization = 0.9\n"},
         {"share": "gpu-memory-utilization = 0.89\n"}),
    Case("SPK201", {"share": ""}, {}),
    Case("SPK202", {"share": "gpu-memory-utilization = 0.87\n"},
         {"share": "gpu-memory-utilization = 0.83\n"}, {},
         SPARK._replace(memory_available=int(101.5 * GIB))),
    Case("SPK203", host('[host]\nreserve = "4G"'), host('[host]\nreserve = "6G"'), {}, BOX),
    Case("SPK203", host('[host]\nreserve = "4G"'), host('[host]\nreserve = "4G"'), {}, BOX,
         good_machine=HostFacts(memory_total=32 * GIB)),
    Case("SPK204", host("[compile]\nmax_jobs = 14\nnvcc_threads = 2"),
         host("[compile]\nmax_jobs = 13\nnvcc_threads = 2"), {}, BOX),
    Case("SPK204", host('[compile]\nmax_jobs = 13\nnvcc_threads = 2\n[tenants.x]\nmemory = "9G"'),
         host('[compile]\nmax_jobs = 13\nnvcc_threads = 2\n[tenants.x]\nmemory = "1G"'), {}, BOX),
    Case("SPK204", host("[compile]\nmax_jobs = 40"), host("[compile]\nmax_jobs = 40"), {}, BOX,
         good_machine=HostFacts(memory_total=8 * GIB)),
    Case("SPK205", host('[memory]\nhigh = "80%"'), host('[memory]\nhigh = "80%"'), {},
         HostFacts(swap_total=0), good_machine=HostFacts(swap_total=GIB)),
    Case("SPK206", {"rest": '[memory]\nmax = "30G"\n'}, {"rest": '[memory]\nmax = "31G"\n'}, {},
         BOX),
    Case("SPK207", {"share": "kv-cache-memory-bytes = 8589934592\n",
                    "rest": '[lint]\nignore = { SPK201 = "the other rule" }\n'},
         serve("kv-cache-memory-bytes = 8589934592\n")),
    Case("SPK208", serve(f"kv-cache-memory-bytes = {14 * GIB}\n"),
         serve(f"kv-cache-memory-bytes = {13 * GIB}\n"), {"checkpoint": DENSE}, BOX),
    Case("SPK208", serve(f"kv-cache-memory-bytes = {31 * GIB}\n"),
         serve(f"kv-cache-memory-bytes = {30 * GIB}\n"), {}, BOX),
    Case("SPK209", env('VLLM_SKIP_INIT_MEMORY_CHECK = "1"\n'),
         env('VLLM_SKIP_INIT_MEMORY_CHECK = "0"\n')),
    Case("SPK210", serve("cpu-offload-gb = 10\n"), serve("cpu-offload-gb = 0\n"), {}, SPARK),
    Case("SPK210", serve("cpu-offload-gb = 10\n"), serve("cpu-offload-gb = 10\n"), {}, SPARK,
         good_machine=SPARK._replace(gpu="NVIDIA H100 PCIe")),
    Case("SPK211", {}, {}, {}, SPARK._replace(min_free=6 * GIB),
         good_machine=SPARK._replace(min_free=GIB)),
    Case("SPK212", host('[memory]\nmax = "200G"'), host('[memory]\nmax = "112G"'), {}, BOX),
    Case("SPK212", host('[memory]\nmax = "100%"'), host('[memory]\nmax = "99%"'), {}, BOX),
    Case("SPK301", serve("enable-chunked-prefetch = true\n"),
         serve("enable-chunked-prefill = true\n"), {"flags": FLAGS}),
    Case("SPK301", serve("max-num = 4\n"), serve("max-num-seqs = 4\n"), {"flags": FLAGS}),
    Case("SPK302", serve("enable-chunked-prefil = true\n"),
         serve("enable-chunked-prefill = true\n"), {"flags": FLAGS}),
    Case("SPK302", serve("enable-chunked-prefil = true\n"),
         serve("enable-chunked-quux = true\n")),
    Case("SPK303", serve("disable-cascade-attn = true\n"), serve(CACHING), {"flags": FLAGS}),
    Case("SPK304", serve('kv-cache-dtype = "fp9"\n'), serve('kv-cache-dtype = "fp8"\n'),
         {"flags": FLAGS}),
    Case("SPK305", serve('chat-template = ""\n'), serve('chat-template = "/t.jinja"\n')),
    Case("SPK306", serve("tensor-parallel-size = 2\n"), serve("tensor-parallel-size = 1\n"), {},
         SPARK),
    Case("SPK306", serve("tensor-parallel-size = 2\n"),
         serve("tensor-parallel-size = 2\nnnodes = 2\n"), {}, SPARK),
    Case("SPK307", serve("disable-log-stats = true\n"), serve("disable-log-stats = false\n")),
    Case("SPK321", env('NVCC_APPEND_FLAGS = "-O2 --threads 8"\n'),
         env('NVCC_APPEND_FLAGS = "-O2 -lineinfo"\n')),
    Case("SPK321", env('FLASHINFER_EXTRA_CUDAFLAGS = "-t4"\n'),
         env('FLASHINFER_EXTRA_CUDAFLAGS = "-std=c++17 -templates"\n')),
    Case("SPK321", env('MAKEFLAGS = "-j20"\n'), env('MAKEFLAGS = "-s"\n')),
    Case("SPK322", env('VLLM_KEEP_ALIVE_ON_ENGINE_DEATH = "1"\n'),
         env('VLLM_KEEP_ALIVE_ON_ENGINE_DEATH = "0"\n')),
    Case("SPK322",
         {"env": 'VLLM_KEEP_ALIVE_ON_ENGINE_DEATH = "0"\n',
          "rest": '[ready]\nexpect-version = "0.11.1"\n'},
         {"env": 'VLLM_KEEP_ALIVE_ON_ENGINE_DEATH = "0"\n',
          "rest": '[ready]\nexpect-version = "0.12.0"\n'},
         {"version": "0.11.1"}, good_known={"version": "0.12.0"}),
    Case("SPK323", {"env": 'VLLM_ATTENTION_BACKEND = "FLASHINFER"\n',
                    "serve": 'attention-backend = "FLASHINFER"\n'},
         env('VLLM_ATTENTION_BACKEND = "FLASHINFER"\n')),
    Case("SPK323", serve("cudagraph-capture-sizes = [1, 2]\nmax-cudagraph-capture-size = 8\n"),
         serve("cudagraph-capture-sizes = [1, 2]\n")),
    Case("SPK324", env('VLLM_PORT = "8001"\n'), env('VLLM_PORT = "29500"\n')),
    Case("SPK325", env('VLLM_LOGGING_LEVEL = "error"\n'), env('VLLM_LOGGING_LEVEL = "INFO"\n')),
    Case("SPK325", env('VLLM_CONFIGURE_LOGGING = "0"\n'), env('VLLM_CONFIGURE_LOGGING = "1"\n')),
    Case("SPK401", serve('quantization = "modelopt"\n'),
         serve('quantization = "compressed-tensors"\n'), {"checkpoint": DENSE}),
    Case("SPK401", serve('quantization = "awq"\n'), serve('quantization = "fp8"\n'),
         {"checkpoint": PLAIN}),
    Case("SPK401", serve('quantization = "gptq"\n'), serve('quantization = "awq_marlin"\n'),
         {"checkpoint": PLAIN._replace(quantization="awq")}),
    Case("SPK401", serve('quantization = "fp8"\n'), serve('quantization = "fp8"\n'),
         {"checkpoint": DENSE}, good_known={"checkpoint": DENSE._replace(quantization="fp8")}),
    Case("SPK402", serve('moe-backend = "marlin"\n'), serve('moe-backend = "auto"\n'),
         {"checkpoint": DENSE}),
    Case("SPK402", env('VLLM_TEST_FORCE_FP8_MARLIN = "1"\n'),
         env('VLLM_TEST_FORCE_FP8_MARLIN = "1"\n'), {"checkpoint": DENSE},
         good_known={"checkpoint": DENSE._replace(weight_only=True)}),
    Case("SPK403", {}, serve("max-num-seqs = 128\n"), {"checkpoint": NEMOTRON}),
    Case("SPK404", serve("enforce-eager = true\n"),
         serve('enforce-eager = true\nrunner = "pooling"\n')),
    Case("SPK405", serve('kv-cache-dtype = "fp8_e5m2"\nmax-num-seqs = 8\n'),
         serve('kv-cache-dtype = "fp8"\nmax-num-seqs = 8\n'), {"checkpoint": NEMOTRON}),
    Case("SPK405", serve('kv-cache-dtype = "fp8_e5m2"\n'),
         serve('kv-cache-dtype = "fp8_e5m2"\n'),
         {"checkpoint": DENSE._replace(quantization="fp8")}, good_known={"checkpoint": DENSE}),
    Case("SPK406", serve('kv-cache-dtype = "bfloat16"\nmax-num-seqs = 8\n'),
         serve('kv-cache-dtype = "auto"\nmax-num-seqs = 8\n'), {"checkpoint": NEMOTRON}),
    Case("SPK407", serve(f'language-model-only = true\nserved-model-name = ["q", "vision"]\n{MTP}'),
         serve(f'language-model-only = true\nserved-model-name = ["q", "revision"]\n{MTP}')),
    Case("SPK407", serve("language-model-only = true\nlimit-mm-per-prompt = { image = 2 }\n"),
         serve("language-model-only = true\nlimit-mm-per-prompt = { image = 0 }\n")),
    Case("SPK407", serve('language-model-only = true\nserved-model-name = "q-vl"\n'),
         serve('language-model-only = true\nserved-model-name = "q-vl"\n'),
         good_known={"checkpoint": DENSE}),
    Case("SPK408", serve(NGRAM + CACHING + "max-num-seqs = 8\n"),
         serve(MTP + CACHING + "max-num-seqs = 8\n"), {"checkpoint": GDN}),
    Case("SPK408", serve(NGRAM + CACHING + "max-num-seqs = 8\n"),
         serve(NGRAM + CACHING + "max-num-seqs = 8\n"), {"checkpoint": GDN},
         good_known={"checkpoint": DENSE}),
    Case("SPK409", serve("enable-auto-tool-choice = true\n"), serve(TOOLS)),
    Case("SPK410", serve('tool-call-parser = "hermes"\n'), serve(TOOLS)),
    Case("SPK411", serve('enable-auto-tool-choice = true\ntool-call-parser = "mistral"\n'),
         serve('enable-auto-tool-choice = true\ntool-call-parser = "hermes"\n'),
         {"checkpoint": DENSE}),
    Case("SPK411", serve('enable-auto-tool-choice = true\ntool-call-parser = "mistral"\n'),
         serve('enable-auto-tool-choice = true\ntool-call-parser = "mistral"\n'),
         {"checkpoint": DENSE}, good_known={"checkpoint": PLAIN}),
    Case("SPK412", serve('reasoning-parser = "nemotron_v3"\n'),
         serve('reasoning-parser = "deepseek_r1"\n'), {"checkpoint": DENSE}),
    Case("SPK413", serve('max-model-len = "256k"\n'), serve('max-model-len = "128K"\n'),
         {"checkpoint": PLAIN}),
    Case("SPK413", serve("max-model-len = 131073\n"), serve("max-model-len = 131072\n"),
         {"checkpoint": PLAIN}),
    Case("SPK501", {"serve": "max-num-seqs = 128\n",
                    "rest": '[ready]\nexpect-version = "0.27.1"\n'},
         {"serve": "max-num-seqs = 128\n", "env": 'CUDA_LAUNCH_BLOCKING = "1"\n',
          "rest": '[ready]\nexpect-version = "0.27.1"\n'},
         {"checkpoint": NEMOTRON, "version": "0.27.1"}, SPARK),
    Case("SPK502", serve(DFLASH.format(10)),
         serve(DFLASH.format(7)), {},
         SPARK),
    Case("SPK503", serve(NGRAM + "max-num-seqs = 8\n"), serve("max-num-seqs = 8\n"),
         {"checkpoint": GDN}),
    Case("SPK504", serve(NGRAM + TOOLS),
         serve('speculative-config = { method = "ngram", prompt_lookup_min = 8 }\n' + TOOLS)),
    Case("SPK504", serve('speculative-config = \'{"method": "ngram"}\'\n' + TOOLS),
         serve('speculative-config = \'{"method": "mtp"}\'\n' + TOOLS)),
    Case("SPK505", serve(MTP + CACHING + "max-num-seqs = 8\n"), serve(MTP + "max-num-seqs = 8\n"),
         {"checkpoint": NEMOTRON}),
    Case("SPK506", {"serve": MTP, "rest": '[ready]\nexpect-version = "0.27.1"\n'},
         {"serve": MTP, "rest": '[ready]\nexpect-version = "0.28.0"\n'},
         {"version": "0.27.1"}, good_known={"version": "0.28.0"}),
    Case("SPK507", {"serve": MTP, "rest": '[ready]\nexpect-version = "0.30.0"\n'},
         {"serve": MTP, "env": 'VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS = "0"\n',
          "rest": '[ready]\nexpect-version = "0.30.0"\n'},
         {"version": "0.30.0"}, SPARK),
    Case("SPK508", serve("enable-sleep-mode = true\n"), serve("enable-sleep-mode = false\n"), {},
         SPARK),
    Case("SPK509", ready('expect-version = "0.18.1"'), ready('expect-version = "0.19.0"'),
         {"version": "0.18.1"}, SPARK, good_known={"version": "0.19.0"}),
    Case("SPK510", {"serve": MTP + CACHING + "max-num-seqs = 8\n",
                    "rest": '[ready]\nexpect-version = "0.28.1rc1.dev43"\n'},
         {"serve": MTP + "max-num-seqs = 8\n",
          "rest": '[ready]\nexpect-version = "0.28.1rc1.dev43"\n'},
         {"checkpoint": GDN, "version": "0.28.1rc1.dev43+g6f7df92a8"}),
    Case("SPK901", {"rest": '[lint]\nignore = { SPK404 = "graphs crash" }\n'},
         {"serve": "enforce-eager = true\n",
          "rest": '[lint]\nignore = { SPK404 = "graphs crash" }\n'}),
    Case("SPK901", host('[lint]\nignore = { SPK404 = "graphs crash" }'),
         host('[lint]\nignore = { SPK401 = "cannot be judged here: no checkpoint" }')),
]  # fmt: skip


def found(parts: dict[str, Any], known: Mapping[str, Any], machine: HostFacts) -> list[str]:
    parts = dict(parts)
    host_text = parts.pop("host", "")
    venv = parts.pop("venv", None)
    text = engine_text(**parts)
    if venv:
        text = text.replace('venv = "/opt/vllm"', f'venv = "{venv}"')
    return codes(run({"m": text}, host_text, machine, facts(**known)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_rule_finds_what_it_is_for_and_nothing_else(case: Case) -> None:
    assert found(case.bad, case.known, case.machine) == [case.code]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_rule_is_silent_about_its_neighbour(case: Case) -> None:
    known = case.known if case.good_known is None else case.good_known
    machine = case.machine if case.good_machine is None else case.good_machine
    assert found(case.good, known, machine) == []


def test_every_rule_has_a_case() -> None:
    assert {case.code for case in CASES} == {rule.code for rule in RULES}


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.known or c.machine != HostFacts()], ids=lambda case: case.code
)
def test_without_facts_nothing_is_found_that_needs_them(case: Case) -> None:
    needing = {rule.code for rule in RULES if rule.needs}
    assert not needing & set(found(case.bad, {}, HostFacts()))
