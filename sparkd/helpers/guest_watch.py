# SPDX-License-Identifier: Apache-2.0
"""The watcher that `sparkctl run` leaves beside a guest: says when it serves, and when it ends.

`sparkctl run` becomes the guest itself, so that terminal, signals and exit status are the guest's
own. What is left to do meanwhile is done here, by a process in the guest's scope that has left the
terminal. Nothing depends on it: see `sparkd.adapters.guests`.
"""

import os
import select
import signal
import time

from sparkd.adapters import guests, journal, probe, proc, systemctl
from sparkd.adapters.guests import Guest
from sparkd.core import events, gate
from sparkd.core.gate import Ask, ReplyKind

POLL_S = 1.0
REQUEST_S = 3.0
LINGER_S = 10.0
"""vLLM's workers end by themselves within seconds when their parent is gone."""


def spawn(guest: Guest) -> None:
    """Leave a watcher behind, as nobody's child: vLLM ends all of its children when it stops."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    # Whatever happens in either child, it must never go on as its parent.
    status = 1
    try:
        os.setsid()
        if os.fork() == 0:
            _leave_the_terminal()
            watch(guest)
        status = 0
    finally:
        os._exit(status)


def _leave_the_terminal() -> None:
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.closerange(3, 1024)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def watch(guest: Guest) -> None:
    """Watch one guest from now to its end."""
    try:
        pidfd = os.pidfd_open(guest.pid)
    except OSError:
        return
    me = os.getpid()
    guest = guest._replace(watcher=me, watcher_started=proc.start_time(me) or 0)
    guests.write(guest)
    _tell(events.Event.GUEST_STARTED, guest, f"is launched by {guest.user}: {guest.command}")
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    while not ended.poll(None if guest.is_ready or not guest.port else POLL_S * 1000):
        if _serves(guest):
            guest = guest._replace(is_ready=True)
            guests.write(guest)
            took = time.time() - guest.since
            _tell(
                events.Event.GUEST_READY, guest, f"serves on port {guest.port} after {took:.0f} s"
            )
    _end(guest)


def _serves(guest: Guest) -> bool:
    """As the readiness gate judges: its own listener, healthy, with a list of models."""
    if not guests.listens(guest):
        return False
    for ask in (Ask.HEALTH, Ask.MODELS):
        deadline = time.monotonic() + REQUEST_S
        address = (guest.host, guest.port)
        reply = probe.ask(address, gate.request_for(ask, ""), deadline=deadline)
        # A guest may ask for an API key that sparkd does not have: it serves all the same.
        if reply.kind is not ReplyKind.ANSWERED or reply.status not in {200, 401, 403}:
            return False
    return True


def _end(guest: Guest) -> None:
    guests.drop(guest.unit)
    _tell(events.Event.GUEST_ENDED, guest, "has ended")
    deadline = time.monotonic() + LINGER_S
    while left := [p for p in proc.pids_in(guests.cgroup_of(guest.unit)) if p != os.getpid()]:
        if time.monotonic() > deadline:
            names = ", ".join(str(proc.process(pid)) for pid in left[:3])
            _tell(events.Event.GUEST_ENDED, guest, f"has left {names}: its scope is stopped")
            systemctl.stop_no_block(guest.unit)
            return
        time.sleep(POLL_S)


def _tell(event: events.Event, guest: Guest, what: str) -> None:
    journal.send(
        event,
        f"guest {guest.pid} {what}",
        priority=journal.Priority.NOTICE,
        **{
            events.UNIT: guest.unit,
            events.INVOCATION_ID: guest.invocation_id,
            events.REASON: what,
        },
    )
