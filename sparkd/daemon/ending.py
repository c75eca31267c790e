# SPDX-License-Identifier: Apache-2.0
"""The memory guard's victims: who they could be, and how one is ended.

An engine is ended through its unit, and by its main process, so that `post-mortem` records it with
the guard's reason, the burst limit counts it and `Restart=` brings it back when memory is there.
"""

import threading
from collections.abc import Sequence

from sparkd.adapters import systemctl
from sparkd.adapters.state_files import StateFiles
from sparkd.core.end_of_life import Finding
from sparkd.core.memory_guard import Life
from sparkd.core.status import Status
from sparkd.core.unit_state import State, unit_of
from sparkd.daemon import log

LEAST = 1000
"""Below every engine's order: what is not in the configuration."""


def lives(status: Status, orders: dict[str, int]) -> Sequence[Life]:
    """What could be ended, as last seen; nothing while systemd cannot be seen."""
    if status.facts.blind:
        return ()
    found = []
    for engine in status.engines:
        unit = engine.facts.unit
        if unit is None or not unit.invocation_id:
            continue
        if engine.state in {State.STARTING, State.LOADING, State.READY, State.STALLED}:
            starting = engine.state in {State.STARTING, State.LOADING}
            order = orders.get(engine.name, LEAST)
            found.append(Life(unit.unit, engine.name, unit.invocation_id, order, starting))
    for guest in status.facts.guests:
        if guest.state in {"starting", "ready"} and guest.invocation_id:
            starting = guest.state == "starting"
            found.append(
                Life(guest.unit, guest.unit, guest.invocation_id, LEAST, starting, guest=True)
            )
    return found


def end(files: StateFiles, life: Life, reason: str) -> None:
    """End it, in a thread: systemctl may be slow while memory is short."""
    threading.Thread(target=_end, args=(files, life, reason), name="ending", daemon=True).start()


def _end(files: StateFiles, life: Life, reason: str) -> None:
    seen = systemctl.show([life.unit], ["InvocationID"])
    if seen is None or seen[0].get("InvocationID") != life.invocation_id:
        log.warning(f"{life.unit} is another one by now, or cannot be seen: it is not ended")
        return
    if life.unit == unit_of(life.name):
        finding = Finding("memory-guard", "memory-guard", reason, permanent=False)
        files.write_finding(life.unit, life.invocation_id, finding)
    if not systemctl.kill(life.unit, whom="all" if life.guest else "main"):
        log.error(f"systemd did not end {life.unit}")
