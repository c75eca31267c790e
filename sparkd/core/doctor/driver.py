# SPDX-License-Identifier: Apache-2.0
"""Whether the NVIDIA driver is another one than an engine was started with."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkd.core.doctor.model import Finding, finding


class Facts(NamedTuple):
    """Drivers by version as an engine's starts found them; '' where that is not known."""

    name: str
    running_with: str
    """Of the life that runs now; '' also when none does."""
    ready_with: str
    """Of the last start that became ready."""


def judge(engines: Sequence[Facts], loaded: str, library: str) -> Iterator[Finding]:
    """Engines that a driver's upgrade has passed by.

    Args:
        engines: with a record of their starts or without one.
        loaded: version of the loaded kernel module.
        library: version of libcuda on disk, which a new process would load.
    """
    for engine in engines:
        if engine.running_with:
            yield from _running(engine, loaded, library)
        elif engine.ready_with and loaded and engine.ready_with != loaded:
            reason = f"its last start that became ready had driver {engine.ready_with}"
            fix = f"start it while you can watch: 'sparkctl start {engine.name}'"
            yield finding("DOC311", engine.name, f"{reason}, {loaded} is loaded now", fix)


def _running(engine: Facts, loaded: str, library: str) -> Iterator[Finding]:
    others = [
        f"{what} {version}"
        for what, version in (("the loaded module is", loaded), ("libcuda on disk is", library))
        if version and version != engine.running_with
    ]
    if others:
        reason = f"it runs since a start with driver {engine.running_with}; {', '.join(others)}"
        yield finding("DOC311", engine.name, reason)
