# SPDX-License-Identifier: Apache-2.0
"""How long a start waits after repeated deaths: the first retry at once, the next ones later.

systemd's RestartSec= is fixed, and RestartSteps= exists only since systemd 254. So `await-slot`
waits, where the wait is also visible. A start by hand clears the ledger and with it the wait.
"""

from typing import NamedTuple

from sparkd.core.burst import Ledger, Moment, Policy, seconds_text

HORIZON_S = 900.0
"""Only deaths in quick succession ask for a pause: slow failures pause by themselves."""
STEPS_S = (0.0, 0.0, 15.0, 60.0, 120.0, 300.0)
"""Seconds between the last death and the next start, by the number of deaths in the horizon."""


class Pause(NamedTuple):
    """A start that has to wait still."""

    left: float
    """Seconds."""
    reason: str
    """One sentence, the same one for as long as the pause lasts."""


def pause(ledger: Ledger, now: Moment, policy: Policy) -> Pause | None:
    """The pause before this start; None when it may go on at once.

    The pauses of a whole burst take less than half of the window, or they would stretch the deaths
    beyond it and nothing would ever be held.
    """
    ages = [death.at.age(now) for death in ledger.deaths]
    recent = [age for age in ages if age < HORIZON_S]
    if not recent:
        return None
    length = STEPS_S[min(len(recent), len(STEPS_S) - 1)]
    length = min(length, policy.window / (2 * policy.burst))
    left = length - min(recent)
    if left <= 0:
        return None
    reason = (
        f"pausing {seconds_text(length)} after the last of {len(recent)} ends of life"
        f" within {seconds_text(HORIZON_S)}"
    )
    return Pause(left, reason)
