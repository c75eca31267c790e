# SPDX-License-Identifier: Apache-2.0
"""How did this engine end, or why does it not move? From lines and the exit state to a verdict.

The rules, in this order. A stop that was asked for makes every line a clean stop. A frame, that is
a record of the engine's own processes that only a death prints, declares a death; a weak frame does
so unless a stop explains it. Causes (tracebacks, C++ output, kernel lines) say why and never
declare by themselves. An exit that nobody asked for is a death even when no line tells of it. Only
then come stalls, and last what is harmless.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from sparkd.core import storm
from sparkd.core.exit_state import EXTERNAL_STOP, ExitState, class_of_exit, exit_from_journal
from sparkd.core.life import Life, Seen
from sparkd.core.lines import Line, Source, process_kind
from sparkd.core.signatures import Answer, Catalogue, Class, Label, Match, Role

__all__ = ["Classifier", "ExitState", "Verdict", "classify"]

CAUSE_WINDOW = 2000
"""Lines before a frame within which a cause still belongs to it (dumps of tensors lie between)."""
_UNHEALTHY_PROBES = 5  # an engine that died while idle answers about three before its server ends
_SOON_AFTER_READY = 200
# Somebody who looks at an engine from all sides, repeatedly, suspects it; scrapers ask one or two.
_PROBE_ROUNDS = 4
_PROBE_KINDS = 3
_DETAIL_CAP = 240
_EXCEPTION = re.compile(r" *(?:[\w.]{0,120}(?:Error|Exception): |Value error, )")

# Classes that this module names itself; a test holds them to be in the catalogue.
KEEP_ALIVE = "keep-alive-503"
ENGINE_DEAD = "engine-core-fatal"
FROZEN = "frozen-engine-health-200"
INIT_STOP_HANG = "sigterm-during-init-hang"
REQUESTED_STOP = "requested-stop"
STOP_ABORT = "sigterm-abort"
STOP_TIMED_OUT = "stop-timed-out"
STOP_WITH_TRACE = "sigterm-abort-with-enginedead-trace"
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
    "client-error",
    "autotune-noise",
)
_COMPILERS = storm.COMPILERS | storm.BUILDERS | {"nvcc"}
_FOREIGN_UNITS = ("user@", "session-", "systemd-", "user-runtime-dir@", "getty@", "cron", "apt-")
_WHAT = {
    Label.FATAL_RUNTIME: "The engine died",
    Label.FATAL_INIT: "The start failed",
    Label.HANG: "The engine does not move",
    Label.CLEAN_STOP: "The engine was stopped",
    Label.BENIGN: "Nothing ended",
}


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

    @property
    def summary(self) -> str:
        """What happened, for a sentence to a person who does not ask which rule said so."""
        if self.signature:
            return f"{_WHAT[Label(self.label)].lower()}: {self.cls.replace('-', ' ')}"
        return (self.reason[:1].lower() + self.reason[1:]).rstrip(".")


class Classifier:
    """The incremental form: feed lines as they come, ask for a verdict at any time.

    Memory is bounded whatever is fed: a fixed number of matches of each kind is kept.

    Args:
        catalogue: the signatures.
        pids: the engine's processes as the host numbers them, when known. Kernel lines about one
            process then count only if they name one of these or the control group.
        cgroup: the unit's control group (`/system.slice/vllm-x.service`), when known.
        unit: the unit's name, when known; systemd's lines about other units are then ignored.
        complete: the log is all there is and nobody watches the process, as with a file that an
            operator hands in. Then a process's last word, or a start's last error, with nothing
            behind it stands for the end that the log does not show.
        has_served: somebody saw that it was ready, though its log may not be read from its start.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        *,
        pids: frozenset[int] = frozenset(),
        cgroup: str = "",
        unit: str = "",
        complete: bool = False,
        has_served: bool = False,
    ) -> None:
        self._catalogue = catalogue
        self._pids = pids
        self._cgroup = cgroup.rstrip("/")
        self._unit = unit
        self._complete = complete
        self._has_served = has_served
        self._life = Life()
        self._previous: Verdict | None = None
        self._sequence = 0

    @property
    def ready(self) -> bool:
        """Whether the current life has served."""
        return self._life.ready is not None

    @property
    def exit_state(self) -> ExitState | None:
        """How the current life ended, as far as systemd's own lines tell."""
        return exit_from_journal(self._life.exit)

    def hint(self, cls: str) -> str:
        """What the operator should do about a class; '' for one that the catalogue lacks."""
        known = self._catalogue.classes.get(cls)
        return "" if known is None else known.hint

    def feed(self, line: Line, position: int = 0) -> Match | None:
        """Take one line; return the match that counts for the verdict, if any.

        Args:
            line: a framed line.
            position: the line's number in the caller's count, handed back in the verdict.
        """
        self._sequence += 1
        self._life.note_process(line)
        match = self._catalogue.match(line)
        if match is None or not self._credible(match):
            return None
        seen = Seen(match, self._sequence, position or self._sequence)
        if match.signature.role is Role.LIFE:
            self._begin(seen)
        self._life.take(seen)
        return match

    def verdict(
        self,
        exit_state: ExitState | None = None,
        requested: bool | None = None,  # noqa: FBT001  three states
    ) -> Verdict:
        """Return what the lines so far, and the exit if there was one, amount to.

        Args:
            exit_state: how the unit's main process ended; None while it lives or when unknown.
            requested: whether a stop had been asked for; None lets the log's own marks decide.
        """
        life = self._life
        exit_state = exit_state or self.exit_state
        if requested:
            return self._clean_stop(exit_state)
        frame = self._unexplained_frame()
        if frame:
            return self._conclude(self._best(frame), self._label_of(frame), frame)
        if life.stop_marks:
            if requested is None:
                return self._stopped(exit_state)
            return self._external_stop()
        unframed = self._death_without_frame(exit_state)
        if unframed:
            return self._conclude(unframed, self._label_of(unframed), unframed)
        return self._by_exit(exit_state) if exit_state else self._alive()

    def _begin(self, seen: Seen) -> None:
        """A new main process: what the old one left behind is a verdict of its own."""
        line, life = seen.match.line, self._life
        replaced = life.pids.get(line.process, line.pid) != line.pid
        if not life.ended and not replaced:
            return
        verdict = self.verdict()
        if life.ended and verdict.label != Label.BENIGN:
            self._previous = verdict
        self._life = Life()
        self._life.note_process(line)

    # -- whom a line concerns ---------------------------------------------------------------------

    def _credible(self, match: Match) -> bool:
        """Refuse what concerns another engine or unit, and what the line cannot truly be."""
        line, role = match.line, match.signature.role
        if line.source is Source.KERNEL:
            return role is not Role.KERNEL or self._concerns_us(match)
        if line.source is Source.SYSTEMD:
            return self._our_unit(line.message)
        if role is Role.FRAME and not line.level:
            return not self._life.ready  # a command line is refused before there is a server
        if role in (Role.FRAME, Role.WEAK) and line.process:
            # A forged record names a pid that the process of that name never had.
            return self._life.pids.get(line.process, line.pid) == line.pid
        return True

    def _our_unit(self, message: str) -> bool:
        if self._unit:
            return self._unit in message or ".service" not in message
        return not any(message.startswith(name) or f" {name}" in message for name in _FOREIGN_UNITS)

    def is_ours(self, pid: int) -> bool:
        """Whether a process is one of the engine's, as far as is known or its log has told."""
        return pid in self._pids or pid in self._life.pids.values()

    def _concerns_us(self, match: Match) -> bool:
        groups = match.groups
        pid, task, cgroup = int(groups.get("pid", 0)), groups.get("task", ""), groups.get("cgroup")
        if not pid and not task:
            return True  # about the whole device
        if pid in self._pids:
            return True
        if self._cgroup and cgroup:
            return cgroup == self._cgroup or cgroup.startswith(self._cgroup + "/")
        if self._pids or self._cgroup:
            return False
        return self._looks_like_an_engine(pid, task, cgroup or "")

    def _looks_like_an_engine(self, pid: int, task: str, cgroup: str) -> bool:
        """For a log of unknown origin: vLLM's names, or a pid that the log's own records show."""
        if task.startswith(("VLLM::", "vllm")) or "vllm" in cgroup:
            return True
        pids = self._life.pids.values()
        return pid in pids or (bool(pids) and not cgroup and task in _COMPILERS)

    # -- deaths -----------------------------------------------------------------------------------

    def _unexplained_frame(self) -> Seen | None:
        """Return the first frame that no stop explains."""
        life = self._life
        stopped = life.stops[0].sequence if life.stops else None
        softly = life.first.get(Role.SOFT_STOP)
        late = [life.first.get(role) for role in (Role.LATE_STOP, Role.INTERRUPT)]
        for frame in life.frames:
            if stopped is not None and stopped < frame.sequence:
                return None
            if any(mark and mark.sequence < frame.sequence for mark in late):
                return None
            if frame.match.signature.role is Role.WEAK and (
                (softly and softly.sequence < frame.sequence)
                or any(mark and self._explained_later(frame, mark) for mark in late)
            ):
                continue
            return frame
        return None

    def _explained_later(self, frame: Seen, stop: Seen) -> bool:
        """A stop explains weak lines before it, unless something shows that they were earnest."""
        if any(frame.sequence < probe.sequence < stop.sequence for probe in self._life.unhealthy):
            return False
        return not (frame.match.signature.label is Label.FATAL_INIT and self._causes_of(frame))

    def _death_without_frame(self, exit_state: ExitState | None) -> Seen | None:
        """Return what stands for a death although no frame declares it."""
        life = self._life
        attested = [seen for seen in life.causes if seen.match.signature.role is Role.KERNEL]
        if not exit_state:
            # A compiler that the kernel killed ends a build, not yet an engine.
            attested = [s for s in attested if s.match.groups.get("task") not in _COMPILERS]
        if attested:
            return self._most_telling(attested)
        crash = life.first.get(Role.CRASH)
        if crash and (exit_state or (self._complete and crash.sequence > life.moved_at)):
            return crash
        if len(life.unhealthy) >= _UNHEALTHY_PROBES and not life.down:
            return life.unhealthy[0]
        if exit_state:
            recent = [s for s in life.causes if s.sequence >= self._sequence - CAUSE_WINDOW]
            return self._most_telling(recent) if recent else None
        return self._last_error() if self._complete else None

    def _last_error(self) -> Seen | None:
        """Return why a complete log ends, if an error of the engine is the last it tells."""
        last = [s for s in self._life.causes if s.sequence > self._life.moved_at]
        errors = [seen for seen in last if self._is_earnest(seen)]
        return self._most_telling(errors) if errors else None

    def _is_earnest(self, seen: Seen) -> bool:
        """An error that the engine's processes log themselves, or an exception during the start."""
        line = seen.match.line
        if line.level and process_kind(line.process) in ("EngineCore", "Worker"):
            return True
        if self._life.ready or self._class(seen).label is not Label.FATAL_INIT:
            return False
        return bool(line.level or _EXCEPTION.match(line.message))

    def _label_of(self, seen: Seen) -> Label:
        """A start that was never ready failed; an engine that was ready died."""
        if self._life.starting:
            return Label.FATAL_INIT
        if self._life.ready:
            return Label.FATAL_RUNTIME
        label = self._class(seen).label
        return Label.FATAL_RUNTIME if label is Label.BENIGN else label

    def _best(self, frame: Seen) -> Seen:
        """Return the most telling match: the first cause, unless a later one explains more."""
        crash = self._life.first.get(Role.CRASH)
        best = self._most_telling([frame, *self._life.frames, *([crash] if crash else [])])
        causes = self._causes_of(frame)
        for index, cause in enumerate(causes):
            if self._explains(cause, best):
                return self._most_telling(causes[index:])
        return best

    def _causes_of(self, frame: Seen) -> list[Seen]:
        oldest = frame.sequence - CAUSE_WINDOW
        return [cause for cause in self._life.causes if cause.sequence >= oldest]

    def _most_telling(self, ordered: list[Seen]) -> Seen:
        best = ordered[0]
        for other in ordered[1:]:
            if best.cls in self._class(other).refines:
                best = other
        return best

    def _explains(self, cause: Seen, frame: Seen) -> bool:
        """Engine text explains any frame; a kernel line only the frames that its class lists."""
        if cause.match.line.source is not Source.KERNEL:
            return True
        return frame.cls in self._class(cause).refines

    def _class(self, seen: Seen) -> Class:
        return self._catalogue.classes[seen.cls]

    def _conclude(self, best: Seen, label: Label, frame: Seen) -> Verdict:
        life, cls = self._life, self._class(best)
        if cls.after_stall and life.stalled_before:
            cls = self._catalogue.classes[cls.after_stall]
        keep_alive = self._catalogue.classes[KEEP_ALIVE]
        lingers = len(life.unhealthy) >= _UNHEALTHY_PROBES and not life.down
        if lingers and cls.name in keep_alive.refines:
            best, cls = life.unhealthy[0], keep_alive
        reason = f"{_WHAT[label]}: rule {best.match.signature.id} ({cls.name})"
        if frame.match.signature.id != best.match.signature.id:
            reason += f", declared by rule {frame.match.signature.id}"
        if life.detail and best.match.signature.role is not Role.CAUSE:
            reason += f"; {life.detail.match.line.message[:_DETAIL_CAP].rstrip('.')}"
        if life.ready and frame.sequence - life.ready.sequence <= _SOON_AFTER_READY:
            reason += f"; {frame.sequence - life.ready.sequence} lines after it became ready"
        if self._has_outlived(cls, best):
            reason += "; it had started well with the same files and flags, so it may try again"
            cls = cls._replace(answer=Answer.RETRY)
        return _verdict(label, cls, best, reason + ".")

    def _has_outlived(self, cls: Class, best: Seen) -> bool:
        """Whether a start has gone well that could not have, were this the whole truth.

        Much that tells of a bad flag or model during a start may be about one request later on (an
        adapter that is not there, tensors of one batch, a client's words in a traceback). Where it
        is true all the same the burst limit holds the engine. What the kernel says stands.
        """
        told_by_engine = best.match.line.source is not Source.KERNEL
        is_of_starts = cls.label is Label.FATAL_INIT and cls.answer.holds
        return (self.ready or self._has_served) and is_of_starts and told_by_engine

    def _by_exit(self, exit_state: ExitState) -> Verdict:
        life = self._life
        cls = self._catalogue.classes[class_of_exit(exit_state, starting=life.starting)]
        label = Label.FATAL_INIT if life.starting else cls.label
        how = f"{exit_state.code} {exit_state.status}".strip() or "no process was started"
        reason = (
            f"The unit ended ({how}, result {exit_state.result or 'unknown'}), nobody had asked for"
            " it, and no line of the log explains why"
        )
        if life.detail:
            reason += f"; the last exception was {life.detail.match.line.message[:_DETAIL_CAP]}"
        return _verdict(label, cls, life.detail, reason + ".")._replace(signature="")

    # -- stops ------------------------------------------------------------------------------------

    def _stopped(self, exit_state: ExitState | None) -> Verdict:
        """The log's own marks tell of a stop; has it come to its end?"""
        life = self._life
        interrupted = Role.INTERRUPT in life.first
        if exit_state is None and life.waiting and not interrupted:
            return self._stopping_hang(life.waiting)
        if exit_state is None and not life.server_stops and not life.ready and not life.down:
            return _verdict(
                Label.HANG,
                self._catalogue.classes[INIT_STOP_HANG],
                life.stop_marks[0],
                "EngineCore ended on a signal during the start and the server did not follow.",
            )
        return self._clean_stop(exit_state)

    def _stopping_hang(self, waiting: Seen) -> Verdict:
        return _verdict(
            Label.HANG,
            self._class(waiting),
            waiting,
            "The server was told to end and still waits for its clients at the end of the log.",
        )

    def _clean_stop(self, exit_state: ExitState | None) -> Verdict:
        life, classes = self._life, self._catalogue.classes
        marks = life.server_stops or life.stop_marks
        # The engine's own word says more about the manner of the stop than systemd's.
        own = [mark for mark in marks if mark.cls != REQUESTED_STOP] or marks
        best = self._most_telling(own) if own else None
        cls = self._class(best) if best else classes[REQUESTED_STOP]
        if exit_state and exit_state.result == "timeout":
            cls = classes[STOP_TIMED_OUT]
        elif cls.name == STOP_ABORT and any(f.cls == ENGINE_DEAD for f in life.frames):
            cls = classes[STOP_WITH_TRACE]
        told = f"rule {best.match.signature.id} tells of it" if best else "it was asked for"
        errors = ", and it explains the errors in the log" if life.frames else ""
        return _verdict(Label.CLEAN_STOP, cls, best, f"A clean stop: {told}{errors}.")

    def _external_stop(self) -> Verdict:
        mark = self._life.stop_marks[0]
        return _verdict(
            Label.FATAL_INIT if self._life.starting else Label.FATAL_RUNTIME,
            self._catalogue.classes[EXTERNAL_STOP],
            mark,
            f"Rule {mark.match.signature.id} shows that the engine was told to stop, and nobody"
            " asked systemd or sparkd for that.",
        )

    # -- still alive ------------------------------------------------------------------------------

    def _alive(self) -> Verdict:
        life = self._life
        if life.stall:
            reason = (
                f"Rule {life.stall.match.signature.id} saw no progress, and nothing moved since."
            )
            return _verdict(Label.HANG, self._class(life.stall), life.stall, reason)
        if life.waiting:
            return self._stopping_hang(life.waiting)
        if life.idle and sum(n >= _PROBE_ROUNDS for n in life.probes.values()) == _PROBE_KINDS:
            return _verdict(
                Label.HANG,
                self._catalogue.classes[FROZEN],
                life.idle,
                "Health, metrics and models were asked again and again since the engine's last stat"
                " line and no request was answered; an idle engine looks the same, so send one"
                " short request to tell.",
            )
        if self._previous:
            reason = self._previous.reason[:-1] + "; the engine was started again afterwards."
            return self._previous._replace(reason=reason)
        for seen in map(life.harmless.get, _HARMLESS_ORDER):
            if seen:
                reason = f"Nothing ended here; rule {seen.match.signature.id} explains the lines."
                return _verdict(Label.BENIGN, self._class(seen), seen, reason)
        return Verdict(
            Label.BENIGN.value,
            "",
            "",
            "",
            Answer.NONE,
            "Nothing to do.",
            "No line tells of an end.",
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
    complete: bool = False,
    has_served: bool = False,
) -> Verdict:
    """Return the verdict on one life of an engine; see `Classifier` for the arguments."""
    classifier = Classifier(
        catalogue, pids=pids, cgroup=cgroup, unit=unit, complete=complete, has_served=has_served
    )
    for line in lines:
        classifier.feed(line)
    return classifier.verdict(exit_state, requested)


def _verdict(label: Label, cls: Class, seen: Seen | None, reason: str) -> Verdict:
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
