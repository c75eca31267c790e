# SPDX-License-Identifier: Apache-2.0
"""Looks at units, their drop-ins and order, and for whoever else starts a server on this host."""

import contextlib
import os
import pwd
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from sparkd.adapters import clock, container_files, database, proc, starts
from sparkd.adapters.commands import output
from sparkd.adapters.config_view import ConfigView, View
from sparkd.adapters.revision_files import Revisions
from sparkd.adapters.service_manager import Viewer
from sparkd.adapters.state_files import StateFiles
from sparkd.adapters.unit_files import UNIT_DIRECTORY
from sparkd.core.config_state import UnitFile
from sparkd.core.doctor import containers, driver
from sparkd.core.doctor import last_boot as last_boot_rules
from sparkd.core.doctor.containers import Container
from sparkd.core.doctor.origins import DropIn
from sparkd.core.doctor.units import TARGET, Facts, Host, Rival
from sparkd.core.importing.unit_text import Fragment, parse
from sparkd.core.schema import ENGINE_NAME
from sparkd.core.unit_state import UnitFacts, unit_of

_SYSTEM_UNITS = (
    "/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
)  # fmt: skip
_CRONTABS = ("/etc/crontab", "/etc/cron.d", "/var/spool/cron/crontabs", "/var/spool/cron")
_USERS_UNITS = ("systemd/user", "containers/systemd")
_MAX_BYTES = 1 << 20
_MAX_FILES = 5000
# What `systemctl show` calls differently than a unit file.
_SHOWN_AS = {
    "TimeoutStartSec": "TimeoutStartUSec",
    "TimeoutStopSec": "TimeoutStopUSec",
    "RestartSec": "RestartUSec",
    "StartLimitIntervalSec": "StartLimitIntervalUSec",
}


def look(
    viewer: Viewer, named: Collection[str], files: StateFiles | None = None
) -> tuple[list[Facts], Host]:
    """Every engine's unit and what lies around.

    Args:
        viewer: asks systemd.
        named: engines that have a file in engines.d, were it one with errors.
        files: where holds are written.

    Raises:
        BusError: systemd does not answer.
    """
    view = ConfigView().look()
    files = files or StateFiles()
    names = dict.fromkeys([*view.names(), *filter(ENGINE_NAME.match, named)])
    engines = [_engine(viewer, view, name, files, named) for name in names]
    before = {unit for engine in engines for unit in engine.after if unit.endswith(".service")}
    states = {unit: viewer.unit(unit) for unit in sorted(before)}
    missing = frozenset(unit for unit, seen in states.items() if seen.load_state == "not-found")
    others = list(rivals())
    servers = {Path(rival.who.split(" ")[-1]).name for rival in others}
    retired = frozenset(
        unit
        for unit, seen in states.items()
        if unit in servers and seen.unit_file_state in {"disabled", "masked"}
    )
    target = viewer.unit(TARGET)
    host = Host(
        target_enabled=target.unit_file_state == "enabled",
        stale_drop_ins=_stale_drop_ins(viewer),
        missing_units=missing,
        retired_units=retired,
        rivals=[rival for rival in others if not _is_retired(viewer, rival)],
        begun=_begun(),
    )
    return engines, host


def _is_retired(viewer: Viewer, rival: Rival) -> bool:
    """Whether it is a system unit that nothing starts and that does not run."""
    kind, _, path = rival.who.partition(" ")
    if kind != "unit" or not path.endswith(".service"):
        return False
    seen = viewer.unit(Path(path).name)
    idle = seen.active_state in {"inactive", "failed"}
    return idle and seen.unit_file_state in {"disabled", "masked"}


def _engine(
    viewer: Viewer, view: View, name: str, files: StateFiles, named: Collection[str]
) -> Facts:
    unit = viewer.unit(unit_of(name))
    config = view.engine(name)
    facts = view.facts(name, None)
    found = view.on_disk.get(unit_of(name))
    text = "" if found is None else found.text
    path = UNIT_DIRECTORY / unit_of(name)
    held = files.ledger(name).held
    return Facts(
        name=name,
        in_config=name in named,
        autostart=config is not None and config.autostart,
        port=None if config is None else config.port,
        file=facts.file or UnitFile.ABSENT,
        file_detail=_touched(path),
        matches=facts.matches,
        load_state=unit.load_state,
        unit_file_state=unit.unit_file_state,
        need_reload=unit.need_daemon_reload,
        after=_after(unit_of(name), text, unit.drop_ins),
        held="" if held is None else held.reason,
        order=50 if config is None else config.order,
        drop_ins=_drop_ins(unit_of(name), text, unit.drop_ins),
        active=unit.active_state == "active",
    )


def tenants(viewer: Viewer, units: Collection[str]) -> dict[str, UnitFacts]:
    """The units that sparkd.toml names for tenants.

    Raises:
        BusError: systemd does not answer.
    """
    return {unit: viewer.unit(unit) for unit in units}


def drivers(viewer: Viewer, names: Collection[str]) -> list[driver.Facts]:
    """With which NVIDIA driver each engine was started.

    Raises:
        BusError: systemd does not answer.
    """
    found = []
    for name in names:
        unit = viewer.unit(unit_of(name))
        admitted = starts.admitted(unit.unit, unit.invocation_id) if unit.main_pid else None
        known = starts.known(name).known
        found.append(
            driver.Facts(
                name,
                running_with="" if admitted is None else admitted[0].get("driver", ""),
                ready_with=known[-1].fingerprint.get("driver", "") if known else "",
            )
        )
    return found


def last_boot() -> tuple[list[last_boot_rules.Start], bool]:
    """What the database has of the first starts since the boot, and whether units changed since.

    Raises:
        DatabaseError: it cannot be read.
    """
    now = clock.moment()
    with database.reader() as known:
        rows = [] if known is None else known.first_starts(now.boot_id)
    # In a container the boot clock is the host's: the boot is when process 1 began.
    begun = (proc.start_time(1) or 0) / os.sysconf("SC_CLK_TCK")
    found = [last_boot_rules.Start(name, at - begun, seconds) for name, at, seconds in rows]
    changed = False
    with contextlib.suppress(OSError):
        last = [Revisions().read(number) for number in Revisions().numbers()[-1:]]
        changed = any(one is None or one.time > now.wall - now.boottime + begun for one in last)
    return found, changed


def _touched(path: Path) -> str:
    try:
        status = path.lstat()
    except OSError:
        return "no file"
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"uid {status.st_uid}"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.st_mtime))
    return f"changed {when}, belongs to {owner}"


def _after(unit: str, text: str, drop_ins: Sequence[str]) -> list[str]:
    """Every unit that the text and its drop-ins name in After=; an empty one resets nothing."""
    fragments = [Fragment(unit, text), *_fragments(drop_ins)]
    settings = [setting for fragment in fragments for setting in parse(fragment)]
    words = [
        word
        for setting in settings
        if setting.section == "Unit" and setting.key == "After"
        for word in setting.value.split()
    ]
    return [word for word in dict.fromkeys(words) if word.endswith(".service")]


def _fragments(paths: Sequence[str]) -> Iterator[Fragment]:
    for path in paths:
        text = _text(Path(path))
        if text is not None:
            yield Fragment(path, text)


def _drop_ins(unit: str, text: str, paths: Sequence[str]) -> list[DropIn]:
    own: dict[str, str] = {}
    for setting in parse(Fragment(unit, text)):
        own[setting.key] = setting.value
    lines = [
        (fragment.path, setting) for fragment in _fragments(paths) for setting in parse(fragment)
    ]
    effective = _shown(unit, [setting.key for _, setting in lines])
    return [
        DropIn(
            path=path,
            line=setting.origin.line,
            key=setting.key,
            value=setting.value,
            unit_value=own.get(setting.key),
            effective=effective.get(_SHOWN_AS.get(setting.key, setting.key)),
        )
        for path, setting in lines
    ]


def _shown(unit: str, keys: Sequence[str]) -> dict[str, str]:
    # A list of commands or variables says nothing that fits into a sentence.
    names = {_SHOWN_AS.get(key, key) for key in keys if not key.startswith(("Exec", "Env"))}
    if not names:
        return {}
    said = output(["systemctl", "show", f"--property={','.join(sorted(names))}", "--", unit])
    return dict(row.split("=", 1) for row in (said or "").splitlines() if "=" in row)


def _stale_drop_ins(viewer: Viewer) -> list[str]:
    found = []
    for base in ("/etc/systemd/system", "/run/systemd/system"):
        with contextlib.suppress(OSError):
            for folder in sorted(Path(base).glob("vllm-*.service.d")):
                name = folder.name.removesuffix(".d")
                # A prefix such as vllm-.service.d is for all of them.
                if not name.endswith("-.service") and _is_gone(viewer, name):
                    found.append(str(folder))
    return found


def _is_gone(viewer: Viewer, unit: str) -> bool:
    seen = viewer.unit(unit)
    return seen.load_state == "not-found" or (
        seen.load_state == "loaded" and not seen.fragment_path
    )


def _begun() -> str:
    with contextlib.suppress(OSError):
        revision = Revisions().begun()
        if revision is not None:
            return f"revision {revision.number} ({revision.kind} by {revision.author})"
    return ""


# whoever else


def rivals() -> Iterator[Rival]:
    """Everything outside of sparkd's own units that would start a server by itself."""
    homes = _homes()
    found = list(container_files.containers(homes))
    yield from _unit_files(homes, found)
    yield from _cron()
    yield from filter(None, map(containers.rival, found))


def _unit_files(homes: Sequence[Path], known: Sequence[Container]) -> Iterator[Rival]:
    users = [f"{home}/.config/{kind}" for home in homes for kind in _USERS_UNITS]
    folders = (*_SYSTEM_UNITS, "/etc/systemd/user", *users, "/etc/containers/systemd")
    for folder in folders:
        for file in _files(Path(folder), (".service", ".container")):
            text = _text(file)
            if text is None or "[X-Sparkd]" in text:
                continue
            kind = "user unit" if "/user" in folder or "/.config/" in folder else "unit"
            is_quadlet = file.suffix == ".container"
            seen = containers.unit_rival(f"{kind} {file}", text, known, is_quadlet=is_quadlet)
            if seen is not None:
                yield seen


def _homes() -> list[Path]:
    with contextlib.suppress(OSError):
        return [Path("/root"), *sorted(Path("/home").iterdir())]
    return [Path("/root")]


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    with contextlib.suppress(OSError):
        names = sorted(folder.iterdir())[:_MAX_FILES]
        return [file for file in names if file.suffix in suffixes and not file.is_symlink()]
    return []


def _cron() -> Iterator[Rival]:
    for place in map(Path, _CRONTABS):
        with contextlib.suppress(OSError):
            files = sorted(place.iterdir()) if place.is_dir() else [place]
            for file in files:
                text = _text(file)
                if text is not None and "vllm" in text:
                    yield Rival(str(file), text)


def _text(file: Path) -> str | None:
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return None
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
