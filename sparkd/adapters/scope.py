# SPDX-License-Identifier: Apache-2.0
"""A scope of systemd's: limits and a name for a process that systemd did not start.

Through `busctl`, which is part of systemd: no D-Bus library has to be imported.
"""

import subprocess
import time
from typing import NamedTuple

from sparkd.adapters import systemctl
from sparkd.adapters.service_manager import BusError

BUSCTL = "/usr/bin/busctl"
TIMEOUT_S = 10.0
POLL_S = 0.02


class Limits(NamedTuple):
    """Of a scope, in bytes; None: no limit."""

    memory_max: int | None
    memory_high: int | None
    stop_seconds: int
    """How long its processes have to end after SIGTERM."""


def create(unit: str, slice_: str, description: str, pid: int, limits: Limits) -> str:
    """Put a process into a new scope and wait until it is there.

    Returns:
        The scope's invocation.

    Raises:
        BusError: systemd refuses or does not answer.
    """
    properties = [
        ["Description", "s", description],
        ["Slice", "s", slice_],
        ["PIDs", "au", "1", str(pid)],
        ["TimeoutStopUSec", "t", str(limits.stop_seconds * 1_000_000)],
        # A scope that has failed (an OOM kill) would stay loaded until somebody resets it.
        ["CollectMode", "s", "inactive-or-failed"],
    ]
    if limits.memory_max is not None:
        properties.append(["MemoryMax", "t", str(limits.memory_max)])
    if limits.memory_high is not None:
        properties.append(["MemoryHigh", "t", str(limits.memory_high)])
    words = [word for row in properties for word in row]
    _call("StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", str(len(properties)), *words, "0")
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        seen = systemctl.show([unit], ["ActiveState", "InvocationID"])
        row = seen[0] if seen else {}
        if row.get("ActiveState") == "active" and row.get("InvocationID"):
            return row["InvocationID"]
        time.sleep(POLL_S)
    raise BusError(f"{unit} did not come up within {TIMEOUT_S:.0f} s")


def _call(method: str, signature: str, *words: str) -> None:
    name, path = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"
    argv = [BUSCTL, "--system", "--no-pager", "call", name, path, f"{name}.Manager"]
    try:
        done = subprocess.run(
            [*argv, method, signature, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        raise BusError("busctl is missing") from None
    except subprocess.TimeoutExpired:
        raise BusError(f"systemd did not answer within {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise BusError(" ".join(done.stderr.split()) or f"busctl ended with {done.returncode}")
