# SPDX-License-Identifier: Apache-2.0
"""What must be true before an engine's start is worth its minutes.

An obstacle that time can remove (a port still held by the previous life, memory not back yet) is
waited for; one that it cannot (no such executable) holds the engine at once.
"""

from typing import NamedTuple

GIB = 1024**3
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
    """The largest engine processes that belong to no running unit, for the message."""
    starts_held: str = ""
    """Why the memory guard holds all starts; '' when it does not."""
    home: str = ""
    home_writable: bool = True


class Obstacle(NamedTuple):
    """Why the start cannot go ahead now."""

    cls: str
    reason: str
    permanent: bool


def obstacle(facts: Facts) -> Obstacle | None:
    """The first thing in the way: what cannot heal before what can."""
    return _permanent(facts) or _held(facts) or _port(facts) or _memory(facts)


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


def _memory(facts: Facts) -> Obstacle | None:
    """The start check that vLLM makes itself: utilization x total must be available."""
    need = facts.utilization * facts.memory_total
    if need <= facts.memory_available:
        return None
    reason = (
        f"needs {need / GIB:.1f} GiB ({facts.utilization:g} of {facts.memory_total / GIB:.1f} GiB),"
        f" {facts.memory_available / GIB:.1f} GiB is available"
    )
    if facts.memory_holders:
        reason += "; held by " + ", ".join(facts.memory_holders[:3])
    return Obstacle("memory-not-available", reason, permanent=False)
