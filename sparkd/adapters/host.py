# SPDX-License-Identifier: Apache-2.0
"""The machine's memory, how hard it is pressed, and the compilers that may be eating it."""

import time
from collections.abc import Callable
from pathlib import Path

from sparkd.adapters import proc
from sparkd.core.guards import GuardFacts
from sparkd.core.status import HostFacts

COMPILERS = frozenset(
    {"cicc", "nvcc", "ptxas", "cudafe++", "fatbinary", "cc1plus", "cc1", "ninja", "nvlink"}
)
"""Process names of a kernel build; one cicc takes 3 to 8 GiB."""
SCAN_S = 30.0
BUSY_SCAN_S = 5.0
"""A look at every process costs some milliseconds: seldom while nothing is being built."""
PRESSURE = Path("/proc/pressure/memory")


class Host:
    """Samples the machine, and the process list only now and then."""

    def __init__(self) -> None:
        self._scanned = -SCAN_S
        self._compilers = (0, 0)
        self._guards: Callable[[], GuardFacts] | None = None

    def ask_guards(self, ask: Callable[[], GuardFacts]) -> None:
        """Ask the daemon's guards from now on: they know every compiler without another look."""
        self._guards = ask

    def sample(self, *, busy: bool = False) -> HostFacts:
        """The machine now; with `busy` (an engine is starting) compilers are counted more often."""
        if self._guards is not None:
            seen = self._guards()
            number = seen.running + seen.frozen + seen.paused
            memory = proc.memory()
            stall = pressure_full_avg10()
            return HostFacts(memory.total, memory.available, stall, number, seen.resident, seen)
        now = time.monotonic()
        often = busy or self._compilers[0] > 0
        if now - self._scanned >= (BUSY_SCAN_S if often else SCAN_S):
            self._scanned = now
            self._compilers = _compilers()
        memory = proc.memory()
        return HostFacts(memory.total, memory.available, pressure_full_avg10(), *self._compilers)


def _compilers() -> tuple[int, int]:
    found = [pid for pid in proc.pids() if _name(pid) in COMPILERS]
    return len(found), sum(map(proc.resident_bytes, found))


def _name(pid: int) -> str:
    try:
        return (proc.PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


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
