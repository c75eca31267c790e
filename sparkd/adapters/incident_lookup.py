# SPDX-License-Identifier: Apache-2.0
"""How an operator names an incident, and what is shown of it: for the daemon and without it."""

import re
from collections.abc import Sequence

from sparkd.adapters.database import Detail
from sparkd.core import status as core_status
from sparkd.core.status import ID_LENGTH

# An invocation's beginning, or the number of a row (fewer digits than a short id has).
_ID = re.compile(r"[0-9]{1,7}\Z|[0-9a-f]{8,32}\Z")


def is_id(text: str) -> bool:
    """Whether this can name an incident."""
    return bool(_ID.match(text))


def refusal(identity: str, found: Sequence[Detail]) -> str:
    """Why this names no incident."""
    if found:
        ids = ", ".join(detail.incident.record.invocation_id for detail in found)
        return f"{identity} may be any of these: {ids}"
    return (
        f"there is no incident {ascii(identity)[:60]}; 'sparkctl incidents' shows their ids"
        f" ({ID_LENGTH} digits or more of the invocation, or the row's number)"
    )


def to_json(detail: Detail) -> dict[str, object]:
    """The incident as `sparkctl incident --json` shows it, without the journal's part."""
    return core_status.detail_json(
        *detail.incident,
        number=detail.number,
        boot=detail.boot,
        next_boot=detail.next_boot,
        earlier=detail.earlier,
        last_earlier=detail.last_earlier,
    )
