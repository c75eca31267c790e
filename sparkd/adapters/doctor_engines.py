# SPDX-License-Identifier: Apache-2.0
"""Looks at what each engine needs, as the engine's user where the kernel can be asked so."""

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from sparkd.adapters import model_files, proc
from sparkd.core.config import Config
from sparkd.core.config_model import EngineConfig
from sparkd.core.doctor.engines import Facts
from sparkd.core.engine_environment import engine_environment


def look(config: Config, *, has_gpu: bool) -> list[Facts]:
    """Every configured engine, in the order of starting."""
    return [_engine(engine, config, has_gpu=has_gpu) for engine in config.engines]


def _engine(engine: EngineConfig, config: Config, *, has_gpu: bool) -> Facts:
    model = Path(engine.model)
    is_path = engine.model.startswith("/")
    files = model_files.look(model) if is_path and model.is_dir() else None
    path = engine_environment(engine, config.host.compile)["PATH"]
    return Facts(
        name=engine.name,
        user=engine.user,
        user_exists=_uid(engine.user) is not None,
        executable=engine.executable,
        executable_usable=_usable(engine.user, engine.executable, os.X_OK),
        untrusted=list(_untrusted(Path(engine.executable), engine.user)),
        model=engine.model,
        model_is_path=is_path,
        model_readable=_usable(engine.user, engine.model, os.R_OK) if is_path else None,
        missing=() if files is None else files.missing,
        has_config=files is None or bool(files.config),
        has_tokenizer=files is None or files.has_tokenizer,
        cache=engine.cache,
        cache_is_default=engine.cache_is_default,
        cache_exists=Path(engine.cache).is_dir(),
        cache_writable=_usable(engine.user, engine.cache, os.W_OK),
        nvcc=_nvcc(path),
        has_gpu=has_gpu,
        port=engine.port,
        holders=_holders(engine),
    )


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _usable(user: str, path: str, mode: int) -> bool | None:
    """As the kernel says for that user; only root can become somebody else to ask it."""
    if os.geteuid() == 0:
        return proc.usable_by(user, path, mode)
    return os.access(path, mode) if os.geteuid() == _uid(user) else None


def _untrusted(executable: Path, user: str) -> Iterator[str]:
    """Whoever but root and the engine's own user could replace what runs.

    The file itself, what it is a link to, and every folder on the way to both.
    """
    trusted = {0, _uid(user)}
    seen: set[Path] = set()
    try:
        paths = [executable, executable.resolve()]
    except OSError:
        return
    for start in paths:
        for path in (start, *start.parents):
            if path in seen:
                continue
            seen.add(path)
            try:
                status = path.lstat()
            except OSError:
                continue
            mode = stat.S_IMODE(status.st_mode)
            if status.st_uid not in trusted:
                yield f"{path} belongs to uid {status.st_uid}"
            elif stat.S_ISLNK(status.st_mode):
                continue
            # A sticky folder lets nobody replace what belongs to others.
            elif mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                yield f"{path} can be written by everybody (mode {mode:04o})"
            elif mode & stat.S_IWGRP and status.st_gid != 0:
                yield f"{path} can be written by group {status.st_gid} (mode {mode:04o})"


def _nvcc(path: str) -> str:
    for folder in path.split(":"):
        file = Path(folder) / "nvcc"
        if file.is_file() and os.access(file, os.X_OK):
            return str(file)
    return ""


def _holders(engine: EngineConfig) -> list[str]:
    inodes = proc.listeners(engine.host, engine.port)
    owners = proc.owners_of(inodes)
    foreign = [str(one) for one in owners if not one.cgroup.endswith(f"/{engine.unit}")]
    if inodes and not owners and os.geteuid() == 0:
        return ["a process out of sight"]
    return foreign
