# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of itself in config.json and hf_quant_config.json."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

# hybrid_override_pattern, the longest, has a letter for each layer.
_NAME = re.compile(r"[A-Za-z0-9_.*+|/-]{1,1000}\Z")

# Models whose decoder layers are in part state-space or linear attention (Hugging Face names).
_MAMBA2 = frozenset(
    {"bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "plamo2", "zamba2"}
)
_OTHER_HYBRIDS = frozenset(
    {"jamba", "kimi_linear", "lfm2", "lfm2_moe", "mamba", "minimax_text_01", "olmo_hybrid"}
)
_LANGUAGE_PARTS = ("text_config", "llm_config", "language_config")
_POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip


class Checkpoint(NamedTuple):
    """A model on disk.

    `quantization` is Hugging Face's `quant_method`, '' for an unquantized checkpoint; `algorithm`
    is ModelOpt's `quant_algo` or compressed-tensors' `format`. `weight_only` is None where the
    files do not tell. `weights` is the size in bytes, 0 where unknown.
    """

    model_type: str = ""
    quantization: str = ""
    algorithm: str = ""
    weight_only: bool | None = None
    kv_quantization: str = ""
    is_mamba2: bool = False
    is_hybrid: bool = False
    has_vision: bool = False
    max_positions: int | None = None
    """None where it is not stated or scaled by the rotary embedding's settings."""
    weights: int = 0
    shards: int = 0


def read_checkpoint(
    config: Mapping[str, Any], hf_quant: Mapping[str, Any], weights: int, shards: int
) -> Checkpoint:
    """Return the facts in a config.json and a hf_quant_config.json ({} where there is none)."""
    parts = list(_parts(config))
    method, algorithm = _quantization(config, hf_quant)
    is_mamba2 = any(_is_mamba2(part) for part in parts)
    return Checkpoint(
        model_type=_text(config.get("model_type")),
        quantization=method,
        algorithm=algorithm,
        weight_only=_weight_only(_table(config.get("quantization_config")), method, algorithm),
        kv_quantization=_kv_quantization(config, hf_quant),
        is_mamba2=is_mamba2,
        is_hybrid=is_mamba2 or any(_is_hybrid(part) for part in parts),
        has_vision=bool(_table(config.get("vision_config"))) or "image_token_id" in config,
        max_positions=_max_positions(parts),
        weights=weights,
        shards=shards,
    )


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield config
    for name in _LANGUAGE_PARTS:
        if part := _table(config.get(name)):
            yield part


def _is_mamba2(part: Mapping[str, Any]) -> bool:
    pattern = _text(part.get("hybrid_override_pattern"))
    return _text(part.get("model_type")) in _MAMBA2 or "M" in pattern


def _is_hybrid(part: Mapping[str, Any]) -> bool:
    layers = [*_list(part.get("layer_types")), *_list(part.get("layers_block_type"))]
    return (
        _text(part.get("model_type")) in _OTHER_HYBRIDS
        or "linear_attention" in layers
        or "mamba" in layers
        or bool(part.get("linear_num_value_heads"))
    )


def _quantization(config: Mapping[str, Any], hf_quant: Mapping[str, Any]) -> tuple[str, str]:
    declared = _table(config.get("quantization_config"))
    if declared:
        method = _text(declared.get("quant_method")).lower().replace("_", "-")
        algorithm = _text(declared.get("quant_algo")) or _text(declared.get("format"))
        return method, algorithm
    exported = _table(hf_quant.get("quantization"))
    if exported:
        producer = _text(_table(hf_quant.get("producer")).get("name"))
        return producer or "modelopt", _text(exported.get("quant_algo"))
    return "", ""


def _weight_only(declared: Mapping[str, Any], method: str, algorithm: str) -> bool | None:
    if method in {"gptq", "awq"} or "W4A16" in algorithm.upper():
        return True
    groups = [_table(group) for group in _table(declared.get("config_groups")).values()]
    if groups:
        return not any(group.get("input_activations") for group in groups)
    if algorithm.upper() in {"NVFP4", "FP8", "NVFP4-PACK-QUANTIZED"}:
        return False
    return None


def _kv_quantization(config: Mapping[str, Any], hf_quant: Mapping[str, Any]) -> str:
    declared = _table(config.get("quantization_config"))
    scheme = _table(declared.get("kv_cache_scheme"))
    if scheme:
        return f"{_text(scheme.get('type')) or 'int'}{scheme.get('num_bits', '')}"
    exported = _table(hf_quant.get("quantization"))
    return _text(declared.get("kv_cache_quant_algo")) or _text(exported.get("kv_cache_quant_algo"))


def _max_positions(parts: list[Mapping[str, Any]]) -> int | None:
    """Return the largest length stated; vLLM derives the smallest, so more than this never fits."""
    if any(_is_scaled(part) for part in parts):
        return None
    stated = [part[key] for part in parts for key in _POSITIONS if type(part.get(key)) is int]
    return max(stated, default=None)


def _is_scaled(part: Mapping[str, Any]) -> bool:
    for key in ("rope_scaling", "rope_parameters"):
        text = repr(part.get(key))
        if "factor" in text or "yarn" in text or "longrope" in text:
            return True
    return False


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return a name as such files have them; whatever else stands there is none."""
    return value if isinstance(value, str) and _NAME.match(value) else ""
