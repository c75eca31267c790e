# SPDX-License-Identifier: Apache-2.0
"""How many unrequested ends of life an engine may have, in a sliding window that really bounds.

systemd's own start limit does not bound an engine that takes minutes to load: its window is
fixed, not sliding; with attempts longer than `interval / burst` it never trips; and daemon-reload
clears it on systemd 252 and 254 (measured). So sparkd counts by itself, in a ledger that the
helpers share and that needs no daemon.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

KEPT_DEATHS = 64
"""A ledger never grows beyond this; more than any sensible burst."""
PROVEN_S = 600.0
"""An engine that has served for so long has proved that its start works."""


class Moment(NamedTuple):
    """A point in time that can be compared within one boot exactly and across boots roughly."""

    boot_id: str
    boottime: float
    """CLOCK_BOOTTIME in seconds: immune to clock steps, counts suspend."""
    wall: float
    """Seconds since the epoch, for people and for comparing across boots."""

    def age(self, now: "Moment") -> float:
        """Seconds from this moment to `now`, never negative.

        A moment of another boot is at least as old as this boot is: by wall time alone one whose
        clock was ahead would stay young until the wall clock has caught up, for hours or years.
        """
        if self.boot_id == now.boot_id:
            return max(0.0, now.boottime - self.boottime)
        return max(0.0, now.boottime, now.wall - self.wall)


class Death(NamedTuple):
    """One unrequested end of life."""

    invocation_id: str
    at: Moment
    cls: str


class HeldBy(StrEnum):
    """Who holds an engine."""

    BURST = "burst"
    CLASS = "class"
    OPERATOR = "operator"


class Hold(NamedTuple):
    """Why an engine must not be started until somebody says so."""

    by: HeldBy
    cls: str
    reason: str
    since: float
    """Seconds since the epoch."""


class Begun(NamedTuple):
    """A start that was let go ahead and has come to no end yet."""

    invocation_id: str
    at: Moment


class Ledger(NamedTuple):
    """What is remembered of one engine's ends of life."""

    deaths: tuple[Death, ...] = ()
    held: Hold | None = None
    streak: int = 0
    """Ends of life in a row before the engine had served for `PROVEN_S`."""
    ready_at: Moment | None = None
    """When it last became ready."""
    begun: Begun | None = None
    """The start that goes on; the next boot finds one that took the host down with it."""


class Policy(NamedTuple):
    """`[restart]` of sparkd.toml: the `burst`-th death within `window` seconds holds the engine.

    So does the `burst`-th in a row without the engine having served in between, however long each
    took: attempts that wait for each other's slot, or load for half an hour, would otherwise never
    meet within the window.
    """

    burst: int
    window: float


class Budget(NamedTuple):
    """The window arithmetic, as shown to a person."""

    used: int
    limit: int
    window: float
    frees_in: float | None
    """Seconds until the oldest counted death leaves the window; None when none is counted."""


class Outcome(NamedTuple):
    """What follows an end of life."""

    ledger: Ledger
    hold: bool
    reason: str


def counted(ledger: Ledger, now: Moment, policy: Policy) -> tuple[Death, ...]:
    """The deaths that lie within the window that ends now."""
    return tuple(death for death in ledger.deaths if death.at.age(now) < policy.window)


def budget(ledger: Ledger, now: Moment, policy: Policy) -> Budget:
    """Count what is used of the window, and say when it frees one."""
    deaths = counted(ledger, now, policy)
    if ledger.streak > len(deaths):
        return Budget(ledger.streak, policy.burst, policy.window, None)
    oldest = max((death.at.age(now) for death in deaths), default=None)
    frees_in = None if oldest is None else policy.window - oldest
    return Budget(len(deaths), policy.burst, policy.window, frees_in)


def after_ready(ledger: Ledger, now: Moment) -> Ledger:
    """Remember that the engine became ready; whether that lasts, its next end or start shows."""
    return ledger._replace(ready_at=now, begun=None)


def begin(ledger: Ledger, invocation_id: str, now: Moment) -> Ledger:
    """Remember the start that goes ahead now, until it is ready or its end is on record."""
    return ledger._replace(begun=Begun(invocation_id, now))


def after_end(ledger: Ledger, invocation_id: str) -> Ledger:
    """Forget that this invocation was starting: its end is on record, or is being recorded."""
    begun = ledger.begun
    mine = begun is not None and begun.invocation_id == invocation_id
    return ledger._replace(begun=None) if mine else ledger


def cut_off(ledger: Ledger, boot_id: str) -> Begun | None:
    """The start during which the host went down; None when there was none.

    A clean shutdown ends every start and records it. So a start of another boot that is still
    remembered took the host down, or was cut off with it: both count, as nobody can tell them
    apart, and a start that takes the host down each time would otherwise go on for ever.
    """
    begun = ledger.begun
    return None if begun is None or begun.at.boot_id == boot_id else begun


def released(ledger: Ledger) -> Ledger:
    """Forget the ends and the hold, as somebody has looked at them; a start that goes on stays."""
    return Ledger(begun=ledger.begun)


def before_start(ledger: Ledger, now: Moment) -> Ledger:
    """Forget the failures in a row when the last life was a good one whose end nobody recorded.

    A host that lost power, for one, leaves no record of an end.
    """
    ready_at = ledger.ready_at
    if not ledger.streak or ready_at is None or ready_at.age(now) < PROVEN_S:
        return ledger
    if any(death.at.age(now) <= ready_at.age(now) for death in ledger.deaths):
        return ledger
    return ledger._replace(streak=0)


def after_death(
    ledger: Ledger,
    death: Death,
    policy: Policy,
    *,
    hold_reason: str = "",
    was_ready: bool = False,
) -> Outcome:
    """Enter a death and decide between another start and holding the engine.

    `hold_reason` says why this class of death cannot heal by itself; empty when it can.
    `was_ready` says whether the readiness gate had passed in this invocation.
    Entering the same invocation twice counts it once. An engine that is held already (an operator
    may hold a running one) stays held.
    """
    others = tuple(d for d in ledger.deaths if d.invocation_id != death.invocation_id)
    is_new = len(others) == len(ledger.deaths)
    deaths = (*others, death)[-KEPT_DEATHS:]
    proven = was_ready and ledger.ready_at is not None and ledger.ready_at.age(death.at) >= PROVEN_S
    streak = 0 if proven else ledger.streak + is_new
    entered = after_end(ledger, death.invocation_id)._replace(deaths=deaths, streak=streak)
    used = len(counted(entered, death.at, policy))
    if hold_reason:
        return _held(entered, HeldBy.CLASS, death, hold_reason)
    if used >= policy.burst:
        reason = (
            f"{used} unrequested ends of life within {seconds_text(policy.window)},"
            f" the limit is {policy.burst}; the last was {death.cls}"
        )
        return _held(entered, HeldBy.BURST, death, reason)
    if streak >= policy.burst:
        reason = (
            f"{streak} ends of life in a row without {seconds_text(PROVEN_S)} of service in"
            f" between, the limit is {policy.burst}; the last was {death.cls}"
        )
        return _held(entered, HeldBy.BURST, death, reason)
    if entered.held is not None:
        return Outcome(entered, hold=True, reason=entered.held.reason)
    if streak > used:
        count = f"death {streak} of {policy.burst} in a row"
    else:
        count = f"death {used} of {policy.burst} within {seconds_text(policy.window)}"
    reason = f"{count}: systemd starts it again"
    return Outcome(entered, hold=False, reason=reason)


def _held(ledger: Ledger, by: HeldBy, death: Death, reason: str) -> Outcome:
    hold = Hold(by, death.cls, reason, death.at.wall)
    return Outcome(ledger._replace(held=hold), hold=True, reason=reason)


def to_json(ledger: Ledger) -> dict[str, object]:
    """The ledger as plain JSON values."""
    return {
        "version": 1,
        "deaths": [
            {"invocation_id": d.invocation_id, "class": d.cls, **d.at._asdict()}
            for d in ledger.deaths
        ],
        "held": None if ledger.held is None else _hold_json(ledger.held),
        "streak": ledger.streak,
        "ready_at": None if ledger.ready_at is None else ledger.ready_at._asdict(),
        "begun": None if ledger.begun is None else _begun_json(ledger.begun),
    }


def _begun_json(begun: Begun) -> dict[str, object]:
    return {"invocation_id": begun.invocation_id, **begun.at._asdict()}


def _hold_json(hold: Hold) -> dict[str, object]:
    return {"by": hold.by, "class": hold.cls, "reason": hold.reason, "since": hold.since}


def from_json(value: object) -> Ledger:
    """The ledger from plain JSON values; what cannot be read is left out, never guessed.

    Raises:
        ValueError: the value is no ledger at all.
    """
    if not isinstance(value, Mapping):
        raise ValueError("a ledger is a JSON object")  # noqa: TRY004  (one error for a torn file)
    rows = value.get("deaths")
    deaths = tuple(
        death for row in (rows if isinstance(rows, list) else []) if (death := _death(row))
    )
    streak = value.get("streak")
    return Ledger(
        deaths,
        _hold(value.get("held")),
        streak if type(streak) is int and 0 <= streak < 1 << 31 else 0,
        _moment(value.get("ready_at")),
        _begun(value.get("begun")),
    )


def _begun(row: object) -> Begun | None:
    match row:
        case {"invocation_id": str(invocation)}:
            at = _moment(row)
            return None if at is None else Begun(invocation, at)
    return None


def _death(row: object) -> Death | None:
    match row:
        case {"invocation_id": str(invocation), "class": str(cls)}:
            at = _moment(row)
            return None if at is None else Death(invocation, at, cls)
    return None


def _moment(row: object) -> Moment | None:
    match row:
        case {"boot_id": str(boot), "boottime": boottime, "wall": wall}:
            on_boot_clock, on_wall = finite(boottime), finite(wall)
            if on_boot_clock is not None and on_wall is not None:
                return Moment(boot, on_boot_clock, on_wall)
    return None


def _hold(row: object) -> Hold | None:
    match row:
        case {
            "by": str(by),
            "class": str(cls),
            "reason": str(reason),
            "since": since,
        }:
            # A hold of unknown age, or by somebody whom only a newer sparkd knows, is still one.
            known = HeldBy(by) if by in set(HeldBy) else HeldBy.OPERATOR
            return Hold(known, cls, reason, finite(since) or 0.0)
    return None


def finite(value: object) -> float | None:
    """A JSON number as a float that can be compared; None for anything else.

    Python's JSON also knows NaN, Infinity, and integers that no float can hold.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def seconds_text(seconds: float) -> str:
    """A duration as people write it: '45 s', '20 min', '1 h'."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200 and seconds % 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:g} h" if seconds % 3600 == 0 else f"{seconds / 3600:.1f} h"
