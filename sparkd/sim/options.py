# SPDX-License-Identifier: Apache-2.0
"""The command line of `vllm serve`, as far as it shows from outside."""

import json
from collections.abc import Sequence
from typing import NamedTuple

SERVE_USAGE = "usage: vllm serve [model_tag] [options]"
USAGE = (
    "usage: vllm [-h] [-v]\n"
    "            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,"
    "run-batch,snapshot}\n"
    "            ..."
)
DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
DEFAULT_MAX_MODEL_LEN = 32_768
DEFAULT_MAX_NUM_SEQS = 256

# Flags of vLLM 0.32 that take no value; a `no-` before them negates.
_SWITCHES = """
allow-credentials async-scheduling calculate-kv-scales disable-cascade-attn disable-custom-all-
reduce disable-fastapi-docs disable-hybrid-kv-cache-manager disable-log-stats disable-sliding-
window disable-uvicorn-access-log enable-auto-tool-choice enable-chunked-prefill enable-dbo
enable-eplb enable-expert-parallel enable-force-include-usage enable-log-outputs enable-log-
requests enable-lora enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details
enable-request-id-headers enable-server-load-tracking enable-sleep-mode enable-ssl-refresh
enable-tokenizer-info-endpoint enforce-eager exclude-tools-when-tool-choice-none fully-sharded-
loras generation-tokens-only headless kv-cache-metrics language-model-only log-error-stack
multi-processing return-tokens-as-token-ids show-hidden-metrics-for-version skip-mm-profiling
skip-tokenizer-init trust-remote-code use-tqdm-on-load
"""
SWITCHES = frozenset(_SWITCHES.split())
# Flags of vLLM 0.32 that take a value.
_VALUED = """
all2all-backend allowed-headers allowed-local-media-path allowed-media-domains allowed-methods
allowed-origins api-key api-server-count attention-backend attention-config block-size chat-
template chat-template-content-format code-revision compilation-config config config-format
convert cpu-offload-gb cudagraph-capture-sizes data-parallel-address data-parallel-backend data-
parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local decode-context-
parallel-size default-chat-template-kwargs disable-access-log-for-endpoints distributed-
executor-backend download-dir dtype eplb-config generation-config gpu-memory-utilization
h11-max-header-count h11-max-incomplete-event-size hf-config-path hf-overrides hf-token host
ignore-patterns io-processor-plugin kernel-config kv-cache-dtype kv-cache-memory-bytes kv-
events-config kv-transfer-config limit-mm-per-prompt load-format log-config-file logging-config
logits-processor-pattern logits-processors logprobs-mode long-prefill-token-threshold lora-dtype
lora-modules mamba-block-size mamba-cache-dtype mamba-ssm-cache-dtype master-addr master-port
max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs max-long-partial-prefills max-
lora-rank max-loras max-model-len max-num-batched-tokens max-num-partial-prefills max-num-seqs
max-parallel-loading-workers middleware mm-encoder-tp-mode mm-processor-cache-gb mm-processor-
kwargs model model-impl model-loader-extra-config moe-backend nnodes node-rank num-gpu-blocks-
override numa-bind optimization-level otlp-traces-endpoint override-attention-dtype override-
generation-config pipeline-parallel-size pooler-config port prefill-context-parallel-size
prefix-caching-hash-algo profiler-config pt-load-map-location quantization ray-workers-use-
nsight reasoning-config reasoning-parser reasoning-parser-plugin response-role revision root-
path runner safetensors-load-strategy scheduler-cls scheduling-policy seed served-model-name
shutdown-timeout speculative-config ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-
keyfile stream-interval structured-outputs-config swap-space task tensor-parallel-size tokenizer
tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin tool-server uds uvicorn-
log-level watchdog-config worker-cls worker-extension-cls
"""
VALUED = frozenset(_VALUED.split())
SHORT = {
    "-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
    "-q": "quantization", "-cc": "compilation-config", "-sc": "speculative-config",
    "-asc": "api-server-count", "-ep": "enable-expert-parallel", "-O": "optimization-level",
}  # fmt: skip
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class UsageError(ValueError):
    """What vLLM's parser refuses; `usage` and `line` are what it prints before it exits 2."""

    def __init__(self, usage: str, line: str) -> None:
        super().__init__(line)
        self.usage = usage
        self.line = line


class Options(NamedTuple):
    """What `vllm serve` was asked to do; `given` holds every flag by vLLM's attribute name."""

    model: str
    host: str
    port: int
    served_model_names: tuple[str, ...]
    max_model_len: int
    max_num_seqs: int
    tensor_parallel_size: int
    shutdown_timeout: int
    api_keys: tuple[str, ...]
    runner: str  # "generate", "embed" or "score"
    access_log: bool
    log_stats: bool
    json_log: bool
    given: dict[str, object]


def parse(arguments: Sequence[str], *, environment_key: str, strict: bool) -> Options:
    """Read the arguments after `serve`; raises UsageError.

    Without `strict`, a flag that vLLM does not know is taken with the values that follow it.
    """
    flags, positional, unknown = _split(arguments)
    if strict and unknown:
        raise UsageError(USAGE, f"vllm: error: unrecognized arguments: {' '.join(unknown)}")
    model = positional[0] if positional else _last(flags, "model", DEFAULT_MODEL)
    names = tuple(flags.get("served-model-name", ())) or (model,)
    keys = tuple(flags.get("api-key", ())) or ((environment_key,) if environment_key else ())
    return Options(
        model=model,
        # vLLM listens on every interface by default; a fake engine has no business there.
        host=_last(flags, "host", "127.0.0.1"),
        port=_int(flags, "port", 8000),
        served_model_names=names,
        max_model_len=_human_int(flags, "max-model-len", DEFAULT_MAX_MODEL_LEN),
        max_num_seqs=_int(flags, "max-num-seqs", DEFAULT_MAX_NUM_SEQS),
        tensor_parallel_size=_int(flags, "tensor-parallel-size", 1),
        shutdown_timeout=_int(flags, "shutdown-timeout", 0),
        api_keys=keys,
        runner=_runner(flags),
        access_log="disable-uvicorn-access-log" not in flags,
        log_stats="disable-log-stats" not in flags,
        json_log=_json_log(flags),
        given=_given(flags, positional),
    )


def _split(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str], list[str]]:
    flags: dict[str, list[str]] = {}
    positional: list[str] = []
    unknown: list[str] = []
    name = ""
    for argument in arguments:
        if not _is_flag(argument):
            if name and name not in SWITCHES:
                flags[name].append(argument)
                if name not in VALUED:
                    unknown.append(argument)
            else:
                positional.append(argument)
            continue
        text, equals, value = argument.partition("=")
        name = SHORT.get(text) or text.lstrip("-").replace("_", "-")
        positive = name.removeprefix("no-")
        if positive in SWITCHES:
            name = positive
            if text.startswith("--no-"):
                flags.pop(name, None)
                continue
        elif name not in VALUED and "." not in name:
            unknown.append(argument)
        flags[name] = [value] if equals else []
        if equals:
            name = ""
    return flags, positional, unknown


def _is_flag(argument: str) -> bool:
    return argument in SHORT or (argument.startswith("--") and len(argument) > 2)


def _last(flags: dict[str, list[str]], name: str, default: str) -> str:
    values = flags.get(name)
    if values is None:
        return default
    if not values:
        raise UsageError(
            SERVE_USAGE, f"vllm serve: error: argument --{name}: expected one argument"
        )
    return values[-1]


def _int(flags: dict[str, list[str]], name: str, default: int) -> int:
    text = _last(flags, name, str(default))
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            SERVE_USAGE, f"vllm serve: error: argument --{name}: invalid int value: {text!r}"
        ) from None


def _human_int(flags: dict[str, list[str]], name: str, default: int) -> int:
    text = _last(flags, name, str(default))
    if text in {"auto", "-1"}:
        return default
    factor = _SUFFIXES.get(text[-1:], 1)
    try:
        return int(float(text[:-1]) * factor) if factor > 1 else int(text)
    except ValueError:
        raise UsageError(
            SERVE_USAGE,
            f"vllm serve: error: argument --{name}: invalid human_readable_int_or_auto value: "
            f"{text!r}",
        ) from None


def _json_log(flags: dict[str, list[str]]) -> bool:
    if _last(flags, "logging-config.formatter", "") == "json":
        return True
    try:
        config = json.loads(_last(flags, "logging-config", "{}"))
    except ValueError:
        return False
    return isinstance(config, dict) and config.get("formatter") == "json"


def _runner(flags: dict[str, list[str]]) -> str:
    task = _last(flags, "task", "")
    convert = _last(flags, "convert", "")
    if task in {"score", "classify", "reward"} or convert in {"classify", "reward"}:
        return "score"
    if (
        task in {"embed", "embedding"}
        or convert == "embed"
        or _last(flags, "runner", "") == "pooling"
    ):
        return "embed"
    return "generate"


def _given(flags: dict[str, list[str]], positional: list[str]) -> dict[str, object]:
    given: dict[str, object] = {}
    if positional:
        given["model_tag"] = given["model"] = positional[0]
    for name, values in flags.items():
        key = name.replace("-", "_")
        if name in {"api-key", "hf-token"}:
            given[key] = "***"
        elif name in {"served-model-name", "lora-modules", "middleware"}:
            given[key] = values
        else:
            given[key] = _literal(values[-1]) if values else True
    return given


def _literal(text: str) -> object:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
