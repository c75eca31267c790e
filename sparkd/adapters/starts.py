# SPDX-License-Identifier: Apache-2.0
"""What is needed to foresee a start: versions, caches and weights on disk, and earlier starts.

Everything is read from names and sizes of files; no Python of the engine is run for it.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkd.adapters.state_files import read_json, write_atomic
from sparkd.core import admission, burst

PACKAGES = ("vllm", "torch", "flashinfer-python", "triton")
"""Distributions whose version decides what is compiled and how much memory a start takes."""
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
CACHES = (
    ".cache/vllm/torch_compile_cache",
    ".cache/flashinfer",
    ".triton/cache",
    ".cache/torch_extensions",
    ".nv/ComputeCache",
)
"""Compiled code, below an engine's HOME."""
DRIVER = Path("/sys/module/nvidia/version")
STATE = Path("/var/lib/sparkd/starts")
ADMITTED = Path("/run/sparkd/admitted")


def fingerprint(executable: str, cuda_home: str, launch_hash: str) -> dict[str, str]:
    """The components that a start's peak and caches depend on, by name."""
    found = dict.fromkeys(PACKAGES, "")
    for folder in _site_packages(Path(executable).parent.parent):
        found |= _versions(folder)
    found["cuda"] = _cuda(Path(cuda_home)) if cuda_home else ""
    found["driver"] = _line(DRIVER)
    found[admission.LAUNCH] = launch_hash
    return found


def _site_packages(venv: Path) -> Iterator[Path]:
    yield from sorted(venv.glob("lib/python3*/site-packages"))


def _versions(folder: Path) -> dict[str, str]:
    """From the names of the dist-info folders: NAME-VERSION.dist-info."""
    found = {}
    try:
        names = os.listdir(folder)  # noqa: PTH208  (hundreds of entries on the start path)
    except OSError:
        return {}
    for entry in names:
        name, dash, version = entry.removesuffix(".dist-info").partition("-")
        known = name.lower().replace("_", "-")
        if dash and known in PACKAGES and entry.endswith(".dist-info"):
            found[known] = version
    return found


def _cuda(home: Path) -> str:
    """The toolkit's version, from version.json (CUDA 11 and later)."""
    match read_json(home / "version.json"):
        case {"cuda": {"version": str(version)}}:
            return version
    return ""


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()[:100]
    except OSError:
        return ""


def caches(home: str) -> tuple[str, ...]:
    """The folders of compiled code that are there and not empty."""
    return tuple(f"{home}/{name}" for name in CACHES if home and _has_entries(Path(home, name)))


def _has_entries(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False


def can_compile(cuda_home: str) -> bool:
    """Whether there is a compiler for CUDA; without one a cold start compiles nothing large."""
    return bool(cuda_home) and os.access(f"{cuda_home}/bin/nvcc", os.X_OK)


def weights(model: str, home: str, hub: str = "") -> int:
    """Bytes of a model's weights on disk; 0 when they are not here.

    Args:
        model: a folder, or a name on the Hugging Face hub that may be in the cache.
        home: the engine's HOME.
        hub: its HF_HOME, if it has one.
    """
    if model.startswith("/"):
        return _size(Path(model))
    snapshots = Path(hub or f"{home}/.cache/huggingface", "hub")
    snapshots = snapshots / f"models--{model.replace('/', '--')}" / "snapshots"
    try:
        return max((_size(folder) for folder in snapshots.iterdir()), default=0)
    except OSError:
        return 0


def _size(folder: Path) -> int:
    """Of one format only: several repositories hold the same weights twice."""
    sizes = dict.fromkeys(WEIGHTS, 0)
    try:
        for entry in folder.iterdir():
            if entry.suffix in sizes:
                sizes[entry.suffix] += entry.stat().st_size
    except OSError:
        pass
    return max(sizes.values())


# what earlier starts left


def known(engine: str, state: Path = STATE) -> admission.Memory:
    """What is remembered of an engine's starts; a file that cannot be read counts as absent."""
    return admission.from_json(read_json(state / f"{engine}.json"))


def remember(engine: str, memory: admission.Memory, state: Path = STATE) -> None:
    """Replace it.

    Raises:
        OSError: the file is the old one.
    """
    write_atomic(state / f"{engine}.json", json.dumps(admission.to_json(memory)) + "\n")


# what await-slot tells await-ready about the start that it admits


def admit(
    unit: str,
    invocation_id: str,
    fingerprint: Mapping[str, str],
    outlook: admission.Outlook,
    available: int,
    folder: Path = ADMITTED,
) -> None:
    """Note what this start was admitted on; `available` is MemAvailable right before it."""
    value = {
        "invocation_id": invocation_id,
        "fingerprint": dict(fingerprint),
        "kind": outlook.kind,
        "kind_reason": outlook.reason,
        "available": available,
    }
    write_atomic(folder / f"{unit}.json", json.dumps(value) + "\n")


def admitted(
    unit: str, invocation_id: str, folder: Path = ADMITTED
) -> tuple[dict[str, str], admission.Outlook, int] | None:
    """What `admit` noted of this very invocation."""
    match read_json(folder / f"{unit}.json"):
        case {
            "invocation_id": str(seen),
            "fingerprint": dict(parts),
            "kind": "cold" | "warm" as kind,
            "kind_reason": str(reason),
            "available": available,
        } if seen == invocation_id:
            outlook = admission.Outlook(admission.Kind(kind), reason)
            before = burst.finite(available)
            if before is not None:
                return {str(k): str(v) for k, v in parts.items()}, outlook, int(before)
    return None
