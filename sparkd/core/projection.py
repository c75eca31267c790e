# SPDX-License-Identifier: Apache-2.0
"""From one journal entry to the row that the database keeps of it, or to nothing.

Any local user can write an entry with our MESSAGE_ID; `events.is_trusted` decides by the fields
that only journald sets. What is trusted but malformed (another version wrote it) is left out.
"""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sparkd.core import burst, end_of_life, events
from sparkd.core.darkness import Stopped
from sparkd.core.end_of_life import Record
from sparkd.core.events import Event
from sparkd.core.status import Boot, boot_from_json

RECORD_MAX = 256 * 1024
"""Characters of a record that are looked at; a real one has a few thousand."""


class Applied(NamedTuple):
    """One `apply` that changed something."""

    time: float
    author: str
    summary: str


class Gap(NamedTuple):
    """Part of the journal was gone before it could be read."""

    time: float
    reason: str


class Stall(NamedTuple):
    """An engine makes no progress, or makes it again by itself."""

    engine: str
    invocation_id: str
    time: float
    reason: str
    is_over: bool


Row = Record | Boot | Applied | Stopped | Gap | Stall


class Entry(NamedTuple):
    """What an entry means, and the JSON text to keep of it."""

    row: Row
    text: str


def project(fields: Mapping[str, str]) -> Entry | None:
    """The row that this journal entry stands for; None when it stands for none."""
    if not events.is_trusted(fields):
        return None
    match fields.get("MESSAGE_ID"):
        case Event.END_OF_LIFE:
            return _entry(fields, record_from_json)
        case Event.READY:
            return _entry(fields, boot_from_json)
        case Event.APPLIED:
            return _entry(fields, _applied)
        case Event.OPERATOR if fields.get("SPARKD_VERB") == "stop":
            engine = fields.get(events.ENGINE, "")
            return Entry(Stopped(engine, _realtime(fields)), "") if engine else None
        case Event.STALLED | Event.RECOVERED as kind:
            return _stall(fields, is_over=kind == Event.RECOVERED)
        case Event.JOURNAL_GAP:
            return Entry(Gap(_realtime(fields), fields.get(events.REASON, "")), "")
    return None


def _stall(fields: Mapping[str, str], *, is_over: bool) -> Entry | None:
    engine, invocation = fields.get(events.ENGINE, ""), fields.get(events.INVOCATION_ID, "")
    if not engine or not invocation:
        return None
    reason = fields.get(events.REASON, "")
    return Entry(Stall(engine, invocation, _realtime(fields), reason, is_over), "")


def _realtime(fields: Mapping[str, str]) -> float:
    """When journald got the entry, seconds since the epoch."""
    try:
        return burst.finite(float(fields.get("__REALTIME", ""))) or 0.0
    except ValueError:
        return 0.0


def _entry(
    fields: Mapping[str, str], read: Callable[[dict[str, object]], Record | Boot | Applied | None]
) -> Entry | None:
    text = fields.get(events.RECORD, "")
    if not text or len(text) > RECORD_MAX:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    row = read(value)
    if row is None or not _names_itself(row, fields):
        return None
    return Entry(row, text)


def _names_itself(row: Record | Boot | Applied, fields: Mapping[str, str]) -> bool:
    """Whether the record speaks of the engine in whose unit it was written."""
    if isinstance(row, Applied):
        return True
    return f"vllm-{row.engine}.service" == fields.get(events.UNIT) and bool(row.invocation_id)


def record_from_json(value: dict[str, object]) -> Record | None:
    """A death record whose members have the right types; None otherwise."""
    members = {name: value.get(name) for name in (*_TYPES, "class")}
    for name, types in {**_TYPES, "class": (str,)}.items():
        if not isinstance(members[name], types):
            return None
    members["time"] = float(members["time"])  # type: ignore[arg-type]  # checked above
    try:
        return end_of_life.from_json(members)
    except TypeError:
        return None


_TEXT = (str,)
_MAYBE_TEXT = (str, type(None))
_TYPES: dict[str, tuple[type, ...]] = {
    "engine": _TEXT,
    "unit": _TEXT,
    "invocation_id": _TEXT,
    "time": (int, float),
    "requested": (bool,),
    "result": _TEXT,
    "exit_code": (int, type(None)),
    "signal": _MAYBE_TEXT,
    "signature": _MAYBE_TEXT,
    "evidence": _MAYBE_TEXT,
    "reason": _TEXT,
    "action": _TEXT,
    "action_reason": _TEXT,
    "hint": _TEXT,
    "was_ready": (bool,),
}


def _applied(value: dict[str, object]) -> Applied | None:
    match value:
        case {"time": int() | float() as time, "author": str(author), "summary": str(summary)}:
            return Applied(float(time), author, summary)
    return None
