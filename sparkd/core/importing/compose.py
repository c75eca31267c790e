# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 - a table of words reads best as text
"""Compose files: one engine for each vLLM service, the others are listed and left alone."""

import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from sparkd.core.importing import codes, container, docker, dot_env
from sparkd.core.importing.container import Container
from sparkd.core.importing.model import (
    Context,
    Findings,
    Mount,
    NotAServerError,
    Origin,
    Published,
    RefusalError,
    Word,
)

_MAX_NODES = 20_000
_SILENT = frozenset(
    "image command entrypoint environment env_file ports container_name deploy gpus runtime"
    " depends_on labels ipc network_mode networks stdin_open tty init logging profiles hostname"
    " working_dir expose healthcheck".split()
)

# A node of the file: Word for a scalar, None for null, dict and list for the others.
Node = Any


@dataclass(slots=True)
class _Budget:
    """Bounds what aliases can blow up to."""

    left: int = _MAX_NODES


def read(
    text: str, path: str, context: Context, *, only: str | None = None,
    wanted: set[str] | None = None, command: Sequence[Word] | None = None,
    options: Sequence[tuple[str, Word]] = (), env_files: Sequence[str] = (),
) -> Findings:  # fmt: skip
    """Return the engines of a compose file.

    Args:
        text: the file.
        path: its path, for messages and for the files it names.
        context: what is known around it.
        only: the service of `compose run`, whose `command` and `options` count.
        wanted: the services of `compose up`; None for all.
        command: replaces the service's command.
        options: those of `compose run`.
        env_files: the `--env-file` options, instead of `.env`.
    """
    findings = Findings(notebook=context.notebook)
    try:
        services, lines = _services(text, path)
    except RefusalError as error:
        findings.refuse(error)
        return findings
    folder = posixpath.dirname(path)
    variables = _project_variables(folder, context, env_files)
    for name, service in services.items():
        if (only is not None and name != only) or (wanted is not None and name not in wanted):
            continue
        origin = Origin(path, lines.get(name, 0))
        try:
            tree = _interpolated(service, variables, context)
            described = _describe(name, tree, folder, origin, variables, context)
            if only is not None:
                docker.apply_options(described, options, context)
                described.command = list(command) if command is not None else described.command
            for launch in container.launches(described, context):
                after = tuple(_names(tree.get("depends_on")))
                findings.launches.append(replace(launch, after=after))
        except NotAServerError as error:
            message = f"the service {name} is no vLLM engine and is left alone: {error.reason}"
            context.notebook.add(origin, codes.OTHER_SERVICE, message)
        except RefusalError as error:
            findings.refuse(error, f"service {name}")
    if not findings.launches and not findings.refused:
        reason = "no service of it is a vLLM engine"
        findings.refuse(NotAServerError(Origin(path), reason))
    return findings


def _services(text: str, path: str) -> tuple[Mapping[str, Node], Mapping[str, int]]:
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        tree = _convert(root, loader, path, _Budget()) if root is not None else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        shown = " ".join(str(error).split())[:200]
        raise RefusalError(Origin(path), f"it is not valid YAML: {shown}") from None
    if isinstance(tree, dict) and "apiVersion" in tree:
        raise RefusalError(Origin(path), "this is a Kubernetes manifest, not a compose file")
    services = tree.get("services") if isinstance(tree, dict) else None
    if not isinstance(services, dict):
        raise RefusalError(Origin(path), "it has no `services`, so it is no compose file")
    return services, _lines_of_services(root)


def _lines_of_services(root: yaml.Node) -> dict[str, int]:
    return {
        str(name.value): name.start_mark.line + 1
        for key, value in root.value
        if key.value == "services"
        for name, _ in value.value
    }


def _convert(node: yaml.Node, loader: yaml.SafeLoader, path: str, budget: _Budget) -> Node:
    """Return a node with the line of every scalar; aliases and YAML 1.1 merge keys are followed."""
    budget.left -= 1
    if budget.left < 0:
        raise yaml.YAMLError("it is too large, or its aliases are")
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        return {str(key.value): _convert(value, loader, path, budget) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, loader, path, budget) for item in node.value]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    return Word(node.value, Origin(path, node.start_mark.line + 1))


def _project_variables(folder: str, context: Context, env_files: Sequence[str]) -> dict[str, Word]:
    variables: dict[str, Word] = {}
    for name in env_files or (".env",):
        path = name if name.startswith("/") else posixpath.join(folder, name)
        text = context.surroundings.read(path)
        if text is not None:
            variables |= dot_env.parse(text, path, context.notebook, context.environment)
    # What the caller's environment sets wins over .env.
    return variables | dict(context.environment)


def _interpolated(node: Node, variables: Mapping[str, Word], context: Context) -> Node:
    if isinstance(node, dict):
        return {key: _interpolated(value, variables, context) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolated(item, variables, context) for item in node]
    if isinstance(node, Word):
        return dot_env.interpolate(node, variables.get, context.notebook)
    return node


def _describe(
    name: str, service: Node, folder: str, origin: Origin, variables: Mapping[str, Word],
    context: Context,
) -> Container:  # fmt: skip
    if not isinstance(service, dict):
        raise RefusalError(origin, f"the service {name} is no table")
    if "extends" in service:
        raise RefusalError(
            origin, "it extends another service: give the output of `docker compose config`"
        )
    described = Container(origin, names=[name])
    if isinstance(container_name := service.get("container_name"), Word):
        described.names.append(container_name.text)
    image = service.get("image")
    if image is None and "build" in service:
        raise _no_image(name, service, origin)
    described.image = image if isinstance(image, Word) else None

    def expand(word: Word) -> Word:
        return dot_env.interpolate(word, variables.get, context.notebook)

    if service.get("entrypoint") is not None:
        described.entrypoint = _words(service["entrypoint"], expand)
    described.command = _words(service.get("command"), expand)
    described.environment = _environment(service, folder, variables, context)
    described.published = list(_ports(service.get("ports")))
    described.mounts = list(_volumes(service.get("volumes"), folder))
    described.gpus = list(_gpus(service))
    if isinstance(directory := service.get("working_dir"), Word):
        described.directory = directory.text
    _note_rest(service, origin, context)
    return described


def _no_image(name: str, service: Mapping[str, Node], origin: Origin) -> RefusalError:
    words = " ".join(word.text for word in _words(service.get("command"), lambda word: word))
    if "vllm" in words or "vllm" in name:
        return RefusalError(origin, "its image is built here and has no digest: name an image")
    return NotAServerError(origin, "its image is built here")


def _origin_of(node: Node, path: str) -> Origin:
    if isinstance(node, Word):
        return node.origin
    if isinstance(node, (dict, list)):
        items = node.values() if isinstance(node, dict) else node
        places = [place for item in items if (place := _origin_of(item, path)).line]
        # A merged or aliased part may stand earlier in the file than the service.
        return places[-1] if places else Origin(path)
    return Origin(path)


def _words(node: Node, expand: Callable[[Word], Word]) -> list[Word]:
    """Return a command: a list as it stands, a string split as a shell would split it."""
    if isinstance(node, list):
        return [item for item in node if isinstance(item, Word)]
    if not isinstance(node, Word):
        return []
    try:
        words = [Word(text, node.origin) for text in shlex.split(node.text)]
    except ValueError as error:
        raise RefusalError(node.origin, f"the command cannot be split: {error}") from None
    # A text with a variable that nobody knows is still as written: only its word is unknown.
    return [expand(word) for word in words] if node.problem else words


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node
    elif isinstance(node, list):
        yield from (item.text for item in node if isinstance(item, Word))


def _environment(
    service: Mapping[str, Node], folder: str, variables: Mapping[str, Word], context: Context
) -> dict[str, Word]:
    environment: dict[str, Word] = {}
    for item in _as_list(service.get("env_file")):
        name = item.get("path") if isinstance(item, dict) else item
        if not isinstance(name, Word):
            continue
        path = name.text if name.text.startswith("/") else posixpath.join(folder, name.text)
        path = posixpath.normpath(path)
        text = None if name.problem else context.surroundings.read(path)
        if text is None:
            message = f"the file {path} was not read: its variables are unknown here"
            context.notebook.add(name.origin, codes.UNKNOWN_VALUE, message)
        else:
            environment |= dot_env.parse(text, path, context.notebook, variables)
    node = service.get("environment")
    if isinstance(node, dict):
        pairs = [(key, value) for key, value in node.items()]
    else:
        pairs = []
        for item in _as_list(node):
            if isinstance(item, Word):
                key, equals, value = item.text.partition("=")
                pairs.append((key, item._replace(text=value) if equals else None))
    for key, value in pairs:
        if isinstance(value, Word):
            environment[key] = value
        elif key in variables:
            environment[key] = variables[key]
        else:
            problem = f"{key} is taken from the caller's environment"
            environment[key] = Word("", _origin_of(node, ""), problem)
    return environment


def _as_list(node: Node) -> list[Node]:
    if node is None:
        return []
    return node if isinstance(node, list) else [node]


def _ports(node: Node) -> Iterator[Published]:
    for item in _as_list(node):
        if isinstance(item, Word):
            if mapping := container.published(item.text):
                yield mapping
        elif isinstance(item, dict) and isinstance(target := item.get("target"), Word):
            outside = item.get("published")
            address = item.get("host_ip")
            host = address.text if isinstance(address, Word) else ""
            number = outside.text if isinstance(outside, Word) else target.text
            if target.text.isdigit() and number.isdigit():
                yield Published(int(target.text), host, int(number))


def _volumes(node: Node, folder: str) -> Iterator[Mount]:
    for item in _as_list(node):
        bind: Mount | None = None
        if isinstance(item, Word):
            bind = container.mount(item.text)
        elif isinstance(item, dict):
            source, target = item.get("source"), item.get("target")
            if isinstance(source, Word) and isinstance(target, Word):
                bind = container.mount(f"{source.text}:{target.text}")
        if bind is not None:
            host = bind.host
            yield Mount(
                posixpath.normpath(posixpath.join(folder, host)) if host.startswith(".") else host,
                bind.container,
            )


def _gpus(service: Mapping[str, Node]) -> Iterator[Word]:
    node = service.get("gpus")
    if isinstance(node, Word):
        yield node
    devices: list[Node] = _as_list(node) if isinstance(node, list) else []
    inner: Node = service.get("deploy")
    for key in ("resources", "reservations", "devices"):
        inner = inner.get(key) if isinstance(inner, dict) else None
    devices += _as_list(inner)
    for device in devices:
        if not isinstance(device, dict):
            continue
        count = device.get("count")
        if isinstance(count, Word):
            yield count
        ids = [item for item in _as_list(device.get("device_ids")) if isinstance(item, Word)]
        if ids:
            yield ids[0]._replace(text="device=" + ",".join(word.text for word in ids))


def _note_rest(service: Mapping[str, Node], origin: Origin, context: Context) -> None:
    rest: list[tuple[str, Word]] = []
    for key, node in service.items():
        if key in _SILENT or key.startswith("x-"):
            continue
        shown = ", ".join(item.text for item in _as_list(node) if isinstance(item, Word))
        rest.append((key, Word(shown, _origin_of(node, origin.source))))
    limits: Node = service.get("deploy")
    for key in ("resources", "limits", "memory"):
        limits = limits.get(key) if isinstance(limits, dict) else None
    if isinstance(limits, Word):
        rest.append(("mem_limit", limits))
    container.note_options(rest, context, frozenset())
