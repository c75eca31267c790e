# SPDX-License-Identifier: Apache-2.0
"""Lint never fails over a configuration that was accepted, whatever stands in it."""

import tomllib
from typing import Any

import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from lint_helper import DENSE, FLAGS, GDN, NEMOTRON, PLAIN, SPARK, run

from sparkd.core.config import ConfigErrors
from sparkd.core.lint.checkpoint import Checkpoint, read_checkpoint
from sparkd.core.lint.facts import EngineFacts, HostFacts
from sparkd.core.lint.registry import BY_CODE
from sparkd.core.lint.vllm_help import parse_help


def words(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(text.split())


NUMBERS = st.one_of(
    st.integers(), st.sampled_from([0, -1, 10**400, 2**63]), st.floats(allow_nan=False)
)
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", "9" * 6000, "ngram", "mtp", "modelopt", "fp8_e5m2", "256k", "marlin",
                     "mistral", '{"method": "ngram"}', "[1]", "{", "ray"]),
)  # fmt: skip
SCALARS = st.one_of(NUMBERS, TEXTS, st.booleans())
KEYS = st.sampled_from(["method", "num_speculative_tokens", "prompt_lookup_min", "image", "x"])
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(KEYS, SCALARS))
NAMES = words(
    """
    chat-template cpu-offload-gb cudagraph-capture-sizes disable-log-stats enable-auto-tool-choice
    enable-chunked-prefil enable-prefix-caching no-enable-prefix-caching enable-sleep-mode
    enforce-eager hf-overrides kv-cache-dtype kv-cache-memory-bytes language-model-only
    limit-mm-per-prompt max-model-len max-num-seqs moe-backend nnodes quantization
    reasoning-parser runner spec-method spec-tokens speculative-config swap-space
    tensor-parallel-size tool-call-parser distributed-executor-backend attention-backend
    """
)
VARIABLES = words(
    """
    VLLM_PORT VLLM_KEEP_ALIVE_ON_ENGINE_DEATH VLLM_LOGGING_LEVEL VLLM_CONFIGURE_LOGGING MAKEFLAGS
    NVCC_APPEND_FLAGS VLLM_ATTENTION_BACKEND VLLM_SKIP_INIT_MEMORY_CHECK CUDA_LAUNCH_BLOCKING
    """
)
ENGINES = st.builds(
    EngineFacts,
    version=st.sampled_from([None, "0.27.1", "0.11.1", "0.1.dev1", "9" * 60 + ".1", "main"]),
    flags=st.sampled_from([None, FLAGS]),
    checkpoint=st.sampled_from([None, DENSE, GDN, NEMOTRON, PLAIN, Checkpoint()]),
)
HOSTS = st.sampled_from([HostFacts(), SPARK, HostFacts(memory_total=1, memory_available=0)])


@settings(deadline=None, max_examples=200)
@given(
    serve=st.dictionaries(NAMES, VALUES, max_size=6),
    env=st.dictionaries(VARIABLES, TEXTS, max_size=4),
    engine=ENGINES,
    host=HOSTS,
)
def test_every_accepted_configuration_can_be_linted(
    serve: dict[str, Any], env: dict[str, str], engine: EngineFacts, host: HostFacts
) -> None:
    table = {
        "model": "/models/m",
        "port": 8001,
        "runtime": {"venv": "/opt/vllm"},
        "serve": {"gpu-memory-utilization": 0.25, **serve},
        "env": env,
    }
    text = tomli_w.dumps(table)
    tomllib.loads(text)
    try:
        findings = run({"m": text}, host=host, facts={"m": engine})
    except ConfigErrors:
        return
    lines = text.count("\n") + 1
    for finding in findings:
        assert finding.code in BY_CODE
        assert 1 <= finding.line <= lines
        assert finding.sentence
        assert finding.instead
        assert "\n" not in finding.sentence + finding.instead


JSON_KEYS = words(
    """
    model_type quantization_config text_config vision_config layer_types hybrid_override_pattern
    quant_method quant_algo config_groups kv_cache_scheme input_activations num_bits type format
    max_position_embeddings rope_scaling quantization producer name kv_cache_quant_algo
    """
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(JSON_KEYS, inner)),
    max_leaves=6,
)


@settings(deadline=None, max_examples=100)
@given(config=st.dictionaries(JSON_KEYS, JSON), quant=st.dictionaries(JSON_KEYS, JSON))
def test_every_config_json_can_be_read(config: dict[str, Any], quant: dict[str, Any]) -> None:
    known = read_checkpoint(config, quant, 0, 0)
    for name in (known.model_type, known.quantization, known.algorithm, known.kv_quantization):
        assert name.isprintable()
    assert known.max_positions is None or isinstance(known.max_positions, int)


@settings(deadline=None)
@given(st.text(alphabet=" -{}ab,=\n.[]", max_size=200))
def test_every_text_can_be_read_as_help(text: str) -> None:
    assert all(name for name in parse_help(text))
