# SPDX-License-Identifier: Apache-2.0
"""From models and environments on a disk to proposed engines that fit into this machine together.

A share is the weights, a KV cache for a few requests, and what an engine takes beyond both: 5.4 to
6.7 GiB in other people's measurements on GB10. Nothing here is tuned: it is a start that fits, with
the reason beside each value.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparkd.core.importing.toml_text import assignment
from sparkd.core.lint.checkpoint import Checkpoint
from sparkd.core.quantities import format_size
from sparkd.core.text import is_plain_path

GIB = 1 << 30
OVERHEAD = 7 * GIB
SIZES = ((32_768, 4), (32_768, 2), (32_768, 1), (16_384, 1), (8_192, 1))
"""Tokens of a request and how many of them the KV cache is sized for: the first that fits."""
UNKNOWN_KV = 8 * GIB
"""For models whose KV cache the config does not tell, such as hybrids and latent attention."""
FIRST_PORT = 8001
_LARGEST_PORT = 8999

_NOT_NAME = re.compile(r"[^a-z0-9]+")
_GENERATES = re.compile(r"For(?:CausalLM|ConditionalGeneration)\Z|LMHeadModel\Z")
_LANGUAGE_PARTS = ("text_config", "llm_config", "language_config")


class Model(NamedTuple):
    """A model's folder as found."""

    path: str
    name: str
    """What people call it; the folder's name, or the repository's in a hub cache."""
    config: Mapping[str, Any]
    checkpoint: Checkpoint
    missing: tuple[str, ...]


class Environment(NamedTuple):
    """A Python environment with vLLM in it."""

    venv: str
    version: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """One engine that could be configured."""

    name: str
    model: Model
    port: int
    utilization: float
    kv_cache: int
    """Bytes that the share leaves for it."""
    context: int
    autostart: bool
    text: str


class _Sized(NamedTuple):
    context: int
    kv_cache: int
    share: float


class Refused(NamedTuple):
    """A model that no engine is proposed for."""

    path: str
    reason: str


class Machine(NamedTuple):
    """What proposals must fit into; bytes."""

    total: int
    reserve: int
    claimed: int = 0
    """By engines that are configured already and start at boot."""
    tenants: int = 0
    """By what else runs on the host, as sparkd.toml says."""

    @property
    def room(self) -> int:
        """What there is for engines."""
        return self.total - self.reserve - self.tenants


def propose(
    models: Sequence[Model],
    environments: Sequence[Environment],
    machine: Machine,
    *,
    names: Collection[str] = (),
    ports: Collection[int] = (),
) -> tuple[list[Proposal], list[Refused]]:
    """Return an engine for each model that can be one, the smallest first.

    Engines start at boot as long as all of them fit together; the others are written with
    `autostart = false`, to be started instead.

    Args:
        models: what was found.
        environments: the one to use first.
        machine: what there is room for.
        names: of engines that exist.
        ports: that are taken.
    """
    proposals: list[Proposal] = []
    refused: list[Refused] = []
    taken_names, taken_ports = set(names), set(ports)
    room = machine.room - machine.claimed
    for model in sorted(models, key=lambda one: (one.checkpoint.weights, one.path)):
        if reason := _obstacle(model):
            refused.append(Refused(model.path, reason))
            continue
        sizes = [_sized(model, machine, *size) for size in SIZES]
        fitting = [s for s in sizes if int(s.share * machine.total) <= machine.room]
        if not fitting:
            refused.append(Refused(model.path, _too_large(model, sizes[-1].kv_cache, machine)))
            continue
        context, kv_cache, share = fitting[0]
        need = int(share * machine.total)
        together = need <= room
        room -= need if together else 0
        name = _name(model.name, taken_names)
        port = next(p for p in range(FIRST_PORT, _LARGEST_PORT) if p not in taken_ports)
        taken_names.add(name)
        taken_ports.add(port)
        proposal = Proposal(name, model, port, share, kv_cache, context, together, "")
        text = "\n".join(_lines(proposal, environments, machine)) + "\n"
        proposals.append(Proposal(name, model, port, share, kv_cache, context, together, text))
    return proposals, refused


def _obstacle(model: Model) -> str:
    if not is_plain_path(model.path):
        return "its path has characters that no unit should hold: link it to a plain one"
    if model.missing:
        return f"it is not complete: {', '.join(model.missing[:3])} missing or cut short"
    if not model.checkpoint.weights:
        return "it has no safetensors files"
    if not any(_GENERATES.search(name) for name in _architectures(model.config)):
        return (
            f"{', '.join(_architectures(model.config)) or 'its config.json'} names no language"
            " model that generates text; write its engine by hand"
        )
    return ""


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _sized(model: Model, machine: Machine, tokens: int, requests: int) -> _Sized:
    context = min(model.checkpoint.max_positions or tokens, tokens)
    per_token = kv_bytes_per_token(model.config, model.checkpoint)
    kv_cache = UNKNOWN_KV if per_token is None else max(GIB, per_token * context * requests)
    need = model.checkpoint.weights + kv_cache + OVERHEAD
    return _Sized(context, kv_cache, math.ceil(100 * need / machine.total) / 100)


def kv_bytes_per_token(config: Mapping[str, Any], checkpoint: Checkpoint) -> int | None:
    """Bytes of KV cache for one token; None where the config does not tell it."""
    if checkpoint.is_hybrid:
        return None
    parts = [config, *(config.get(name) for name in _LANGUAGE_PARTS)]
    for part in parts:
        if isinstance(part, dict) and (size := _plain_attention(part)) is not None:
            return size if "8" in checkpoint.kv_quantization else 2 * size
    return None


def _plain_attention(part: Mapping[str, Any]) -> int | None:
    """Values of K and V for one token of ordinary or grouped attention in every layer."""
    if "kv_lora_rank" in part:  # latent attention stores something else
        return None
    layers, heads = _count(part, "num_hidden_layers"), _count(part, "num_attention_heads")
    if layers is None or heads is None:
        return None
    kv_heads = _count(part, "num_key_value_heads") or heads
    hidden = _count(part, "hidden_size")
    dimension = _count(part, "head_dim") or (hidden // heads if hidden else None)
    return None if dimension is None else 2 * layers * kv_heads * dimension


def _count(part: Mapping[str, Any], key: str) -> int | None:
    value = part.get(key)
    return value if type(value) is int and 0 < value < 1 << 24 else None


def _too_large(model: Model, kv_cache: int, machine: Machine) -> str:
    tenants = f" and tenants ({format_size(machine.tenants)})" if machine.tenants else ""
    return (
        f"{format_size(model.checkpoint.weights)} of weights, {format_size(kv_cache)} of KV cache"
        f" and {format_size(OVERHEAD)} of overhead do not fit into {format_size(machine.total)}"
        f" beside host.reserve ({format_size(machine.reserve)}){tenants}"
    )


def _name(text: str, taken: Collection[str]) -> str:
    """A valid name that is not taken, like the model's."""
    base = _NOT_NAME.sub("-", text.lower()).strip("-")
    if not base[:1].isalpha():
        base = f"m-{base}".rstrip("-")
    base = base[:44].rstrip("-")
    numbered = (base if number == 1 else f"{base}-{number}" for number in range(1, 1000))
    return next(name for name in numbered if name not in taken)


def _lines(
    proposal: Proposal, environments: Sequence[Environment], machine: Machine
) -> Iterator[str]:
    model, checkpoint = proposal.model, proposal.model.checkpoint
    venv = environments[0] if environments else Environment("/opt/vllm", "")
    weights = format_size(checkpoint.weights)
    yield f"# Proposed by `sparkctl init`. {checkpoint.shards} files, {weights} of weights."
    yield "# Nothing is tuned. `sparkctl check` says what else is worth a thought, `sparkctl apply`"
    yield "# writes the unit. All keys: man sparkd.toml"
    yield assignment("model", model.path)
    yield assignment("port", proposal.port, "the first free one")
    yield assignment("order", 50, "a lower one starts first")
    if not proposal.autostart:
        yield assignment("autostart", value=False,
                         comment="it does not fit beside the engines that start at boot"
                         )  # fmt: skip
    yield '#user = "vllm"  # must be able to read the model and to run the environment'
    yield ""
    yield "[runtime]"
    yield assignment("venv", venv.venv, _venv_comment(environments))
    for other in environments[1:4]:
        yield f"#{assignment('venv', other.venv, f'has vLLM {other.version}')}"
    yield ""
    yield "[serve]"
    parts = f"{weights} + {format_size(proposal.kv_cache)} of KV cache + {format_size(OVERHEAD)}"
    yield f"# {parts} of overhead, of {format_size(machine.total)}"
    yield assignment("gpu-memory-utilization", proposal.utilization)
    most = checkpoint.max_positions
    upto = f"the model has up to {most:,}" if most else "the model does not state its own"
    yield assignment("max-model-len", proposal.context, f"{upto}; more needs more KV cache")
    yield assignment("max-num-seqs", 16, "requests at a time; vLLM's default of 256 takes more")
    yield assignment("served-model-name", [proposal.name])
    if checkpoint.quantization:
        yield f"# The checkpoint says {checkpoint.quantization}; vLLM finds that by itself."
    yield ""
    yield "[ready]"
    yield assignment("budget", "30m", "a first start compiles; shorten it when you know more")


def _venv_comment(environments: Sequence[Environment]) -> str:
    if not environments:
        return "NOT FOUND: no environment with vLLM is here; set this before you apply"
    return f"has vLLM {environments[0].version}"
