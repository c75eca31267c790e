# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 - a table of words reads best as text
"""Compose files: one engine for each vLLM service, the others are listed and left alone."""

import posixpath
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sparkd.core.importing import (
    codes,
    compose_merge,
    compose_tree,
    container,
    docker,
    dot_env,
    ports,
)
from sparkd.core.importing.compose_tree import Key, Node, OddNumber, place_of
from sparkd.core.importing.container import Container
from sparkd.core.importing.model import (
    Context,
    Findings,
    Mount,
    NotAServerError,
    Origin,
    Published,
    RefusalError,
    TenantError,
    Word,
)

_SILENT = frozenset(
    "image command entrypoint environment env_file ports container_name deploy gpus runtime"
    " depends_on labels ipc network_mode networks stdin_open tty init logging hostname"
    " working_dir expose healthcheck".split()
)


@dataclass(frozen=True, slots=True)
class Run:
    """What `compose run` changes of its service; an empty command changes nothing."""

    options: Sequence[tuple[str, Word]]
    command: Sequence[Word]


@dataclass(frozen=True, slots=True)
class _Project:
    """What every service of a file is read with."""

    path: str
    services: Mapping[str, Node]
    variables: Mapping[str, Word]
    context: Context


def read(
    text: str, path: str, context: Context, *, wanted: set[str] | None = None,
    run: Run | None = None, env_files: Sequence[str] = (), is_alone: bool = False,
) -> Findings:  # fmt: skip
    """Return the engines of a compose file.

    Args:
        text: the file.
        path: its path, for messages and for the files it names.
        context: what is known around it.
        wanted: the services of `compose up`, or the one of `compose run`; None for all.
        run: what `compose run` says beside the service.
        env_files: the `--env-file` options, instead of `.env`.
        is_alone: no override file beside it counts, since it was named with `-f`.
    """
    findings = Findings(notebook=context.notebook)
    try:
        tree = compose_tree.parse(text, path)
        if not is_alone:
            tree = compose_merge.with_override(tree, path, context)
    except RefusalError as error:
        findings.refuse(error)
        return findings
    _note_top(tree, context)
    variables = _project_variables(posixpath.dirname(path), context, env_files)
    project = _Project(path, tree["services"], variables, context)
    for name in project.services:
        if wanted is None or name in wanted:
            _read_service(name, project, run, findings)
    if not findings.launches and not findings.refused:
        reason = "no service of it is a vLLM engine"
        findings.refuse(NotAServerError(Origin(path), reason))
    return findings


def _project_variables(folder: str, context: Context, env_files: Sequence[str]) -> dict[str, Word]:
    variables: dict[str, Word] = {}
    for name in env_files or (".env",):
        path = name if name.startswith("/") else posixpath.join(folder, name)
        text = context.surroundings.read(path)
        if text is not None:
            variables |= dot_env.parse(text, path, context.notebook, context.environment)
    # What the caller's environment sets wins over .env.
    return variables | dict(context.environment)


def _read_service(name: str, project: _Project, run: Run | None, findings: Findings) -> None:
    """Add the engine that a service is, or why it is none."""
    context, described = project.context, None
    try:
        service = compose_merge.extended(name, project.services, project.path, context)
        tree = _interpolated(service, project.variables, context)
        described = _describe(name, tree, project)
        if run is not None:
            docker.apply_options(described, run.options, context)
            described.command = list(run.command) or described.command
        for launch in container.launches(described, context):
            after = tuple(_names(tree.get("depends_on")))
            findings.launches.append(replace(launch, after=after))
    except NotAServerError as error:
        _leave_alone(name, described, error, findings)
    except RefusalError as error:
        findings.refuse(error, f"service {name}", names=(name,))


def _leave_alone(
    name: str, described: Container | None, error: NotAServerError, findings: Findings
) -> None:
    origin = place_of(name)
    message = f"the service {name} is no vLLM engine and is left alone: {error.reason}"
    findings.notebook.add(origin, codes.OTHER_SERVICE, message)
    if described is not None and described.gpus:
        tenant = TenantError(origin, f"{error.reason}, and it asks for the GPU")
        tenant.names = (name,)
        findings.tenants.append(tenant)


def _interpolated(node: Node, variables: Mapping[str, Word], context: Context) -> Node:
    if isinstance(node, dict):
        return {key: _interpolated(value, variables, context) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolated(item, variables, context) for item in node]
    if isinstance(node, Word):
        return dot_env.interpolate(node, variables.get, context.notebook)
    return node


def _describe(name: str, service: Node, project: _Project) -> Container:
    origin, context, variables = place_of(name), project.context, project.variables
    if not isinstance(service, dict):
        raise RefusalError(origin, f"the service {name} is no table")
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
    if isinstance(network := service.get("network_mode"), Word):
        container.use_network(described, network, context)
    described.mounts = list(_volumes(service.get("volumes"), posixpath.dirname(project.path)))
    described.gpus = list(_gpus(service))
    if isinstance(directory := service.get("working_dir"), Word):
        described.directory = directory.text
    _note_rest(service, context)
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
            environment[key] = Word("", place_of(key), problem)
    return environment


def _pairs(node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the variables of `environment`; None where only the name is given."""
    if isinstance(node, dict):
        yield from node.items()
        return
    for item in _as_list(node):
        if isinstance(item, Word):
            key, equals, value = item.text.partition("=")
            yield Key(key, item.origin), item._replace(text=value) if equals else None


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


def _note_top(tree: Mapping[str, Node], context: Context) -> None:
    for key in (key for key in tree if key == "include"):
        context.notebook.add(
            place_of(key), codes.SETTING, "the files that `include` names are"
            " not read: give the output of `docker compose config`"
        )  # fmt: skip


def _note_rest(service: Mapping[str, Node], context: Context) -> None:
    rest: list[tuple[str, Word]] = []
    for key, node in service.items():
        if key in _SILENT or key.startswith("x-"):
            continue
        place = place_of(key)
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
