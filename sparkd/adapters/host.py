# SPDX-License-Identifier: Apache-2.0
"""The machine's memory, how hard it is pressed, and the compilers that may be eating it."""

import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from sparkd.adapters import orphan_processes, proc
from sparkd.adapters.compilers import Compilers
from sparkd.core.guards import GuardFacts
from sparkd.core.status import HostFacts

ORPHANS_S = 60.0
PRESSURE = Path("/proc/pressure/memory")


class Host:
    """Samples the machine."""

    def __init__(self) -> None:
        self._compilers = Compilers()
        self._guards: Callable[[], GuardFacts] | None = None
        self._orphans = 0
        self._orphans_at = -ORPHANS_S

    def ask_guards(self, ask: Callable[[], GuardFacts]) -> None:
        """Ask the daemon's guards from now on: they know every compiler without another look."""
        self._guards = ask

    def sample(self) -> HostFacts:
        """The machine now."""
        memory = proc.memory()
        stall = pressure_full_avg10()
        orphans = self._count_orphans()
        if self._guards is None:
            found = self._compilers.look()
            resident = sum(compiler.rss for compiler in found)
            number = len(found)
            return HostFacts(memory.total, memory.available, stall, number, resident, None, orphans)
        seen = self._guards()
        number = seen.running + seen.frozen + seen.paused
        resident = seen.resident
        return HostFacts(memory.total, memory.available, stall, number, resident, seen, orphans)

    def _count_orphans(self) -> int:
        """A look at every process costs some milliseconds: once a minute."""
        now = time.monotonic()
        if now - self._orphans_at >= ORPHANS_S:
            self._orphans_at = now
            self._orphans = sum(o.is_left_behind for o in orphan_processes.look({}))
        return self._orphans


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
