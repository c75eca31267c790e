# SPDX-License-Identifier: Apache-2.0
"""What lint may know beyond the configuration; None is "not known", and then rules are silent."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from sparkd.core.lint.checkpoint import Checkpoint
from sparkd.core.lint.vllm_help import Flag


class Need(StrEnum):
    """A fact that a rule cannot do without; the value completes "needs …"."""

    CHECKPOINT = "the model's config.json, where `model` is a path that can be read"
    VERSION = "the vLLM version in the environment's package metadata"
    FLAGS = "the flags of the environment's own `vllm serve --help=all`"
    TOTAL = "the size of the machine's memory"
    AVAILABLE = "the memory available while no engine runs"
    SWAP = "the size of the machine's swap"
    GPU = "the GPU's name"


class HostFacts(NamedTuple):
    """The machine; sizes in bytes."""

    memory_total: int | None = None
    memory_available: int | None = None
    """Known only while no engine runs: then what is available is what a start finds."""
    swap_total: int | None = None
    min_free: int | None = None
    """vm.min_free_kbytes."""
    gpu: str | None = None
    gpu_count: int = 0

    @property
    def is_gb10(self) -> bool:
        """Whether the GPU is the DGX Spark's, with memory that it shares with the host."""
        return self.gpu is not None and "GB10" in self.gpu


class EngineFacts(NamedTuple):
    """An engine's environment and model."""

    version: str | None = None
    """From the package metadata in `runtime.venv`."""
    flags: Mapping[str, Flag] | None = None
    """By name without dashes."""
    checkpoint: Checkpoint | None = None


class Facts(NamedTuple):
    """Everything that was asked; engines by name."""

    host: HostFacts = HostFacts()
    engines: Mapping[str, EngineFacts] = {}

    def engine(self, name: str) -> EngineFacts:
        """Return what is known of an engine, which may be nothing."""
        return self.engines.get(name, EngineFacts())


def is_known(need: Need, host: HostFacts, engine: EngineFacts) -> bool:
    """Return whether a fact was found."""
    match need:
        case Need.CHECKPOINT:
            return engine.checkpoint is not None
        case Need.VERSION:
            return engine.version is not None
        case Need.FLAGS:
            return engine.flags is not None
        case Need.TOTAL:
            return host.memory_total is not None
        case Need.AVAILABLE:
            return host.memory_total is not None and host.memory_available is not None
        case Need.SWAP:
            return host.swap_total is not None
        case Need.GPU:
            return host.gpu is not None
