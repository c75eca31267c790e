# SPDX-License-Identifier: Apache-2.0
"""Ending an engine that lives and does not serve: by its main process, never by a stop job.

systemd then sees an end that nobody asked for: `post-mortem` records it with the reason left here,
the burst limit counts it, and `Restart=` brings the engine back. Only the main process is
signalled: KillMode=mixed takes the others along, while a signal to the whole unit would on systemd
257 also kill ExecStopPost= (measured).
"""

import json
import signal
import time
from typing import NamedTuple

from sparkd.adapters import journal
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.state_files import StateFiles
from sparkd.adapters.systemd_bus import Systemd
from sparkd.core import events
from sparkd.core.end_of_life import DAEMON, Finding
from sparkd.core.unit_state import UnitFacts, unit_of
from sparkd.daemon import log

EVIDENCE_S = 60.0
"""What is not saved by then is not worth more darkness."""
PATIENCE_S = 20.0
"""After SIGTERM, and again after SIGKILL. A process deaf to SIGKILL sits in the driver."""
POLL_S = 0.5


class Target(NamedTuple):
    """Which life is to be ended, and why."""

    engine: str
    invocation_id: str
    cls: str
    reason: str
    permanent: bool
    """Whether another start would fail in the same way."""
    saves_evidence: bool


def finish(systemd: Systemd, files: StateFiles, target: Target) -> str:
    """End it, unless an operator, systemd or the engine itself was faster.

    Returns:
        What came of it, in words.

    Raises:
        BusError: systemd does not answer; nothing, or nothing more, was done.
        OSError: the reason could not be left for the post-mortem.
    """
    if systemd.is_stopping():
        return "the host is shutting down: not ended"
    if target.saves_evidence:
        _save_evidence(systemd, target.engine)
    unit = unit_of(target.engine)
    if not _is_there(systemd.unit(unit), target):
        return "it has ended or is being stopped: not ended again"
    finding = Finding(DAEMON, target.cls, target.reason, target.permanent)
    files.write_finding(unit, target.invocation_id, finding)
    _tell(target)
    for number in (signal.SIGTERM, signal.SIGKILL):
        systemd.kill_main(unit, number)
        if _gone(systemd, target):
            return f"its main process ended after {number.name}"
    return (
        "its main process does not end, not even by SIGKILL: it hangs in the kernel or in the"
        " driver, and only a reboot helps"
    )


def _is_there(unit: UnitFacts, target: Target) -> bool:
    is_same = unit.invocation_id == target.invocation_id and bool(unit.main_pid)
    return is_same and unit.active_state == "active" and not unit.job_type


def _gone(systemd: Systemd, target: Target) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        if not _is_there(systemd.unit(unit_of(target.engine)), target):
            return True
    return False


def _save_evidence(systemd: Systemd, engine: str) -> None:
    """Have the unit do it that may look into other processes: the daemon has no such right."""
    unit = f"sparkd-evidence@{engine}.service"
    try:
        systemd.start(unit)
        deadline = time.monotonic() + EVIDENCE_S
        while time.monotonic() < deadline:
            time.sleep(POLL_S)
            seen = systemd.unit(unit)
            if not seen.job_type and seen.active_state != "activating":
                return
        log.warning(f"{engine}: saving evidence takes too long, going on without")
    except BusError as error:
        log.warning(f"{engine}: no evidence is saved: {error}")


def _tell(target: Target) -> None:
    reason = f"ended by sparkd: {target.reason}"
    log.warning(f"{target.engine}: {reason}")
    record = {"class": target.cls, "reason": target.reason, "time": time.time()}
    journal.send(
        events.Event.ENDED_BY_SPARKD,
        f"{target.engine}: {reason}",
        priority=journal.Priority.ERROR,
        **{
            events.ENGINE: target.engine,
            events.UNIT: unit_of(target.engine),
            events.INVOCATION_ID: target.invocation_id,
            events.REASON: reason,
            events.RECORD: json.dumps(record),
        },
    )
