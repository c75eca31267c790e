# SPDX-License-Identifier: Apache-2.0
"""From the death of an engine (exit status 0) to the next ExecStart=, against a bare unit.

Both units run the same simulated engine and have Restart=always and RestartSec=1s. What sparkd
adds is its post-mortem (before systemd calls the unit ended) and await-slot (before ExecStart=).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from figures import Figure

if TYPE_CHECKING:
    from bed import Bed

SUITES = ("bookworm", "trixie")
KIND = "cuda-illegal-instruction"
STEPS = {
    "whole": "death to next ExecStart",
    "end": "of it, end of the unit (post-mortem)",
    "start": "of it, end of RestartSec=1s to ExecStart (await-slot)",
}


def run(bed: Bed) -> list[Figure]:
    """Measure; each run kills both engines, one after the other."""
    bed.engines("watched")
    units = {"sparkd": ("vllm-watched.service", bed.ports["watched"])}
    units["bare unit"] = (bed.bare_unit("bare", 8300), 8300)
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(bed.runs):
        for who, (unit, port) in units.items():
            for step, value in bed.guest("restart", unit, str(port), KIND).items():
                found.setdefault((step, who), []).append(value)
        bed.until("watched", "ready")
        # So that neither the pause after quick deaths nor the limit has a part in the next one.
        bed.ctl("release", "watched")
        bed.machine.wait_until(lambda: bed.serves("bare"), "the bare unit serves again")
    figures = []
    for step, text in STEPS.items():
        # A ratio to the next to nothing that a bare unit does in a step would say nothing.
        peer = f"{text}: bare unit" if step == "whole" else ""
        figures += [
            Figure(f"{text}: sparkd", "ms", found[step, "sparkd"], peer),
            Figure(f"{text}: bare unit", "ms", found[step, "bare unit"]),
        ]
    return figures
