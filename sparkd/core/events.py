# SPDX-License-Identifier: Apache-2.0
"""The journal entries that sparkd writes: one MESSAGE_ID per kind, and the fields they carry.

The journal is sparkd's event log. The helpers and the daemon write these entries; the daemon
reads them back from a saved cursor and projects them into its database. Only journald's own
`_`-prefixed fields are proof of who wrote an entry, see `is_trusted`.
"""

from collections.abc import Mapping
from enum import StrEnum


class Event(StrEnum):
    """MESSAGE_ID of each kind of entry; the message catalog explains each to a person."""

    SLOT_WAIT = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a01"
    SLOT_TAKEN = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a02"
    START_REFUSED = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a03"
    READY = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a04"
    NOT_READY = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a05"
    END_OF_LIFE = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a06"
    HELD = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a07"
    RELEASED = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a08"
    APPLIED = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a09"
    OPERATOR = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a0a"
    JOURNAL_GAP = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a0b"
    STORM = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a11"
    STORM_OVER = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a12"
    MEMORY_GUARD = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a13"
    STALLED = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a21"
    RECOVERED = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a22"
    ENDED_BY_SPARKD = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a23"
    GUEST_STARTED = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a31"
    GUEST_READY = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a32"
    GUEST_ENDED = "5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a33"


ENGINE = "SPARKD_ENGINE"
UNIT = "SPARKD_UNIT"
INVOCATION_ID = "SPARKD_INVOCATION_ID"
REASON = "SPARKD_REASON"
RECORD = "SPARKD_RECORD"
"""One JSON object with everything that the kind of event carries."""


def is_trusted(fields: Mapping[str, str]) -> bool:
    """Whether journald itself says that root wrote this entry from where it claims to come.

    Any user may send an entry with any MESSAGE_ID and any SPARKD_ field; nobody but journald can
    set `_UID` and `_SYSTEMD_UNIT`. The helpers run as root inside the engine's own unit, the
    daemon as root inside sparkd.service, sparkctl as root anywhere.

    An entry without `_SYSTEMD_UNIT` is believed too: journald looks the sender's unit up when it
    gets to the entry, and a helper that has ended by then has none any more (3 of 62 while another
    unit floods the journal, systemd 252, measured). `_UID` comes with the message itself.
    """
    if fields.get("_UID") != "0":
        return False
    kind = fields.get("MESSAGE_ID")
    if kind in {Event.SLOT_WAIT, Event.SLOT_TAKEN, Event.READY, Event.END_OF_LIFE}:
        unit = fields.get(UNIT)
        return bool(unit) and fields.get("_SYSTEMD_UNIT", unit) == unit
    return True
