# SPDX-License-Identifier: Apache-2.0
"""What the two guards show of themselves: in `sparkctl status`, in /metrics, in the journal."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from sparkd.core import storm
from sparkd.core.storm import Compiler, Key

GIB = 1024**3


class GuardFacts(NamedTuple):
    """The guards at one moment; the daemon alone has them."""

    storm_mode: str = "off"
    memory_mode: str = "off"
    running: int = 0
    frozen: int = 0
    paused: int = 0
    """Compilers that somebody else stopped."""
    resident: int = 0
    """Bytes of all compilers."""
    owners: tuple[tuple[str, int], ...] = ()
    """Who runs compilers, and how many; the most first."""
    storm: str = ""
    """Why compilers are frozen; '' when none is."""
    memory: str = ""
    """What the memory guard has done last, while memory is short."""
    holding: bool = False
    """Starts are held."""
    freezes: int = 0
    """How often a compiler was frozen since the daemon began."""
    steps: tuple[tuple[str, int], ...] = ()
    """Steps of the memory guard since the daemon began."""
    killers: tuple[str, ...] = ()
    """Other programs on this host that kill when memory is short."""


class Episode(NamedTuple):
    """One storm, from the first frozen compiler to the last compiler's end."""

    begun: float
    jobs: frozenset[Key] = frozenset()
    """Every compilation that was part of it."""
    frozen: frozenset[Key] = frozenset()
    """Every compiler that had to wait."""
    peak: int = 0
    """Most resident bytes of all compilers together."""
    lowest: int = 0
    """Least available bytes."""


def widen(
    episode: Episode, compilers: Sequence[Compiler], state: storm.State, available: int
) -> Episode:
    """The episode with one more look."""
    return Episode(
        episode.begun,
        episode.jobs | {c.job for c in compilers},
        episode.frozen | state.frozen.keys(),
        max(episode.peak, sum(c.rss for c in compilers)),
        min(episode.lowest or available, available),
    )


def summary(episode: Episode, now: float) -> str:
    """What a storm was, in one sentence."""
    return (
        f"the compile storm is over after {now - episode.begun:.0f} s: {len(episode.jobs)}"
        f" compilations, {len(episode.frozen)} compilers had to wait, at most"
        f" {episode.peak / GIB:.1f} GiB were theirs, at least {episode.lowest / GIB:.1f} GiB"
        " stayed available"
    )


def owners(compilers: Sequence[Compiler]) -> tuple[tuple[str, int], ...]:
    """Who runs them; a handful at most."""
    return tuple(Counter(c.owner for c in compilers).most_common(5))


def owners_text(found: Sequence[tuple[str, int]]) -> str:
    """The owners for a sentence."""
    return ", ".join(f"{count} of {owner}" for owner, count in found) or "nobody's"


def count(compilers: Sequence[Compiler], frozen: Collection[Key]) -> tuple[int, int, int]:
    """How many run, how many sparkd has frozen, how many somebody else has stopped."""
    ours = sum(c.key in frozen for c in compilers)
    others = sum(c.stopped and c.key not in frozen for c in compilers)
    return len(compilers) - ours - others, ours, others


def notes(facts: GuardFacts) -> Iterator[str]:
    """Sentences for `status`."""
    if facts.storm:
        yield f"compilers are frozen: {facts.storm} ({owners_text(facts.owners)})"
    if facts.memory:
        yield f"memory is short: {facts.memory}"
    for killer in facts.killers:
        yield (
            f"{killer} also ends processes when memory is short: sparkd cannot keep it from an"
            " engine, see docs/memory.md"
        )


def to_json(facts: GuardFacts) -> dict[str, object]:
    """The part of `sparkctl status --json`."""
    return {
        "storm": {
            "mode": facts.storm_mode,
            "running": facts.running,
            "frozen": facts.frozen,
            "paused_by_others": facts.paused,
            "rss_bytes": facts.resident,
            "owners": [{"owner": owner, "count": number} for owner, number in facts.owners],
            "reason": facts.storm or None,
        },
        "memory": {
            "mode": facts.memory_mode,
            "reason": facts.memory or None,
            "starts_held": facts.holding,
            "other_killers": list(facts.killers),
        },
    }
