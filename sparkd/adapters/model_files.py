# SPDX-License-Identifier: Apache-2.0
"""A model on disk: what its config.json says, and whether every file it needs is there."""

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

MAX_JSON_BYTES = 16 << 20
_MAX_FILES = 4096
_HEADER_BYTES = 8
"""A safetensors file begins with the length of its header; a copy that broke off is shorter."""


class ModelFiles(NamedTuple):
    """What stands in a model's folder."""

    config: Mapping[str, Any]
    """config.json; {} where there is none that can be read."""
    weights: int
    """Bytes of the weight files that vLLM reads and that are whole."""
    files: int
    missing: tuple[str, ...]
    """Weight files that the index names and that are not there or are cut short."""
    has_tokenizer: bool

    @property
    def whole_weights(self) -> int:
        """Bytes of all weight files; 0, which is unknown, while one is missing or cut short."""
        return 0 if self.missing else self.weights


def look(directory: Path) -> ModelFiles | None:
    """Look at a model's folder; None where there is no such folder or it cannot be read."""
    try:
        names = set(os.listdir(directory))  # noqa: PTH208  (names, not paths)
    except OSError:
        return None
    named = _indexed(directory)
    wanted = sorted(named) or sorted(
        # Without an index everything counts but a second copy in Mistral's own layout.
        name
        for name in names
        if name.endswith(".safetensors") and not name.startswith("consolidated")
    )
    sizes = {name: _size(directory / name) for name in wanted[:_MAX_FILES]}
    tokenizers = {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json"}
    return ModelFiles(
        config=read_json(directory / "config.json"),
        weights=sum(size or 0 for size in sizes.values()),
        files=len(sizes),
        missing=tuple(name for name, size in sizes.items() if size is None),
        has_tokenizer=bool(tokenizers & names),
    )


def read_json(file: Path) -> dict[str, Any]:
    """Return a JSON object from a regular file of sensible size, {} when it is none."""
    try:
        with _open(file) as stream:
            value = json.loads(stream.read(MAX_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _open(file: Path) -> BinaryIO:
    """Open a regular file; whatever else has its name raises OSError."""
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    stream = os.fdopen(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        return stream
    stream.close()
    raise OSError(f"{file} is no regular file")


def _indexed(directory: Path) -> set[str]:
    """File names that the index of a sharded checkpoint lists; paths elsewhere are not followed."""
    index = read_json(directory / "model.safetensors.index.json").get("weight_map")
    if not isinstance(index, dict):
        return set()
    return {name for name in index.values() if isinstance(name, str) and "/" not in name}


def _size(file: Path) -> int | None:
    """The size of a whole safetensors file; None when it is missing or shorter than it says.

    The header is JSON with the offsets of all tensors; the largest is where the file must end.
    """
    try:
        with _open(file) as stream:
            size = os.fstat(stream.fileno()).st_size
            length = int.from_bytes(stream.read(_HEADER_BYTES), "little")
            if size < _HEADER_BYTES or not 0 < length <= MAX_JSON_BYTES:
                return None
            header = json.loads(stream.read(length))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    ends = [
        tensor["data_offsets"][1]
        for tensor in header.values()
        if isinstance(tensor, dict) and _has_offsets(tensor)
    ]
    return size if size >= _HEADER_BYTES + length + max(ends, default=0) else None


def _has_offsets(tensor: Mapping[str, Any]) -> bool:
    match tensor.get("data_offsets"):
        case [int(), int()]:
            return True
    return False
