# SPDX-License-Identifier: Apache-2.0
"""Takes an old unit out of service for sparkd's, and gives it back.

The record is written first and holds everything; each later step can be done twice. So whatever
was cut short, `undo` brings back what was there.
"""

import json
import os
import re
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import file_set
from sparkd.adapters.service_manager import ServiceManager
from sparkd.adapters.state_files import write_atomic
from sparkd.adapters.unit_files import LOCK_FILE, UNIT_DIRECTORY, apply_lock
from sparkd.core import handover, marker
from sparkd.core.handover import DROP_IN, Record, Wish
from sparkd.core.unit_state import unit_of

STOP_S = 120.0
_SIZE_MAX = 8 << 20
_FILE = re.compile(r"(\d{6,9})\.json")


class Places(NamedTuple):
    """Where things are; tests put them elsewhere."""

    records: Path = Path("/var/lib/sparkd/imports")
    units: Path = UNIT_DIRECTORY
    lock: Path = LOCK_FILE
    """An apply works in the same folder, and sweeps what another has staged there."""


class HandoverError(Exception):
    """It cannot be done; the message says why, and what was done before."""


def records(places: Places) -> list[Record]:
    """Every hand-over, oldest first.

    Raises:
        OSError: they cannot be read.
    """
    found = []
    for number in _numbers(places):
        data = (places.records / f"{number:06}.json").read_bytes()[:_SIZE_MAX]
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            continue  # a damaged one does not keep the others from being given back
        if isinstance(value, dict) and (record := handover.from_json(value)) is not None:
            found.append(record)
    return found


def _numbers(places: Places) -> list[int]:
    """Of every record, also those that cannot be understood."""
    try:
        names = os.listdir(places.records)  # noqa: PTH208  (names, not paths)
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))


def begin(
    manager: ServiceManager, unit: str, engine: str, config: str, author: str, places: Places
) -> Record:
    """Write down what is there before anything is changed.

    Raises:
        HandoverError: it cannot be written.
        ApplyBusyError, ApplyError: an apply or another hand-over is at work, or cannot be told.
        BusError: systemd does not answer.
    """
    with apply_lock(places.lock):
        return _begin(manager, unit, engine, config, author, places)


def _begin(
    manager: ServiceManager, unit: str, engine: str, config: str, author: str, places: Places
) -> Record:
    old = manager.unit(unit)
    path = Path(old.fragment_path)
    if path.is_symlink():
        raise HandoverError(f"{path} is a link, which could not be given back: put the file there")
    try:
        status = path.stat()
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        number = max(_numbers(places), default=0) + 1
        record = Record(
            number=number,
            time=time.time(),
            author=author,
            unit=unit,
            path=str(path),
            text=text,
            mode=stat.S_IMODE(status.st_mode),
            was_enabled=old.unit_file_state == "enabled",
            was_active=handover.is_running(old),
            moved=False,
            engine=engine,
            config=config,
        )
        _write(record, places)
    except (OSError, ValueError) as error:
        raise HandoverError(f"cannot record the hand-over of {unit}: {error}") from error
    return record


def take(manager: ServiceManager, record: Record, wish: Wish, places: Places) -> Record:
    """Put the old unit out of service; who calls it has systemd reload afterwards.

    Raises:
        HandoverError: a file cannot be written, or the old unit does not stop.
        ApplyBusyError, ApplyError: as for `begin`.
        BusError: systemd refuses.
    """
    with apply_lock(places.lock):
        return _take(manager, record, wish, places)


def _take(manager: ServiceManager, record: Record, wish: Wish, places: Places) -> Record:
    if not record.is_same_name:
        folder = places.units / f"{unit_of(record.engine)}.d"
        _change(folder, [file_set.Change(DROP_IN, handover.drop_in(record.unit).encode())])
        if record.was_enabled:
            manager.disable([record.unit])
    if wish.stop and handover.is_running(manager.unit(record.unit)):
        _stop(manager, record.unit)
    old = manager.unit(record.unit)
    if handover.may_move(old, record.engine):
        path = Path(record.path)

        def check() -> None:
            if path.is_symlink() or path.read_bytes() != _content(record):
                raise HandoverError(f"{path} changed meanwhile and stays: look at it and try again")

        check()
        record = record._replace(moved=True)
        _write(record, places)
        _change(path.parent, [file_set.Change(path.name, None, check=check)])
    return record


def undo(manager: ServiceManager, record: Record, config_file: Path, places: Places) -> list[str]:
    """Give the old unit back as it was; nothing is started or stopped.

    Returns:
        What was done and what is left to do, a sentence each.

    Raises:
        HandoverError: the engine runs under sparkd, or a file is in the way.
        ApplyBusyError, ApplyError: as for `begin`.
        BusError: systemd refuses.
    """
    with apply_lock(places.lock):
        return _undo(manager, record, config_file, places)


def _undo(manager: ServiceManager, record: Record, config_file: Path, places: Places) -> list[str]:
    unit = unit_of(record.engine)
    if not record.is_same_name and handover.is_running(manager.unit(unit)):
        raise HandoverError(f"{unit} runs: 'sparkctl stop {record.engine}' first")
    said = []
    path = Path(record.path)
    text = _content(record)
    if record.moved:
        if not _may_replace(path, text):
            raise HandoverError(f"{path} is there and is another one: move it away first")
        _change(path.parent, [file_set.Change(path.name, text, record.mode)])
        said.append(f"{path} is back as it was")
    if not record.is_same_name:
        _remove_drop_in(places.units / f"{unit}.d")
        if manager.unit(unit).unit_file_state == "enabled":
            manager.disable([unit])
            said.append(f"{unit} is no longer started at boot")
    if record.was_enabled:
        manager.enable([record.unit])
        said.append(f"{record.unit} is started at boot again")
    said.append(_remove_config(record, config_file))
    manager.reload()
    _write(record._replace(undone=True), places)
    if record.was_active:
        said.append(f"it was running: 'systemctl start {record.unit}' starts it, if it does not")
    if not record.is_same_name:
        said.append(f"'sparkctl apply --prune' removes {unit}")
    return said


def _content(record: Record) -> bytes:
    """The old unit's file, byte for byte."""
    return record.text.encode("utf-8", "surrogateescape")


def _may_replace(path: Path, text: bytes) -> bool:
    """Whether the old unit's file can come back: nothing is there, it is, or sparkd's own."""
    if path.is_symlink():
        return False
    try:
        present = path.read_bytes()
    except FileNotFoundError:
        return True
    shown = present.decode("utf-8", "surrogateescape")
    ours = marker.marker_of(shown) is not None and not marker.is_hand_edited(shown)
    return present == text or ours


def _remove_config(record: Record, file: Path) -> str:
    try:
        if file.read_bytes() != record.config.encode("utf-8", "surrogateescape"):
            return f"{file} was changed since and stays"
        file.unlink()
    except FileNotFoundError:
        return f"{file} is gone already"
    except OSError as error:
        raise HandoverError(f"cannot remove {file}: {error.strerror}") from error
    return f"{file} is removed"


def _remove_drop_in(folder: Path) -> None:
    try:
        (folder / DROP_IN).unlink(missing_ok=True)
        if folder.is_dir() and not os.listdir(folder):  # noqa: PTH208
            folder.rmdir()
    except OSError as error:
        raise HandoverError(f"cannot remove {folder / DROP_IN}: {error.strerror}") from error


def _stop(manager: ServiceManager, unit: str) -> None:
    """Order it and wait: a hand-over that stops half-way would leave the port held."""
    manager.stop(unit)
    deadline = time.monotonic() + STOP_S
    while handover.is_running(manager.unit(unit)):
        if time.monotonic() > deadline:
            raise HandoverError(f"{unit} did not stop within {STOP_S:.0f} s")
        time.sleep(0.5)


def _write(record: Record, places: Places) -> None:
    text = json.dumps(handover.to_json(record)) + "\n"
    try:
        write_atomic(places.records / f"{record.number:06}.json", text)
    except OSError as error:
        raise HandoverError(f"cannot write to {places.records}: {error.strerror}") from error


def _change(folder: Path, changes: Sequence[file_set.Change]) -> None:
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HandoverError(f"cannot open {folder}: {error.strerror}") from error
    try:
        file_set.change(directory, changes)
    except file_set.ChangeError as error:
        raise HandoverError(
            f"cannot {error.verb} {folder / error.name}: {error.error.strerror}"
        ) from error
    finally:
        os.close(directory)
