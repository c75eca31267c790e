# SPDX-License-Identifier: Apache-2.0
"""The machine's memory, how hard it is pressed, and the compilers that may be eating it."""

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from sparkd.adapters import proc
from sparkd.adapters.compilers import Compilers
from sparkd.core.guards import GuardFacts
from sparkd.core.status import HostFacts

PRESSURE = Path("/proc/pressure/memory")


class Host:
    """Samples the machine."""

    def __init__(self) -> None:
        self._compilers = Compilers()
        self._guards: Callable[[], GuardFacts] | None = None

    def ask_guards(self, ask: Callable[[], GuardFacts]) -> None:
        """Ask the daemon's guards from now on: they know every compiler without another look."""
        self._guards = ask

    def sample(self) -> HostFacts:
        """The machine now."""
        memory = proc.memory()
        stall = pressure_full_avg10()
        if self._guards is None:
            found = self._compilers.look()
            resident = sum(compiler.rss for compiler in found)
            return HostFacts(memory.total, memory.available, stall, len(found), resident)
        seen = self._guards()
        number = seen.running + seen.frozen + seen.paused
        return HostFacts(memory.total, memory.available, stall, number, seen.resident, seen)


def named(names: Collection[str]) -> dict[int, str]:
    """Every process with one of these names: PID and name."""
    found = {}
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            name = psutil.Process(pid).name()
            if name in names:
                found[pid] = name
    return found


def pressure_full_avg10() -> float | None:
    """Percent of the last 10 s in which every task waited for memory; None without PSI."""
    try:
        lines = PRESSURE.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if words[:1] == ["full"] and len(words) > 1 and words[1].startswith("avg10="):
            return float(words[1].removeprefix("avg10="))
    return None
