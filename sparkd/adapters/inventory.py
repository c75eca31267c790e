# SPDX-License-Identifier: Apache-2.0
"""Finds models and vLLM environments on this host. It reads, and runs nothing of what it finds."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from sparkd.adapters import model_files
from sparkd.adapters.lint_facts import installed_version
from sparkd.core.lint.checkpoint import read_checkpoint
from sparkd.core.scaffold import Environment, Model

MODEL_ROOTS = ("/models", "/srv/models", "/opt/models", "/data/models", "/mnt/models",
               "/var/lib/vllm", "/srv/huggingface")  # fmt: skip
ENVIRONMENT_ROOTS = ("/opt", "/srv", "/usr/local", "/var/lib/vllm")
_HUB = ".cache/huggingface/hub"
_DEPTH = 5
_FOLDERS_MAX = 20_000
_HUB_MODEL = re.compile(r"models--(?:.+--)?(.+)\Z")
_NUMBER = re.compile(r"\d+")


def models(extra: Iterable[Path] = ()) -> list[Model]:
    """Every folder with a config.json and weights below the usual roots and these."""
    roots = [*map(Path, MODEL_ROOTS), *(home / _HUB for home in _homes()), *extra]
    if hub := os.environ.get("HF_HOME"):
        roots.append(Path(hub) / "hub")
    found: dict[Path, Model] = {}
    for folder in _folders(roots):
        if (model := _model(folder)) is not None:
            found.setdefault(folder.resolve(), model)
    return list(found.values())


def _model(folder: Path) -> Model | None:
    if not (folder / "config.json").is_file():
        return None
    seen = model_files.look(folder)
    if seen is None or not seen.config or not (seen.files or seen.missing):
        return None
    quantization = model_files.read_json(folder / "hf_quant_config.json")
    checkpoint = read_checkpoint(seen.config, quantization, seen.weights, seen.files)
    return Model(str(folder), _called(folder), seen.config, checkpoint, seen.missing)


def _called(folder: Path) -> str:
    """A hub cache keeps a model in models--ORG--NAME/snapshots/HASH."""
    for part in reversed(folder.parts):
        if match := _HUB_MODEL.match(part):
            return match[1]
    return folder.name


def environments(extra: Iterable[Path] = ()) -> list[Environment]:
    """Every Python environment with a `bin/vllm` and its metadata, the newest vLLM first."""
    homes = [place for home in _homes() for place in (home, home / ".virtualenvs", home / "venvs")]
    found: dict[Path, Environment] = {}
    for root in [*map(Path, ENVIRONMENT_ROOTS), *homes, *extra]:
        for folder in (root, *_children(root), *(g for c in _children(root) for g in _children(c))):
            if os.access(folder / "bin/vllm", os.X_OK):
                version = installed_version(folder)
                if version is not None:
                    found.setdefault(folder.resolve(), Environment(str(folder), version))
    return sorted(found.values(), key=_newest_first)


def _newest_first(one: Environment) -> tuple[list[int], str]:
    return [-int(number) for number in _NUMBER.findall(one.version)[:3]], one.venv


def _homes() -> list[Path]:
    try:
        return [Path("/root"), *sorted(Path("/home").iterdir())]
    except OSError:
        return [Path("/root")]


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(child for child in folder.iterdir() if child.is_dir())[:500]
    except OSError:
        return []


def _folders(roots: Iterable[Path]) -> Iterator[Path]:
    """Folders below the roots, not through links, each once and not without end."""
    left = _FOLDERS_MAX
    for root in roots:
        depth = len(root.parts)
        for place, names, _ in os.walk(root):
            left -= 1
            if left < 0:
                return
            if len(Path(place).parts) - depth >= _DEPTH:
                names.clear()
            names[:] = sorted(name for name in names if name not in {"blobs", ".git", "refs"})
            yield Path(place)
