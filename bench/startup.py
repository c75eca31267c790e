# SPDX-License-Identifier: Apache-2.0
"""What the helpers cost before they do anything, against a Python that does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from figures import Figure

if TYPE_CHECKING:
    from bed import Bed

SUITES = ("bookworm", "trixie")
LIBRARY = "/usr/lib/python3/dist-packages"
MODULES = {
    "await-slot": "sparkd.helpers.await_slot",
    "await-ready": "sparkd.helpers.await_ready",
    "post-mortem": "sparkd.helpers.post_mortem",
}
BARE = "python3 that does nothing"


def run(bed: Bed) -> list[Figure]:
    """Measure."""
    commands = {BARE: ["/usr/bin/python3", "-IS", "-c", "pass"]}
    for name, module in MODULES.items():
        code = f"import sys; sys.path.insert(0, {LIBRARY!r}); import {module}"
        commands[name] = ["/usr/bin/python3", "-IS", "-c", code]
    code += "; sparkd.helpers.post_mortem.load_catalogue()"
    commands["post-mortem with its catalogue"] = ["/usr/bin/python3", "-IS", "-c", code]
    found = bed.cost(commands, runs=3 * bed.runs)
    figures = [
        Figure(f"CPU: {name}", "ms", kinds["cpu"], "" if name == BARE else f"CPU: {BARE}")
        for name, kinds in found.items()
    ]
    figures += [Figure(f"peak memory: {name}", "MiB", k["peak"]) for name, k in found.items()]
    return figures
