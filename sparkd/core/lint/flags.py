# SPDX-License-Identifier: Apache-2.0
"""SPK3xx: flags and variables as vLLM reads them."""

import difflib
import re
from collections.abc import Iterator, Mapping

from sparkd.core.importing import vllm_flags
from sparkd.core.lint.facts import Need
from sparkd.core.lint.model import VLLM, Hit, Rule, Severity, Subject
from sparkd.core.lint.versions import release_of

# Flags that vLLM dropped, and what to write today.
_SUCCESSORS: Mapping[str, str] = {
    "calculate-kv-scales": "remove it: scales come from the checkpoint",
    "cuda-graph-sizes": "cudagraph-capture-sizes",
    "disable-log-requests": "remove it: request logging is off unless enable-log-requests is set",
    "enable-reasoning": "remove it: reasoning-parser is enough",
    "guided-decoding-backend": "structured-outputs-config",
    "max-seq-len-to-capture": "max-cudagraph-capture-size",
    "num-speculative-tokens": "speculative-config",
    "rope-scaling": "hf-overrides",
    "rope-theta": "hf-overrides",
    "speculative-model": "speculative-config",
    "swap-space": "remove it: vLLM's current engine does not swap",
    "task": "runner and convert",
}

_NO_CLASH = "remove one of the two"


def _resolve(name: str, flags: Mapping[str, object]) -> tuple[str, ...]:
    """Return the flags that argparse would take `name` for: itself, or those it abbreviates."""
    if name in flags:
        return (name,)
    return tuple(sorted(flag for flag in flags if flag.startswith(name)))


def _nearest(name: str, flags: Mapping[str, object], cutoff: float) -> str | None:
    close = difflib.get_close_matches(name, sorted(flags), n=1, cutoff=cutoff)
    return close[0] if close else None


def _unknown(subject: Subject) -> Iterator[Hit]:
    for name in subject.serve:
        resolved = _resolve(name, subject.flags)
        if len(resolved) == 1:
            continue
        if resolved:
            some = ", ".join(f"--{flag}" for flag in resolved[:3])
            sentence = f"vLLM {_installed(subject)} refuses --{name}: it could mean {some}"
            yield Hit(("serve", name), sentence, "the whole name")
            continue
        sentence = f"vLLM {_installed(subject)} has no flag --{name} and will refuse to start"
        near = _SUCCESSORS.get(name) or _nearest(name, subject.flags, 0.7)
        yield Hit(("serve", name), sentence, near or "remove it")


def _installed(subject: Subject) -> str:
    return subject.facts.version or f"in {subject.engine.venv}"


def _abbreviated(subject: Subject) -> Iterator[Hit]:
    if subject.facts.flags is not None:
        for name in subject.serve:
            resolved = _resolve(name, subject.facts.flags)
            if len(resolved) == 1 and resolved[0] != name:
                sentence = f"vLLM takes --{name} for an abbreviation of --{resolved[0]}"
                yield Hit(("serve", name), sentence, resolved[0])
        return
    # Without the installed vLLM only a slip of a letter or two in a long name is certain enough.
    known = dict.fromkeys(vllm_flags.KNOWN)
    for name in subject.serve:
        plain = name.removeprefix("no-")
        if plain in known or len(plain) < 10:
            continue
        near = _nearest(plain, known, 0.95)
        if near is not None:
            sentence = f"--{name} is one letter or two away from --{near}"
            yield Hit(("serve", name), sentence, near)


def _deprecated(subject: Subject) -> Iterator[Hit]:
    for name in subject.serve:
        flag = subject.flags.get(name)
        if flag is not None and flag.deprecation:
            sentence = f"vLLM {_installed(subject)} says of --{name}: {flag.deprecation}"
            advice = _SUCCESSORS.get(name, "what vLLM's help advises")
            yield Hit(("serve", name), sentence, advice)


def _bad_choice(subject: Subject) -> Iterator[Hit]:
    for name, value in subject.serve.items():
        flag = subject.flags.get(name)
        if flag is None or not flag.choices or not isinstance(value, str):
            continue
        if value not in flag.choices:
            near = difflib.get_close_matches(value, flag.choices, n=1, cutoff=0.6)
            choices = ", ".join(flag.choices[:12]) + (", …" if len(flag.choices) > 12 else "")
            sentence = f'vLLM {_installed(subject)} does not know "{value}" for --{name}'
            yield Hit(("serve", name), sentence, near[0] if near else f"one of {choices}")


def _empty(subject: Subject) -> Iterator[Hit]:
    for name, value in subject.serve.items():
        if value == "":
            sentence = f"--{name} is given an empty argument, as a shell script does with an unset"
            yield Hit(("serve", name), f"{sentence} variable")


def _more_gpus(subject: Subject) -> Iterator[Hit]:
    serve = subject.serve
    several_hosts = (
        serve.get("nnodes", 1) != 1 or serve.get("distributed-executor-backend") == "ray"
    )
    if several_hosts:
        return
    sizes = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
    given = {name: serve[name] for name in sizes if type(serve.get(name)) is int}
    wanted = 1
    for size in given.values():
        wanted *= size
    if wanted > subject.host.gpu_count > 0:
        name = max(given, key=lambda flag: given[flag])
        sentence = f"{wanted} GPUs are wanted and the host has {subject.host.gpu_count}"
        yield Hit(("serve", name), sentence)


def _no_metrics(subject: Subject) -> Iterator[Hit]:
    if subject.switch("disable-log-stats"):
        sentence = "/metrics then shows no counters, and a hang of this engine cannot be seen"
        yield Hit(("serve", "disable-log-stats"), sentence)


_NVCC_FLAGS = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "FLASHINFER_EXTRA_CUDAFLAGS")
_NVCC_THREADS = re.compile(r"(?:^|\s)(?:--threads|-t|--split-compile(?:-extended)?)(?:[=\s]|\d)")
_MAKE_JOBS = re.compile(r"(?:^|\s)(?:-j|--jobs)")


def _cap_undone(subject: Subject) -> Iterator[Hit]:
    for name, value in subject.env.items():
        if name in _NVCC_FLAGS and _NVCC_THREADS.search(value):
            sentence = f"{name} gives each nvcc threads of its own, beside compile.nvcc_threads"
            yield Hit(("env", name), sentence)
        elif name == "MAKEFLAGS" and _MAKE_JOBS.search(value):
            yield Hit(("env", name), "MAKEFLAGS starts jobs of its own, beside compile.max_jobs")


def _keeps_alive(subject: Subject) -> Iterator[Hit]:
    name = "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH"
    value = subject.env.get(name)
    release = release_of(subject.facts.version or "")
    # vLLM 0.11 takes any text but the empty one for true.
    off = {""} if release is not None and release.minor == 11 else {"", "0"}
    if value is not None and value not in off:
        sentence = "when the engine core dies, the API server lives on and answers 503 for ever"
        yield Hit(("env", name), sentence)


# A variable and the flags that decide the same; vLLM obeys the flag or refuses both.
_SAME_INTENT: Mapping[str, tuple[str, ...]] = {
    "VLLM_ATTENTION_BACKEND": ("attention-backend", "attention-config"),
    "VLLM_FLASHINFER_MOE_BACKEND": ("moe-backend",),
    "VLLM_LOGGING_CONFIG_PATH": ("logging-config", "log-config-file"),
    "VLLM_NVFP4_GEMM_BACKEND": ("linear-backend",),
    "VLLM_USE_FLASHINFER_MOE_FP16": ("moe-backend",),
    "VLLM_USE_FLASHINFER_MOE_FP4": ("moe-backend",),
    "VLLM_USE_FLASHINFER_MOE_FP8": ("moe-backend",),
}
_SAME_FLAGS = (
    ("cudagraph-capture-sizes", "max-cudagraph-capture-size"),
    ("spec-method", "speculative-config"),
    ("spec-model", "speculative-config"),
    ("spec-tokens", "speculative-config"),
)


def _said_twice(subject: Subject) -> Iterator[Hit]:
    for name in subject.env:
        for flag in _SAME_INTENT.get(name, ()):
            if flag in subject.serve:
                sentence = f"{name} and --{flag} decide the same, and only one of them is obeyed"
                yield Hit(("env", name), sentence, f"serve.{flag} alone")
    for first, second in _SAME_FLAGS:
        if first in subject.serve and second in subject.serve:
            sentence = f"--{first} and --{second} decide the same"
            yield Hit(("serve", first), sentence)


def _internal_port(subject: Subject) -> Iterator[Hit]:
    value = subject.env.get("VLLM_PORT", "")
    taken = {engine.port: engine.name for engine in subject.whole.engines}
    if re.fullmatch(r"[0-9]{1,5}", value) and int(value) in taken:
        sentence = (
            f"VLLM_PORT is where vLLM's own processes meet, and {value} is the port that engine"
            f" {taken[int(value)]} serves on"
        )
        yield Hit(("env", "VLLM_PORT"), sentence)


def _silent(subject: Subject) -> Iterator[Hit]:
    env = subject.env
    if env.get("VLLM_CONFIGURE_LOGGING") == "0":
        sentence = "vLLM then logs warnings only, without the prefix that its lines are known by"
        yield Hit(("env", "VLLM_CONFIGURE_LOGGING"), sentence)
    level = env.get("VLLM_LOGGING_LEVEL", "").upper()
    if level in {"WARNING", "ERROR", "CRITICAL", "FATAL"}:
        lost = "the phases of a start" if level == "WARNING" else "warnings, and the phases of a"
        lost = lost if level == "WARNING" else f"{lost} start"
        sentence = f"level {level} hides {lost} from sparkd and from whoever reads the log"
        yield Hit(("env", "VLLM_LOGGING_LEVEL"), sentence)


RULES = (
    Rule(
        code="SPK301",
        severity=Severity.ERROR,
        title="a flag that the installed vLLM does not know",
        why="vLLM imports for 12 s and exits with status 2. The flags are asked from"
        " `vllm serve --help=all` of that very environment.",
        instead="the flag's name in this version",
        reference="https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/17",
        needs=(Need.FLAGS,),
        engine=_unknown,
    ),
    Rule(
        code="SPK302",
        severity=Severity.WARNING,
        title="an abbreviated or misspelled flag",
        why="vLLM's parser takes an unambiguous beginning of a flag for the flag"
        " (`--enable-chunked-prefil`), until the next version has a second flag that begins so."
        " Where the installed vLLM cannot be asked, a name that is a slip away from a known one"
        " counts as misspelled.",
        instead="the whole name",
        reference="https://docs.python.org/3/library/argparse.html#allow-abbrev",
        engine=_abbreviated,
    ),
    Rule(
        code="SPK303",
        severity=Severity.WARNING,
        title="a deprecated flag",
        why="The installed vLLM's own help says so. A later version refuses to start with it.",
        instead="what vLLM's help advises",
        reference="https://docs.vllm.ai/en/latest/contributing/deprecation_policy/",
        needs=(Need.FLAGS,),
        engine=_deprecated,
    ),
    Rule(
        code="SPK304",
        severity=Severity.ERROR,
        title="a value that the flag does not take",
        why="vLLM exits with status 2. The choices are those of the installed vLLM's help.",
        instead="one of the choices",
        reference="vllm serve --help=all",
        needs=(Need.FLAGS,),
        engine=_bad_choice,
    ),
    Rule(
        code="SPK305",
        severity=Severity.WARNING,
        title="an empty argument",
        why="It is mostly what is left of an unset variable in a script.",
        instead="a value, or leave the flag out",
        reference="sparkd.toml(5), [serve]",
        engine=_empty,
    ),
    Rule(
        code="SPK306",
        severity=Severity.ERROR,
        title="more GPUs than the host has",
        why="The start fails. Settings for several hosts (nnodes, ray) are left alone.",
        instead="remove the flag: a DGX Spark has one GPU",
        reference="https://docs.vllm.ai/en/latest/serving/parallelism_scaling/",
        needs=(Need.GPU,),
        engine=_more_gpus,
    ),
    Rule(
        code="SPK307",
        severity=Severity.WARNING,
        title="an engine without counters",
        why="A hung engine answers /health with 200; only vLLM's counters show that no token comes."
        " --disable-log-stats switches them off together with the log line.",
        instead="remove the flag",
        reference=f"{VLLM}/issues/24207",
        engine=_no_metrics,
    ),
    Rule(
        code="SPK321",
        severity=Severity.WARNING,
        title="a compile cap undone",
        why="The caps of [compile] bound how many compilers run at a time. Flags handed to nvcc or"
        " make by a variable come on top.",
        instead="remove it, or raise compile.nvcc_threads or compile.max_jobs in sparkd.toml",
        reference="https://github.com/flashinfer-ai/flashinfer/issues/3060",
        engine=_cap_undone,
    ),
    Rule(
        code="SPK322",
        severity=Severity.ERROR,
        title="a dead engine that never exits",
        why="Nothing restarts an engine that does not exit. vLLM 0.11 takes even the value 0 for"
        " yes.",
        instead="remove the variable: sparkd restarts the engine and keeps the evidence",
        reference=f"{VLLM}/pull/52178",
        engine=_keeps_alive,
    ),
    Rule(
        code="SPK323",
        severity=Severity.WARNING,
        title="the same intent twice",
        why="Of a variable and a flag, or of two flags, only one is obeyed, and which one changes"
        " between versions.",
        instead=_NO_CLASH,
        reference="https://docs.vllm.ai/en/latest/configuration/env_vars/",
        engine=_said_twice,
    ),
    Rule(
        code="SPK324",
        severity=Severity.WARNING,
        title="VLLM_PORT is not the API's port",
        why="vLLM's processes bind to it and count up from there; the API server's port is --port.",
        instead="remove the variable",
        reference="https://docs.vllm.ai/en/latest/configuration/env_vars/",
        engine=_internal_port,
    ),
    Rule(
        code="SPK325",
        severity=Severity.WARNING,
        title="a log that hides what happened",
        why="How an engine dies and how far a start has come is read from its lines.",
        instead="remove the variable",
        reference="sparkd(8)",
        engine=_silent,
    ),
)
