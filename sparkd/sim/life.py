# SPDX-License-Identifier: Apache-2.0
"""What happens to a simulated engine: how it loads, when and how it dies, how it stops."""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

PREFIX = "SPARKD_SIM_"
FILE_VARIABLE = "SPARKD_SIM_LIFE_FILE"


class LifeError(ValueError):
    """The life cannot be lived as written. `problems` holds one sentence per fault."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Kind(StrEnum):
    """A way to fail."""

    NONE = "none"
    CUDA_ILLEGAL_INSTRUCTION = "cuda-illegal-instruction"
    CUDA_ILLEGAL_MEMORY_ACCESS = "cuda-illegal-memory-access"
    CUDA_OOM = "cuda-oom"
    NO_KERNEL_IMAGE = "no-kernel-image"
    CORE_KILLED = "core-killed"
    CORE_ABORT = "core-abort"
    WORKER_DIED = "worker-died"
    WORKER_SEGFAULT = "worker-segfault"
    EAT_MEMORY = "eat-memory"
    HANG = "hang"
    KEEP_ALIVE = "keep-alive"
    ORPHAN = "orphan"
    PORT_KEPT = "port-kept"
    MAIN_KILLED = "main-killed"
    SEGFAULT = "segfault"
    SILENT_EXIT_0 = "silent-exit-0"
    EXIT = "exit"
    KV_CACHE_TOO_SMALL = "kv-cache-too-small"
    NO_KV_CACHE_MEMORY = "no-kv-cache-memory"
    FREE_MEMORY = "free-memory"
    MAMBA_BLOCKS = "mamba-blocks"
    INIT_FAILED = "init-failed"
    BAD_FLAG = "bad-flag"
    PORT_IN_USE = "port-in-use"
    MODEL_MISSING = "model-missing"


class Actor(StrEnum):
    """The process in which a kind of death happens."""

    NOBODY = "nobody"
    COMMAND_LINE = "command-line"  # the main process, before there is an engine
    MAIN = "main"
    CORE = "core"


class Trait(NamedTuple):
    """Where a kind happens, when it may, and what it looks like from outside."""

    actor: Actor
    in_load: bool
    in_service: bool
    load_fraction: float  # where in the load a start fails unless told otherwise
    says: str


_CORE_ANY = (Actor.CORE, True, True)
_CORE_LOAD = (Actor.CORE, True, False)
_CORE_SERVICE = (Actor.CORE, False, True)
_MAIN_ANY = (Actor.MAIN, True, True)
_START = (Actor.COMMAND_LINE, True, False)

KINDS: dict[Kind, Trait] = {
    Kind.NONE: Trait(Actor.NOBODY, True, True, 0.0, "lives until it is stopped"),
    Kind.CUDA_ILLEGAL_INSTRUCTION: Trait(
        *_CORE_ANY, 0.7, "EngineCore's fatal error, then the API server exits 0 (in load: 1)"
    ),
    Kind.CUDA_ILLEGAL_MEMORY_ACCESS: Trait(*_CORE_ANY, 0.7, "the same, illegal memory access"),
    Kind.CUDA_OOM: Trait(*_CORE_ANY, 0.92, "the same, CUDA out of memory"),
    Kind.NO_KERNEL_IMAGE: Trait(*_CORE_ANY, 0.6, "the same, no kernel image for the device"),
    Kind.CORE_KILLED: Trait(
        *_CORE_ANY, 0.5, "EngineCore gets SIGKILL: /health 503 until the watchdog, then exit 0"
    ),
    Kind.CORE_ABORT: Trait(*_CORE_ANY, 0.5, "EngineCore aborts in C++ (SIGABRT), then exit 0"),
    Kind.WORKER_DIED: Trait(*_CORE_ANY, 0.5, "a worker gets SIGKILL, then exit 0 (in load: 1)"),
    Kind.WORKER_SEGFAULT: Trait(*_CORE_ANY, 0.5, "a worker gets SIGSEGV, then exit 0"),
    Kind.EAT_MEMORY: Trait(*_CORE_ANY, 0.5, "EngineCore allocates memory_mib at that moment"),
    Kind.HANG: Trait(
        *_CORE_ANY, 0.5, "no token ever again, /health 200, stale gauges (in load: never ready)"
    ),
    Kind.KEEP_ALIVE: Trait(
        *_CORE_SERVICE, 0.0, "EngineCore dies, the API server stays and answers /health 503"
    ),
    Kind.ORPHAN: Trait(
        *_CORE_SERVICE, 0.0, "exit 0, EngineCore stays linger_seconds in its own session"
    ),
    Kind.PORT_KEPT: Trait(*_CORE_SERVICE, 0.0, "as orphan, and it keeps the port"),
    Kind.MAIN_KILLED: Trait(
        *_MAIN_ANY, 0.5, "the main process gets SIGKILL, its EngineCore goes a second later"
    ),
    Kind.SEGFAULT: Trait(*_MAIN_ANY, 0.5, "the main process gets SIGSEGV"),
    Kind.SILENT_EXIT_0: Trait(*_MAIN_ANY, 0.5, "exit 0 without a line"),
    Kind.EXIT: Trait(*_MAIN_ANY, 0.5, "exit exit_status without a line"),
    Kind.KV_CACHE_TOO_SMALL: Trait(
        *_CORE_LOAD, 0.76, "one request does not fit the KV cache, exit 1"
    ),
    Kind.NO_KV_CACHE_MEMORY: Trait(*_CORE_LOAD, 0.76, "nothing left for the KV cache, exit 1"),
    Kind.FREE_MEMORY: Trait(*_CORE_LOAD, 0.04, "free memory below the utilization, exit 1"),
    Kind.MAMBA_BLOCKS: Trait(*_CORE_LOAD, 0.88, "max_num_seqs above the Mamba blocks, exit 1"),
    Kind.INIT_FAILED: Trait(*_CORE_LOAD, 0.3, "engine core initialization failed, exit 1"),
    Kind.BAD_FLAG: Trait(*_START, 0.0, "an unknown flag, exit 2"),
    Kind.PORT_IN_USE: Trait(*_START, 0.0, "OSError: Address already in use, exit 1"),
    Kind.MODEL_MISSING: Trait(*_START, 0.0, "the model is not there, exit 1"),
}


class Life(NamedTuple):
    """One life. `SETTINGS` documents each field."""

    death: Kind = Kind.NONE
    death_after_seconds: float | None = None
    death_at_request: int | None = None
    death_at_load: float | None = None
    import_seconds: float = 0.0
    load_seconds: float = 2.0
    exit_status: int = 1
    linger_seconds: float = 30.0
    flood_before: int = 0
    flood_after: int = 0
    memory_mib: int = 0
    peak_mib: int = 0
    workers: int | None = None
    shards: int = 4
    weights_gib: float = 17.5
    kv_cache_tokens: int = 1_048_576
    tokens_per_second: float = 50.0
    deaf: bool = False
    lose_first_sigterm: bool = True
    stop_seconds: float = 0.0
    watchdog_seconds: float = 5.0
    stats_seconds: float = 10.0
    strict_flags: bool = False
    version: str = "0.32.0"

    def load_fraction(self) -> float | None:
        """The point of the load, 0 to 1, at which this life fails; None if the load succeeds."""
        trait = KINDS[self.death]
        if trait.actor in {Actor.NOBODY, Actor.COMMAND_LINE}:
            return None
        if self.death_at_load is not None:
            return self.death_at_load
        return None if trait.in_service else trait.load_fraction


def _number(low: float, high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(f"must be from {low:g} to {high:g}")
        return value

    return parse


def _integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return parse


def _boolean(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"", "0", "false", "no", "off"}:
        return False
    raise ValueError("must be true or false")


def parse_kind(text: str) -> Kind:
    """The kind of that name; ValueError names the kinds there are."""
    try:
        return Kind(text)
    except ValueError:
        raise ValueError(f"must be one of {', '.join(Kind)}") from None


class Setting(NamedTuple):
    """One thing that can be set about a life."""

    parse: Callable[[str], object]
    help: str


_SECONDS = _number(0, 1_000_000)

SETTINGS: dict[str, Setting] = {
    "death": Setting(parse_kind, "kind of death (list below)"),
    "death_after_seconds": Setting(_SECONDS, "die that long after ready (5 if no moment is set)"),
    "death_at_request": Setting(_integer(1, 10**9), "die in the N-th inference request"),
    "death_at_load": Setting(_number(0, 1), "die during the load, at this fraction of it"),
    "import_seconds": Setting(_SECONDS, "silence before the first line; a SIGTERM then is deadly"),
    "load_seconds": Setting(_SECONDS, "from the engine's start to ready"),
    "exit_status": Setting(_integer(0, 255), "of the kind exit"),
    "linger_seconds": Setting(_SECONDS, "how long orphan and port-kept leave a process behind"),
    "flood_before": Setting(_integer(0, 10**7), "lines printed just before the fatal line"),
    "flood_after": Setting(_integer(0, 10**7), "lines printed after the death was reported"),
    "memory_mib": Setting(_integer(0, 10**6), "MiB that EngineCore touches while it loads"),
    "peak_mib": Setting(
        _integer(0, 10**6), "MiB that EngineCore touches besides, and gives back when loaded"
    ),
    "workers": Setting(
        _integer(0, 64), "worker processes (default: as real, none with tensor-parallel-size 1)"
    ),
    "shards": Setting(_integer(1, 1000), "safetensors shards in the load"),
    "weights_gib": Setting(_number(0, 10_000), "size of the weights in the boot lines"),
    "kv_cache_tokens": Setting(_integer(1, 10**12), "size of the KV cache"),
    "tokens_per_second": Setting(_number(0.1, 10_000), "of each running request"),
    "deaf": Setting(_boolean, "ignore SIGTERM and SIGINT, always"),
    "lose_first_sigterm": Setting(
        _boolean, "the first SIGTERM during the load is lost, as in vLLM 0.32"
    ),
    "stop_seconds": Setting(_SECONDS, "how long a requested stop takes"),
    "watchdog_seconds": Setting(
        _number(0.01, 3600), "period after which an idle API server sees its engine's death"
    ),
    "stats_seconds": Setting(
        _number(0.01, 86_400), "period of the statistics line (or VLLM_LOG_STATS_INTERVAL)"
    ),
    "strict_flags": Setting(_boolean, "refuse flags that vLLM does not have, exit 2"),
    "version": Setting(str, "the version that is printed and served"),
}

AT_DEATH = frozenset(
    {"death", "exit_status", "linger_seconds", "flood_before", "flood_after", "memory_mib"}
)
MOMENTS = ("death_after_seconds", "death_at_request", "death_at_load")
DEFAULT_DEATH_AFTER_SECONDS = 5.0


def from_environment(environment: Mapping[str, str], file_text: str | None) -> Life:
    """The life that the environment describes, overridden by the text of the life file.

    Raises LifeError with every fault at once.
    """
    problems: list[str] = []
    given: dict[str, tuple[str, str]] = {}
    if interval := environment.get("VLLM_LOG_STATS_INTERVAL"):
        given["stats_seconds"] = ("VLLM_LOG_STATS_INTERVAL", interval)
    for variable, text in environment.items():
        if variable.startswith(PREFIX) and variable != FILE_VARIABLE:
            _give(given, problems, variable, variable.removeprefix(PREFIX).lower(), text)
    for key, text in _entries(file_text, environment.get(FILE_VARIABLE, ""), problems):
        _give(given, problems, f"{environment.get(FILE_VARIABLE)}: {key}", key, text)
    return _build(given, problems)


def amended(life: Life, changes: Mapping[str, object]) -> Life:
    """`life` with some of the settings `AT_DEATH` changed; raises LifeError."""
    problems: list[str] = []
    given: dict[str, tuple[str, str]] = {}
    for key, value in changes.items():
        if key not in AT_DEATH:
            problems.append(f"{key}: cannot change now; what can is {', '.join(sorted(AT_DEATH))}")
            continue
        _give(given, problems, key, key, _text(value))
    values = {key: value for key, value in life._asdict().items() if key not in MOMENTS}
    return _build(given, problems, values)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _entries(text: str | None, path: str, problems: list[str]) -> list[tuple[str, str]]:
    if text is None or not text.strip():
        return []
    try:
        document = json.loads(text)
    except ValueError as error:
        problems.append(f"{path}: not JSON: {error}")
        return []
    if not isinstance(document, dict):
        problems.append(f"{path}: must be a JSON object of settings")
        return []
    return [(key, _text(value)) for key, value in document.items() if value is not None]


def _give(
    given: dict[str, tuple[str, str]], problems: list[str], source: str, key: str, text: str
) -> None:
    if key in SETTINGS:
        given[key] = (source, text)
    else:
        problems.append(f"{source}: unknown setting; the settings are {', '.join(SETTINGS)}")


def _build(
    given: dict[str, tuple[str, str]],
    problems: list[str],
    values: dict[str, Any] | None = None,
) -> Life:
    values = values or {}
    for key, (source, text) in given.items():
        try:
            values[key] = SETTINGS[key].parse(text)
        except ValueError as error:
            problems.append(f"{source}: {text}: {error}")
    if problems:
        raise LifeError(problems)
    life = Life(**values)
    problems = _contradictions(life)
    if problems:
        raise LifeError(problems)
    trait = KINDS[life.death]
    if trait.in_service and life.death is not Kind.NONE and not _moments(life):
        life = life._replace(death_after_seconds=DEFAULT_DEATH_AFTER_SECONDS)
    return life


def _moments(life: Life) -> list[str]:
    return [key for key in MOMENTS if getattr(life, key) is not None]


def _contradictions(life: Life) -> list[str]:
    trait = KINDS[life.death]
    moments = _moments(life)
    problems = []
    if len(moments) > 1:
        problems.append(f"{' and '.join(moments)}: a life ends once, set one of them")
    if not trait.in_service and set(moments) - {"death_at_load"}:
        problems.append(f"death: {life.death}: happens only in a start, not while serving")
    if not trait.in_load and life.death_at_load is not None:
        problems.append(f"death: {life.death}: happens only while serving, not in a start")
    return problems
