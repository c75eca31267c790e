# SPDX-License-Identifier: Apache-2.0
"""What a start will take of memory at its peak: learned from earlier starts, estimated before.

A start's peak is what counts on unified memory, not what the engine takes once it serves: a start
with 0.70 of a DGX Spark was seen to take 112 of its 119 GiB. It depends on versions and flags, so
it is remembered by a fingerprint of these; a start with a fingerprint that has not been ready
before, or without the caches it left, is cold: it compiles, and takes longer.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

GIB = 1024**3
STARTS_KEPT = 5
"""Ready starts of one kind that are remembered of a fingerprint; the largest peak counts."""
FINGERPRINTS_KEPT = 4
"""An operator goes back and forth between a few versions or settings."""


class Kind(StrEnum):
    """Whether the start finds what earlier ones compiled."""

    COLD = "cold"
    WARM = "warm"


Fingerprint = Mapping[str, str]
"""What a start's peak and its caches depend on: a version by component, '' where it is unknown."""


class Known(NamedTuple):
    """What is remembered of the starts with one fingerprint that became ready."""

    fingerprint: Fingerprint
    caches: tuple[str, ...] = ()
    """Folders of compiled code that were there and not empty when the last one was ready."""
    cold: tuple[int, ...] = ()
    """Peaks in bytes, the oldest first."""
    warm: tuple[int, ...] = ()


class Memory(NamedTuple):
    """Everything remembered of an engine's starts, the last fingerprint at the end."""

    known: tuple[Known, ...] = ()


class Outlook(NamedTuple):
    """Which kind of start this will be, and why."""

    kind: Kind
    reason: str
    """'' for a warm one."""


class Estimate(NamedTuple):
    """What is known of a start before there was one like it; bytes."""

    utilization: float
    """The share of all memory that vLLM claims."""
    total: int
    weights: int
    """On disk; 0 when they are not here, or not found."""
    compilers: int
    """What the compilers of a cold start may take; 0 where nothing can be compiled."""


class Need(NamedTuple):
    """What a start takes, and where the figure comes from; bytes."""

    peak: int
    """At most, for a moment."""
    lasting: int
    """What it keeps once it serves."""
    origin: str
    estimate: "Need | None" = None
    """What is estimated, where the peak was learned and is more: what neighbours took meanwhile is
    in a learned one, so it may make a start wait, and never refuse it."""

    @property
    def firm(self) -> "Need":
        """What a start may be refused for."""
        return self if self.estimate is None else self.estimate


class Room(NamedTuple):
    """What there is to start in; bytes."""

    total: int
    available: int
    """MemAvailable: page cache counts, the kernel gives it back by itself."""
    reserve: int
    """`host.reserve`: never planned for engines, so what an engine keeps must leave it."""
    floor: int
    """`memory.floor`: what even a start's peak must leave."""


def outlook(memory: Memory, fingerprint: Fingerprint, caches: Collection[str]) -> Outlook:
    """Tell which kind the next start is.

    Args:
        memory: what earlier starts left.
        fingerprint: of the next one.
        caches: folders of compiled code that are there now and not empty.
    """
    if not memory.known:
        return Outlook(Kind.COLD, "no start of this engine has become ready yet")
    known = _find(memory, fingerprint)
    if known is None:
        changes = "; ".join(_changes(memory.known[-1].fingerprint, fingerprint))
        return Outlook(Kind.COLD, f"changed since the last start that became ready: {changes}")
    lost = [folder for folder in known.caches if folder not in caches]
    if lost:
        return Outlook(Kind.COLD, f"the cache {lost[0]} is gone")
    return Outlook(Kind.WARM, "")


def need(memory: Memory, fingerprint: Fingerprint, kind: Kind, estimate: Estimate) -> Need:
    """What the next start takes: the largest peak seen of its kind, else an estimate."""
    known = _find(memory, fingerprint)
    peaks = () if known is None else known.cold if kind is Kind.COLD else known.warm
    guess = estimated(kind, estimate)
    if not peaks:
        return guess
    noun = "start" if len(peaks) == 1 else "starts"
    taken = min(max(peaks), estimate.total)
    return learned(taken, guess, f"the most that {len(peaks)} earlier {kind} {noun} took")


def learned(peak: int, guess: Need, origin: str) -> Need:
    """What a start takes of which earlier ones are known.

    Args:
        peak: the most that one of them took, in bytes, with what neighbours took meanwhile.
        guess: what is estimated.
        origin: where the peak comes from, for a sentence.
    """
    taken = max(peak, guess.lasting)
    if taken == guess.peak:
        return guess
    return Need(taken, guess.lasting, origin, guess if taken > guess.peak else None)


def estimated(kind: Kind, seen: Estimate) -> Need:
    """What a start takes that nothing has been learned of.

    vLLM fits its KV cache into what the utilization leaves, after weights are loaded and most is
    compiled: the two do not add up, the larger one counts.
    """
    claimed = int(seen.utilization * seen.total)
    lasting = max(claimed, seen.weights)
    compiling = seen.weights + (seen.compilers if kind is Kind.COLD else 0)
    if compiling > claimed:
        origin = f"estimated: {gib(seen.weights)} of weights"
        if compiling > seen.weights:
            origin += f" and {gib(seen.compilers)} for compilers"
        return Need(compiling, lasting, origin)
    return Need(
        claimed, lasting, f"estimated: {seen.utilization:g} of {gib(seen.total)}, which vLLM claims"
    )


def most(memory: Memory) -> int:
    """The largest peak remembered of the last fingerprint; 0 where nothing is."""
    last = memory.known[-1:]
    return max((peak for known in last for peak in (*known.cold, *known.warm)), default=0)


def learn(
    memory: Memory, fingerprint: Fingerprint, kind: Kind, peak: int, caches: Collection[str]
) -> Memory:
    """Remember a start that became ready."""
    before = _find(memory, fingerprint) or Known(dict(fingerprint))
    cold, warm = before.cold, before.warm
    if kind is Kind.COLD:
        cold = (*cold, peak)[-STARTS_KEPT:]
    else:
        warm = (*warm, peak)[-STARTS_KEPT:]
    now = Known(dict(fingerprint), tuple(sorted(caches)), cold, warm)
    others = [known for known in memory.known if known.fingerprint != fingerprint]
    return Memory((*others, now)[-FINGERPRINTS_KEPT:])


def refusal(wanted: Need, room: Room) -> tuple[str, bool] | None:
    """Why a start does not fit, and whether it never will; None when it fits.

    What it keeps must leave the reserve, its passing peak the floor. Would the peak have to leave
    the reserve too, the second of two engines that just fill the plan could never start again.
    Only what is configured and estimated can never fit; a learned peak is compared with what is
    available, and with that alone.
    """
    firm = wanted.firm
    for need_, kept, key, what in _bounds(firm, room):
        if need_ > room.total - kept:
            return (
                f"never fits: it {what} {gib(need_)} ({firm.origin}), and the machine has"
                f" {gib(room.total)}, of which {gib(kept)} must be left ({key})"
            ), True
    for need_, kept, key, what in _bounds(wanted, room):
        if need_ > room.available - kept:
            return (
                f"it {what} {gib(need_)} ({wanted.origin}), and there is room for"
                f" {gib(max(0, room.available - kept))}: {gib(room.available)} is available, of"
                f" which {gib(kept)} must be left ({key})"
            ), False
    return None


def _bounds(wanted: Need, room: Room) -> tuple[tuple[int, int, str, str], ...]:
    return (
        (wanted.lasting, room.reserve, "host.reserve", "keeps"),
        (wanted.peak, room.floor, "memory.floor", "takes at its peak"),
    )


def on_the_estimate(wanted: Need) -> str:
    """The sentence of a start that goes ahead although its learned peak does not fit."""
    firm = wanted.firm
    return (
        f"its learned peak of {gib(wanted.peak)} ({wanted.origin}) does not fit; going ahead on the"
        f" estimate: {gib(firm.peak)} ({firm.origin.removeprefix('estimated: ')})"
    )


def size_of(text: str, total: int) -> int:
    """Bytes from a helper's option: a number of bytes, or a share of all memory such as '16%'."""
    share = text.removesuffix("%")
    return total * int(share) // 100 if share != text else int(text)


def gib(count: int) -> str:
    """A size for a sentence."""
    return f"{count / GIB:.1f} GiB"


def _find(memory: Memory, fingerprint: Fingerprint) -> Known | None:
    return next((k for k in memory.known if k.fingerprint == fingerprint), None)


def _changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    """What differs, for a person; a hash tells nothing to one."""
    found = []
    for name in sorted({*before, *after}):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new and name == LAUNCH:
            found.append("its flags or environment")
        elif old != new:
            found.append(f"{name} {old or 'none'} to {new or 'none'}")
    return found


LAUNCH = "launch"
"""The component of a fingerprint that stands for the command line and the environment."""


def to_json(memory: Memory) -> dict[str, object]:
    """The file's content."""
    return {
        "starts": [
            {
                "fingerprint": dict(known.fingerprint),
                "caches": list(known.caches),
                "cold_peak_bytes": list(known.cold),
                "warm_peak_bytes": list(known.warm),
            }
            for known in memory.known
        ]
    }


def from_json(value: Mapping[str, object] | None) -> Memory:
    """From the file's content; what is not recognisable is left out."""
    rows = value.get("starts") if value is not None else None
    if not isinstance(rows, list):
        return Memory()
    return Memory(tuple(k for row in rows if (k := _known(row)) is not None)[-FINGERPRINTS_KEPT:])


def _known(row: object) -> Known | None:
    match row:
        case {
            "fingerprint": dict(fingerprint),
            "caches": [*caches],
            "cold_peak_bytes": [*cold],
            "warm_peak_bytes": [*warm],
        }:
            return Known(
                {str(name): str(value) for name, value in fingerprint.items()},
                tuple(str(folder) for folder in caches),
                _peaks(cold),
                _peaks(warm),
            )
    return None


def _peaks(values: Sequence[object]) -> tuple[int, ...]:
    sound = [v for v in values if isinstance(v, int | float) and math.isfinite(v) and v >= 0]
    return tuple(int(v) for v in sound)[-STARTS_KEPT:]
