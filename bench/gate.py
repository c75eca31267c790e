# SPDX-License-Identifier: Apache-2.0
"""How soon the gate sees a dead process, against a shell gate that polls `kill -0`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from figures import Figure

if TYPE_CHECKING:
    from bed import Bed

SUITES = ("bookworm",)
PEERS = ("shell, every 1 s", "shell, every 0.1 s")


def run(bed: Bed) -> list[Figure]:
    """Measure; all gates wait for the same process."""
    found = [bed.guest("gate") for _ in range(2 * bed.runs)]
    late = {name: [one[name][0] for one in found] for name in ("await-ready", *PEERS)}
    cpu = {name: [one[name][1] for one in found] for name in ("await-ready", *PEERS)}
    figures = [Figure("death to the end of await-ready", "ms", late["await-ready"])]
    figures += [
        Figure(f"death to the end of: {peer}", "ms", late[peer], "death to the end of await-ready")
        for peer in PEERS
    ]
    figures.append(Figure("CPU of await-ready, its start included", "ms/s", cpu["await-ready"]))
    figures += [
        Figure(f"CPU of: {peer}", "ms/s", cpu[peer], "CPU of await-ready, its start included")
        for peer in PEERS
    ]
    return figures
