# SPDX-License-Identifier: Apache-2.0
"""What the helpers have in common: they run inside a unit, and can also be run by hand."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from sparkd.adapters import systemctl


def invocation_id() -> str:
    """The invocation this helper belongs to; '' when systemd did not start it."""
    return os.environ.get("INVOCATION_ID", "")


def say(text: str) -> None:
    """One line into the unit's log, or to the terminal of who runs the helper by hand."""
    print(text, flush=True)  # noqa: T201  (stdout is the journal here)


def end_well_when_stopped(unit: str, on_stop: Callable[[], None] | None = None) -> None:
    """On SIGTERM end with 0 only when systemd is stopping the unit, else with 1.

    A helper that dies of `systemctl stop`'s TERM leaves the unit failed; one that always exits 0
    lets a stray TERM (`systemctl kill` reaches helpers too) pass for success (measured).
    `on_stop` is called first when it is a stop.
    """

    def on_term(_signal: int, _frame: FrameType | None) -> None:
        seen = systemctl.show([unit], ["SubState"]) if unit else None
        state = seen[0].get("SubState", "") if seen else ""
        stopping = state.startswith(("stop", "final"))
        if stopping and on_stop is not None:
            on_stop()
        os._exit(0 if stopping else 1)

    signal.signal(signal.SIGTERM, on_term)


def fail(message: str) -> None:
    """A message for a person on stderr."""
    print(message, file=sys.stderr, flush=True)  # noqa: T201
