# SPDX-License-Identifier: Apache-2.0
"""Compose files as trees of words that know where they stand."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from sparkd.core.importing.model import Origin, RefusalError, Word
from sparkd.core.importing.yaml_errors import what_is_wrong

_MAX_NODES = 20_000
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
    """A key of a table and the place at which it stands."""

    __slots__ = ("origin",)
    origin: Origin

    def __new__(cls, text: str, origin: Origin) -> "Key":
        """Return the key."""
        key = super().__new__(cls, text)
        key.origin = origin
        return key


def place_of(key: str) -> Origin:
    """Return where a key stands."""
    return key.origin if isinstance(key, Key) else Origin("")


class OddNumber(Word):
    """An unquoted number such as 12.0 or 010, which a YAML reader turns into another text."""


def parse(text: str, path: str) -> Mapping[str, Node]:
    """Return a file, whose `services` is a table.

    Raises:
        RefusalError: it is no compose file.
    """
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
        raise RefusalError(place, "a tag is not followed: write the value itself")
    if isinstance(node, yaml.MappingNode):
        _refuse_double_keys(node, path, budget)
        loader.flatten_mapping(node)
        return {
            Key(str(key.value), Origin(path, key.start_mark.line + 1)): _convert(
                value, loader, path, budget
            )
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
                f"a key stands twice (first at line {first}), which Compose refuses: remove one",
            )  # fmt: skip
        lines[str(key.value)] = line
