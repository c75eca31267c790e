# SPDX-License-Identifier: Apache-2.0
"""What all container sources share: images and their entry points, ports, mounts, GPUs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparkd.core.importing import codes
from sparkd.core.importing.command import follow, other_server
from sparkd.core.importing.model import (
    Context,
    Launch,
    Mount,
    NotAServerError,
    Origin,
    Published,
    RefusalError,
    TenantError,
    Word,
)

# Images whose entry point is vLLM's server: vllm/vllm-openai and its mirrors, from 0.11 on
# `vllm serve`, before that `python3 -m vllm.entrypoints.openai.api_server`.
_VLLM_OPENAI = re.compile(r"(?:\A|/)vllm-openai(?:-[a-z0-9]+)*(?:[:@]|\Z)|\Avllm/vllm-[a-z0-9-]+")
_NOT_VLLM = {
    "sglang": "SGLang", "tritonserver": "Triton", "tensorrt-llm": "TensorRT-LLM",
    "text-generation-inference": "text-generation-inference", "ollama": "Ollama",
    "llama.cpp": "llama.cpp", "lmdeploy": "LMDeploy", "text-embeddings-inference":
    "text-embeddings-inference",
}  # fmt: skip
_GPU_LIST = re.compile(r"\A\d+(?:,\d+)+\Z")


@dataclass(slots=True)
class Container:
    """A container as any of the sources describes it, before its command is understood."""

    origin: Origin
    image: Word | None = None
    entrypoint: list[Word] | None = None
    command: list[Word] = field(default_factory=list)
    environment: dict[str, Word] = field(default_factory=dict)
    published: list[Published] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    gpus: list[Word] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    directory: str = ""
    has_host_network: bool = False


def launches(container: Container, context: Context) -> list[Launch]:
    """Return the server that a container runs.

    Raises:
        NotAServerError: the image is not about vLLM at all.
        RefusalError: it uses two GPUs, or what it runs cannot be told without the image.
    """
    image = container.image
    if image is None:
        raise RefusalError(container.origin, "no image is named")
    if image.problem:
        raise RefusalError(image.origin, f"the image cannot be known: {image.problem}")
    try:
        _refuse_other_images(image, container.command)
        _refuse_two_gpus(container)
    except TenantError as error:
        error.names = tuple(container.names)
        raise
    if container.has_host_network:
        for mapping in container.published:
            text = "published ports mean nothing in the host's network: the container's count"
            context.notebook.add(mapping.origin, codes.SETTING, text)
        container.published.clear()
    inner = replace(
        context, origin=container.origin, names=(*container.names, *context.names),
        environment=container.environment, image=image, published=tuple(container.published),
        mounts=tuple(container.mounts), directory=container.directory, venv=None, home=None,
        search_path="", user=None, group=None,
    )  # fmt: skip
    return follow(_effective_command(container, image, inner), inner)


def use_network(container: Container, word: Word, context: Context) -> None:
    """Take up in whose network a container is."""
    container.has_host_network = word.text == "host"
    if word.text.startswith(("container:", "service:")) or word.text.endswith(".container"):
        text = f"its network is that of {word.text}: whether its port is published is said there"
        context.notebook.add(word.origin, codes.PUBLISHED, text)


def _effective_command(container: Container, image: Word, context: Context) -> list[Word]:
    command = container.command
    if container.entrypoint:
        return [*container.entrypoint, *command]
    repeats = [word.text for word in command[:2]] == ["vllm", "serve"]
    if container.entrypoint is None and _VLLM_OPENAI.search(image.text):
        if repeats:
            context.notebook.add(
                command[0].origin, codes.ENTRYPOINT,
                "the image's entry point is `vllm serve` already: the repeated words are dropped",
            )  # fmt: skip
            return command
        first = command[0].text if command else ""
        if first.rpartition("/")[2] in {"python3", "python", "bash", "sh"}:
            raise RefusalError(
                command[0].origin,
                f"the image's entry point is `vllm serve`, which would get `{first}` as its model",
            )
        if first == "serve":
            command = command[1:]
        serve = [Word("vllm", image.origin), Word("serve", image.origin)]
        return [*serve, *command]
    if not command:
        if "vllm" not in image.text.lower():
            raise NotAServerError(image.origin, f"the image {image.text} is not vLLM's")
        reason = f"what {image.text} runs is written in the image: an opaque wrapper"
        raise TenantError(image.origin, reason)
    if command[0].text.startswith("-"):
        if "vllm" not in image.text.lower():
            raise NotAServerError(image.origin, f"the image {image.text} is not vLLM's")
        raise RefusalError(
            image.origin, f"the entry point of {image.text} is not known: give its command line"
        )
    return command


def _refuse_other_images(image: Word, command: Sequence[Word]) -> None:
    lowered = image.text.lower()
    for mark, name in _NOT_VLLM.items():
        if mark in lowered:
            raise other_server(image.origin, name, command)
    if "omni" in lowered and "vllm" in lowered:
        raise TenantError(image.origin, "vLLM-Omni is not supported: sparkd runs text engines")


def _refuse_two_gpus(container: Container) -> None:
    requested = [word for word in container.gpus if word.text]
    count = 0
    for word in requested:
        text = word.text.strip("\"'").removeprefix("device=")
        if _GPU_LIST.match(text) or (text.isdigit() and int(text) > 1 and "=" not in word.text):
            raise TenantError(word.origin, f"it asks for several GPUs ({text}); a Spark has one")
        count += "nvidia.com/gpu=" in word.text
    if count > 1:
        raise TenantError(requested[0].origin, f"it asks for {count} GPUs; a Spark has one")
    visible = container.environment.get("NVIDIA_VISIBLE_DEVICES")
    if visible is not None and _GPU_LIST.match(visible.text):
        raise TenantError(visible.origin, f"it asks for several GPUs ({visible.text})")


def mount(text: str) -> Mount | None:
    """Return a short volume `host:container[:options]`; None for a named volume."""
    host, _, rest = text.partition(":")
    target = rest.partition(":")[0]
    return Mount(host, target) if host.startswith(("/", "~", "./")) and target else None


def on_host(text: str, mounts: Sequence[Mount]) -> str:
    """Return the host's path of a path in a container."""
    for bind in sorted(mounts, key=lambda item: len(item.container), reverse=True):
        inside = bind.container.rstrip("/")
        if bind.host.startswith("/") and (text == inside or text.startswith(inside + "/")):
            return bind.host.rstrip("/") + text[len(inside) :]
    return text


def volume_dictionary(text: str) -> Mapping[str, str]:
    """Return the parts of `type=bind,source=/x,target=/y`."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {key: value for key, _, value in pairs}


def note_options(
    options: Sequence[tuple[str, Word]], context: Context, silent: frozenset[str]
) -> None:
    """Write a note for each option of a container that sparkd does not carry over."""
    for name, word in options:
        bare = name.lstrip("-")
        if name in silent:
            continue
        if bare in {"shm-size", "shm_size", "ShmSize", "memory", "m", "mem_limit", "Memory"}:
            text = f"{name} {word.text}: it does not bound CUDA's unified memory on GB10"
            context.notebook.add(word.origin, codes.NOT_A_GUARD, text)
        elif bare in {"pull", "Pull", "pull_policy"}:
            if word.text in {"always", "newer"}:
                text = "the image is pulled at each start: the start needs the network"
                context.notebook.add(word.origin, codes.PULL, text)
        elif bare in {"restart", "Restart"}:
            text = f"{name} {word.text}: systemd restarts the engine, with a limit"
            context.notebook.add(word.origin, codes.SETTING, text)
        else:
            shown = word.text if len(word.text) <= 60 else word.text[:59] + "…"
            text = f"{name} {shown}".rstrip() + " is not carried over"
            context.notebook.add(word.origin, codes.SETTING, text)
