# SPDX-License-Identifier: Apache-2.0
"""await-ready (ExecStartPost=): 0 only when this process serves this model, 1 when dead or late.

Can be run by hand against any engine: `await-ready --pid=PID --port=8000 --served-name=NAME`.
"""

import argparse
import contextlib
import json
import os
import select
import signal
import time
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import clock, journal, notify, probe, proc, starts, systemctl
from sparkd.adapters.catalogue import load_catalogue
from sparkd.adapters.state_files import StateFiles
from sparkd.core import admission, burst, events, gate
from sparkd.core.boot import BootProgress, Phase
from sparkd.core.classify import Classifier
from sparkd.core.end_of_life import Finding
from sparkd.core.gate import Ask, Status, Verdict
from sparkd.core.lines import frame
from sparkd.helpers import unit as own_unit

POLL_S = 0.25
"""Between two rounds of questions. A death ends the wait at once: it is not polled for."""
REQUEST_S = 3.0
"""Wall deadline of one small question; a healthy engine answers in milliseconds."""
LINGER_S = 15.0
"""After a fatal line vLLM ends within its 5 s watchdog period, or hangs in its shutdown.

A start that fails takes longer on a busy machine, and an end by its own exit status tells more than
one by a signal."""
STATUS_S = 5.0
"""How often the status line's seconds are refreshed."""
READ_S = 0.2
"""A flood of log lines is read for so long at a time: the process is watched meanwhile."""


class Result(NamedTuple):
    """How the wait ended."""

    status: Status
    reason: str
    cls: str = ""
    version: str = ""


def parser() -> argparse.ArgumentParser:
    """The command line, for the rendered unit and for a person."""
    p = argparse.ArgumentParser(
        prog="await-ready",
        description="Wait until a vLLM engine is ready. Exit status: 0 ready, 1 dead or too late, "
        "78 will fail again until something is changed.",
    )
    p.add_argument("--pid", required=True, help="main process of the engine")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--host", default="127.0.0.1", help="address the engine listens on")
    p.add_argument("--served-name", action="append", required=True, metavar="NAME")
    p.add_argument("--budget", type=float, default=1080.0, metavar="SECONDS")
    p.add_argument(
        "--cold-budget", type=float, default=0.0, metavar="SECONDS", help="of a start that compiles"
    )
    p.add_argument("--warmup", choices=sorted(gate.WARMUPS), default="auto")
    p.add_argument("--expect-version", default="", metavar="VERSION")
    p.add_argument(
        "--api-key-credential", default="", metavar="NAME", help="credential that holds the API key"
    )
    p.add_argument("--api-key-file", default="", metavar="PATH", help="for use by hand")
    p.add_argument("--engine", default="", help="set by the unit")
    p.add_argument("--unit", default="", help="set by the unit")
    return p


def main(argv: list[str] | None = None) -> int:
    """Wait, say how it went, and leave a record of it.

    Returns:
        0 ready; 1 dead or too late; 78 when another start would fail in the same way.
    """
    options = parser().parse_args(argv)
    own_unit.end_well_when_stopped(options.unit, lambda: _insist(options.unit, options.pid))
    foreseen = Foreseen(options)
    options.budget = max(options.budget, options.cold_budget if foreseen.is_cold else 0.0)
    deadline = time.monotonic() + options.budget
    try:
        pidfd = os.pidfd_open(int(options.pid))
    except (ValueError, OverflowError, OSError):
        # ${MAINPID} is empty when the main process died before this command was started.
        return _finish(options, GONE, BootProgress(), 0.0, foreseen)
    with os.fdopen(pidfd, "rb", buffering=0):
        if options.unit and _is_main_process(options.unit, options.pid) is False:
            return _finish(options, GONE, BootProgress(), 0.0, foreseen)
        began = _started_at(int(options.pid))
        wait = Gate(options, pidfd, deadline, foreseen)
        result = wait.run()
        if options.unit and result.status is not Status.READY:
            _warn(pidfd)
        return _finish(options, result, wait.progress, began, foreseen)


def _warn(pidfd: int) -> None:
    """Send the SIGTERM that vLLM loses while it loads, so that systemd's, which follows, counts.

    Otherwise a start that failed would hold the start slot for TimeoutStopSec= more.
    """
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)


class Foreseen:
    """What this start was admitted on, and what it really takes of memory, watched meanwhile."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._engine = options.engine
        seen = starts.admitted(options.unit, own_unit.invocation_id()) if options.unit else None
        self._fingerprint: admission.Fingerprint = {} if seen is None else seen[0]
        self.outlook = None if seen is None else seen[1]
        self._before = None if seen is None else seen[2]
        self._least = proc.memory().available

    @property
    def is_cold(self) -> bool:
        """Whether it has to compile what an earlier start would have left in the caches."""
        return self.outlook is not None and self.outlook.kind is admission.Kind.COLD

    @property
    def peak(self) -> int | None:
        """By how much available memory fell at most, in bytes; None for a start from elsewhere."""
        return None if self._before is None else max(0, self._before - self._least)

    def sample(self) -> None:
        """Look at the memory once more."""
        self._least = min(self._least, proc.memory().available)

    def learn(self) -> None:
        """Remember the start, which became ready; a full disk must not fail it."""
        if self.outlook is None or self.peak is None:
            return
        caches = starts.caches(os.environ.get("HOME", ""))
        memory = admission.learn(
            starts.known(self._engine), self._fingerprint, self.outlook.kind, self.peak, caches
        )
        with contextlib.suppress(OSError):
            starts.remember(self._engine, memory)

    def to_json(self) -> dict[str, object]:
        """For the record of the start."""
        if self.outlook is None:
            return {"kind": None, "kind_reason": None, "memory_peak_bytes": None}
        return {
            "kind": self.outlook.kind,
            "kind_reason": self.outlook.reason or None,
            "memory_peak_bytes": self.peak,
        }


def _is_main_process(unit: str, pid: str) -> bool | None:
    """Whether the process is still the unit's main process; so then is what a pidfd refers to.

    It could have died, and its number been given to a stranger, before the pidfd was opened. While
    systemd names it, systemd has not reaped it, and until then nobody else gets the number. None
    when systemd cannot be seen.
    """
    seen = systemctl.show([unit], ["MainPID"])
    return None if seen is None else seen[0].get("MainPID") == pid


RUNGS = 4
"""How often a stop is repeated while the engine loads,"""
RUNG_S = 4.0
"""and how long each may take: together well within the unit's TimeoutStopSec=."""

GONE = Result(Status.NOT_READY, "the main process is gone")


class Gate:
    """One wait for one process."""

    def __init__(
        self, options: argparse.Namespace, pidfd: int, deadline: float, foreseen: Foreseen
    ) -> None:
        self._options = options
        self._foreseen = foreseen
        self._pid = int(options.pid)
        self._pidfd = pidfd
        self._deadline = deadline
        self._key = _api_key(options)
        self._want = gate.Expectation(
            port=options.port,
            served_names=tuple(options.served_name),
            warmup=options.warmup,
            version=options.expect_version,
            has_key=bool(self._key),
        )
        invocation = own_unit.invocation_id() if options.unit else ""
        self._log = journal.InvocationLog(invocation) if invocation else None
        self._classifier = Classifier(load_catalogue(), unit=options.unit)
        self._fatal_since: float | None = None
        self._fatal: Result | None = None
        self._status = ("", 0.0)
        self._doing = ""
        self.progress = BootProgress()

    def run(self) -> Result:
        """Ask until there is a final answer."""
        last = gate.after(self._want, Ask.HEALTH, gate.Reply(gate.ReplyKind.REFUSED))
        while self._fatal is None:
            if self._dead(0.0):
                return GONE
            if time.monotonic() >= self._deadline:
                reason = f"not ready after {self._options.budget:.0f} s: {last.reason}"
                return Result(Status.NOT_READY, reason, last.cls or "not-ready-in-time")
            last = self._round()
            if last.status is not None and self._fatal is None:
                return Result(last.status, last.reason, last.cls, last.version)
            self._tell(last.reason)
            if self._dead(POLL_S):
                return GONE
            self._read_log()
        return self._fatal

    def _round(self) -> Verdict:
        """The questions in their order, until one does not lead to the next."""
        version = ""
        verdict = Verdict(None, Ask.HEALTH, "")
        while verdict.status is None and verdict.next is not None:
            verdict = self._question(verdict.next)
            version = verdict.version or version
        if verdict.status is Status.READY and self._dead(0.0):
            return Verdict(GONE.status, None, GONE.reason)
        return verdict._replace(version=version)

    def _question(self, ask: Ask) -> Verdict:
        if ask is Ask.LISTENER:
            listener, holder = self._listener()
            return gate.after_listener(self._want, listener, holder)
        is_warmup = ask in gate.WARMUPS["auto"]
        self._doing = "warming up with one request" if is_warmup else f"waiting for {ask}"
        if is_warmup:
            self._tell(self._doing)
        # The first request may compile for minutes: it gets what is left of the budget.
        limit = self._deadline if is_warmup else min(self._deadline, time.monotonic() + REQUEST_S)
        reply = probe.ask(
            (_reachable(self._options.host), self._options.port),
            gate.request_for(ask, self._want.served_names[0]),
            deadline=limit,
            key=self._key,
            abort_fd=self._pidfd,
            on_wait=self._look_around,
        )
        return gate.after(self._want, ask, reply)

    def _look_around(self) -> bool:
        """What goes on while a question is open; the first request may take minutes."""
        self._tell(self._doing)
        return self._read_log()

    def _listener(self) -> tuple[gate.Listener, str]:
        """Whether everybody who may answer on the port belongs to the main process's unit."""
        cgroup = proc.cgroup_of(self._pid)
        if cgroup in {"", "/"}:
            return gate.Listener.UNKNOWN, f"process {self._pid} has no control group of its own"
        inodes = proc.listeners(_reachable(self._options.host), self._options.port)
        if not inodes:
            return gate.Listener.NONE, ""
        members = proc.pids_in(cgroup)
        foreign = [i for i in inodes if not proc.owners_of({i}, members)]
        if not foreign:
            return gate.Listener.OURS, ""
        holders = proc.owners_of(set(foreign))
        return gate.Listener.FOREIGN, ", ".join(map(str, holders[:3])) or "a process out of sight"

    def _read_log(self) -> bool:
        """Take in what the engine logged; a fatal line that nobody acts on ends the wait."""
        if self._log is None:
            return False
        for entry in self._log.read(until=time.monotonic() + READ_S):
            for line in frame(entry.message, entry.source):
                self.progress.feed(line, entry.realtime)
                self._classifier.feed(line)
        verdict = self._classifier.verdict()
        if not verdict.label.startswith("fatal"):
            return False
        if self._fatal_since is None:
            self._fatal_since = time.monotonic()
        if time.monotonic() - self._fatal_since < LINGER_S:
            return False
        status = Status.WILL_FAIL_AGAIN if verdict.answer.holds else Status.NOT_READY
        reason = f"{verdict.summary}, but its process does not end"
        self._fatal = Result(status, reason, verdict.cls)
        return True

    def _dead(self, wait_s: float) -> bool:
        """Whether the main process ends within so many seconds."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(wait_s * 1000))

    def _tell(self, reason: str) -> None:
        self._foreseen.sample()
        now = time.monotonic()
        loads = self.progress.phase is not Phase.READY and self.progress.status
        text = self.progress.status if loads else reason
        if text == self._status[0] and now - self._status[1] < STATUS_S:
            return
        self._status = (text, now)
        budget = self._options.budget
        spent = budget - (self._deadline - now)
        # To the deadline and beyond: it is this program that ends the wait, not systemd.
        extend_s = self._deadline - now + 60.0
        kind = ", cold start" if self._foreseen.is_cold else ""
        notify.status(f"{text} ({spent:.0f} s of {budget:.0f} s{kind})", extend_s=extend_s)


def _insist(unit: str, pid: str) -> None:
    """Repeat a stop that vLLM loses: it forgets a first SIGTERM while its engine starts.

    systemd sends one SIGTERM and then waits for TimeoutStopSec=; a second one ends the start
    within two seconds (vLLM 0.32, measured).
    """
    try:
        pidfd = os.pidfd_open(int(pid))
    except (ValueError, OverflowError, OSError):
        return
    if not _is_main_process(unit, pid):
        return  # dead and reaped, its number may be a stranger's; or it cannot be seen
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    for _ in range(RUNGS):
        if poll.poll(RUNG_S * 1000):
            return
        own_unit.say(f"the engine (PID {pid}) does not stop: sending SIGTERM again")
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)


def _reachable(host: str) -> str:
    """The address to ask, for an engine that listens on every address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104


def _api_key(options: argparse.Namespace) -> str:
    if options.api_key_file:
        paths = [Path(options.api_key_file)]
    elif options.api_key_credential:
        folder = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"))
        paths = [folder / options.api_key_credential]
        # On systemd 252 a command with "+" does not see the credentials of a unit that has mounts
        # of its own (measured; on 257 it does): the engine's view of the files has them.
        paths.append(Path(f"/proc/{options.pid}/root") / paths[0].relative_to("/"))
    else:
        return ""
    for path in paths:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return path.read_text(encoding="utf-8").strip()
    own_unit.fail("await-ready: cannot read the API key; asking without it")
    return ""


def _started_at(pid: int) -> float:
    """CLOCK_BOOTTIME at which a process started; now when it is gone."""
    ticks = proc.start_time(pid)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return now if ticks is None else ticks / os.sysconf("SC_CLK_TCK")


def _finish(
    options: argparse.Namespace,
    result: Result,
    progress: BootProgress,
    began: float,
    foreseen: Foreseen,
) -> int:
    now = clock.moment()
    seconds = now.boottime - began if began else 0.0
    if result.status is Status.READY:
        text = f"ready after {seconds:.0f} s: {result.reason}"
        notify.status(text)
        own_unit.say(text)
    else:
        own_unit.fail(f"not ready: {result.reason}")
        notify.status(f"not ready: {result.reason}")
    if options.unit:
        _record(options, result, progress, seconds, foreseen)
    return int(result.status)


def _remember(engine: str) -> None:
    """Note in the ledger that this start worked; a full disk must not fail it."""
    files = StateFiles()
    with contextlib.suppress(OSError), files.locked("ledger"):
        files.write_ledger(engine, burst.after_ready(files.ledger(engine), clock.moment()))


def _record(
    options: argparse.Namespace,
    result: Result,
    progress: BootProgress,
    seconds: float,
    foreseen: Foreseen,
) -> None:
    invocation = own_unit.invocation_id()
    fields = {
        events.ENGINE: options.engine,
        events.UNIT: options.unit,
        events.INVOCATION_ID: invocation,
        events.REASON: result.reason,
    }
    if result.status is Status.READY:
        _remember(options.engine)
        foreseen.learn()
        now = clock.moment()
        facts = {
            "engine": options.engine,
            "unit": options.unit,
            "invocation_id": invocation,
            "time": now.wall,
            "boot_id": now.boot_id,
            "launched_boottime": round(now.boottime - seconds, 1),
            "seconds": round(seconds, 1),
            **progress.facts.to_json(),
            **foreseen.to_json(),
        }
        facts["vllm_version"] = result.version or facts.get("vllm_version")
        fields[events.RECORD] = json.dumps(facts)
        text = f"{options.engine}: ready after {seconds:.0f} s, {result.reason}"
        journal.send(events.Event.READY, text, priority=journal.Priority.NOTICE, **fields)
        return
    # Without a class too: that the gate itself gave up tells a failed start from a stopped one.
    # But who ended the process knows better than the gate that sees it gone.
    files = StateFiles()
    if result.cls or files.finding(options.unit, invocation) is None:
        permanent = result.status is Status.WILL_FAIL_AGAIN
        finding = Finding("await-ready", result.cls, result.reason, permanent)
        files.write_finding(options.unit, invocation, finding)
    text = f"{options.engine}: not ready, {result.reason}"
    journal.send(events.Event.NOT_READY, text, priority=journal.Priority.WARNING, **fields)
