# SPDX-License-Identifier: Apache-2.0
"""`extends` and override files of Compose: how one description of a service lies over another."""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping

from sparkd.core.importing import codes, compose_tree
from sparkd.core.importing.compose_tree import Key, Node, place_of
from sparkd.core.importing.model import Context, Origin, RefusalError, Word

_MAX_DEPTH = 8
_ADVICE = "give the output of `docker compose config`"
# Lists that are replaced as a whole; every other list is appended to.
_REPLACED = frozenset({"command", "entrypoint", "test"})
# Tables that may be written as lists of KEY=VALUE.
_TABLES = frozenset({"environment", "labels", "annotations", "sysctls", "extra_hosts"})
_MAIN = re.compile(r"(?:docker-)?compose\.ya?ml\Z")
_OVERRIDES = ("compose.override.yml", "compose.override.yaml", "docker-compose.override.yml",
              "docker-compose.override.yaml")  # fmt: skip


def with_override(project: Mapping[str, Node], path: str, context: Context) -> Mapping[str, Node]:
    """Return a project with the override file beside it, which `docker compose up` takes up.

    Raises:
        RefusalError: the override file is none.
    """
    folder, name = posixpath.split(path)
    if not _MAIN.match(name):
        return project
    for other in _OVERRIDES:
        file = posixpath.join(folder, other)
        text = context.surroundings.read(file)
        if text is not None:
            text_of = f"{other} is laid over it, as `docker compose up` does"
            context.notebook.add(Origin(path), codes.DERIVED, text_of)
            both: Mapping[str, Node] = merged(project, compose_tree.parse(text, file))
            return both
    return project


def extended(
    name: str, services: Mapping[str, Node], path: str, context: Context,
    seen: tuple[tuple[str, str], ...] = (),
) -> Node:  # fmt: skip
    """Return a service with what it `extends` under it.

    Raises:
        RefusalError: what it extends cannot be read, is no table, or extends it in turn.
    """
    service = services[name]
    node = service.get("extends") if isinstance(service, dict) else None
    if node is None:
        return service
    origin = place_of(next(key for key in service if key == "extends"))
    base, file = _named(node, path, origin)
    if (file, base) in seen or len(seen) >= _MAX_DEPTH:
        raise RefusalError(origin, f"`extends` of {base} goes round in a circle")
    others = services if file == path else _services(file, origin, context)
    if base not in others:
        raise RefusalError(origin, f"`extends` names {base}, which is no service of {file}")
    under = extended(base, others, file, context, (*seen, (file, base)))
    if not isinstance(under, dict):
        raise RefusalError(origin, f"`extends` names {base}, which is no table in {file}")
    if posixpath.dirname(file) != posixpath.dirname(path):
        under = _rebased(under, posixpath.dirname(file))
    own = {key: value for key, value in service.items() if key != "extends"}
    return merged(under, own)


def _named(node: Node, path: str, origin: Origin) -> tuple[str, str]:
    base: Node = node.get("service") if isinstance(node, dict) else node
    file: Node = node.get("file") if isinstance(node, dict) else None
    names = [base] if file is None else [base, file]
    if any(not isinstance(name, Word) or "$" in name.text for name in names):
        raise RefusalError(origin, f"what `extends` names cannot be told: {_ADVICE}")
    if file is None:
        return base.text, path
    return base.text, posixpath.normpath(posixpath.join(posixpath.dirname(path), file.text))


def _services(file: str, origin: Origin, context: Context) -> Mapping[str, Node]:
    text = context.surroundings.read(file)
    if text is None:
        raise RefusalError(origin, f"`extends` names {file}, which cannot be read")
    services: Mapping[str, Node] = compose_tree.parse(text, file)["services"]
    return services


def merged(under: Node, over: Node, key: str = "") -> Node:
    """Return two descriptions as one; what `over` says counts.

    Raises:
        RefusalError: a key is empty in one of them.
    """
    if key in _TABLES:
        under, over = dict(_as_table(under)), dict(_as_table(over))
    if isinstance(under, dict) and isinstance(over, dict):
        result = dict(under)
        for name, value in over.items():
            if name in under and value is None and key not in _TABLES:
                raise RefusalError(
                    place_of(name), f"what an empty {name} means over another is not followed:"
                    f" {_ADVICE}"
                )  # fmt: skip
            old = result.pop(name, None)
            result[name] = value if old is None or key in _TABLES else merged(old, value, name)
        return result
    if isinstance(under, list) and isinstance(over, list) and key not in _REPLACED:
        kept = [item for item in under if item not in over]
        if key == "volumes":
            targets = {_target(item) for item in over}
            kept = [item for item in kept if _target(item) not in targets]
        return [*kept, *over]
    return over


def _as_table(node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node, dict):
        yield from node.items()
    for item in node if isinstance(node, list) else ():
        if isinstance(item, Word):
            name, equals, value = item.text.partition("=")
            yield Key(name, item.origin), item._replace(text=value) if equals else None


def _target(item: Node) -> str:
    if isinstance(item, dict):
        target = item.get("target")
        return target.text if isinstance(target, Word) else ""
    return item.text.split(":")[1] if isinstance(item, Word) and ":" in item.text else ""


def _rebased(service: Node, folder: str) -> Node:
    """Return a service of another directory: its relative paths start there."""

    def absolute(word: Word) -> Word:
        if word.text.startswith(("/", "~", "$")):
            return word
        return word._replace(text=posixpath.normpath(posixpath.join(folder, word.text)))

    result = dict(service)
    for key, value in service.items():
        if key == "env_file":
            result[key] = _each(value, "path", absolute)
        elif key == "volumes":
            result[key] = _each(
                value, "source", lambda word: absolute(word) if word.text[:1] == "." else word
            )
    return result


def _each(node: Node, name: str, change: Callable[[Word], Word]) -> Node:
    if isinstance(node, Word):
        return change(node)
    if isinstance(node, list):
        return [_each(item, name, change) for item in node]
    if isinstance(node, dict):
        return {
            key: change(value) if key == name and isinstance(value, Word) else value
            for key, value in node.items()
        }
    return node
