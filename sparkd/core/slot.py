# SPDX-License-Identifier: Apache-2.0
"""Who may start next: one engine at a time between ExecStartPre= and ready, on the whole host.

The claim is a file that names a unit and an invocation. Nobody releases it: it counts only while
systemd says that this very invocation is still starting. So nothing can leak it, not a `kill -9`
and not a lost daemon. `After=` alone cannot do this: it orders only jobs that are queued at the
same moment, and a failed start lets the next one go while the first retries (measured).
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

STARTING = frozenset({"start-pre", "start", "start-post", "condition"})
"""systemd's SubState values between the start of ExecStartPre= and the end of ExecStartPost=."""
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@-]+\.(?:service|scope)\Z")


class Claim(NamedTuple):
    """Which start owns the slot."""

    unit: str
    invocation_id: str


class Waiter(NamedTuple):
    """A start that waits for the slot."""

    unit: str
    invocation_id: str
    order: int
    since: float
    """CLOCK_BOOTTIME in seconds at arrival."""
    blocked: str = ""
    """What else this start waits for (its port, memory); a blocked waiter lets others pass."""


class Phase(NamedTuple):
    """What systemd says of a unit now; empty strings when the unit is unknown to it."""

    invocation_id: str
    sub_state: str


class Decision(NamedTuple):
    """Whether to take the slot now, and the sentence that says why or why not."""

    take: bool
    reason: str


def claim_counts(claim: Claim | None, phase: Phase | None) -> bool:
    """Whether a claim is alive. What cannot be seen (`phase` is None) counts as alive."""
    if claim is None:
        return False
    if phase is None:
        return True
    return phase.invocation_id == claim.invocation_id and phase.sub_state in STARTING


def waiter_counts(waiter: Waiter, phase: Phase | None) -> bool:
    """Whether a waiter is still there. What cannot be seen counts as there."""
    if phase is None:
        return True
    return phase.invocation_id == waiter.invocation_id and phase.sub_state == "start-pre"


def decide(
    me: Waiter,
    claim: Claim | None,
    holder: Phase | None,
    others: Sequence[tuple[Waiter, Phase | None]],
) -> Decision:
    """Decide for one waiter: the slot must be free, and nobody with precedence may be waiting.

    Precedence is the engine's `order`, then arrival, then the unit's name.
    """
    mine = claim is not None and claim == Claim(me.unit, me.invocation_id)
    if claim is not None and not mine and claim_counts(claim, holder):
        seen = "is starting" if holder is not None else "cannot be seen, so it counts as starting"
        return Decision(take=False, reason=f"waiting for {claim.unit}, which {seen}")
    if me.blocked:
        return Decision(take=False, reason=me.blocked)
    ahead = [
        waiter
        for waiter, phase in others
        if waiter.unit != me.unit
        and not waiter.blocked
        and waiter_counts(waiter, phase)
        and precedence(waiter) < precedence(me)
    ]
    if ahead and not mine:
        first = min(ahead, key=precedence)
        return Decision(
            take=False, reason=f"waiting behind {first.unit}, which is before it in the order"
        )
    return Decision(take=True, reason="the start slot is free")


def precedence(waiter: Waiter) -> tuple[int, float, str]:
    """Sort key of the queue: lower goes first."""
    return waiter.order, waiter.since, waiter.unit


def claim_text(claim: Claim) -> str:
    """The claim as the one line its file holds."""
    return f"{claim.unit} {claim.invocation_id}\n"


def parse_claim(text: str) -> Claim | None:
    """The claim from its file; None for a torn or foreign one.

    Asked about '*', systemctl speaks of every unit, and no answer for one would be found in that:
    such a claim would count for ever.
    """
    words = text.split()
    return Claim(*words) if len(words) == 2 and _UNIT_NAME.match(words[0]) else None
