# SPDX-License-Identifier: Apache-2.0
"""Which parser belongs to which family of models, where both are certain.

Only families with a `model_type` of their own are here: fine-tunes of Llama or Qwen2 speak any
format. Parsers that several families share (hermes, pythonic, deepseek_r1, qwen3, hf) are not.
"""

from collections.abc import Mapping
from typing import Final

# Beginning of Hugging Face's model_type: family.
_FAMILIES: Final = (
    ("deepseek_v", "deepseek"), ("gemma", "gemma"), ("glm4", "glm"), ("gpt_oss", "gpt-oss"),
    ("granitemoehybrid", "granite"), ("hunyuan", "hunyuan"), ("jamba", "jamba"),
    ("kimi", "kimi"), ("lfm2", "lfm2"), ("minimax", "minimax"), ("ministral", "mistral"),
    ("mistral3", "mistral"), ("nemotron_h", "nemotron"), ("olmo3", "olmo"), ("qwen3", "qwen"),
    ("seed_oss", "seed-oss"), ("step3", "step"),
)  # fmt: skip

# A tool parser and the families whose templates ask for its format.
TOOL_PARSERS: Final[Mapping[str, frozenset[str]]] = {
    "deepseek_v3": frozenset({"deepseek"}),
    "deepseek_v31": frozenset({"deepseek"}),
    "deepseek_v32": frozenset({"deepseek"}),
    "deepseek_v4": frozenset({"deepseek"}),
    "functiongemma": frozenset({"gemma"}),
    "gemma4": frozenset({"gemma"}),
    "glm45": frozenset({"glm"}),
    "glm47": frozenset({"glm"}),
    "granite": frozenset({"granite"}),
    "granite-20b-fc": frozenset({"granite"}),
    "granite4": frozenset({"granite"}),
    "hunyuan_a13b": frozenset({"hunyuan"}),
    "jamba": frozenset({"jamba"}),
    "kimi_k2": frozenset({"kimi", "deepseek"}),
    "lfm2": frozenset({"lfm2"}),
    "llama3_json": frozenset({"llama"}),
    "llama4_json": frozenset({"llama"}),
    "llama4_pythonic": frozenset({"llama"}),
    "minimax_m2": frozenset({"minimax"}),
    "mistral": frozenset({"mistral"}),
    "olmo3": frozenset({"olmo"}),
    "openai": frozenset({"gpt-oss"}),
    "phi4_mini_json": frozenset({"phi"}),
    # Nemotron 3 and Step 3.5 were trained on Qwen3's format.
    "qwen3_coder": frozenset({"nemotron", "qwen", "step"}),
    "qwen3_xml": frozenset({"nemotron", "qwen", "step"}),
    "seed_oss": frozenset({"seed-oss"}),
    "step3": frozenset({"step"}),
    "step3p5": frozenset({"step"}),
}
REASONING_PARSERS: Final[Mapping[str, frozenset[str]]] = {
    "gemma4": frozenset({"gemma"}),
    "glm45": frozenset({"glm"}),
    "glm47": frozenset({"glm"}),
    "granite": frozenset({"granite"}),
    "hunyuan_a13b": frozenset({"hunyuan"}),
    "kimi_k2": frozenset({"kimi", "deepseek"}),
    "minimax_m2": frozenset({"minimax"}),
    "mistral": frozenset({"mistral"}),
    "nemotron_v3": frozenset({"nemotron"}),
    "olmo3": frozenset({"olmo"}),
    "openai_gptoss": frozenset({"gpt-oss"}),
    "seed_oss": frozenset({"seed-oss"}),
    "step3": frozenset({"step"}),
    "step3p5": frozenset({"step"}),
}
# What a family is served with, for the advice.
USUAL_TOOL_PARSER: Final[Mapping[str, str]] = {
    "glm": "glm45", "gpt-oss": "openai", "jamba": "jamba", "kimi": "kimi_k2",
    "minimax": "minimax_m2", "mistral": "mistral", "nemotron": "qwen3_coder",
    "olmo": "olmo3", "qwen": "qwen3_coder or hermes", "seed-oss": "seed_oss",
}  # fmt: skip


def family_of(model_type: str) -> str | None:
    """Return the family of a model_type; None where it is not certain."""
    for beginning, family in _FAMILIES:
        if model_type.startswith(beginning):
            return family
    return None
