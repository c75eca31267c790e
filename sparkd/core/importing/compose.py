# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 - a table of words reads best as text
"""Compose files: one engine for each vLLM service, the others are listed and left alone."""

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from sparkd.core.importing import codes, container, docker, dot_env, ports
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
from sparkd.core.importing.yaml_errors import what_is_wrong

_MAX_NODES = 20_000
_SILENT = frozenset(
    "image command entrypoint environment env_file ports container_name deploy gpus runtime"
    " depends_on labels ipc network_mode networks stdin_open tty init logging hostname"
    " working_dir expose healthcheck".split()
)

_TAG = re.compile(r"tag:yaml\.org,2002:(?!python/)[a-z]+\Z")
_CANONICAL = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{0,14}[1-9])?\Z")
_SCIENTIFIC = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+\Z|0o[0-7]+\Z")

# A node of the file: Word for a scalar, None for null, dict and list for the others.
Node = Any


@dataclass(slots=True)
class _Budget:
    """Bounds what aliases can blow up to; `seen` are the tables that have been looked at."""

    left: int = _MAX_NODES
    seen: set[int] = field(default_factory=set)


class Key(str):
    """A key of a table and the line at which it stands."""

    __slots__ = ("line",)
    line: int

    def __new__(cls, text: str, line: int) -> "Key":
        """Return the key."""
        key = super().__new__(cls, text)
        key.line = line
        return key


class OddNumber(Word):
    """An unquoted number such as 12.0 or 010, which a YAML reader turns into another text."""


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
        tree = _tree(text, path)
    except RefusalError as error:
        findings.refuse(error)
        return findings
    _note_top(tree, path, context)
    folder = posixpath.dirname(path)
    variables = _project_variables(folder, context, env_files)
    for name, service in tree["services"].items():
        if (only is not None and name != only) or (wanted is not None and name not in wanted):
            continue
        origin = Origin(path, _line(name))
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


def _tree(text: str, path: str) -> Mapping[str, Node]:
    """Return the file, whose `services` is a table."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        tree = _convert(root, loader, path, _Budget()) if root is not None else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RefusalError(Origin(path), f"it is not valid YAML: {what_is_wrong(error)}") from None
    if isinstance(tree, dict) and "apiVersion" in tree:
        raise RefusalError(Origin(path), "this is a Kubernetes manifest, not a compose file")
    if not isinstance(tree, dict) or not isinstance(tree.get("services"), dict):
        raise RefusalError(Origin(path), "it has no `services`, so it is no compose file")
    return tree


def _convert(node: yaml.Node, loader: yaml.SafeLoader, path: str, budget: _Budget) -> Node:
    """Return a node with the line of every scalar; aliases and YAML 1.1 merge keys are followed."""
    budget.left -= 1
    if budget.left < 0:
        raise yaml.YAMLError("it is too large, or its aliases are")
    if not _TAG.match(node.tag):
        place = Origin(path, node.start_mark.line + 1)
        raise RefusalError(place, f"the tag {node.tag} is not followed: write the value itself")
    if isinstance(node, yaml.MappingNode):
        _refuse_double_keys(node, path, budget)
        loader.flatten_mapping(node)
        return {
            Key(str(key.value), key.start_mark.line + 1): _convert(value, loader, path, budget)
            for key, value in node.value
        }
    if isinstance(node, yaml.SequenceNode):
        return [_convert(item, loader, path, budget) for item in node.value]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    word = Word(node.value, Origin(path, node.start_mark.line + 1))
    is_number = node.tag in {
        "tag:yaml.org,2002:int",
        "tag:yaml.org,2002:float",
    } or _SCIENTIFIC.match(node.value)
    if is_number and node.style is None and not _CANONICAL.match(node.value):
        return OddNumber(*word)
    return word


def _refuse_double_keys(node: yaml.MappingNode, path: str, budget: _Budget) -> None:
    # A merge writes the merged keys into the node: an alias to it shows them a second time.
    if id(node) in budget.seen:
        return
    budget.seen.add(id(node))
    lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode) and key.value in lines:
            first = lines[key.value]
            raise RefusalError(
                Origin(path, line),
                f"the key {key.value} stands twice (first at line {first}), which Compose refuses:"
                " remove one",
            )  # fmt: skip
        lines[str(key.value)] = line


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
    described.environment = _environment(service, origin.source, variables, context)
    described.published = list(_ports(service.get("ports")))
    network = service.get("network_mode")
    described.has_host_network = isinstance(network, Word) and network.text == "host"
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
    return [_expanded(word, node, expand) for word in words] if node.problem else words


def _expanded(word: Word, node: Word, expand: Callable[[Word], Word]) -> Word:
    expanded = expand(word)
    # `${NAME:?a message of several words}` was cut at its blanks.
    is_cut = bool(expanded.problem) and word.text.count("{") != word.text.count("}")
    return expanded._replace(problem=node.problem) if is_cut else expanded


def _names(node: Node) -> Iterator[str]:
    if isinstance(node, dict):
        yield from node
    elif isinstance(node, list):
        yield from (item.text for item in node if isinstance(item, Word))


def _environment(
    service: Mapping[str, Node], path: str, variables: Mapping[str, Word], context: Context
) -> dict[str, Word]:
    folder = posixpath.dirname(path)
    environment: dict[str, Word] = {}
    for item in _as_list(service.get("env_file")):
        name = item.get("path") if isinstance(item, dict) else item
        if not isinstance(name, Word):
            continue
        file = posixpath.normpath(posixpath.join(folder, name.text))
        text = None if name.problem else context.surroundings.read(file)
        if text is None:
            message = f"the file {file} was not read: its variables are unknown here"
            context.notebook.add(name.origin, codes.UNKNOWN_VALUE, message)
        else:
            environment |= dot_env.parse(text, file, context.notebook, variables)
    node = service.get("environment")
    for key, value in _pairs(node):
        if isinstance(value, OddNumber):
            problem = f"{value.text} without quotes is a number, which is not passed on as written"
            environment[key] = Word("", value.origin, f"{problem}: put it into quotes")
        elif isinstance(value, Word):
            environment[key] = value
        elif key in variables:
            environment[key] = variables[key]
        else:
            problem = f"{key} is taken from the caller's environment"
            environment[key] = Word("", Origin(path, _line(key)), problem)
    return environment


def _pairs(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the variables of `environment`; None where only the name is given."""
    if isinstance(node, dict):
        yield from node.items()
        return
    for item in _as_list(node):
        if isinstance(item, Word):
            key, equals, value = item.text.partition("=")
            yield Key(key, item.origin.line), item._replace(text=value) if equals else None


def _as_list(node: Node) -> list[Node]:
    if node is None:
        return []
    return node if isinstance(node, list) else [node]


def _ports(node: Node) -> Iterator[Published]:
    for item in _as_list(node):
        if isinstance(item, Word):
            yield from ports.published(item)
        elif isinstance(item, dict) and isinstance(target := item.get("target"), Word):
            outside = item.get("published")
            address = item.get("host_ip")
            host = address.text if isinstance(address, Word) else ""
            yield from ports.long_form(target, outside if isinstance(outside, Word) else None, host)


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


def _line(key: str) -> int:
    return key.line if isinstance(key, Key) else 0


def _note_top(tree: Mapping[str, Node], path: str, context: Context) -> None:
    for key in (key for key in tree if key == "include"):
        context.notebook.add(
            Origin(path, _line(key)), codes.SETTING, "the files that `include` names are"
            " not read: give the output of `docker compose config`"
        )  # fmt: skip


def _note_rest(service: Mapping[str, Node], origin: Origin, context: Context) -> None:
    rest: list[tuple[str, Word]] = []
    for key, node in service.items():
        if key in _SILENT or key.startswith("x-"):
            continue
        place = Origin(origin.source, _line(key))
        if key == "profiles":
            shown = ", ".join(item.text for item in _as_list(node) if isinstance(item, Word))
            text = f"profiles {shown}: Compose starts it only when asked to, sparkd with the others"
            context.notebook.add(place, codes.SETTING, text)
            continue
        items = [item for item in _as_list(node) if isinstance(item, Word)]
        rest += [(key, item) for item in items] or [(key, Word("", place))]
    limits: Node = service.get("deploy")
    for key in ("resources", "limits", "memory"):
        limits = limits.get(key) if isinstance(limits, dict) else None
    if isinstance(limits, Word):
        rest.append(("mem_limit", limits))
    container.note_options(rest, context, frozenset())
