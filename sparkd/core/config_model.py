# SPDX-License-Identifier: Apache-2.0
"""The configuration after every check: plain frozen values that the rest of sparkd works with."""

from dataclasses import dataclass
from enum import StrEnum

from sparkd.core import memory_guard, storm
from sparkd.core.quantities import MemoryLimit


class Warmup(StrEnum):
    """The request that an engine must answer before it counts as ready."""

    AUTO = "auto"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    SCORE = "score"
    NONE = "none"


class HangMode(StrEnum):
    """What sparkd does about an engine that makes no progress."""

    OFF = "off"
    OBSERVE = "observe"
    ACT = "act"


@dataclass(frozen=True, slots=True)
class CompileCaps:
    """How many compilers one start may run, and their threads."""

    max_jobs: int
    nvcc_threads: int
    inductor_threads: int
    everywhere: bool = True
    """Whether login shells, system services and user services get the caps as well."""


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """What holds compile storms down, and what acts when the machine runs out of memory."""

    storm: storm.Mode
    job_memory: MemoryLimit
    memory: memory_guard.Mode
    floor: MemoryLimit


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The `burst`-th unrequested end of life within `window_seconds` holds the engine."""

    burst: int
    window_seconds: int
    delay_seconds: int


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An IP address (no brackets) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return `host:port`, with brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class AlertFormat(StrEnum):
    """What a webhook's receiver expects."""

    JSON = "json"
    NTFY = "ntfy"
    SLACK = "slack"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where alerts are posted to.

    `url` is None when the credential file holds the address. `credential` is the path of a file
    with that address, or with the value of the Authorization header.
    """

    name: str
    url: str | None
    format: AlertFormat
    credential: str | None


@dataclass(frozen=True, slots=True)
class AlertConfig:
    """Who is told about what, how often at most. Without webhooks and command: nobody."""

    webhooks: tuple[Webhook, ...]
    command: tuple[str, ...]
    kinds: frozenset[str]
    rate_limit: int
    dedup_seconds: int
    proxy: str | None

    @property
    def is_on(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self.webhooks or self.command)


@dataclass(frozen=True, slots=True)
class Tenant:
    """Something else that takes memory: counted, and neither started nor stopped by sparkd."""

    name: str
    memory: MemoryLimit
    unit: str | None


@dataclass(frozen=True, slots=True)
class HostConfig:
    """sparkd.toml."""

    reserve: MemoryLimit
    compile: CompileCaps
    memory_high: MemoryLimit | None
    memory_max: MemoryLimit
    guards: GuardPolicy
    restart: RestartPolicy
    metrics: ListenAddress
    alerts: AlertConfig
    tenants: tuple[Tenant, ...] = ()

    def tenants_of(self, memory_total: int) -> int:
        """Return the bytes that all tenants take on a host with so many bytes of memory."""
        return sum(tenant.memory.of(memory_total) for tenant in self.tenants)


@dataclass(frozen=True, slots=True)
class Credential:
    """A secret handed to an engine as a file; `line` is where the configuration names it."""

    name: str
    path: str
    line: int


@dataclass(frozen=True, slots=True)
class HangPolicy:
    """When a serving engine counts as hung, and what follows; `canary_seconds` 0: never ask."""

    mode: HangMode
    after_seconds: int
    act_after_seconds: int
    canary_seconds: int


@dataclass(frozen=True, slots=True)
class ReadyPolicy:
    """When an engine counts as ready."""

    budget_seconds: int
    cold_budget_seconds: int
    """Of a start that has to compile what an earlier one would have left in the caches."""
    warmup: Warmup
    expect_version: str | None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One file of engines.d.

    `serve` holds the arguments after `vllm serve MODEL`, without host and port.
    `memory_utilization` is the share (0 to 1) of the machine's memory that vLLM claims at start.
    `cache_is_default` tells that systemd creates `cache` (CacheDirectory=).
    """

    name: str
    source: str
    model: str
    host: str
    port: int
    order: int
    user: str
    group: str | None
    autostart: bool
    venv: str
    cache: str
    cache_is_default: bool
    cuda_home: str
    path_extra: tuple[str, ...]
    serve: tuple[str, ...]
    served_names: tuple[str, ...]
    memory_utilization: float
    env: tuple[tuple[str, str], ...]
    credentials: tuple[Credential, ...]
    ready: ReadyPolicy
    hang: HangPolicy
    memory_max: MemoryLimit | None

    @property
    def unit(self) -> str:
        """The name of the engine's systemd unit."""
        return f"vllm-{self.name}.service"

    @property
    def executable(self) -> str:
        """The absolute path of the vllm command."""
        return f"{self.venv}/bin/vllm"

    @property
    def probe_host(self) -> str:
        """The address at which the engine answers on this host."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration; `engines` is sorted by order, then name: the order of starting."""

    host: HostConfig
    engines: tuple[EngineConfig, ...]
