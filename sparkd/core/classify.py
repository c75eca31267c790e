# SPDX-License-Identifier: Apache-2.0
"""How did this engine end, or why does it not move? From framed lines and the exit state to a verdict.

The rules, in this order. A stop that was asked for makes every line a clean stop. A frame, that is a
record of the engine's own processes that only a death prints, declares a death; a weak frame does so
unless a stop explains it. Causes (tracebacks, C++ output, kernel lines) say why and never declare by
themselves. An exit that nobody asked for is a death even when no line tells of it. Only then come
stalls, and last what is harmless.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from sparkd.core.lines import Line, Source, process_kind
from sparkd.core.signatures import Answer, Catalogue, Class, Label, Match, Role

CAUSE_WINDOW = 2000
"""Lines before a frame within which a cause still belongs to it (dumps of tensors lie between)."""
_KEPT = 32
_UNHEALTHY_PROBES = 5  # an engine that died while idle answers about three before its server ends
_SOON_AFTER_READY = 200
_DETAIL_CAP = 240


class ExitState(NamedTuple):
    """systemd's `$SERVICE_RESULT`, `$EXIT_CODE` and `$EXIT_STATUS` of an ended unit.

    Attributes:
        result: `success`, `exit-code`, `signal`, `core-dump`, `oom-kill`, `timeout`, ...
        code: `exited`, `killed`, `dumped`, or empty when no process was ever started.
        status: exit status as digits, or the signal's name without `SIG`.
    """

    result: str
    code: str
    status: str


class Verdict(NamedTuple):
    """What happened, why we think so, and what follows.

    Attributes:
        label: `fatal-runtime`, `fatal-init`, `hang`, `clean-stop` or `benign`.
        cls: the class's name, empty for an uneventful log.
        signature: the rule that fired, empty when the exit state alone decided.
        evidence: one line of the log, capped and without control characters; may be empty.
        answer: what follows from the class.
        hint: what the operator should do.
        reason: one sentence.
        position: the evidence's place as the caller counted it, 0 if there is none.
    """

    label: str
    cls: str
    signature: str
    evidence: str
    answer: Answer
    hint: str
    reason: str
    position: int = 0


class _Seen(NamedTuple):
    """A match with its place in the stream (`sequence`) and in the caller's count (`position`)."""

    match: Match
    sequence: int
    position: int

    @property
    def cls(self) -> str:
        return self.match.signature.cls


class _Life:
    """What one life of the engine showed. Bounded, however long it lasts."""

    def __init__(self) -> None:
        self.frames: list[_Seen] = []
        self.causes_before: deque[_Seen] = deque(maxlen=_KEPT)
        self.causes_after: list[_Seen] = []
        self.crash: _Seen | None = None
        self.detail: _Seen | None = None
        self.stops: list[_Seen] = []
        self.late_stop: _Seen | None = None
        self.soft_stop: _Seen | None = None
        self.interrupt: _Seen | None = None
        self.ready: _Seen | None = None
        self.boot: _Seen | None = None
        self.stall: _Seen | None = None
        self.stalled_before = False
        self.waiting: _Seen | None = None
        self.down: _Seen | None = None
        self.unhealthy: list[_Seen] = []
        self.harmless: dict[str, _Seen] = {}
        self.last_sign_of_life = 0
        self.pids: dict[str, int] = {}
        self.exit_result = ""
        self.exit_code = ""
        self.exit_status = ""

    @property
    def ended(self) -> bool:
        return bool(self.frames or self.stops or self.late_stop or self.exit_result or self.down)

    @property
    def starting(self) -> bool:
        return self.boot is not None and self.ready is None


class Classifier:
    """The incremental form: feed lines as they come, ask for a verdict at any time.

    Memory is bounded whatever is fed: a fixed number of matches of each kind is kept.

    Args:
        catalogue: the signatures.
        pids: the engine's processes as the host numbers them, when known. Kernel lines then count
            only if they name one of these or the control group.
        cgroup: the unit's control group (`/system.slice/vllm-x.service`), when known.
        unit: the unit's name, when known; systemd's lines about other units are then ignored.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        pids: frozenset[int] = frozenset(),
        cgroup: str = "",
        unit: str = "",
    ) -> None:
        self._catalogue = catalogue
        self._pids = pids
        self._cgroup = cgroup.rstrip("/")
        self._unit = unit
        self._life = _Life()
        self._previous: Verdict | None = None
        self._sequence = 0

    def feed(self, line: Line, position: int = 0) -> Match | None:
        """Take one line; return the match that counts for the verdict, if any.

        Args:
            line: a framed line.
            position: the line's number in the caller's count, handed back in the verdict.
        """
        self._sequence += 1
        self._note_process(line)
        match = self._catalogue.match(line)
        if match is None or not self._credible(match):
            return None
        self._take(_Seen(match, self._sequence, position or self._sequence))
        return match

    @property
    def ready(self) -> bool:
        """Whether the current life has served."""
        return self._life.ready is not None

    def _note_process(self, line: Line) -> None:
        pids = self._life.pids
        if line.level and line.process and line.process not in pids and len(pids) < _KEPT:
            pids[line.process] = line.pid

    def _credible(self, match: Match) -> bool:
        """Refuse what the line cannot know: another process's pid, another unit, another engine."""
        line, role = match.line, match.signature.role
        if line.source is Source.KERNEL:
            return self._concerns_us(match)
        if line.source is Source.SYSTEMD:
            return self._our_unit(line.message)
        if role in (Role.FRAME, Role.WEAK) and line.process:
            # A forged record names a pid that the process of that name never had.
            return self._life.pids.get(line.process, line.pid) == line.pid
        return True

    def _our_unit(self, message: str) -> bool:
        if self._unit:
            return self._unit in message or ".service" not in message
        return not message.startswith(_FOREIGN_UNITS) and not any(
            f" {name}" in message for name in _FOREIGN_UNITS
        )

    def _concerns_us(self, match: Match) -> bool:
        groups = match.groups
        pid, task = int(groups.get("pid", "0")), groups.get("task", "")
        cgroup = groups.get("cgroup", "")
        if match.signature.role is not Role.KERNEL or (not pid and not task):
            return True  # about the whole device or host
        if pid and pid in self._pids:
            return True
        if self._cgroup and cgroup:
            return cgroup == self._cgroup or cgroup.startswith(self._cgroup + "/")
        if self._pids or self._cgroup:
            return False
        return (
            task.startswith(("VLLM::", "vllm"))
            or "vllm" in cgroup
            or pid in self._life.pids.values()
            or (task.startswith("python") and bool(self._life.pids) and not cgroup)
            or task in _COMPILERS
        )

    def _take(self, seen: _Seen) -> None:
        role = seen.match.signature.role
        life = self._life
        if role is Role.LIFE:
            self._begin(seen)
        elif role in (Role.FRAME, Role.WEAK):
            if len(life.frames) < _KEPT:
                life.frames.append(seen)
        elif role in (Role.CAUSE, Role.KERNEL):
            self._add_cause(seen)
        elif role is Role.DETAIL:
            if life.detail is None or not life.frames:
                life.detail = seen
        elif role is Role.STOP:
            if len(life.stops) < _KEPT:
                life.stops.append(seen)
        elif role is Role.EXIT:
            groups = seen.match.groups
            life.exit_result = groups.get("result", life.exit_result)
            life.exit_code = groups.get("code", life.exit_code)
            life.exit_status = groups.get("status", life.exit_status)
        else:
            self._note(role, seen)

    def _note(self, role: Role, seen: _Seen) -> None:
        life = self._life
        if role is Role.READY:
            life.ready = life.ready or seen
            life.causes_before.clear()  # what the start survived explains no later death
            life.stall = None
        elif role is Role.MOVING:
            life.stall = None
            life.last_sign_of_life = seen.sequence
            life.harmless.setdefault(seen.cls, seen)
        elif role is Role.STALL:
            if not life.starting:
                life.stall, life.stalled_before = seen, True
        elif role is Role.UNHEALTHY:
            if len(life.unhealthy) < _KEPT:
                life.unhealthy.append(seen)
        elif role is Role.DOWN:
            life.down, life.waiting = seen, None
        elif role is Role.WAITING:
            life.waiting = seen
        elif role in (Role.CRASH, Role.SOFT_STOP, Role.LATE_STOP, Role.INTERRUPT, Role.BOOT):
            name = role.value.replace("-", "_")
            if getattr(life, name) is None:
                setattr(life, name, seen)
            if role is Role.BOOT:
                life.harmless.setdefault(seen.cls, seen)
        else:
            life.harmless.setdefault(seen.cls, seen)

    def _add_cause(self, seen: _Seen) -> None:
        if not self._life.frames:
            self._life.causes_before.append(seen)
        elif len(self._life.causes_after) < _KEPT:
            self._life.causes_after.append(seen)

    def _begin(self, seen: _Seen) -> None:
        """A new main process: what the old one left behind is a verdict of its own."""
        if self._life.ended:
            verdict = self.verdict()
            if verdict.label != Label.BENIGN:
                self._previous = verdict
            self._life = _Life()
            self._note_process(seen.match.line)
        if seen.match.line.source is Source.ENGINE:
            self._life.boot = self._life.boot or seen
            self._life.harmless.setdefault(seen.cls, seen)

    def verdict(
        self, exit_state: ExitState | None = None, requested: bool | None = None  # noqa: FBT001
    ) -> Verdict:
        """Return what the lines so far, and the exit if there was one, amount to.

        Args:
            exit_state: how the unit's main process ended; None while it lives or when unknown.
            requested: whether a stop had been asked for; None lets the log's own marks decide.
        """
        life = self._life
        exit_state = exit_state or _exit_from_journal(life)
        if requested:
            return self._clean_stop(exit_state)
        death = self._death(exit_state, asked=requested)
        if death:
            return death
        if requested is None and (life.stops or life.late_stop or life.interrupt):
            waiting = life.waiting
            if waiting and exit_state is None and not life.interrupt:
                return self._stopping_hang(waiting)
            return self._clean_stop(exit_state)
        if requested is None and life.soft_stop:
            return self._after_soft_stop(exit_state)
        if exit_state:
            return self._by_exit(exit_state)
        return self._alive()

    def _death(self, exit_state: ExitState | None, *, asked: bool | None) -> Verdict | None:
        frame = self._first_unexplained_frame(asked)
        if frame is None:
            if asked is False and self._stop_marks():
                return self._external_stop()
            return self._death_without_frame(exit_state)
        label = frame.match.signature.label
        if self._life.starting:
            label = Label.FATAL_INIT
        elif self._life.ready:
            label = Label.FATAL_RUNTIME
        return self._conclude(self._best(frame), label, frame)

    def _stop_marks(self) -> list[_Seen]:
        life = self._life
        marks = [*life.stops, life.late_stop, life.soft_stop, life.interrupt]
        return [mark for mark in marks if mark is not None]

    def _first_unexplained_frame(self, asked: bool | None) -> _Seen | None:  # noqa: FBT001
        life = self._life
        stopped = min((mark.sequence for mark in life.stops), default=None)
        softly = life.soft_stop.sequence if life.soft_stop else None
        late = max(
            (mark.sequence for mark in (life.late_stop, life.interrupt) if mark), default=None
        )
        confirmed = [probe.sequence for probe in life.unhealthy]
        for frame in life.frames:
            weak = frame.match.signature.role is Role.WEAK
            if stopped is not None and stopped < frame.sequence:
                return None
            if asked is False:
                marks = self._stop_marks()
                if marks and min(mark.sequence for mark in marks) < frame.sequence:
                    return None
                return frame
            if weak and softly is not None and softly < frame.sequence:
                continue
            if weak and late is not None and frame.sequence < late:
                refuted = any(frame.sequence < probe < late for probe in confirmed)
                if not refuted and not self._specific_cause(frame):
                    continue
            if late is not None and late < frame.sequence:
                continue
            return frame
        return None

    def _specific_cause(self, frame: _Seen) -> bool:
        return frame.match.signature.label is Label.FATAL_INIT and bool(self._causes_of(frame))

    def _causes_of(self, frame: _Seen) -> list[_Seen]:
        before = [
            cause
            for cause in self._life.causes_before
            if cause.sequence >= frame.sequence - CAUSE_WINDOW
        ]
        return before + self._life.causes_after

    def _best(self, frame: _Seen) -> _Seen:
        """Return the most telling match: the first cause, unless a later one explains it further."""
        best = frame
        for other in self._life.frames:
            if best.cls in self._class(other).refines:
                best = other
        crash = self._life.crash
        if crash and best.cls in self._class(crash).refines:
            best = crash
        chosen: _Seen | None = None
        for cause in self._causes_of(frame):
            if chosen is None:
                if self._explains(cause, best):
                    chosen = cause
            elif chosen.cls in self._class(cause).refines:
                chosen = cause
        return chosen or best

    def _explains(self, cause: _Seen, frame: _Seen) -> bool:
        """Engine text explains any frame; a kernel line only the frames that its class lists."""
        if cause.match.line.source is not Source.KERNEL:
            return True
        return frame.cls in self._class(cause).refines

    def _class(self, seen: _Seen) -> Class:
        return self._catalogue.classes[seen.cls]

    def _death_without_frame(self, exit_state: ExitState | None) -> Verdict | None:
        life = self._life
        if life.soft_stop or life.stops or life.late_stop or life.interrupt:
            return None
        attested = [
            seen for seen in self._causes() if seen.match.signature.role is Role.KERNEL
        ]
        if attested:
            best = attested[0]
            for other in attested[1:]:
                if best.cls in self._class(other).refines:
                    best = other
            if best.match.groups.get("task") not in _COMPILERS or exit_state:
                return self._conclude(best, self._phase(best), best)
        if life.crash and (exit_state or life.crash.sequence > life.last_sign_of_life):
            return self._conclude(life.crash, self._phase(life.crash), life.crash)
        if len(life.unhealthy) >= _UNHEALTHY_PROBES and not life.down:
            return self._conclude(life.unhealthy[0], Label.FATAL_RUNTIME, life.unhealthy[0])
        if exit_state and self._causes() and not _succeeded(exit_state):
            cause = self._causes()[-1]
            return self._conclude(cause, self._phase(cause), cause)
        return None

    def _causes(self) -> list[_Seen]:
        return [*self._life.causes_before, *self._life.causes_after]

    def _phase(self, seen: _Seen) -> Label:
        if self._life.starting:
            return Label.FATAL_INIT
        if self._life.ready:
            return Label.FATAL_RUNTIME
        label = self._class(seen).label
        return label if label is not Label.BENIGN else Label.FATAL_RUNTIME

    def _conclude(self, best: _Seen, label: Label, frame: _Seen) -> Verdict:
        life, cls = self._life, self._class(best)
        if cls.after_stall and life.stalled_before:
            cls = self._catalogue.classes[cls.after_stall]
        lingering = len(life.unhealthy) >= _UNHEALTHY_PROBES and not life.down
        if lingering and cls.name in self._catalogue.classes[KEEP_ALIVE].refines:
            best, cls = life.unhealthy[0], self._catalogue.classes[KEEP_ALIVE]
        reason = f"{_WHAT[label]}: rule {best.match.signature.id} ({cls.name})"
        if frame is not best and frame.cls != best.cls:
            reason += f", declared by rule {frame.match.signature.id}"
        detail = life.detail
        if detail and best.match.signature.role is not Role.CAUSE:
            reason += f"; {detail.match.line.message[:_DETAIL_CAP]}"
        ready = life.ready
        if ready and frame.sequence - ready.sequence <= _SOON_AFTER_READY:
            reason += f"; {frame.sequence - ready.sequence} lines after it became ready"
        return _verdict(label, cls, best, reason + ".")

    def _external_stop(self) -> Verdict:
        mark = min(self._stop_marks(), key=lambda seen: seen.sequence)
        label = Label.FATAL_INIT if self._life.starting else Label.FATAL_RUNTIME
        reason = (
            f"Nobody asked systemd or sparkd for this stop, and rule {mark.match.signature.id} shows"
            " that the engine was told to stop."
        )
        return _verdict(label, self._catalogue.classes[EXTERNAL_STOP], mark, reason)

    def _after_soft_stop(self, exit_state: ExitState | None) -> Verdict:
        mark = self._life.soft_stop
        assert mark is not None  # noqa: S101  the caller asked
        if exit_state is None and not self._life.ready and not self._life.down:
            return _verdict(
                Label.HANG, self._catalogue.classes[INIT_STOP_HANG], mark,
                "EngineCore ended on a signal during the start and the server did not follow.",
            )
        return self._clean_stop(exit_state)

    def _stopping_hang(self, waiting: _Seen) -> Verdict:
        return _verdict(
            Label.HANG, self._class(waiting), waiting,
            "The server was told to stop and still waits for its clients at the end of the log.",
        )

    def _clean_stop(self, exit_state: ExitState | None) -> Verdict:
        life, classes = self._life, self._catalogue.classes
        marks = sorted(
            [*life.stops, *(one for one in (life.late_stop, life.interrupt) if one)],
            key=lambda seen: seen.sequence,
        ) or ([life.soft_stop] if life.soft_stop else [])
        best = marks[0] if marks else None
        for mark in marks[1:]:
            # The engine's own word says more about the manner of the stop than systemd's.
            if best and (best.cls in self._class(mark).refines or best.cls == REQUESTED_STOP):
                best = mark
        cls = self._class(best) if best else classes[REQUESTED_STOP]
        if exit_state and exit_state.result == "timeout":
            cls = classes[STOP_TIMED_OUT]
        elif cls.name == STOP_ABORT and any(f.match.line.process for f in life.frames):
            cls = classes[STOP_WITH_TRACE]
        how = f"rule {best.match.signature.id}" if best else "the stop was asked for"
        after = " and explains the errors behind it" if life.frames else ""
        return _verdict(
            Label.CLEAN_STOP, cls, best, f"A clean stop: {how} tells of it{after}."
            if best else f"A clean stop: {how}.",
        )

    def _by_exit(self, exit_state: ExitState) -> Verdict:
        life = self._life
        name = _class_of_exit(exit_state, starting=life.starting)
        cls = self._catalogue.classes[name]
        label = Label.FATAL_INIT if life.starting and cls.label == Label.FATAL_RUNTIME else cls.label
        reason = (
            f"The unit ended ({exit_state.code or 'never ran'}"
            f"{' ' + exit_state.status if exit_state.status else ''}, result"
            f" {exit_state.result or 'unknown'}) although nobody had asked for it, and no line of the"
            " log explains why."
        )
        if life.detail:
            reason = f"{reason[:-1]}; the last exception was {life.detail.match.line.message[:_DETAIL_CAP]}."
        return _verdict(label, cls, life.detail, reason)._replace(signature="")

    def _alive(self) -> Verdict:
        life = self._life
        if life.stall:
            return _verdict(
                Label.HANG, self._class(life.stall), life.stall,
                f"Rule {life.stall.match.signature.id} saw no progress and nothing moved after it.",
            )
        if life.waiting and not life.down:
            return self._stopping_hang(life.waiting)
        if self._previous:
            return self._previous._replace(
                reason=self._previous.reason[:-1] + "; the engine was started again afterwards."
            )
        for name in _HARMLESS_ORDER:
            seen = life.harmless.get(name)
            if seen:
                return _verdict(
                    Label.BENIGN, self._class(seen), seen,
                    f"Nothing ended here; rule {seen.match.signature.id} explains the lines.",
                )
        return Verdict(
            Label.BENIGN, "", "", "", Answer.NONE, "Nothing to do.", "No rule fired on any line."
        )


def classify(
    lines: Iterable[Line],
    catalogue: Catalogue,
    *,
    exit_state: ExitState | None = None,
    requested: bool | None = None,
    pids: frozenset[int] = frozenset(),
    cgroup: str = "",
    unit: str = "",
) -> Verdict:
    """Return the verdict on one life of an engine; see `Classifier` for the arguments."""
    classifier = Classifier(catalogue, pids=pids, cgroup=cgroup, unit=unit)
    for line in lines:
        classifier.feed(line)
    return classifier.verdict(exit_state, requested)


# Classes that this module names itself; a test holds them to be in the catalogue.
KEEP_ALIVE = "keep-alive-503"
EXTERNAL_STOP = "external-sigterm"
INIT_STOP_HANG = "sigterm-during-init-hang"
REQUESTED_STOP = "requested-stop"
STOP_ABORT = "sigterm-abort"
STOP_TIMED_OUT = "stop-timed-out"
STOP_WITH_TRACE = "sigterm-abort-with-enginedead-trace"
EXIT_CLASSES = (
    "kernel-oom-kill",
    "start-timed-out",
    "exec-failed",
    "external-sigterm",
    "main-process-killed",
    "main-process-crashed",
    "start-failed-unexplained",
    "exit-without-a-line",
)
_HARMLESS_ORDER = (
    "prompt-echo-injection",
    "request-validation-error",
    "request-grammar-error",
    "request-param-error",
    "client-disconnect",
    "nv-err-no-memory",
    "xid-note",
    "boot-progress",
    "exit-noise",
    "steady-state-stats",
    "autotune-noise",
)
_COMPILERS = frozenset({"cicc", "cc1plus", "ptxas", "nvcc", "ninja", "cudafe++", "nvlink"})
_FOREIGN_UNITS = ("user@", "session-", "systemd-", "user-runtime-dir@", "getty@", "cron", "apt-")
_WHAT = {
    Label.FATAL_RUNTIME: "The engine died",
    Label.FATAL_INIT: "The start failed",
    Label.HANG: "The engine does not move",
    Label.CLEAN_STOP: "The engine was stopped",
    Label.BENIGN: "Nothing ended",
}
_SYSTEMD_SETUP_FAILED = range(200, 244)  # systemd.exec(5), "Process Exit Codes": before the command


def _succeeded(exit_state: ExitState) -> bool:
    return exit_state.code == "exited" and exit_state.status == "0"


def _class_of_exit(exit_state: ExitState, *, starting: bool) -> str:
    result, code, status = exit_state
    if result == "oom-kill":
        return "kernel-oom-kill"
    if result == "timeout":
        return "start-timed-out"
    if result in ("resources", "exec-condition"):
        return "exec-failed"
    if code in ("killed", "dumped"):
        if status in ("TERM", "INT", "HUP", "15", "2", "1"):
            return "external-sigterm"
        return "main-process-killed" if status in ("KILL", "9") else "main-process-crashed"
    if status.isdigit() and (int(status) in _SYSTEMD_SETUP_FAILED or int(status) in (126, 127)):
        return "exec-failed"
    return "start-failed-unexplained" if starting else "exit-without-a-line"


def _exit_from_journal(life: _Life) -> ExitState | None:
    if not life.exit_result and not life.exit_code:
        return None
    number, _, name = life.exit_status.partition("/")
    status = name if life.exit_code in ("killed", "dumped") and name else number
    result = life.exit_result or {"exited": "exit-code", "killed": "signal"}.get(
        life.exit_code, "core-dump"
    )
    if result == "success" and not life.exit_code:
        return ExitState("success", "exited", "0")
    return ExitState(result, life.exit_code, status)


def _verdict(label: Label, cls: Class, seen: _Seen | None, reason: str) -> Verdict:
    return Verdict(
        label.value,
        cls.name,
        seen.match.signature.id if seen else "",
        seen.match.line.raw if seen else "",
        cls.answer,
        cls.hint,
        reason,
        seen.position if seen else 0,
    )


def is_engine_process(line: Line) -> bool:
    """Tell whether `line` is a record of one of vLLM's own processes."""
    return bool(line.level) and bool(process_kind(line.process))
