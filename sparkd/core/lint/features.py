# SPDX-License-Identifier: Apache-2.0
"""SPK4xx: flags against each other and against the checkpoint."""

import re
from collections.abc import Iterator, Mapping

from sparkd.core.lint import families
from sparkd.core.lint.facts import Need
from sparkd.core.lint.model import VLLM, Hit, Rule, Severity, Subject

# vLLM takes these names of one method for one another.
_METHODS: Mapping[str, str] = {
    "auto_awq": "awq", "awq": "awq", "awq_marlin": "awq",
    "auto_gptq": "gptq", "gptq": "gptq", "gptq_marlin": "gptq",
    "compressed-tensors": "compressed-tensors", "fp8": "fp8",
    "gpt_oss_mxfp4": "mxfp4", "mxfp4": "mxfp4",
    "modelopt": "modelopt", "modelopt_fp4": "modelopt", "modelopt_mixed": "modelopt",
    "modelopt_mxfp8": "modelopt",
}  # fmt: skip
# These cannot be made from an unquantized checkpoint while it loads.
_ONLY_SERIALIZED = frozenset({"awq", "gptq", "compressed-tensors", "modelopt", "mxfp4"})

_TOKENS = re.compile(r"([0-9]{1,12})([kKmM]?)\Z")
_SCALE = {"": 1, "k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}

_VISION_NAME = re.compile(
    r"(?:^|[-_./])(?:vision|vlm|vl|image|images|ocr)(?:$|[-_./0-9])", re.IGNORECASE
)


def _other_quantization(subject: Subject) -> Iterator[Hit]:
    flag = subject.text("quantization")
    method = _METHODS.get(flag)
    declared = subject.checkpoint.quantization
    own = _METHODS.get(declared)
    key = ("serve", "quantization")
    if method is None:
        return
    if own is not None and method != own:
        kind = f" ({subject.checkpoint.algorithm})" if subject.checkpoint.algorithm else ""
        sentence = f"the checkpoint is {declared}{kind} and vLLM refuses to load it as {flag}"
        yield Hit(key, sentence, f'quantization = "{declared}", or leave the flag out')
    elif not declared and method in _ONLY_SERIALIZED:
        yield Hit(key, f"the checkpoint is not quantized, and {flag} needs one that is")


_MARLIN_VARIABLES: Mapping[str, str] = {
    "VLLM_MXFP4_USE_MARLIN": "1",
    "VLLM_NVFP4_GEMM_BACKEND": "marlin",
    "VLLM_TEST_FORCE_FP8_MARLIN": "1",
}


def _forced_marlin(subject: Subject) -> Iterator[Hit]:
    checkpoint = subject.facts.checkpoint
    if checkpoint is not None and checkpoint.weight_only:
        return
    sentence = (
        "weights are unpacked to 16 bits in every kernel, and the GPU's FP4 and FP8 units idle"
    )
    for name in ("moe-backend", "linear-backend"):
        if subject.text(name) == "marlin":
            yield Hit(("serve", name), sentence)
    for name, value in _MARLIN_VARIABLES.items():
        if subject.env.get(name, "").lower() == value:
            yield Hit(("env", name), sentence)


def _unbounded_hybrid(subject: Subject) -> Iterator[Hit]:
    if subject.checkpoint.is_hybrid and "max-num-seqs" not in subject.serve:
        sentence = (
            "the model keeps one state block for each running sequence, and vLLM's default of 256"
            " to 1024 sequences can exceed the blocks that fit"
        )
        yield Hit(("serve", "max-num-seqs"), sentence)


def _eager(subject: Subject) -> Iterator[Hit]:
    if subject.switch("enforce-eager") and subject.text("runner") != "pooling":
        sentence = "CUDA graphs and torch.compile are off: each token waits for the CPU"
        yield Hit(("serve", "enforce-eager"), sentence)


def _impossible_kv_dtype(subject: Subject) -> Iterator[Hit]:
    checkpoint = subject.checkpoint
    if subject.text("kv-cache-dtype") != "fp8_e5m2":
        return
    has_scales = bool(checkpoint.kv_quantization)
    if checkpoint.quantization in {"fp8", "modelopt"} or has_scales:
        sentence = f"vLLM refuses fp8_e5m2 for a checkpoint of type {checkpoint.quantization}"
        yield Hit(("serve", "kv-cache-dtype"), sentence)


def _wide_kv_dtype(subject: Subject) -> Iterator[Hit]:
    stored = subject.checkpoint.kv_quantization
    dtype = subject.text("kv-cache-dtype")
    if stored.lower() in {"fp8", "float8"} and dtype in {"bfloat16", "float16"}:
        sentence = (
            f"the checkpoint brings scales for an 8-bit KV cache, and {dtype} takes twice as much"
        )
        yield Hit(("serve", "kv-cache-dtype"), sentence)


def _text_only_vision(subject: Subject) -> Iterator[Hit]:
    if not subject.switch("language-model-only"):
        return
    checkpoint = subject.facts.checkpoint
    if checkpoint is not None and not checkpoint.has_vision:
        return
    key = ("serve", "language-model-only")
    spec = " (for speculative decoding?)" if subject.speculative() else ""
    for name in subject.engine.served_names:
        if name != subject.engine.model and _VISION_NAME.search(name):
            sentence = f"the vision tower is left out{spec}, and the engine is served as {name!r}"
            yield Hit(key, sentence)
    limits = subject.serve.get("limit-mm-per-prompt")
    if isinstance(limits, dict) and any(limits.values()):
        yield Hit(
            key, f"the vision tower is left out{spec}, and limit-mm-per-prompt permits images"
        )


def _ngram_prefix_caching(subject: Subject) -> Iterator[Hit]:
    if (
        subject.checkpoint.is_hybrid
        and subject.speculative_method() == "ngram"
        and subject.switch("enable-prefix-caching")
    ):
        sentence = (
            "rejected n-gram drafts leave their traces in the recurrent state, and prefix caching"
            " hands that state to later requests: output is wrong without an error"
        )
        yield Hit(("serve", "enable-prefix-caching"), sentence)


def _no_tool_parser(subject: Subject) -> Iterator[Hit]:
    if subject.switch("enable-auto-tool-choice") and not subject.text("tool-call-parser"):
        sentence = "vLLM refuses to start: automatic tool choice requires a tool-call-parser"
        usual = None
        if subject.facts.checkpoint is not None:
            family = families.family_of(subject.facts.checkpoint.model_type)
            usual = families.USUAL_TOOL_PARSER.get(family or "")
        advice = f"tool-call-parser = {usual}, for this family" if usual else ""
        yield Hit(("serve", "enable-auto-tool-choice"), sentence, advice)


def _no_tool_choice(subject: Subject) -> Iterator[Hit]:
    if subject.text("tool-call-parser") and not subject.switch("enable-auto-tool-choice"):
        sentence = 'requests with tools and tool_choice "auto", the default, are answered with 400'
        yield Hit(("serve", "tool-call-parser"), sentence)


def _foreign_parser(
    subject: Subject, flag: str, parsers: Mapping[str, frozenset[str]], consequence: str
) -> Iterator[Hit]:
    parser = subject.text(flag)
    family = families.family_of(subject.checkpoint.model_type)
    meant = parsers.get(parser)
    if family is not None and meant is not None and family not in meant:
        sentence = (
            f"{parser} reads the format of {' and '.join(sorted(meant))} models, and this is a"
            f" {family} model ({subject.checkpoint.model_type}): {consequence}"
        )
        usual = families.USUAL_TOOL_PARSER.get(family) if flag == "tool-call-parser" else None
        yield Hit(("serve", flag), sentence, usual or "")


def _foreign_tool_parser(subject: Subject) -> Iterator[Hit]:
    consequence = "calls stay in the text and agents stall"
    yield from _foreign_parser(subject, "tool-call-parser", families.TOOL_PARSERS, consequence)


def _foreign_reasoning_parser(subject: Subject) -> Iterator[Hit]:
    consequence = "the reasoning ends up in the answer, or the answer in the reasoning"
    yield from _foreign_parser(subject, "reasoning-parser", families.REASONING_PARSERS, consequence)


def _too_long(subject: Subject) -> Iterator[Hit]:
    limit = subject.checkpoint.max_positions
    wanted = _tokens(subject.serve.get("max-model-len"))
    allowed = subject.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in {"0", ""}
    if limit is None or wanted is None or allowed or "hf-overrides" in subject.serve:
        return
    if wanted > limit:
        sentence = f"vLLM refuses {wanted} tokens for a checkpoint made for {limit}"
        yield Hit(("serve", "max-model-len"), sentence, f"max-model-len = {limit}")


def _tokens(value: object) -> int | None:
    """Return a number of tokens as vLLM reads it: 262144, "256k" (thousands), "256K" (1024)."""
    if type(value) is int:
        return value
    match = _TOKENS.match(value) if isinstance(value, str) else None
    return int(match[1]) * _SCALE[match[2]] if match else None


RULES = (
    Rule(
        code="SPK401",
        severity=Severity.ERROR,
        title="a quantization that the checkpoint does not have",
        why="vLLM compares --quantization with the checkpoint's own declaration and exits when they"
        " differ. It finds the method by itself.",
        instead="leave the flag out",
        reference="https://docs.vllm.ai/en/latest/features/quantization/",
        needs=(Need.CHECKPOINT,),
        engine=_other_quantization,
    ),
    Rule(
        code="SPK402",
        severity=Severity.WARNING,
        title="forced Marlin kernels",
        why="Marlin is right for weight-only checkpoints (W4A16), and vLLM then chooses it itself."
        " For W4A4 and FP8 it is the way out for a wheel without kernels for the GPU, and gets"
        " forgotten. Not reported where the checkpoint is known to be weight-only.",
        instead="remove it, and see which backend the boot log names",
        reference=f"{VLLM}/issues/41477",
        engine=_forced_marlin,
    ),
    Rule(
        code="SPK403",
        severity=Severity.WARNING,
        title="a hybrid model without max-num-seqs",
        why="`max_num_seqs (256) exceeds available Mamba cache blocks (147)` ends the start from"
        " vLLM 0.21 on. How many fit is only known from that line.",
        instead="max-num-seqs, such as 128",
        reference=f"{VLLM}/pull/38270",
        needs=(Need.CHECKPOINT,),
        engine=_unbounded_hybrid,
    ),
    Rule(
        code="SPK404",
        severity=Severity.WARNING,
        title="eager mode left on",
        why="It is switched on to look for a fault and costs most of the decode speed of a small"
        ' model. Not reported for runner = "pooling".',
        instead="remove enforce-eager",
        reference="https://docs.vllm.ai/en/latest/configuration/conserving_memory/",
        engine=_eager,
    ),
    Rule(
        code="SPK405",
        severity=Severity.ERROR,
        title="a KV cache type that the checkpoint rules out",
        why="Checkpoints with FP8 scales work with e4m3 only.",
        instead='kv-cache-dtype = "fp8"',
        reference="https://docs.vllm.ai/en/latest/features/quantization/quantized_kvcache/",
        needs=(Need.CHECKPOINT,),
        engine=_impossible_kv_dtype,
    ),
    Rule(
        code="SPK406",
        severity=Severity.INFO,
        title="a wider KV cache than the checkpoint was made for",
        why="Half of the tokens fit into the same memory.",
        instead='kv-cache-dtype = "fp8", if the quality was not found wanting',
        reference="https://docs.vllm.ai/en/latest/features/quantization/quantized_kvcache/",
        needs=(Need.CHECKPOINT,),
        engine=_wide_kv_dtype,
    ),
    Rule(
        code="SPK407",
        severity=Severity.WARNING,
        title="text only under a vision name",
        why="--language-model-only, often added because speculative decoding asks for it, leaves"
        " the vision tower out: requests with images are answered with 400.",
        instead="either the vision alias or language-model-only",
        reference="https://docs.vllm.ai/en/latest/features/spec_decode/",
        engine=_text_only_vision,
    ),
    Rule(
        code="SPK408",
        severity=Severity.ERROR,
        title="prefix caching with n-gram drafts on a hybrid model",
        why="State-space and linear-attention layers carry a state that cannot simply be cut back"
        " after a rejected draft.",
        instead="enable-prefix-caching = false, or no n-gram speculation",
        reference=f"{VLLM}/issues/39273",
        needs=(Need.CHECKPOINT,),
        engine=_ngram_prefix_caching,
    ),
    Rule(
        code="SPK409",
        severity=Severity.ERROR,
        title="tool choice without a parser",
        why="vLLM exits with `--enable-auto-tool-choice requires --tool-call-parser`.",
        instead="tool-call-parser beside it",
        reference="https://docs.vllm.ai/en/latest/features/tool_calling/",
        engine=_no_tool_parser,
    ),
    Rule(
        code="SPK410",
        severity=Severity.WARNING,
        title="a tool parser without tool choice",
        why='vLLM answers every agent\'s request with `"auto" tool choice requires'
        " --enable-auto-tool-choice and --tool-call-parser to be set`.",
        instead="enable-auto-tool-choice = true",
        reference="https://docs.vllm.ai/en/latest/features/tool_calling/",
        engine=_no_tool_choice,
    ),
    Rule(
        code="SPK411",
        severity=Severity.WARNING,
        title="the tool parser of another family",
        why="Nothing fails: the calls are just not recognized. Judged only for models with a"
        " model_type of their own and parsers of a single format.",
        instead="the parser of the model's own family",
        reference="https://docs.vllm.ai/en/latest/features/tool_calling/",
        needs=(Need.CHECKPOINT,),
        engine=_foreign_tool_parser,
    ),
    Rule(
        code="SPK412",
        severity=Severity.WARNING,
        title="the reasoning parser of another family",
        why="Nothing fails: reasoning and answer are cut at the wrong place. Judged as SPK411 is.",
        instead="the parser of the model's own family",
        reference="https://docs.vllm.ai/en/latest/features/reasoning_outputs/",
        needs=(Need.CHECKPOINT,),
        engine=_foreign_reasoning_parser,
    ),
    Rule(
        code="SPK413",
        severity=Severity.ERROR,
        title="a window longer than the model's",
        why="`User-specified max_model_len is greater than the derived max_model_len` ends the"
        " start. Not judged where the rotary embedding is scaled or overridden.",
        instead="the checkpoint's own length",
        reference="https://docs.vllm.ai/en/latest/configuration/engine_args/",
        needs=(Need.CHECKPOINT,),
        engine=_too_long,
    ),
)
