# SPDX-License-Identifier: Apache-2.0
"""In which order the engines really started at the last boot, beside the one that is planned."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkd.core.doctor.model import Finding, finding

PAUSE_S = 600.0
"""A start that comes later than that after the one before was not the boot's: whoever has the slot
gives it to the next within a start's limit, and what is in the way of one is waited for 5 min."""


class Start(NamedTuple):
    """The first start of an engine in this boot that became ready."""

    engine: str
    launched: float
    """Seconds after the boot, of `vllm serve`."""
    seconds: float
    """From there to ready."""


def of_the_boot(starts: Sequence[Start]) -> list[Start]:
    """The starts that came from the boot, in their order: those up to the first long pause."""
    found: list[Start] = []
    free = 0.0
    for start in sorted(starts, key=lambda one: one.launched):
        if start.launched - free > PAUSE_S:
            break
        found.append(start)
        free = start.launched + start.seconds
    return found


def judge(
    planned: Sequence[str], starts: Sequence[Start], *, changed_since: bool
) -> Iterator[Finding]:
    """Say when the last boot went in another order than the next one will.

    Args:
        planned: the engines that start at the next boot, in their order.
        starts: what is known of the last one.
        changed_since: whether the units were changed after it; then the orders need not agree.
    """
    seen = [start.engine for start in of_the_boot(starts) if start.engine in planned]
    wanted = [name for name in planned if name in seen]
    if seen != wanted and not changed_since:
        reason = f"planned is {', '.join(wanted)}; at the last boot it was {', '.join(seen)}"
        yield finding("DOC504", "boot order", reason)


def lines(starts: Sequence[Start]) -> Iterator[str]:
    """The last boot for a person, a line each."""
    for number, start in enumerate(of_the_boot(starts), 1):
        yield (
            f"{number}. {start.engine} was launched {start.launched:.0f} s after the boot"
            f" and ready {start.seconds:.0f} s later"
        )
