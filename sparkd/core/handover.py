# SPDX-License-Identifier: Apache-2.0
"""Handing an engine over from somebody's unit to sparkd's: when it may be done, and the record.

Nothing is restarted for it. The old unit is no longer started at boot, and a drop-in of the new
one makes systemd stop the old one before the new one starts: so whoever starts the new one, be it a
reboot, never has both.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparkd.core.unit_state import UnitFacts, unit_of

DROP_IN = "60-sparkd-handover.conf"
_OWN_UNITS = "/etc/systemd/system/"
_STOPPED = frozenset({"inactive", "failed"})


class Record(NamedTuple):
    """Everything that is needed to give the unit back."""

    number: int
    time: float
    author: str
    unit: str
    """The old unit."""
    path: str
    """Where its file is, or was."""
    text: str
    """That file, odd bytes as surrogate escapes."""
    mode: int
    was_enabled: bool
    was_active: bool
    moved: bool
    """Whether its file is taken out of systemd's sight."""
    engine: str
    config: str
    """The TOML that was written for the engine."""
    undone: bool = False

    @property
    def is_same_name(self) -> bool:
        """Whether the new unit has the old one's name, and so takes its place."""
        return unit_of(self.engine) == self.unit


class Wish(NamedTuple):
    """How to deal with an old unit that runs."""

    stop: bool = False
    adopt_running: bool = False


def obstacle(old: UnitFacts, source: str, wish: Wish, engines: Sequence[str]) -> str:
    """Say why the hand-over cannot be done; '' when it can.

    Args:
        old: the old unit as systemd sees it.
        source: the file that was imported.
        wish: what was asked for.
        engines: names of the engines that the source became.
    """
    if len(engines) != 1:
        return f"{source} became {len(engines)} engines; hand over a unit that starts exactly one"
    if old.load_state != "loaded" or old.fragment_path != source:
        return (
            f"systemd does not run {old.unit} from {source}: only a loaded system unit can be"
            " handed over"
        )
    if unit_of(engines[0]) == old.unit and (old.drop_ins or not _is_own(old)):
        what = f"drop-ins ({', '.join(old.drop_ins)})" if old.drop_ins else "a file in a package"
        return (
            f"{old.unit} has the very name that sparkd's unit needs, and {what} that would go on"
            " counting: move that away, or rename the unit"
        )
    if is_running(old) and not wish.stop and not wish.adopt_running:
        return (
            f"{old.unit} runs: say --adopt-running to let it serve until the engine is started"
            " under sparkd, or --stop to stop it now"
        )
    return ""


def is_running(unit: UnitFacts) -> bool:
    """Whether anything of it may run."""
    return unit.active_state not in _STOPPED


def may_move(old: UnitFacts, engine: str) -> bool:
    """Whether its file can be put aside: an administrator's own, not a template, not in use.

    One that has the new unit's name makes room for it even while it runs: systemd then runs the
    same process on under the new text.
    """
    same = unit_of(engine) == old.unit
    return _is_own(old) and "@" not in old.unit and (same or not is_running(old))


def _is_own(unit: UnitFacts) -> bool:
    return unit.fragment_path == f"{_OWN_UNITS}{unit.unit}"


def drop_in(old: str) -> str:
    """What keeps the old unit and the new one apart."""
    return (
        f"# Written by `sparkctl import --replace`: {old} is stopped before this unit starts.\n"
        "# `sparkctl import --undo` removes it.\n"
        "[Unit]\n"
        f"Conflicts={old}\n"
        f"After={old}\n"
    )


def to_json(record: Record) -> dict[str, object]:
    """The content of its file."""
    return dict(record._asdict())


def from_json(value: Mapping[str, object]) -> Record | None:
    """A record from its file; None when it is not one."""
    types: Mapping[str, type] = {
        "number": int, "unit": str, "path": str, "text": str, "mode": int, "engine": str,
        "config": str, "author": str, "was_enabled": bool, "was_active": bool, "moved": bool,
        "undone": bool,
    }  # fmt: skip
    members = {name: value.get(name) for name in Record._fields}
    if not all(type(members[name]) is kind for name, kind in types.items()):
        return None
    if not isinstance(members["time"], int | float):
        return None
    return Record(**members)  # type: ignore[arg-type]  # checked above
