# SPDX-License-Identifier: Apache-2.0
"""await-slot (ExecStartPre=): let one engine start at a time, and only when its start can work.

Works without the daemon: the slot is a file and a question to systemd, see `sparkd.core.slot`.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import clock, journal, notify, proc, start_hold, start_slot, starts
from sparkd.adapters.state_files import StateFiles
from sparkd.core import admission, backoff, burst, events, preflight, slot
from sparkd.core.end_of_life import Finding
from sparkd.core.gate import Status
from sparkd.helpers import unit as own_unit

POLL_S = 0.5
"""One look costs a `systemctl show` of about 10 ms."""
LOST_S = 45.0
"""Reading a lost life's last words is bounded like any post-mortem: 10 s for journald to write out
what it has, 20 s to read, and the rest."""
EXTEND_S = 60.0
"""How far each look moves systemd's time limit for this command."""


def parser() -> argparse.ArgumentParser:
    """The command line; the rendered unit is its only caller that matters."""
    p = argparse.ArgumentParser(prog="await-slot", description=__doc__.splitlines()[0])
    p.add_argument("--engine", required=True)
    p.add_argument("--unit", required=True)
    p.add_argument("--order", type=int, default=50, help="lower starts first")
    p.add_argument("--host", default="127.0.0.1", help="address the engine will listen on")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--executable", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--user", required=True)
    p.add_argument("--burst", type=int, default=3, help="see post-mortem")
    p.add_argument("--window", type=float, default=3600.0, metavar="SECONDS")
    p.add_argument("--memory-utilization", type=float, default=preflight.DEFAULT_UTILIZATION)
    p.add_argument("--reserve", default="0", metavar="SIZE", help="bytes, or a share such as 16%%")
    p.add_argument("--floor", default="0", metavar="SIZE", help="what its peak must leave")
    p.add_argument("--max-jobs", type=int, default=4, help="compilers of a cold start at a time")
    p.add_argument("--job-memory", default="0", metavar="SIZE", help="what one of them takes")
    p.add_argument(
        "--obstacle-limit",
        type=float,
        default=preflight.OBSTACLE_LIMIT_S,
        metavar="SECONDS",
        help="how long a busy port or missing memory is waited for (default 300)",
    )
    return p


def main(argv: list[str] | None = None) -> int:
    """Wait for the turn of this start.

    Returns:
        0 when the slot is ours; 1 when the start must not happen now (held, or an obstacle
        that outlasted its limit); 78 when it would fail until somebody changes something.
    """
    options = parser().parse_args(argv)
    own_unit.end_well_when_stopped(options.unit)
    files = StateFiles()
    try:
        return _start(options, files)
    except OSError as error:
        # A start that cannot note its claim might not be the only one.
        finding = Finding("await-slot", "", f"sparkd's own files: {error}", permanent=False)
        return _refuse(options, files, finding, Status.NOT_READY)


def _start(options: argparse.Namespace, files: StateFiles) -> int:
    _record_lost_life(options, files)
    held = _ledger_at_start(options.engine, files).held
    if held is not None:
        finding = Finding("await-slot", "held", f"held: {held.reason}", permanent=True)
        return _refuse(options, files, finding, Status.NOT_READY)
    files.write_started(
        options.unit, own_unit.invocation_id(), os.environ.get("SPARKD_LAUNCH_HASH", "")
    )
    try:
        return _wait_for_turn(options, files)
    finally:
        files.drop_waiter(options.unit)


def _ledger_at_start(engine: str, files: StateFiles) -> burst.Ledger:
    with files.locked("ledger"):
        before = files.ledger(engine)
        ledger = burst.before_start(before, clock.moment())
        if ledger != before:
            files.write_ledger(engine, ledger)
    return ledger


def _record_lost_life(options: argparse.Namespace, files: StateFiles) -> None:
    """Have the end of the last life recorded when nobody did.

    systemd 257 on a kernel with cgroup.kill takes ExecStopPost= along after `systemctl kill
    --signal=KILL` (measured on 6.18), and systemd-oomd kills in the same way: without this such a
    death would neither be recorded nor count. A host that goes down leaves no record either.
    """
    lost = lost_life(files, options.engine, options.unit)
    if not lost:
        return
    argv = [
        str(Path(sys.argv[0]).with_name("post-mortem")),
        f"--engine={options.engine}",
        f"--unit={options.unit}",
        f"--burst={options.burst}",
        f"--window={options.window}",
        *lost,
    ]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(argv, timeout=LOST_S, check=False)


def lost_life(files: StateFiles, engine: str, unit: str) -> list[str]:
    """The options that tell the post-mortem of a life whose end nobody recorded; [] for none."""
    last = files.started(unit)
    if last is not None:
        return [] if last == own_unit.invocation_id() else [f"--lost={last}"]
    # /run is lost with the host, the ledger is not.
    begun = burst.cut_off(files.ledger(engine), clock.moment().boot_id)
    return [] if begun is None else [f"--lost={begun.invocation_id}", "--host-went-down"]


def remember_start(files: StateFiles, engine: str, invocation_id: str) -> None:
    """Note in the ledger that the start goes ahead; a full disk must not stop it.

    Then only a host that goes down during it does not count.
    """
    with contextlib.suppress(OSError), files.locked("ledger"):
        ledger = burst.begin(files.ledger(engine), invocation_id, clock.moment())
        files.write_ledger(engine, ledger)


def _wait_for_turn(options: argparse.Namespace, files: StateFiles) -> int:
    me = slot.Waiter(
        options.unit,
        own_unit.invocation_id(),
        options.order,
        time.clock_gettime(time.CLOCK_BOOTTIME),
    )
    start = _foresee(options)
    facts = _look_once(options, start)
    patience = preflight.Patience(options.obstacle_limit)
    said = ""
    while True:
        obstacle, now = preflight.obstacle(facts), time.monotonic()
        patience = patience.seeing(obstacle, now)
        passes = False
        if obstacle is not None and (obstacle.permanent or patience.is_over(obstacle, now)):
            if not obstacle.passable:
                return _give_up(options, files, obstacle, patience.lasted(obstacle, now))
            passes = True
        me = me._replace(blocked=_blocked(options, files, None if passes else obstacle))
        decision = _try_to_take(files, me)
        if decision.take:
            remember_start(files, options.engine, me.invocation_id)
            _admitted(options, me, start, facts, passes=passes)
            return int(Status.READY)
        if _without_numbers(decision.reason) != said:
            # Available memory is another figure at each look: that is no other reason.
            said = _without_numbers(decision.reason)
            own_unit.say(decision.reason)
            _send(events.Event.SLOT_WAIT, options, decision.reason)
        notify.status(decision.reason, extend_s=EXTEND_S)
        time.sleep(POLL_S)
        facts = _look_again(options, facts)


def _without_numbers(reason: str) -> str:
    return re.sub(r"[0-9.]+", "#", reason)


def _blocked(
    options: argparse.Namespace, files: StateFiles, obstacle: preflight.Obstacle | None
) -> str:
    if obstacle is not None:
        return f"waiting: {obstacle.reason}"
    policy = burst.Policy(options.burst, options.window)
    pause = backoff.pause(files.ledger(options.engine), clock.moment(), policy)
    return "" if pause is None else f"waiting: {pause.reason}"


def _try_to_take(files: StateFiles, me: slot.Waiter) -> slot.Decision:
    return start_slot.try_to_take(files, me, lambda: slot.Claim(me.unit, me.invocation_id))


class Start(NamedTuple):
    """What is foreseen of this start."""

    fingerprint: admission.Fingerprint
    outlook: admission.Outlook
    need: admission.Need
    reserve: int
    floor: int


def _foresee(options: argparse.Namespace) -> Start:
    home, cuda_home = os.environ.get("HOME", ""), os.environ.get("CUDA_HOME", "")
    total = proc.memory().total
    launch = os.environ.get("SPARKD_LAUNCH_HASH", "")
    fingerprint = starts.fingerprint(options.executable, cuda_home, launch)
    known = starts.known(options.engine)
    outlook = admission.outlook(known, fingerprint, starts.caches(home))
    compilers = 0
    if starts.can_compile(cuda_home):
        compilers = options.max_jobs * admission.size_of(options.job_memory, total)
    estimate = admission.Estimate(
        options.memory_utilization,
        total,
        starts.weights(options.model, home, os.environ.get("HF_HOME", "")),
        compilers,
    )
    need = admission.need(known, fingerprint, outlook.kind, estimate)
    reserve, floor = (admission.size_of(t, total) for t in (options.reserve, options.floor))
    return Start(fingerprint, outlook, need, reserve, floor)


def _look_once(options: argparse.Namespace, start: Start) -> preflight.Facts:
    """What no waiting changes, and a first look at the rest."""
    home = os.environ.get("HOME", "")
    is_path = options.model.startswith("/")
    lasting = preflight.Facts(
        executable=options.executable,
        executable_usable=proc.usable_by(options.user, options.executable, os.X_OK),
        model=options.model,
        model_usable=not is_path or bool(proc.usable_by(options.user, options.model, os.R_OK)),
        user=options.user,
        port=options.port,
        utilization=options.memory_utilization,
        home=home,
        home_writable=not home or bool(proc.usable_by(options.user, home, os.W_OK)),
        need=start.need,
        reserve=start.reserve,
        floor=start.floor,
    )
    return _look_again(options, lasting)


def _look_again(options: argparse.Namespace, facts: preflight.Facts) -> preflight.Facts:
    """The port and the memory, which change by themselves."""
    memory = proc.memory()
    inodes = proc.listeners(options.host, options.port)
    holders = tuple(map(str, proc.owners_of(inodes)))
    if inodes and not holders:
        holders = ("a process out of sight",)
    seen = facts._replace(
        port_holders=holders,
        starts_held=start_hold.reason(),
        memory_total=memory.total,
        memory_available=memory.available,
        memory_holders=(),
    )
    short = preflight.is_short(seen)
    return seen._replace(memory_holders=start_slot.memory_holders()) if short else seen


def _admitted(
    options: argparse.Namespace,
    me: slot.Waiter,
    start: Start,
    facts: preflight.Facts,
    *,
    passes: bool,
) -> None:
    """Say what the start goes ahead on; it `passes` a learned peak that was waited for in vain."""
    waited = time.clock_gettime(time.CLOCK_BOOTTIME) - me.since
    kind, why = start.outlook
    text = f"takes the start slot after {waited:.1f} s; a {kind} start"
    text += f" ({why})" if why else ""
    passed = f"; {admission.on_the_estimate(start.need)}" if passes else ""
    if passes:
        own_unit.say(admission.on_the_estimate(start.need))
        text += passed
    else:
        text += f", {admission.gib(start.need.peak)} are expected to be taken ({start.need.origin})"
    with contextlib.suppress(OSError):
        # Without it the gate learns nothing of this start, which must not fail for that.
        starts.admit(
            options.unit,
            me.invocation_id,
            start.fingerprint,
            start.outlook,
            facts.memory_available,
        )
    notify.status(f"launching ({kind} start){passed}")
    _send(events.Event.SLOT_TAKEN, options, text)


def _give_up(
    options: argparse.Namespace, files: StateFiles, obstacle: preflight.Obstacle, lasted: float
) -> int:
    if obstacle.permanent:
        finding = Finding("await-slot", obstacle.cls, obstacle.reason, permanent=True)
        return _refuse(options, files, finding, Status.WILL_FAIL_AGAIN)
    # Memory that does not come back within minutes needs a person: on GB10 each blind retry can
    # leak more of it until the host stops answering.
    reason = f"{obstacle.reason}, for {lasted:.0f} s now"
    permanent = obstacle.cls == "memory-not-available"
    return _refuse(
        options, files, Finding("await-slot", obstacle.cls, reason, permanent), Status.NOT_READY
    )


def _refuse(
    options: argparse.Namespace, files: StateFiles, finding: Finding, status: Status
) -> int:
    with contextlib.suppress(OSError):
        files.write_finding(options.unit, own_unit.invocation_id(), finding)
    fix = f"; `sparkctl restart {options.engine}` releases it" if finding.cls == "held" else ""
    own_unit.fail(f"not started: {finding.reason}{fix}")
    notify.status(f"not started: {finding.reason}")
    _send(
        events.Event.START_REFUSED,
        options,
        f"{finding.reason}{fix}",
        priority=journal.Priority.WARNING,
    )
    return int(status)


def _send(
    event: events.Event,
    options: argparse.Namespace,
    reason: str,
    priority: str = journal.Priority.INFO,
) -> None:
    journal.send(
        event,
        f"{options.engine}: {reason}",
        priority=priority,
        **{
            events.ENGINE: options.engine,
            events.UNIT: options.unit,
            events.INVOCATION_ID: own_unit.invocation_id(),
            events.REASON: reason,
            "SPARKD_TIME": f"{clock.moment().wall:.6f}",
        },
    )
