# SPDX-License-Identifier: Apache-2.0
"""`sparkctl status` against `systemctl status` of the same units, with the daemon and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from figures import Figure

if TYPE_CHECKING:
    from bed import Bed

SUITES = ("bookworm", "trixie")
ENGINES = ("first", "second", "third")


def run(bed: Bed) -> list[Figure]:
    """Measure."""
    bed.engines(*ENGINES)
    units = [f"vllm-{name}.service" for name in ENGINES]
    commands = {
        "sparkctl status": ["sparkctl", "status"],
        "systemctl status": ["systemctl", "status", "--no-pager", *units],
        "python3 that does nothing": ["python3", "-I", "-c", "pass"],
    }
    figures = _measured(bed, commands, "")
    bed.machine.run(["systemctl", "stop", "sparkd.service"])
    return figures + _measured(bed, commands, ", daemon absent")


def _measured(bed: Bed, commands: dict[str, list[str]], when: str) -> list[Figure]:
    found = bed.cost(commands, runs=3 * bed.runs)
    figures = []
    for what in ("wall", "cpu"):
        for name, kinds in found.items():
            peer = f"{what}: systemctl status{when}" if name == "sparkctl status" else ""
            figures.append(Figure(f"{what}: {name}{when}", "ms", kinds[what], peer))
    return figures
