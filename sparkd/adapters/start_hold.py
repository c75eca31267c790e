# SPDX-License-Identifier: Apache-2.0
"""The memory guard's word that no start may go ahead, as a file that `await-slot` honours.

It expires by itself: a daemon that has gone cannot hold a start for ever.
"""

import json
import time
from pathlib import Path

from sparkd.adapters.state_files import write_atomic
from sparkd.core import burst

VALID_S = 30.0
"""The daemon writes it anew every few seconds while it is meant."""


def _path(run: str) -> Path:
    return Path(run) / "starts-held.json"


def write(reason: str, run: str = "/run/sparkd") -> None:
    """Hold all starts for the next 30 s.

    Raises:
        OSError: the file cannot be written.
    """
    value = {"at": time.clock_gettime(time.CLOCK_BOOTTIME), "reason": reason}
    write_atomic(_path(run), json.dumps(value) + "\n")


def drop(run: str = "/run/sparkd") -> None:
    """Hold starts no longer."""
    _path(run).unlink(missing_ok=True)


def reason(run: str = "/run/sparkd") -> str:
    """Why starts are held; '' when they are not."""
    try:
        value = json.loads(_path(run).read_text(encoding="utf-8"))
        at = burst.finite(value["at"])
        why = str(value["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    age = None if at is None else time.clock_gettime(time.CLOCK_BOOTTIME) - at
    return why if age is not None and 0 <= age < VALID_S else ""
