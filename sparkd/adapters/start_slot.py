# SPDX-License-Identifier: Apache-2.0
"""The start slot's files and the questions to systemd about it, for engines and for guests.

An engine's claim and place in the queue count by what systemd says of its unit. A guest (`sparkctl
run`) has no start phases that systemd knows of: see `guests`.
"""

from collections.abc import Callable, Sequence

from sparkd.adapters import guests, proc, systemctl
from sparkd.adapters.state_files import StateFiles
from sparkd.core import admission, slot

HOLDER_MIN = 256 << 20
"""Resident bytes below which a process is not worth naming."""


def try_to_take(
    files: StateFiles, me: slot.Waiter, claim: Callable[[], slot.Claim]
) -> slot.Decision:
    """Decide under the lock, so that two waiters cannot both find the slot free.

    Args:
        files: where claim and queue are.
        me: who asks; entered in the queue when it has to wait.
        claim: called when the slot is free, makes what is written down as its claim.
    """
    with files.locked("slot"):
        decision = decide(files, me)
        if decision.take:
            files.write_claim(claim())
            files.drop_waiter(me.unit)
        else:
            files.write_waiter(me)
        return decision


def decide(files: StateFiles, me: slot.Waiter) -> slot.Decision:
    """Whether `me` could take the slot now; changes nothing."""
    held = files.claim()
    others = [waiter for waiter in files.waiters() if waiter.unit != me.unit]
    units = [] if held is None else [held.unit]
    seen = phases([*units, *(w.unit for w in others if not guests.is_guest(w.unit))])
    behind = [
        guests.waiting_phase(w.invocation_id) if guests.is_guest(w.unit) else seen[w.unit]
        for w in others
    ]
    holder = None if held is None else seen[held.unit]
    return slot.decide(me, held, holder, list(zip(others, behind, strict=True)))


def phases(units: Sequence[str]) -> dict[str, slot.Phase | None]:
    """What systemd says of each unit; None for what cannot be seen."""
    if not units:
        return {}
    rows = systemctl.show(list(units), ["InvocationID", "SubState"])
    if rows is None:
        return dict.fromkeys(units)
    found: dict[str, slot.Phase | None] = {}
    for unit, row in zip(units, rows, strict=True):
        phase = slot.Phase(row.get("InvocationID", ""), row.get("SubState", ""))
        if guests.is_guest(unit):
            phase = guests.claim_phase(unit, phase)
        found[unit] = phase
    return found


def memory_holders() -> tuple[str, ...]:
    """The processes that hold the most memory, named for a person: engines, then others.

    On GB10 the kernel does not charge CUDA's memory to a process: an engine's figure is too small,
    so engines come first.
    """
    found = [(proc.resident_bytes(pid), pid) for pid in proc.pids()]
    named = [(size, proc.process(pid)) for size, pid in found if size >= HOLDER_MIN]
    small = [(s, proc.process(pid)) for s, pid in found if 0 < s < HOLDER_MIN]
    engines = [(s, p) for s, p in small if p.name.startswith("VLLM::")]
    named = sorted([*named, *engines], key=lambda row: (row[1].name[:6] != "VLLM::", -row[0]))
    return tuple(f"{process} {admission.gib(size)}" for size, process in named[:3])
