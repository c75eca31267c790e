# SPDX-License-Identifier: Apache-2.0
"""From the configuration to the text of every unit file. Pure: the same input, the same bytes.

Each line of a unit is there because something was measured or something happened; the comment
beside it says what. Comments that help the reader of the unit are written into the unit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparkd import __version__
from sparkd.core import marker
from sparkd.core.config_model import Config, EngineConfig, HostConfig
from sparkd.core.engine_environment import engine_environment, is_for_loader
from sparkd.core.escape import quote_argument, quote_assignment
from sparkd.core.helper_options import (
    Expanded,
    await_ready_argv,
    await_slot_argv,
    post_mortem_argv,
    with_credentials_argv,
)
from sparkd.core.quantities import MemoryLimit
from sparkd.core.start_limit import STOP_TIMEOUT_SECONDS, backstop

SLICE = "vllm.slice"
TARGET = "vllm.target"

# The gate ends at its own deadline and says why; systemd's limit is only for a gate that hangs.
_START_MARGIN_SECONDS = 120

# Room between the slice and the sum of its units: at a slice limit the kernel kills the largest
# process in it, which is a healthy engine.
_SLICE_ROOM_BYTES = 2 << 30
_SLICE_ROOM_PERCENT = 2


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What rendering must know of the host. `libexec` is the directory of the helpers."""

    has_swap: bool
    libexec: str = "/usr/libexec/sparkd"


def render(config: Config, host: HostFacts) -> dict[str, str]:
    """Return the text of every unit file by its name."""
    units = {
        SLICE: _seal(_slice(config), engine=""),
        TARGET: _seal(_target(), engine=""),
    }
    for index, engine in enumerate(config.engines):
        earlier = config.engines[:index]
        units[engine.unit] = _seal(_service(engine, earlier, config.host, host), engine.name)
    return units


def units_enabled_when_new(config: Config) -> frozenset[str]:
    """Return the units that an apply enables when it creates them.

    Later an operator's `systemctl enable` and `disable` have the say.
    """
    return frozenset({TARGET, *(engine.unit for engine in config.engines if engine.autostart)})


def start_timeout_seconds(engine: EngineConfig) -> int:
    """Return TimeoutStartSec=: always longer than the gate's budget, by a tenth or two minutes."""
    budget = max(engine.ready.budget_seconds, engine.ready.cold_budget_seconds)
    return budget + max(_START_MARGIN_SECONDS, budget // 10)


def _seal(lines: Iterator[str], engine: str) -> str:
    text = "\n".join([*lines, *_marker(engine)]) + "\n"
    return marker.seal(text)


def _marker(engine: str) -> Iterator[str]:
    yield ""
    yield marker.SECTION
    if engine:
        yield f"Engine={engine}"
    yield f"Version={__version__}"
    if engine:
        yield f"LaunchHash={marker.UNSEALED}"
    yield f"ContentHash={marker.UNSEALED}"


def _service(
    engine: EngineConfig, earlier: Sequence[EngineConfig], config: HostConfig, host: HostFacts
) -> Iterator[str]:
    yield f"# Written by sparkd from /etc/sparkd/engines.d/{engine.name}.toml. Do not edit it:"
    yield f"# change that file and run `sparkctl apply`, or use `systemctl edit {engine.unit}`."
    yield from _unit_section(engine, earlier, config)
    yield ""
    yield "[Service]"
    yield from _process(engine)
    yield from _commands(engine, config, host)
    yield from _environment(engine, config)
    yield from _life_and_death(engine, config)
    yield from _resources(engine, config, host)
    yield from _sandbox(engine)
    yield ""
    yield "[Install]"
    # Through the target, so that a load of many minutes does not hold up the boot; and an active
    # target's Wants= keeps the properties of a dead unit readable.
    yield f"WantedBy={TARGET}"


def _unit_section(
    engine: EngineConfig, earlier: Sequence[EngineConfig], config: HostConfig
) -> Iterator[str]:
    limit = backstop(
        config.restart.burst, config.restart.window_seconds, config.restart.delay_seconds
    )
    yield "[Unit]"
    yield f"Description=vLLM engine {engine.name}"
    yield "Documentation=man:sparkd(8)"
    yield "Wants=network-online.target"
    yield "After=network-online.target"
    if earlier:
        yield "# Order only; that no two engines start at once is the start slot's work."
        yield "After=" + " ".join(other.unit for other in earlier)
    yield "# A backstop. sparkd's own limit comes first: see sparkctl status."
    yield f"StartLimitIntervalSec={limit.interval_seconds}"
    yield f"StartLimitBurst={limit.burst}"


def _process(engine: EngineConfig) -> Iterator[str]:
    # exec: a missing executable is a failed start, not a started unit that died.
    yield "Type=exec"
    # The helpers extend their own time limit and set STATUS=. "exec" would accept only the very
    # process that systemd forked, "main" none of them.
    yield "NotifyAccess=all"
    yield f"User={engine.user}"
    if engine.group is not None:
        yield f"Group={engine.group}"
    if engine.cache_is_default:
        yield f"CacheDirectory=vllm/{engine.name}"
        yield "CacheDirectoryMode=0750"
        yield f"WorkingDirectory={engine.cache}"
    else:
        # "-": await-slot says what is wrong with the directory better than status 200/CHDIR.
        yield f"WorkingDirectory=-{engine.cache}"
    for credential in engine.credentials:
        yield f"LoadCredential={credential.name}:{credential.path}"


def _commands(engine: EngineConfig, config: HostConfig, host: HostFacts) -> Iterator[str]:
    # "+": as root and outside the sandbox, for /proc, the journal and sparkd's own state.
    libexec = host.libexec
    options = await_slot_argv(engine, config)
    yield from _command("ExecStartPre", f"+{libexec}/await-slot", options)
    serve = [
        engine.executable, "serve", engine.model,
        "--host", engine.host, "--port", str(engine.port), *engine.serve,
    ]  # fmt: skip
    loader = [f"{name}={value}" for name, value in engine.env if is_for_loader(name)]
    if loader:
        serve = ["/usr/bin/env", *loader, *serve]
    if engine.credentials:
        serve = [f"{libexec}/with-credentials", *with_credentials_argv(engine), *serve]
    yield from _command("ExecStart", serve[0], serve[1:])
    yield from _command("ExecStartPost", f"+{libexec}/await-ready", await_ready_argv(engine))
    options = post_mortem_argv(engine, config.restart)
    yield from _command("ExecStopPost", f"+{libexec}/post-mortem", options)


def _command(setting: str, executable: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yield one command, a line for each option.

    A continuation line never begins with `#` or `;`, which systemd would drop as a comment: it
    begins with blanks and a word that begins with `-` or a quotation mark.
    """
    lines = [f"{setting}={executable}"]
    for argument in arguments:
        word = argument if isinstance(argument, Expanded) else quote_argument(argument)
        if argument.startswith("--"):
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    last = len(lines) - 1
    return (line if index == last else f"{line} \\" for index, line in enumerate(lines))


def _environment(engine: EngineConfig, config: HostConfig) -> Iterator[str]:
    for name, value in engine_environment(engine, config.compile).items():
        if not is_for_loader(name):
            yield f"Environment={quote_assignment(name, value)}"
    yield f"Environment={marker.LAUNCH_HASH_VARIABLE}={marker.UNSEALED}"


def _life_and_death(engine: EngineConfig, config: HostConfig) -> Iterator[str]:
    # vLLM exits 0 when its engine core has died, so on-failure would leave it dead.
    yield "# always: vLLM exits with status 0 when its engine core has died."
    yield "Restart=always"
    yield f"RestartSec={config.restart.delay_seconds}"
    # No SuccessExitStatus= and no RestartPreventExitStatus=: both would apply to helpers' or to
    # the engine's own codes that mean something else.
    yield "# Longer than the gate's budget; await-slot extends its own time while it waits."
    yield f"TimeoutStartSec={start_timeout_seconds(engine)}"
    yield f"TimeoutStopSec={STOP_TIMEOUT_SECONDS}"
    # A child deaf to TERM would turn a clean stop into a failure after a second stop timeout.
    yield "KillMode=mixed"
    # The kernel then kills the whole group: a half-killed engine serves nothing and holds memory.
    yield "OOMPolicy=kill"
    # systemd's defaults (10,000 lines in 30 s) drop the fatal line of a crash flood. An interval
    # of 0 does not switch the limit off (measured on 252 to 257); a large burst does.
    yield "LogRateLimitIntervalSec=1s"
    yield "LogRateLimitBurst=1000000"


def _resources(engine: EngineConfig, config: HostConfig, host: HostFacts) -> Iterator[str]:
    yield f"Slice={SLICE}"
    yield "# Bounds compilers and host memory, NOT CUDA unified allocations on GB10."
    yield f"MemoryMax={engine.memory_max or config.memory_max}"
    if host.has_swap and config.memory_high is not None:
        # Without swap there is nothing to reclaim into: the engine stalls in place, unkilled.
        yield f"MemoryHigh={config.memory_high}"
    # A tenth of memory as a handicap: a young compiler of another unit or of a login shell dies
    # before a serving engine, whose host memory is a few GiB. Much lower values would make the
    # kernel kill everything else on the box first and leave the one that eats the memory.
    yield "OOMScoreAdjust=-100"
    yield "LimitNOFILE=1048576"
    yield "LimitMEMLOCK=infinity"
    # The core dump of an engine would be as large as its host memory, at the worst moment.
    yield "LimitCORE=0"


def _sandbox(engine: EngineConfig) -> Iterator[str]:
    # Not here, because CUDA or vLLM breaks: PrivateDevices=, MemoryDenyWriteExecute=,
    # ProtectClock= (it implies a device allow-list without /dev/nvidia*). Not ProtectHome=:
    # weights and environments often live there. Not @resources or @debug in the filter: torch
    # sets CPU affinity, profilers open perf events.
    yield "NoNewPrivileges=yes"
    if engine.user != "root":
        yield "CapabilityBoundingSet="
    yield "UMask=0027"
    yield "PrivateTmp=yes"
    yield "ProtectSystem=full"
    yield "ProtectControlGroups=yes"
    yield "ProtectHostname=yes"
    yield "ProtectKernelLogs=yes"
    yield "ProtectKernelModules=yes"
    yield "ProtectKernelTunables=yes"
    yield "LockPersonality=yes"
    yield "RestrictRealtime=yes"
    yield "RestrictSUIDSGID=yes"
    yield "RestrictNamespaces=yes"
    # NotifyAccess=all is meant for the helpers, which "+" puts outside of this. With the socket an
    # engine could put off its own SIGKILL for ever (EXTEND_TIMEOUT_USEC=), have another process
    # watched in its place (MAINPID=) and write its own status line (systemd 252 and 257, measured).
    yield "InaccessiblePaths=-/run/systemd/notify"
    yield "SystemCallArchitectures=native"
    yield "SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap"
    # A refused call returns an error instead of killing an engine in the middle of its work.
    yield "SystemCallErrorNumber=EPERM"


def _target() -> Iterator[str]:
    yield "# Written by sparkd. Do not edit it; use `systemctl edit vllm.target`."
    yield "[Unit]"
    yield "Description=vLLM engines"
    yield "Documentation=man:sparkd(8)"
    # With default dependencies the target, and so the boot, would wait for every engine.
    yield "DefaultDependencies=no"
    yield "Conflicts=shutdown.target"
    yield "Before=shutdown.target"
    yield ""
    yield "[Install]"
    yield "WantedBy=multi-user.target"


def _slice(config: Config) -> Iterator[str]:
    yield "# Written by sparkd. Do not edit it; use `systemctl edit vllm.slice`."
    yield "[Unit]"
    yield "Description=vLLM engines and guarded launches"
    yield "Documentation=man:sparkd(8)"
    yield ""
    yield "[Slice]"
    yield "# A backstop above the sum of the engines' own limits: at a limit of the slice the"
    yield "# kernel kills its largest process, which is a healthy engine."
    yield f"MemoryMax={_slice_limit(config)}"


def _slice_limit(config: Config) -> str:
    limits = [engine.memory_max or config.host.memory_max for engine in config.engines]
    percents = [limit.percent for limit in limits if limit.percent is not None]
    sizes = [limit.bytes for limit in limits if limit.bytes is not None]
    if sizes and not percents:
        return str(MemoryLimit(bytes=sum(sizes) + _SLICE_ROOM_BYTES))
    if percents and not sizes and sum(percents) + _SLICE_ROOM_PERCENT < 100:
        return str(MemoryLimit(percent=sum(percents) + _SLICE_ROOM_PERCENT))
    return "infinity"
