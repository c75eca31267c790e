# SPDX-License-Identifier: Apache-2.0
"""Every key of sparkd's configuration: one table that drives parsing, errors and documentation."""

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sparkd.core import alert_settings, memory_guard, storm
from sparkd.core.config_model import AlertFormat, HangMode, ListenAddress, Warmup
from sparkd.core.quantities import parse_duration, parse_limit
from sparkd.core.text import has_control_character, is_plain_path

HOST: Final = "sparkd.toml"
ENGINE: Final = "engines.d/<engine>.toml"

ENGINE_NAME = re.compile(r"[a-z][a-z0-9-]{0,47}\Z")
NAME: Final = "<name>"
"""Stands in a section's name for a name of the operator's choice, as in `tenants.<name>`."""
ENGINE_NAME_RULE = "must be 1 to 48 characters of a-z, 0-9 and '-', beginning with a letter"
_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}\Z")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}\Z")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}\Z")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]{1,240}\.(?:service|slice|scope)\Z")

# Turns what tomllib read into the value sparkd uses; ValueError or TypeError: the rule is broken.
Parser = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One key.

    `default` is TOML text, parsed like an operator's value; None means that there is no value.
    `rule` completes the sentence "the value …" and is the error message as well. `example` is TOML
    text for the shipped sparkd.toml, where there is no default to show. A refused value that may
    be a secret (`hidden`) is not repeated in the error.
    """

    file: str
    section: str
    key: str
    type: str
    default: str | None
    rule: str
    help: str
    parse: Parser
    required: bool = False
    example: str = ""
    hidden: bool = False

    @property
    def path(self) -> str:
        """The key as errors and documentation name it: `section.key`."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def key_path(self) -> tuple[str, ...]:
        """The same in parts; no section's name has a dot in one of them."""
        return (*self.section.split("."), self.key) if self.section else (self.key,)


@dataclass(frozen=True, slots=True)
class FreeSection:
    """A section whose keys are the operator's own names."""

    file: str
    name: str
    help: str


def _string(value: object) -> str:
    # Exact type: bool is an int in Python, and a date would print like a string.
    if type(value) is not str:
        raise TypeError(value)
    return value


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise TypeError(value)
    return value


def _integer(low: int, high: int) -> Parser:
    def parse(value: object) -> int:
        if type(value) is not int:
            raise TypeError(value)
        if not low <= value <= high:
            raise ValueError(value)
        return value

    return parse


def _limit(value: object) -> object:
    return parse_limit(_string(value))


def _duration(low: int, high: int) -> Parser:
    def parse(value: object) -> int:
        seconds = parse_duration(_string(value))
        if not low <= seconds <= high:
            raise ValueError(value)
        return seconds

    return parse


def _matching(pattern: re.Pattern[str]) -> Parser:
    def parse(value: object) -> str:
        text = _string(value)
        if not pattern.match(text):
            raise ValueError(text)
        return text

    return parse


def _path(value: object) -> str:
    text = _string(value)
    if not is_plain_path(text):
        raise ValueError(text)
    return text


def _paths(value: object) -> tuple[str, ...]:
    if type(value) is not list:
        raise TypeError(value)
    return tuple(_path(item) for item in value)


def _model(value: object) -> str:
    text = _string(value)
    if (
        not text.strip()
        or len(text) > 4096
        or text.startswith(("-", "~", "./", "../"))
        or has_control_character(text)
    ):
        raise ValueError(text)
    return text


def _address(value: object) -> str:
    return str(ipaddress.ip_address(_string(value)))


def _listen(value: object) -> ListenAddress:
    host, colon, port = _string(value).rpartition(":")
    if not colon or not re.match(r"[0-9]{1,5}\Z", port) or not 1 <= int(port) <= 65535:
        raise ValueError(value)
    if host.startswith("[") != host.endswith("]") or (":" in host) != host.startswith("["):
        raise ValueError(value)
    return ListenAddress(_address(host.removeprefix("[").removesuffix("]")), int(port))


def _warmup(value: object) -> Warmup:
    if type(value) is bool:
        return Warmup.AUTO if value else Warmup.NONE
    warmup = Warmup(_string(value))
    if warmup in {Warmup.AUTO, Warmup.NONE}:
        raise ValueError(value)
    return warmup


def _canary(value: object) -> int:
    """Seconds; 0 for "off"."""
    return 0 if value == "off" else int(_duration(5, 86_400)(value))


def _hang_mode(value: object) -> HangMode:
    return HangMode(_string(value))


def _alert_format(value: object) -> AlertFormat:
    return AlertFormat(_string(value))


def _storm_mode(value: object) -> storm.Mode:
    return storm.Mode(_string(value))


def _memory_mode(value: object) -> memory_guard.Mode:
    return memory_guard.Mode(_string(value))


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


_PATH_RULE = (
    "must be an absolute path of letters, digits and . _ + @ , = ~ -,"
    " without '.', '..' or a trailing slash"
)
_IGNORE_RULE = 'must be a table of codes and reasons, such as { SPK203 = "the box is for tests" }'
_URL_RULE = (
    "must be an http or https address without user, password, fragment or a secret in it:"
    " an address that is itself the secret (Slack's, Discord's) goes into the credential's file"
)
_KINDS_RULE = "must be a list of: " + ", ".join(f'"{kind}"' for kind in alert_settings.KINDS)
_LIMIT_RULE = 'must be a size such as "112G" or a percentage such as "92%"'

SETTINGS: Sequence[Setting] = (
    Setting(HOST, "host", "reserve", "size or percentage", '"16%"', _LIMIT_RULE,
            "Memory that is never planned for engines; 16 % of a DGX Spark is about 20G.", _limit),
    Setting(HOST, "compile", "max_jobs", "integer", "4",
            "must be an integer from 1 to 64",
            "Compilers that one start may run at a time (`MAX_JOBS`). FlashInfer's take 3 to 8 GiB"
            " each, and without a cap ninja runs one per core plus two.", _integer(1, 64)),
    Setting(HOST, "compile", "nvcc_threads", "integer", "1",
            "must be an integer from 1 to 16",
            "Threads of each nvcc (`NVCC_THREADS`, `FLASHINFER_NVCC_THREADS`): each is a further"
            " compiler.", _integer(1, 16)),
    Setting(HOST, "compile", "inductor_threads", "integer", "4",
            "must be an integer from 1 to 64",
            "`TORCHINDUCTOR_COMPILE_THREADS`. vLLM 0.11 to 0.33 sets it to 1 itself at import; the"
            " cap is for torch programs that do not.", _integer(1, 64)),
    Setting(HOST, "compile", "everywhere", "boolean", "true", "must be true or false",
            "Whether `sparkctl apply` gives the caps to login shells, system services and user"
            " services too, so that they hold for what somebody starts by hand. See"
            " docs/launch-paths.md.", _boolean),
    Setting(HOST, "memory", "high", "size or percentage", None, _LIMIT_RULE,
            "`MemoryHigh=` of each engine. Used only on a host with swap: without swap an engine"
            " over it stalls instead of being slowed.", _limit),
    Setting(HOST, "memory", "max", "size or percentage", '"92%"', _LIMIT_RULE,
            "`MemoryMax=` of each engine. It bounds compilers and host memory, NOT CUDA unified"
            " allocations on GB10, which the kernel does not charge to a control group.", _limit),
    Setting(HOST, "memory", "floor", "size or percentage", '"6%"', _LIMIT_RULE,
            "Available memory below which sparkd acts: it throttles compilers, holds starts, ends"
            " what is starting. 6 % of a DGX Spark is about 7G. See docs/memory.md.", _limit),
    Setting(HOST, "memory", "mode", "string", '"protect"',
            'must be "off", "observe", "protect" or "act"',
            "What sparkd does below `floor`: nothing, only say what it would do, everything but end"
            " an engine that serves, or that too.", _memory_mode),
    Setting(HOST, "storm", "mode", "string", '"throttle"', 'must be "off", "observe" or "throttle"',
            "What sparkd does about more than `compile.max_jobs` compilers at a time, whoever runs"
            " them: nothing, only say so, or freeze the younger ones until it is their turn.",
            _storm_mode),
    Setting(HOST, "storm", "job-memory", "size or percentage", '"4G"', _LIMIT_RULE,
            "What one compiler is expected to take. Another one is let go on only when as much is"
            " available above `memory.floor`.", _limit),
    Setting(HOST, f"tenants.{NAME}", "memory", "size or percentage", None, _LIMIT_RULE,
            "What something else on this host (ComfyUI, Ollama, a container) takes of the memory at"
            " most. sparkd neither starts nor stops it; what it takes is never planned for engines."
            " See docs/memory.md.", _limit, required=True, example='"20G"'),
    Setting(HOST, f"tenants.{NAME}", "unit", "string", None,
            'must be the name of a system unit, such as "comfyui.service", and none of an engine',
            "What starts it, if systemd does. `sparkctl doctor` then says whether it runs and"
            " whether it will at the next boot.", _matching(_UNIT), example='"comfyui.service"'),
    Setting(HOST, "restart", "burst", "integer", "3",
            "must be an integer from 1 to 20",
            "The unrequested end of life, within the window, that holds the engine instead of"
            " restarting it.", _integer(1, 20)),
    Setting(HOST, "restart", "window", "duration", '"1h"',
            'must be a duration from "10s" to "7d"',
            "The sliding window in which ends of life are counted.", _duration(10, 604_800)),
    Setting(HOST, "restart", "delay", "duration", '"5s"',
            'must be a duration from "1s" to "10m"',
            "Pause between an end of life and the next start (`RestartSec=`).",
            _duration(1, 600)),
    Setting(HOST, "metrics", "listen", "address:port", '"127.0.0.1:9837"',
            'must be an IP address and a port such as "127.0.0.1:9837" or "[::1]:9837"',
            "Where sparkd serves /metrics: a loopback address, unless `allow-remote` is true.",
            _listen),
    Setting(HOST, "metrics", "allow-remote", "boolean", "false", "must be true or false",
            "Permits a `listen` address that other machines can reach. /metrics has no"
            " authentication.", _boolean),
    Setting(HOST, "alerts", "webhook", "URL", None, _URL_RULE,
            "Where alerts are posted to. Without it and without `command` nobody is told. See"
            " docs/alerts.md.", alert_settings.url, example='"https://ntfy.example.org/spark"',
            hidden=True),
    Setting(HOST, "alerts", "format", "string", '"json"', 'must be "json", "ntfy" or "slack"',
            "What the receiver expects: one JSON object with everything, an ntfy topic, or a"
            " webhook like Slack's (Mattermost, Rocket.Chat, Discord's /slack).", _alert_format),
    Setting(HOST, "alerts", "credential", "path", None, _PATH_RULE,
            "A file of root with mode 0600: either the webhook's whole address, where that is the"
            " secret, or the value of the Authorization header, such as `Bearer tk_…`.", _path,
            example='"/etc/sparkd/secrets/alerts"'),
    Setting(HOST, "alerts", "more-webhooks", "list of tables", "[]",
            'must be a list of at most 6 tables such as { url = "https://…", format = "slack",'
            ' credential = "/etc/…" }, with the rules of the three keys above',
            "Further webhooks, each of which gets every alert.", alert_settings.webhooks),
    Setting(HOST, "alerts", "command", "list of strings", "[]",
            "must be a list: the absolute path of a program and its arguments, without secrets",
            "Run for each alert, without a shell, with the alert as JSON on standard input. Exit"
            " status 0 means that it was taken.", alert_settings.command),
    Setting(HOST, "alerts", "kinds", "list of strings",
            '["death", "held", "stalled", "recovered", "slow-start", "sparkd"]', _KINDS_RULE,
            "What is told. `sparkd` is sparkd itself failing.", alert_settings.kinds),
    Setting(HOST, "alerts", "rate-limit", "integer", "20", "must be an integer from 1 to 1000",
            "Alerts per hour. What is more is counted and told in one summary; `held`, `stalled`"
            " and `sparkd` always pass.", _integer(1, 1000)),
    Setting(HOST, "alerts", "dedup", "duration", '"10m"', 'must be a duration from "0s" to "7d"',
            "The same kind, engine and class within this time is told once, and then summarised.",
            _duration(0, 604_800)),
    Setting(HOST, "alerts", "proxy", "URL", None, _URL_RULE,
            "An HTTP proxy for the webhooks. The environment's proxy variables are not used.",
            alert_settings.url, example='"http://proxy.example.org:3128"', hidden=True),
    Setting(HOST, "lint", "ignore", "table", "{}", _IGNORE_RULE,
            "Findings of `sparkctl check` that are accepted everywhere: the code, and the reason,"
            " which is required. See docs/lint.md.", _table),
    Setting(ENGINE, "", "model", "string", None,
            "must be a Hugging Face name or an absolute path, without control characters, not"
            " beginning with '-', '~' or './'",
            "What `vllm serve` serves.", _model, required=True),
    Setting(ENGINE, "", "host", "IP address", '"127.0.0.1"',
            'must be an IP address such as "127.0.0.1" or "0.0.0.0"',
            "Address the engine listens on (`--host`). vLLM's own default is every address of the"
            " machine; sparkd's is loopback.", _address),
    Setting(ENGINE, "", "port", "integer", None, "must be an integer from 1024 to 65535",
            "TCP port the engine listens on (`--port`); no two engines share one.",
            _integer(1024, 65535), required=True),
    Setting(ENGINE, "", "order", "integer", "50", "must be an integer from 0 to 999",
            "Engines with a lower order start first; equal orders start by name.",
            _integer(0, 999)),
    Setting(ENGINE, "", "user", "string", '"vllm"',
            "must be a user name of a-z, 0-9, '_' and '-'",
            "The user that runs the engine.", _matching(_USER)),
    Setting(ENGINE, "", "group", "string", None,
            "must be a group name of a-z, 0-9, '_' and '-'",
            "The group that runs the engine; the user's own group where it is not set.",
            _matching(_USER)),
    Setting(ENGINE, "", "autostart", "boolean", "true", "must be true or false",
            "Whether the unit is enabled (started at boot) when it is first written. Later,"
            " `systemctl enable` and `disable` have the say.", _boolean),
    Setting(ENGINE, "runtime", "venv", "path", None, _PATH_RULE,
            "The Python environment whose `bin/vllm` is run.", _path),
    Setting(ENGINE, "runtime", "image", "string", None,
            'must name a digest, such as "vllm/vllm-openai@sha256:…": a tag moves',
            "A container image. Not supported by this version: it is refused.",
            _matching(_IMAGE)),
    Setting(ENGINE, "runtime", "cache", "path", None, _PATH_RULE,
            "Directory of HOME and of every compile cache. By default"
            " `/var/cache/vllm/<engine>`, which systemd creates; another one must exist and belong"
            " to the user.", _path),
    Setting(ENGINE, "runtime", "cuda_home", "path", '"/usr/local/cuda"', _PATH_RULE,
            "`CUDA_HOME`; its `bin` is first on the engine's PATH, so that nvcc is found.", _path),
    Setting(ENGINE, "runtime", "path-extra", "list of paths", "[]",
            f"must be a list of paths; each {_PATH_RULE}",
            "Directories on PATH after CUDA's and before the venv's.", _paths),
    Setting(ENGINE, "ready", "budget", "duration", '"1080s"',
            'must be a duration from "5s" to "1d"',
            "Time from the start of `vllm serve` to ready; then the start has failed."
            " `TimeoutStartSec=` is derived from it and always longer.", _duration(5, 86_400)),
    Setting(ENGINE, "ready", "cold-budget", "duration", None,
            'must be a duration from "5s" to "1d"',
            "The same for a cold start: the first one, or one after vLLM, torch, CUDA, the driver"
            " or the engine's flags changed. Twice `budget` where it is not set.",
            _duration(5, 86_400)),
    Setting(ENGINE, "ready", "warmup", "boolean or string", "true",
            'must be true, false, "completion", "embedding" or "score"',
            "The request that must be answered before the engine is ready; `true` chooses by the"
            " `runner`, `convert` and `task` flags, else by what the engine offers.", _warmup),
    Setting(ENGINE, "ready", "expect-version", "string", None,
            "must be a version of at most 64 letters, digits and . + _ -",
            "vLLM's /version must report exactly this: the name of a tag or directory is only a"
            " claim.", _matching(_VERSION)),
    Setting(ENGINE, "hang", "mode", "string", '"observe"', 'must be "off", "observe" or "act"',
            "What to do about a serving engine that makes no progress although there is work: do"
            " not look, only say so, or end it so that it is restarted. See docs/watching.md.",
            _hang_mode),
    Setting(ENGINE, "hang", "after", "duration", '"5m"',
            'must be a duration from "5s" to "1d"',
            "Time without progress, with work there, after which the engine is shown as `stalled`.",
            _duration(5, 86_400)),
    Setting(ENGINE, "hang", "act-after", "duration", '"45m"',
            'must be a duration from "5s" to "1d"',
            "With mode \"act\": such time after which the engine is ended. It becomes longer by"
            " itself when the engine has recovered from longer stalls; those of up to 28 minutes"
            " have been reported.", _duration(5, 86_400)),
    Setting(ENGINE, "hang", "canary", 'duration or "off"', '"10m"',
            'must be "off" or a duration from "5s" to "1d"',
            "An engine in which nothing has moved for so long is asked for one token. `\"off\"`:"
            " never; a hang that began while it was idle then stays unseen.", _canary),
    Setting(ENGINE, "memory", "max", "size or percentage", None, _LIMIT_RULE,
            "`MemoryMax=` of this engine in place of the host's.", _limit),
    Setting(ENGINE, "lint", "ignore", "table", "{}", _IGNORE_RULE,
            "Findings of `sparkctl check` that are accepted for this engine: the code, and the"
            " reason, which is required. See docs/lint.md.", _table),
)  # fmt: skip

FREE_SECTIONS: Sequence[FreeSection] = (
    FreeSection(ENGINE, "serve",
                "vLLM's own flags by their own names, without dashes in front; see below."),
    FreeSection(ENGINE, "env",
                "Environment variables. Strings only, and never a secret: the environment of a"
                " unit is readable by every local user."),
    FreeSection(ENGINE, "credentials",
                "Secrets: the variable's name and the absolute path of a file that holds its"
                " value, owned by root and readable by nobody else."),
)  # fmt: skip


def settings_in(file: str, table: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings of a file; those of a named section once for each name in `table`.

    Names that are not allowed, and what is no table, are left out.
    """
    for setting in SETTINGS:
        if setting.file != file:
            continue
        if not setting.section.endswith(NAME):
            yield setting
            continue
        named = table.get(named_section(setting))
        for name, inner in named.items() if isinstance(named, dict) else ():
            if ENGINE_NAME.match(name) and isinstance(inner, dict):
                yield replace(setting, section=setting.section.replace(NAME, name))


def named_section(setting: Setting) -> str:
    """The part of a named section before the operator's own name: `tenants`; '' for another."""
    return setting.section.removesuffix(f".{NAME}") if setting.section.endswith(NAME) else ""
