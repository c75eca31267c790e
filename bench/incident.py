# SPDX-License-Identifier: Apache-2.0
"""From the death of an engine to the incident in sparkd's database.

Against the time until systemd shows the death at all (its state is no longer "running"). Between
the two lie the post-mortem, which reads the log, and journald, which tells its readers of a new
entry at most four times a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from figures import Figure

if TYPE_CHECKING:
    from bed import Bed

SUITES = ("bookworm", "trixie")
KIND = "cuda-illegal-instruction"


def run(bed: Bed) -> list[Figure]:
    """Measure; both sides watch the same death."""
    bed.engines("watched")
    found: dict[str, list[float]] = {}
    for _ in range(bed.runs):
        seen = bed.guest("incident", "vllm-watched.service", str(bed.ports["watched"]), KIND)
        for name, value in seen.items():
            found.setdefault(name, []).append(value)
        bed.machine.wait_until(
            lambda: bed.show("watched", "SubState")["SubState"] == "running", "it runs again"
        )
        bed.until("watched", "ready")
        bed.ctl("release", "watched")
    shown = "death to systemd's state"
    return [
        Figure("death to incident in the database", "ms", found["recorded"], shown),
        Figure("of it, until post-mortem has its verdict", "ms", found["judged"]),
        Figure(shown, "ms", found["shown"]),
    ]
