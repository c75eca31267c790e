# SPDX-License-Identifier: Apache-2.0
"""What rules are made of, what they see and what they say."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from sparkd.core.config_model import Config, EngineConfig
from sparkd.core.lint.checkpoint import Checkpoint
from sparkd.core.lint.facts import EngineFacts, HostFacts, Need
from sparkd.core.lint.vllm_help import Flag

_T = TypeVar("_T")

VLLM = "https://github.com/vllm-project/vllm"
"""Where vLLM's issues are: references begin with it."""


class Severity(StrEnum):
    """How bad a finding is; the value is printed."""

    ERROR = "error"
    """It cannot work: the start fails, or what is served is wrong."""
    WARNING = "warning"
    """It works until the day it hurts."""
    INFO = "info"
    """Worth knowing."""


class Hit(NamedTuple):
    """What a rule found: the key in the file, and one sentence with the values. No secrets in it.

    `instead` replaces the rule's own advice where the values allow a better one.
    """

    key: tuple[str, ...]
    sentence: str
    instead: str = ""


class Finding(NamedTuple):
    """A hit with its place. `engine` is '' for sparkd.toml; `line` is 1-based.

    `ignored` is the reason given in `[lint] ignore`, '' when the finding counts.
    """

    code: str
    severity: Severity
    engine: str
    file: str
    line: int
    key: str
    sentence: str
    instead: str
    reference: str
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """An engine as its rules see it. `serve` and `env` are the tables as written."""

    engine: EngineConfig
    serve: Mapping[str, Any]
    whole: Config
    facts: EngineFacts
    host: HostFacts

    @property
    def env(self) -> Mapping[str, str]:
        """The operator's own variables."""
        return dict(self.engine.env)

    @property
    def checkpoint(self) -> Checkpoint:
        """The model on disk; only for rules that need it."""
        return _known(self.facts.checkpoint)

    @property
    def version(self) -> str:
        """The installed vLLM's version; only for rules that need it."""
        return _known(self.facts.version)

    @property
    def flags(self) -> Mapping[str, Flag]:
        """The installed vLLM's flags; only for rules that need them."""
        return _known(self.facts.flags)

    @property
    def memory_total(self) -> int:
        """Bytes of memory; only for rules that need them."""
        return _known(self.host.memory_total)

    def switch(self, name: str) -> bool | None:
        """Return a boolean flag as written, in either form; None when it is left to vLLM."""
        value = self.serve.get(name)
        if isinstance(value, bool):
            return value
        if self.serve.get(f"no-{name}") is True:
            return False
        return None

    def text(self, name: str) -> str:
        """Return a flag's text, '' when it is not set or no text."""
        value = self.serve.get(name)
        return value if isinstance(value, str) else ""

    def speculative(self) -> Mapping[str, Any]:
        """Return the speculative decoding settings, {} when there is none.

        They come as a table, as a JSON text, or as flags of their own (vLLM 0.32).
        """
        value = self.serve.get("speculative-config", {})
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return {}
        if not isinstance(value, dict):
            return {}
        flags = {"spec-method": "method", "spec-tokens": "num_speculative_tokens"}
        own = {key: self.serve[flag] for flag, key in flags.items() if flag in self.serve}
        return {**own, **value}

    def speculative_method(self) -> str:
        """Return "mtp", "ngram", "dflash", …; '' when there is none or it is implied."""
        method = self.speculative().get("method", "")
        if not isinstance(method, str):
            return ""
        # Model-specific names such as qwen3_next_mtp and deepseek_mtp were merged into mtp.
        return "mtp" if method.endswith("mtp") else method


@dataclass(frozen=True, slots=True)
class HostSubject:
    """sparkd.toml as its rules see it; `table` is the file as written."""

    whole: Config
    table: Mapping[str, Any]
    host: HostFacts

    @property
    def memory_total(self) -> int:
        """Bytes of memory; only for rules that need them."""
        return _known(self.host.memory_total)


EngineCheck = Callable[[Subject], Iterator[Hit]]
HostCheck = Callable[[HostSubject], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. Exactly one of `engine` and `host` is set: which file it reads.

    `title` says what is found; `why` and `instead` are for the documentation and for findings that
    bring none of their own; `reference` is an address or a manual page. `needs` are the facts
    without which the rule is not asked.
    """

    code: str
    severity: Severity
    title: str
    why: str
    instead: str
    reference: str
    needs: tuple[Need, ...] = ()
    engine: EngineCheck | None = None
    host: HostCheck | None = None


def _known(value: _T | None) -> _T:
    if value is None:
        raise AssertionError("a rule used a fact that it does not declare in needs=")
    return value
