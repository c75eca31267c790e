# SPDX-License-Identifier: Apache-2.0
"""How long an engine was not there although somebody wanted it: from events alone.

It is dark from an end of life that nobody asked for until it is ready again, or until an operator
stops it. Failed starts in between do not begin a new darkness. A held engine stays dark.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sparkd.core.end_of_life import Record
from sparkd.core.status import Boot

SETTLE_S = 10.0
"""An open darkness counts up to so long ago: its end may have been written and not read yet, and a
counter must never go back."""


class Stopped(NamedTuple):
    """An operator ordered through sparkd that an engine stops."""

    engine: str
    time: float


class Darkness(NamedTuple):
    """One engine's account; times are seconds since the epoch."""

    total: float = 0.0
    """Seconds of what is over."""
    since: float | None = None
    """When it went dark; None while it is not."""

    def at(self, now: float) -> float:
        """Seconds in all, as a counter shows them at this time."""
        running = 0.0 if self.since is None else max(0.0, now - SETTLE_S - self.since)
        return self.total + running


def shown(
    accounts: Mapping[str, Darkness], now: float, before: Mapping[str, float]
) -> dict[str, float]:
    """Each engine's counter now, never below what was shown before."""
    return {
        engine: max(account.at(now), before.get(engine, 0.0))
        for engine, account in accounts.items()
    }


def after(account: Darkness, event: Record | Boot | Stopped) -> Darkness:
    """The account after one more event of its engine, in the order of the journal."""
    match event:
        case Record(requested=False):
            return account if account.since is not None else account._replace(since=event.time)
        case _:
            stale = isinstance(event, Stopped) and event.time < (account.since or 0.0)
            if account.since is None or stale:
                return account
            # A clock that was set back makes nothing negative.
            return Darkness(account.total + max(0.0, event.time - account.since), None)
