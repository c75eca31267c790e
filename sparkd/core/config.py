# SPDX-License-Identifier: Apache-2.0
"""From configuration files to one checked `Config`, or to every error in them at once."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkd.core import alert_settings, serve
from sparkd.core.config_errors import ConfigError, ConfigErrors, shown
from sparkd.core.config_model import (
    CompileCaps,
    Config,
    Credential,
    EngineConfig,
    GuardPolicy,
    HangPolicy,
    HostConfig,
    ListenAddress,
    ReadyPolicy,
    RestartPolicy,
    Tenant,
    Warmup,
)
from sparkd.core.config_reader import Document, Source, parse, read_settings
from sparkd.core.engine_environment import OWNED_VARIABLES
from sparkd.core.escape import UnitTextError, check_encodable
from sparkd.core.quantities import MemoryLimit, format_size
from sparkd.core.schema import ENGINE, ENGINE_NAME, ENGINE_NAME_RULE, HOST
from sparkd.core.secrecy import contains_secret, is_secret_name
from sparkd.core.text import is_plain_path

__all__ = ["Config", "ConfigError", "ConfigErrors", "EngineConfig", "HostConfig", "Source", "load"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")


@dataclass(slots=True)
class _Draft:
    """An engine's file while it is checked; `config` stays None when it is refused."""

    name: str
    document: Document
    values: dict[str, Any]
    served_names: tuple[str, ...] = ()
    memory_utilization: float | None = None
    config: EngineConfig | None = None

    @property
    def label(self) -> str:
        """The engine's name as a message may show it: a file may be called anything."""
        return self.name if ENGINE_NAME.match(self.name) else shown(self.name)


def load(sources: Sequence[Source], memory_total: int | None) -> Config:
    """Check every file and the engines against each other.

    Args:
        sources: at most one host file (without it its defaults hold) and one file per engine.
        memory_total: bytes of physical memory; None leaves over-commitment unchecked.

    Raises:
        ConfigErrors: with every broken rule, sorted by file and line.
    """
    host_source = next((s for s in sources if s.engine is None), Source(HOST, ""))
    host_document = parse(host_source)
    host = _host(host_document)
    drafts = [_engine(source.engine, source) for source in sources if source.engine is not None]

    _check_unique(drafts, "port", _ports)
    _check_unique(drafts, "serve.served-model-name", lambda draft: draft.served_names)
    _check_same_name(drafts)
    if host is not None:
        _check_metrics_port(drafts, host)
        _check_tenants(host_document, host, drafts)
        if memory_total is not None:
            _check_memory(drafts, host, memory_total)
            _check_tenants_memory(host_document, host, memory_total)

    documents = [host_document, *(draft.document for draft in drafts)]
    if errors := [error for document in documents for error in document.errors]:
        raise ConfigErrors(errors)
    engines = [draft.config for draft in drafts if draft.config is not None]
    if host is None or len(engines) != len(drafts):
        raise AssertionError("a refused file must have an error")
    return Config(host, tuple(sorted(engines, key=lambda engine: (engine.order, engine.name))))


def _host(document: Document) -> HostConfig | None:
    if document.unreadable:
        return None
    values = read_settings(document, HOST)
    _check_ignores(document, values.get("lint.ignore", {}))
    if document.errors:
        return None
    _check_listen(document, values["metrics.listen"], allow=values["metrics.allow-remote"])
    _check_high(document, values.get("memory.high"), values["memory.max"])
    if values["restart.delay"] >= values["restart.window"]:
        document.refuse(("restart", "delay"), "must be shorter than restart.window")
    for key, rule in alert_settings.broken_rules(values):
        document.refuse(("alerts", key), rule)
    return HostConfig(
        reserve=values["host.reserve"],
        compile=CompileCaps(
            values["compile.max_jobs"],
            values["compile.nvcc_threads"],
            values["compile.inductor_threads"],
            values["compile.everywhere"],
        ),
        memory_high=values.get("memory.high"),
        memory_max=values["memory.max"],
        guards=GuardPolicy(
            storm=values["storm.mode"],
            job_memory=values["storm.job-memory"],
            memory=values["memory.mode"],
            floor=values["memory.floor"],
        ),
        restart=RestartPolicy(
            values["restart.burst"], values["restart.window"], values["restart.delay"]
        ),
        metrics=values["metrics.listen"],
        alerts=alert_settings.config(values),
        tenants=tuple(
            Tenant(name, values[f"tenants.{name}.memory"], values.get(f"tenants.{name}.unit"))
            for name in document.section("tenants")
        ),
    )


def _check_listen(document: Document, listen: ListenAddress, *, allow: bool) -> None:
    if not allow and not ipaddress.ip_address(listen.host).is_loopback:
        document.refuse(
            ("metrics", "listen"),
            "must be a loopback address: /metrics has no authentication",
            value=str(listen),
            hint="metrics.allow-remote = true permits it",
        )


def _check_high(document: Document, high: MemoryLimit | None, limit: MemoryLimit) -> None:
    if high is None:
        return
    same_unit = (high.percent is None) == (limit.percent is None)
    if same_unit and (high.percent or high.bytes or 0) > (limit.percent or limit.bytes or 0):
        rule = "must not be larger than memory.max"
        document.refuse(("memory", "high"), rule, value=str(high))


def _engine(name: str, source: Source) -> _Draft:
    document = parse(source)
    draft = _Draft(name, document, {})
    if not ENGINE_NAME.match(name):
        rule = f"{ENGINE_NAME_RULE}: rename the file"
        document.errors.append(ConfigError(source.path, 0, "file name", shown(name), rule))
    if document.unreadable:
        return draft
    draft.values = read_settings(document, ENGINE)
    _check_ignores(document, draft.values.get("lint.ignore", {}))
    _check_runtime(document, draft.values)
    arguments = _serve(draft)
    env = _environment(document)
    credentials = _credentials(document)
    if not document.errors:
        draft.config = _build(draft, arguments, env, credentials)
    return draft


def _build(
    draft: _Draft,
    arguments: tuple[str, ...],
    env: tuple[tuple[str, str], ...],
    credentials: tuple[Credential, ...],
) -> EngineConfig:
    values = draft.values
    cache = values.get("runtime.cache")
    return EngineConfig(
        name=draft.name,
        source=draft.document.path,
        model=values["model"],
        host=values["host"],
        port=values["port"],
        order=values["order"],
        user=values["user"],
        group=values.get("group"),
        autostart=values["autostart"],
        venv=values["runtime.venv"],
        cache=cache or f"/var/cache/vllm/{draft.name}",
        cache_is_default=cache is None,
        cuda_home=values["runtime.cuda_home"],
        path_extra=values["runtime.path-extra"],
        serve=arguments,
        served_names=draft.served_names,
        memory_utilization=draft.memory_utilization or serve.DEFAULT_MEMORY_UTILIZATION,
        env=env,
        credentials=credentials,
        ready=ReadyPolicy(
            budget_seconds=values["ready.budget"],
            cold_budget_seconds=values.get("ready.cold-budget", 2 * values["ready.budget"]),
            warmup=_warmup(values["ready.warmup"], draft.document.section("serve")),
            expect_version=values.get("ready.expect-version"),
        ),
        hang=HangPolicy(
            values["hang.mode"],
            values["hang.after"],
            values["hang.act-after"],
            values["hang.canary"],
        ),
        memory_max=values.get("memory.max"),
    )


def _check_ignores(document: Document, ignore: Mapping[str, object]) -> None:
    if not ignore:
        return
    from sparkd.core.lint.ignores import ignore_errors  # noqa: PLC0415  (only an ignore pays)

    for error in ignore_errors(ignore):
        document.refuse(("lint", "ignore", error.code), error.rule, hint=error.hint)


def _check_runtime(document: Document, values: dict[str, Any]) -> None:
    given = document.section("runtime")
    if "venv" in given and "image" in given:
        document.refuse(("runtime", "image"), "must not stand beside runtime.venv: choose one")
    elif "image" in given:
        if "runtime.image" in values:
            document.refuse(
                ("runtime", "image"),
                "container runtime is not supported by this version yet: use runtime.venv",
            )
    elif "venv" not in given:
        rule = "is required: the directory whose bin/vllm is run"
        document.refuse(("runtime", "venv"), rule)


def _serve(draft: _Draft) -> tuple[str, ...]:
    document = draft.document
    flags = document.section("serve")
    arguments: list[str] = []
    for name, value in flags.items():
        secret = is_secret_name(name)
        try:
            serve.check_flag_name(name)
            arguments += serve.flag_arguments(name, value)
        except serve.ServeError as error:
            document.refuse(("serve", name), str(error), value=value, secret=secret)
    for name in flags:
        if name.removeprefix("no-") in flags.keys() - {name}:
            rule = f"contradicts serve.{name.removeprefix('no-')}"
            document.refuse(("serve", name), rule)
    if sum(len(argument.encode()) for argument in arguments) > serve.MAX_TOTAL_BYTES:
        rule = f"must not be longer than {serve.MAX_TOTAL_BYTES} bytes in all"
        document.refuse(("serve",), rule)
    _serve_facts(draft)
    return tuple(arguments)


def _serve_facts(draft: _Draft) -> None:
    """Read from the flags what sparkd itself needs to know."""
    flags = draft.document.section("serve")
    try:
        draft.memory_utilization = serve.memory_utilization(flags)
    except serve.ServeError as error:
        _refuse_flag(draft.document, "gpu-memory-utilization", error)
    try:
        draft.served_names = serve.served_names(draft.values.get("model", ""), flags)
    except serve.ServeError as error:
        _refuse_flag(draft.document, "served-model-name", error)
    if "model" not in draft.values and "served-model-name" not in flags:
        draft.served_names = ()


def _refuse_flag(document: Document, name: str, error: serve.ServeError) -> None:
    if not any(known.key == f"serve.{name}" for known in document.errors):
        document.refuse(("serve", name), str(error), value=document.section("serve").get(name))


def _warmup(configured: Warmup, flags: Mapping[str, object]) -> Warmup:
    """Turn AUTO into the request that the flags ask for; without such flags it stays AUTO."""
    if configured is not Warmup.AUTO:
        return configured
    convert, task, runner = flags.get("convert"), flags.get("task"), flags.get("runner")
    if convert == "embed" or task in {"embed", "embedding"}:
        return Warmup.EMBEDDING
    if convert == "classify" or task in {"score", "classify", "reward"}:
        return Warmup.SCORE if task == "score" else Warmup.AUTO
    if runner == "generate" or task == "generate":
        return Warmup.COMPLETION
    return Warmup.AUTO


def _environment(document: Document) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for name, value in document.section("env").items():
        if rule := _environment_rule(name, value):
            secret = is_secret_name(name)
            document.refuse(("env", name), rule, value=value, secret=secret)
        else:
            pairs.append((name, value))
    return tuple(pairs)


def _is_ours(name: str) -> bool:
    """Whether sparkd sets variables of this name; SPARKD_SIM_ is for who runs the simulator."""
    return name.startswith("SPARKD_") and not name.startswith("SPARKD_SIM_")


def _environment_rule(name: str, value: object) -> str | None:
    if not _VARIABLE.match(name):
        return "must be named with letters, digits and '_', not beginning with a digit"
    if is_secret_name(name) or contains_secret(value):
        return (
            "looks like a secret, and a unit's environment is readable by every local user:"
            f' write {name} = "/path/to/file" in [credentials]'
        )
    if reason := OWNED_VARIABLES.get(name):
        return f"cannot be set in [env]: {reason}"
    if _is_ours(name):
        return "cannot be set in [env]: sparkd's own variables begin with SPARKD_"
    if type(value) is not str:
        return 'must be a string: write "1" for 1'
    if len(value.encode("utf-8", "surrogatepass")) > serve.MAX_VALUE_BYTES:
        return f"must not be longer than {serve.MAX_VALUE_BYTES} bytes"
    try:
        check_encodable(value)
    except UnitTextError as error:
        return str(error)
    return None


def _credentials(document: Document) -> tuple[Credential, ...]:
    credentials: list[Credential] = []
    for name, path in document.section("credentials").items():
        rule = None
        if not _VARIABLE.match(name):
            rule = "must be named like the variable it becomes: letters, digits and '_'"
        elif name in OWNED_VARIABLES or _is_ours(name):
            rule = "cannot be a credential: sparkd or systemd sets this variable"
        elif name in document.section("env"):
            rule = f"must not stand in [env] as well: remove env.{name}"
        elif type(path) is not str or not is_plain_path(path):
            rule = (
                "must be the absolute path of a file that holds the secret, of letters, digits"
                " and . _ + @ , = ~ -; never the secret itself"
            )
        if rule:
            # Whatever stands here instead of a path is probably the secret.
            document.refuse(("credentials", name), rule, value=path, secret=True)
        else:
            credentials.append(Credential(name, path, document.line("credentials", name)))
    return tuple(credentials)


def _ports(draft: _Draft) -> Iterable[int]:
    return (draft.values["port"],) if "port" in draft.values else ()


def _check_unique(
    drafts: Sequence[_Draft], key: str, of: Callable[[_Draft], Iterable[int | str]]
) -> None:
    path = tuple(key.split("."))
    first: dict[int | str, _Draft] = {}
    for draft in drafts:
        for value in of(draft):
            other = first.setdefault(value, draft)
            if other is not draft:
                place = f"{other.document.path}:{other.document.line(*path)}"
                rule = f"is taken by engine {other.label} ({place})"
                draft.document.refuse(path, rule, value=value)


def _check_same_name(drafts: Sequence[_Draft]) -> None:
    first: dict[str, _Draft] = {}
    for draft in drafts:
        other = first.setdefault(draft.name, draft)
        if other is not draft:
            rule = f"is taken by {other.document.path}"
            draft.document.errors.append(
                ConfigError(draft.document.path, 0, "file name", shown(draft.name), rule)
            )


def _check_metrics_port(drafts: Sequence[_Draft], host: HostConfig) -> None:
    for draft in drafts:
        if draft.values.get("port") == host.metrics.port:
            rule = "is sparkd's own port (metrics.listen in sparkd.toml)"
            draft.document.refuse(("port",), rule, value=host.metrics.port)


def _check_tenants(document: Document, host: HostConfig, drafts: Sequence[_Draft]) -> None:
    """Refuse a unit that would be counted twice."""
    taken = {f"vllm-{draft.name}.service": f"engine {draft.label}" for draft in drafts}
    for tenant in host.tenants:
        if tenant.unit is None:
            continue
        if other := taken.get(tenant.unit):
            path = ("tenants", tenant.name, "unit")
            document.refuse(path, f"is that of {other}, whose memory is counted", value=tenant.unit)
        taken.setdefault(tenant.unit, f"tenant {tenant.name}")


def _check_tenants_memory(document: Document, host: HostConfig, memory_total: int) -> None:
    reserve = host.reserve.of(memory_total)
    excess = host.tenants_of(memory_total) + reserve - memory_total
    if host.tenants and excess > 0:
        last = host.tenants[-1]
        document.refuse(
            ("tenants", last.name, "memory"),
            f"over-commits memory: {_tenants(host, memory_total)} and host.reserve"
            f" {format_size(reserve)} are {format_size(excess)} more than"
            f" {format_size(memory_total)}",
        )


def _tenants(host: HostConfig, memory_total: int) -> str:
    return " + ".join(
        f"{format_size(tenant.memory.of(memory_total))} (tenant {tenant.name})"
        for tenant in host.tenants
    )


def _check_memory(drafts: Sequence[_Draft], host: HostConfig, memory_total: int) -> None:
    """Refuse shares that cannot be resident together beside the reserve and the tenants.

    Engines with `autostart = false` are started instead of others, so each of them must fit alone.
    A file with other errors is left out: a misspelled share would count as the default one.
    """
    reserve = host.reserve.of(memory_total)
    others = host.tenants_of(memory_total)
    if host.tenants and others + reserve > memory_total:
        return  # that is said of the tenants
    known = [draft for draft in drafts if draft.config is not None]
    known.sort(key=lambda draft: (draft.values.get("order", 0), draft.name))
    together = [draft for draft in known if draft.values.get("autostart") is not False]
    alone = [[draft] for draft in known if draft.values.get("autostart") is False]
    for group in [together, *alone]:
        shares = [(draft, draft.memory_utilization or 0.0) for draft in group]
        claimed = sum(int(share * memory_total) for _, share in shares)
        excess = claimed + others + reserve - memory_total
        if group and excess > 0:
            terms = " + ".join(f"{share:g} ({draft.label})" for draft, share in shares)
            beside = f", {_tenants(host, memory_total)}" if host.tenants else ""
            implied = any(
                "gpu-memory-utilization" not in draft.document.section("serve") for draft in group
            )
            group[-1].document.refuse(
                ("serve", "gpu-memory-utilization"),
                f"over-commits memory: {terms} of {format_size(memory_total)}{beside} and"
                f" host.reserve {format_size(reserve)} are {format_size(excess)} too much",
                hint="an engine without the flag counts with vLLM's default,"
                f" {serve.DEFAULT_MEMORY_UTILIZATION}"
                if implied
                else "",
            )
