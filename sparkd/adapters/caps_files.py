# SPDX-License-Identifier: Apache-2.0
"""The files that carry the compile caps to launch paths other than sparkd's units."""

import functools
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from sparkd.adapters import file_set, systemctl
from sparkd.adapters.unit_files import ApplyError
from sparkd.core import caps
from sparkd.core.caps import Found, LaunchPath, Plan, State
from sparkd.core.config_model import Config
from sparkd.core.engine_environment import compile_caps

ROOT = Path("/")
SIZE_MAX = 64 << 10
PAM = Path("etc/environment")


def read(root: Path = ROOT) -> dict[str, Found]:
    """Every file of `caps.FILES`, by its path.

    Raises:
        ApplyError: one is there and cannot be read.
    """
    return {file.path: _read(root / file.path.lstrip("/")) for file in caps.FILES}


def _read(path: Path) -> Found:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return Found(None)
    except OSError as error:
        if path.is_symlink():
            return Found(None, is_regular=False)
        raise ApplyError(f"cannot read {path}: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return Found(None, is_regular=False)
        return Found(file.read(SIZE_MAX).decode("utf-8", "surrogateescape"))


def carry_out(plan: Plan, root: Path = ROOT) -> None:
    """Write and remove; each file is whole, old or new. Who gave the plan reloads systemd.

    Raises:
        ApplyError: a file changed since the plan was made, or cannot be written.
    """
    for change in plan.changes:
        path = root / change.path.lstrip("/")
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ApplyError(f"cannot open {path.parent}: {error.strerror}") from error
        try:
            content = None if change.text is None else change.text.encode()
            check = functools.partial(_check_unchanged, path, change)
            file_set.change(folder, [file_set.Change(path.name, content, check=check)])
        except file_set.ChangeError as error:
            raise ApplyError(f"cannot {error.verb} {path}: {error.error.strerror}") from error
        finally:
            os.close(folder)


def _check_unchanged(path: Path, change: caps.Change) -> None:
    if _read(path) != Found(change.expected):
        raise ApplyError(f"{path} changed since the plan was made: apply again")


def launch_paths(config: Config, root: Path = ROOT) -> list[LaunchPath]:
    """Every way to start something, and whether the caps hold on it.

    Raises:
        ApplyError: a file is there and cannot be read.
    """
    wanted = config.host.compile
    variables = compile_caps(wanted)
    rendered = caps.render(wanted)
    found = [
        LaunchPath(
            "engines' units", *_units(variables, [engine.unit for engine in config.engines])
        ),
        LaunchPath("sparkctl run", capped=True, detail="sets them itself"),
    ]
    on_disk = read(root)
    for file in caps.FILES:
        state = caps.state_of(on_disk[file.path], rendered.get(file.path))
        detail = file.path if state is State.CURRENT else f"{file.path} is {state}"
        if not wanted.everywhere:
            detail = "compile.everywhere is false"
        found.append(LaunchPath(file.reaches, state is State.CURRENT, detail))
    found.append(LaunchPath("cron, sudo, ssh commands", *_pam(variables, root), is_ours=False))
    found.append(
        LaunchPath(
            "containers started by hand",
            capped=False,
            detail="nothing reaches them: give each an --env for MAX_JOBS and the others",
            is_ours=False,
        )
    )
    return found


def _units(variables: Mapping[str, str], units: Sequence[str]) -> tuple[bool | None, str]:
    """As systemd has them: a drop-in can take the caps away again."""
    seen = systemctl.show(units, ["Environment"]) if units else []
    if seen is None:
        return None, "cannot see systemd"
    wanted = {f"{name}={value}" for name, value in variables.items()}
    bare = [
        unit
        for unit, row in zip(units, seen, strict=True)
        if wanted - set(row.get("Environment", "").split())
    ]
    if bare:
        return False, f"not in {', '.join(bare)}: apply, or look for a drop-in"
    return True, "their Environment="


def _pam(variables: Mapping[str, str], root: Path) -> tuple[bool | None, str]:
    try:
        text = (root / PAM).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        return None, f"cannot read /{PAM}: {error.strerror}"
    lacking = caps.missing_in(text, variables)
    if lacking:
        return False, f"/{PAM} is yours; add to it: {' '.join(lacking)}"
    return True, f"/{PAM}"
