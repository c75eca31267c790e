# SPDX-License-Identifier: Apache-2.0
"""What must be true before an engine's start is worth its minutes.

An obstacle that time can remove (a port still held by the previous life, memory not back yet) is
waited for; one that it cannot (no such executable) holds the engine at once. A learned peak that
does not fit is waited for as long, and then passed by: only the estimate can refuse a start.
"""

from typing import NamedTuple

from sparkd.core import admission

GIB = 1024**3
OBSTACLE_LIMIT_S = 300.0
"""How long an obstacle is waited for that time can remove."""
DEFAULT_UTILIZATION = 0.92
"""vLLM's own default for --gpu-memory-utilization (0.32, read in its source); 0.9 in older ones."""


class Facts(NamedTuple):
    """What was seen of the host, for one engine."""

    executable: str
    executable_usable: bool | None
    """None: the unit's user does not exist."""
    model: str
    model_usable: bool
    """Always true for a model that is not a path."""
    user: str
    port: int
    utilization: float
    """The engine's --gpu-memory-utilization."""
    port_holders: tuple[str, ...] = ()
    """Who listens where the engine wants to."""
    memory_total: int = 0
    memory_available: int = 0
    memory_holders: tuple[str, ...] = ()
    """The processes that hold the most memory, engines first, for the message."""
    need: admission.Need | None = None
    """What this start takes at its peak; None where only vLLM's own check counts."""
    reserve: int = 0
    """`host.reserve` in bytes."""
    floor: int = 0
    """`memory.floor` in bytes."""
    starts_held: str = ""
    """Why the memory guard holds all starts; '' when it does not."""
    home: str = ""
    home_writable: bool = True


class Obstacle(NamedTuple):
    """Why the start cannot go ahead now."""

    cls: str
    reason: str
    permanent: bool
    passable: bool = False
    """Whether the start goes ahead all the same when it was waited for long enough."""


def obstacle(facts: Facts) -> Obstacle | None:
    """The first thing in the way: what cannot heal before what can, what may be passed by last."""
    return (
        _permanent(facts)
        or _never_fits(facts)
        or _held(facts)
        or _port(facts)
        or _memory(facts)
        or _learned_peak(facts)
    )


class Patience(NamedTuple):
    """Since when the obstacles of one start are waited for; seconds on CLOCK_MONOTONIC.

    Two clocks: who has waited long for the learned peak has not yet waited for what comes then.
    """

    limit: float
    since: float | None = None
    passable_since: float | None = None
    """Never set back: in all a start waits for its learned peak no longer than the limit."""

    def seeing(self, found: Obstacle | None, now: float) -> "Patience":
        """This obstacle is there now, or none."""
        if found is None:
            return self._replace(since=None)
        if found.passable:
            first = now if self.passable_since is None else self.passable_since
            return self._replace(since=None, passable_since=first)
        return self._replace(since=now if self.since is None else self.since)

    def lasted(self, found: Obstacle, now: float) -> float:
        """For how long it has been waited for."""
        since = self.passable_since if found.passable else self.since
        return 0.0 if since is None else now - since

    def is_over(self, found: Obstacle, now: float) -> bool:
        """Whether it was waited for long enough: then a start gives up, or passes it by."""
        return self.lasted(found, now) > self.limit


def _permanent(facts: Facts) -> Obstacle | None:
    if facts.executable_usable is None:
        return Obstacle(
            "no-such-user", f"there is no user {facts.user!r} to run the engine as", permanent=True
        )
    if not facts.executable_usable:
        reason = f"{facts.executable} is not a program that user {facts.user!r} can run"
        return Obstacle("executable-unusable", reason, permanent=True)
    if not facts.model_usable:
        reason = f"user {facts.user!r} cannot read the model {facts.model}"
        return Obstacle("model-missing", reason, permanent=True)
    if not facts.home_writable:
        reason = f"user {facts.user!r} cannot write the cache folder {facts.home}"
        return Obstacle("cache-unwritable", reason, permanent=True)
    return None


def _held(facts: Facts) -> Obstacle | None:
    if not facts.starts_held:
        return None
    return Obstacle("memory-guard", f"starts are held: {facts.starts_held}", permanent=False)


def _port(facts: Facts) -> Obstacle | None:
    if not facts.port_holders:
        return None
    holders = ", ".join(facts.port_holders[:3])
    return Obstacle("port-in-use", f"port {facts.port} is still held by {holders}", permanent=False)


def _never_fits(facts: Facts) -> Obstacle | None:
    refused = _refusal(facts)
    if refused is None or not refused[1]:
        return None
    return Obstacle("memory-never-enough", refused[0], permanent=True)


def _refusal(facts: Facts, need: admission.Need | None = None) -> tuple[str, bool] | None:
    """For what is needed without doubt, or for this need."""
    if facts.need is None:
        return None
    room = admission.Room(facts.memory_total, facts.memory_available, facts.reserve, facts.floor)
    return admission.refusal(need or facts.need.firm, room)


def is_short(facts: Facts) -> bool:
    """Whether memory is what stands in the way."""
    return (_memory(facts) or _learned_peak(facts)) is not None


def _memory(facts: Facts) -> Obstacle | None:
    """First the check that vLLM makes itself, then whether the start's peak leaves the reserve."""
    claimed = facts.utilization * facts.memory_total
    refused = _refusal(facts)
    if claimed > facts.memory_available:
        reason = (
            f"vLLM will refuse to start: it needs {claimed / GIB:.1f} GiB ({facts.utilization:g} of"
            f" {facts.memory_total / GIB:.1f} GiB),"
            f" {facts.memory_available / GIB:.1f} GiB is available"
        )
    elif refused is not None:
        reason = refused[0]
    else:
        return None
    return Obstacle("memory-not-available", reason + _held_by(facts), permanent=False)


def _learned_peak(facts: Facts) -> Obstacle | None:
    refused = _refusal(facts, facts.need)
    if refused is None:
        return None
    reason = refused[0] + _held_by(facts)
    return Obstacle("learned-peak-does-not-fit", reason, permanent=False, passable=True)


def _held_by(facts: Facts) -> str:
    return "; held by " + ", ".join(facts.memory_holders[:3]) if facts.memory_holders else ""
