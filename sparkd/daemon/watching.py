# SPDX-License-Identifier: Apache-2.0
"""Watches engines that serve: is one dead inside, does one hang.

Everything that waits happens in threads (the journal, HTTP, ending); what they find comes back into
the loop, where the pure rules of `core.hang` and `core.lingering` decide. While systemd cannot be
seen nothing is judged.
"""

import contextlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import clock, engine_probe, journal
from sparkd.adapters.engine_log import EngineLog, News, Shelf
from sparkd.adapters.engine_probe import Engine, Sight
from sparkd.adapters.state_files import StateFiles
from sparkd.adapters.systemd_bus import Systemd
from sparkd.adapters.watch_files import WatchFiles
from sparkd.core import events, hang, lingering, progress, ranks
from sparkd.core.burst import Moment, seconds_text
from sparkd.core.config_model import EngineConfig, HangMode
from sparkd.core.hang import Canary, Look, Policy, Progress, Shown, Step
from sparkd.core.helper_options import API_KEY_VARIABLE
from sparkd.core.lingering import Health, Suspicion
from sparkd.core.status import EngineStatus
from sparkd.core.unit_state import State, unit_of
from sparkd.daemon import finishing, log
from sparkd.daemon.finishing import Target
from sparkd.daemon.loop import Loop
from sparkd.daemon.supervisor import Supervisor
from sparkd.daemon.worker import BusyError, Done, Results, Worker

HUNG = "frozen-engine-health-200"
"""The catalogue's class of an engine that does not move."""
BEAT_S = 5.0
LOOKS = 10
"""Looks at the counters in the time after which an engine counts as stalled,"""
LOOK_MAX_S = 30.0
"""and at least one in this: the server logs a line for each."""
LOOK_MIN_S = 0.5
GOODBYE_S = 1.0
SERVING = frozenset({State.READY, State.STALLED})


class Watch:
    """What is known of one invocation."""

    def __init__(self, name: str, invocation_id: str, pid: int) -> None:
        self.name = name
        self.invocation_id = invocation_id
        self.pid = pid
        self.log: EngineLog | None = None
        self.news = News()
        self.is_reading = False
        self.log_moved = False
        self.ranks: ranks.Ranks | None = None
        self.look_at = 0.0
        self.is_looking = False
        self.suspicion: Suspicion | None = None
        self.suspected = ""
        self.is_asking_health = False
        self.canary = Canary.NONE
        self.abort_fd = -1
        self.is_finished = False
        self.outcome = ""

    @property
    def progress(self) -> Progress | None:
        """Of the rank that is worst off."""
        return None if self.ranks is None else self.ranks.shown

    @property
    def trouble(self) -> str:
        """Why it does not count as serving; '' when it does."""
        stalled = self.progress is not None and self.progress.stalled_wall is not None
        text = self.suspected or (self.progress.reason if stalled and self.progress else "")
        return f"{text}; {self.outcome}" if text and self.outcome else text

    def cancel_canary(self) -> None:
        """Nobody waits for it any more."""
        if self.abort_fd >= 0:
            os.eventfd_write(self.abort_fd, 1)


class Sums(NamedTuple):
    """What an engine's earlier invocations add to its counters."""

    stalled_seconds: float = 0.0
    lines_dropped: int = 0


class Watcher:
    """Looks after every engine that serves."""

    def __init__(
        self,
        supervisor: Supervisor,
        systemd: Systemd,
        files: StateFiles,
        loop: Loop,
        results: Results,
        *,
        state: Path,
    ) -> None:
        self._supervisor = supervisor
        self._systemd = systemd
        self._files = files
        self._loop = loop
        self._results = results
        self._memory = WatchFiles(state / "watch")
        self._ears = Worker("journal", results)
        self._probes = Worker("probes", results)
        self._finisher = Worker("finishing", results)
        self._shelf = Shelf()
        self._pace = loop.every(self._beat)
        self._watches: dict[str, Watch] = {}
        self._sums: dict[str, Sums] = {}

    def shown(self) -> Mapping[str, Shown]:
        """What is shown of each engine that is watched."""
        found = {}
        for name, watch in self._watches.items():
            sums, state = self._sums.get(name, Sums()), watch.progress
            found[name] = Shown(
                last_progress=0.0 if state is None else state.moved_wall,
                stalled_since=None if state is None else state.stalled_wall,
                trouble=watch.trouble,
                stalled_seconds=sums.stalled_seconds
                + (0.0 if state is None else state.stalled_seconds),
                longest_stall=0.0 if state is None else state.longest,
                lines_dropped=sums.lines_dropped + watch.news.dropped,
                excuse="" if state is None else state.excuse,
            )
        return found

    def adjust(self) -> None:
        """Watch what serves now, and nothing else; call it when the status has changed."""
        status = self._supervisor.status
        if status.facts.blind:
            return
        serving = {engine.name: engine for engine in status.engines if _serves(engine)}
        for name, watch in [*self._watches.items()]:
            engine = serving.get(name)
            if engine is None or _invocation(engine) != watch.invocation_id:
                self._forget(watch)
        for name, engine in serving.items():
            if name not in self._watches:
                unit = engine.facts.unit
                pid = 0 if unit is None else unit.main_pid
                self._watches[name] = Watch(name, _invocation(engine), pid)
        beats = [min(BEAT_S, _interval(self._policy(name))) for name in self._watches]
        self._pace.set(min(beats, default=None))

    def close(self) -> None:
        """End the threads, without waiting long: nothing that they do now must be finished."""
        for watch in self._watches.values():
            watch.cancel_canary()
        for worker in (self._ears, self._probes, self._finisher):
            worker.close(GOODBYE_S)

    def _forget(self, watch: Watch) -> None:
        watch.cancel_canary()
        before, state = self._sums.get(watch.name, Sums()), watch.progress
        self._sums[watch.name] = Sums(
            before.stalled_seconds + (0.0 if state is None else state.stalled_seconds),
            before.lines_dropped + watch.news.dropped,
        )
        del self._watches[watch.name]

    def _beat(self) -> None:
        if self._supervisor.status.facts.blind:
            return
        now = clock.moment()
        for watch in self._watches.values():
            engine = self._supervisor.status.engine(watch.name)
            if engine is None or engine.facts.unit is None or engine.facts.unit.job_type:
                continue  # it is being stopped: whatever it does now is not judged
            self._read(watch)
            self._check_death(watch, now)
            self._check_progress(watch, now)

    def _is_current(self, watch: Watch) -> bool:
        return self._watches.get(watch.name) is watch

    # the log

    def _read(self, watch: Watch) -> None:
        if watch.is_reading:
            return

        def look() -> News:
            if watch.log is None:
                catalogue = self._shelf.catalogue()
                watch.log = EngineLog(watch.name, watch.invocation_id, watch.pid, catalogue)
            return watch.log.look()

        def read(done: Done[News]) -> None:
            watch.is_reading = False
            if done.value is None:
                log.warning(f"{watch.name}: cannot read its log: {done.error}")
                watch.log = None
                return
            watch.news = done.value
            watch.log_moved = watch.log_moved or done.value.moved

        with contextlib.suppress(BusyError):
            self._ears.submit(look, read)
            watch.is_reading = True

    # dead inside

    def _check_death(self, watch: Watch, now: Moment) -> None:
        if watch.is_finished:
            return
        decision = lingering.look(watch.suspicion, now.boottime, watch.news.fatal)
        watch.suspicion = decision.state
        if decision.reason != watch.suspected:
            watch.suspected = decision.reason
            self._loop.wake()
        if decision.ask and not watch.is_asking_health:
            self._ask_health(watch)
        if decision.end:
            news = watch.news
            self._finish(watch, news.cls, decision.reason, permanent=news.holds)

    def _ask_health(self, watch: Watch) -> None:
        engine = self._engine(watch)
        if engine is None:
            return

        def asked(done: Done[Health]) -> None:
            watch.is_asking_health = False
            if watch.suspicion is not None:
                at = clock.moment().boottime
                health = done.value or Health.UNKNOWN
                watch.suspicion = lingering.answered(watch.suspicion, at, health)

        with contextlib.suppress(BusyError):
            self._probes.submit(lambda: engine_probe.health(engine), asked)
            watch.is_asking_health = True

    # hanging

    def _check_progress(self, watch: Watch, now: Moment) -> None:
        policy = self._policy(watch.name)
        if policy is None or watch.is_looking or watch.is_finished or now.boottime < watch.look_at:
            return
        engine = self._engine(watch)
        if engine is None:
            return
        watch.look_at = now.boottime + _interval(policy)
        state = watch.progress
        for_compilers = state is not None and state.worked > 0

        def looked(done: Done[Sight]) -> None:
            watch.is_looking = False
            if self._is_current(watch) and not watch.is_finished:
                self._take(watch, done.value or Sight(), policy)

        with contextlib.suppress(BusyError):
            self._probes.submit(
                lambda: engine_probe.look(engine, watch.pid, for_compilers=for_compilers), looked
            )
            watch.is_looking = True

    def _take(self, watch: Watch, sight: Sight, policy: Policy) -> None:
        now = clock.moment()
        look = Look(
            now.boottime, now.wall, sight.counters, sight.silent, sight.compilers,
            watch.log_moved, watch.news.requests, watch.canary,
        )  # fmt: skip
        watch.log_moved = False
        if watch.canary is not Canary.OPEN:
            watch.canary = Canary.NONE
        if watch.ranks is None:
            watch.ranks = ranks.begin(look, longest=self._memory.longest(watch.name))
            return
        before = watch.ranks.shown
        watch.ranks, step = ranks.step(watch.ranks, look, policy)
        self._carry_out(watch, step, policy)
        if step.state.longest > before.longest:
            self._learn(watch.name, step.state.longest)

    def _carry_out(self, watch: Watch, step: Step, policy: Policy) -> None:
        if step.event is hang.Event.STALLED:
            self._tell(watch, events.Event.STALLED, step.state.reason)
        elif step.event is hang.Event.RECOVERED:
            text = f"moves again by itself after {seconds_text(step.lasted)} without progress"
            self._tell(watch, events.Event.RECOVERED, text, seconds=step.lasted)
        if step.event is not None:
            self._loop.wake()
        if step.ask:
            self._send_canary(watch, policy)
        if step.end:
            self._finish(watch, HUNG, step.state.reason, saves_evidence=True)

    def _send_canary(self, watch: Watch, policy: Policy) -> None:
        engine = self._engine(watch)
        if engine is None:
            return
        watch.canary = Canary.OPEN
        watch.abort_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        fd = watch.abort_fd
        rank = "" if watch.ranks is None else watch.ranks.asked

        def ask() -> None:
            try:
                became = engine_probe.one_token(
                    engine, limit_s=policy.after, abort_fd=fd, rank=rank
                )
            except OSError:
                became = Canary.INCONCLUSIVE
            self._results.put(lambda: answered(became))

        def answered(became: Canary) -> None:
            os.close(fd)
            watch.abort_fd = -1
            watch.canary = became
            watch.look_at = 0.0  # see at once what it changed

        # A thread of its own: it may be open for minutes.
        threading.Thread(target=ask, name="canary", daemon=True).start()

    def _learn(self, name: str, longest: float) -> None:
        def done(outcome: Done[None]) -> None:
            if outcome.error is not None:
                log.warning(f"{name}: cannot remember its longest stall: {outcome.error}")

        with contextlib.suppress(BusyError):
            self._finisher.submit(lambda: self._memory.remember(name, longest), done)

    # ending

    def _finish(
        self,
        watch: Watch,
        cls: str,
        reason: str,
        *,
        permanent: bool = False,
        saves_evidence: bool = False,
    ) -> None:
        if self._config(watch.name) is None:
            watch.is_finished = True
            watch.outcome = "its unit is not sparkd's, so it is left alone"
            return
        target = Target(watch.name, watch.invocation_id, cls, reason, permanent, saves_evidence)

        def done(outcome: Done[str]) -> None:
            if outcome.value is None:
                log.error(f"{watch.name}: cannot end it: {outcome.error}")
                watch.is_finished = False
                return
            watch.outcome = outcome.value
            log.info(f"{watch.name}: {outcome.value}")
            self._loop.wake()

        with contextlib.suppress(BusyError):
            self._finisher.submit(
                lambda: finishing.finish(self._systemd, self._files, target), done
            )
            watch.is_finished = True

    def _tell(
        self, watch: Watch, event: events.Event, reason: str, seconds: float | None = None
    ) -> None:
        record: dict[str, object] = {"reason": reason, "time": clock.moment().wall}
        if seconds is not None:
            record["seconds"] = round(seconds, 1)
        if watch.progress is not None and watch.progress.counters is not None:
            record["counters"] = progress.to_json(watch.progress.counters)
        journal.send(
            event,
            f"{watch.name}: {reason}",
            priority=journal.Priority.WARNING,
            **{
                events.ENGINE: watch.name,
                events.UNIT: unit_of(watch.name),
                events.INVOCATION_ID: watch.invocation_id,
                events.REASON: reason,
                events.RECORD: json.dumps(record),
            },
        )

    # what is configured

    def _config(self, name: str) -> EngineConfig | None:
        return self._supervisor.observer.view().engine(name)

    def _policy(self, name: str) -> Policy | None:
        """How it is watched; None for not at all. A stranger's engine is only observed."""
        config = self._config(name)
        if config is None:
            return Policy()
        wanted = config.hang
        if wanted.mode is HangMode.OFF:
            return None
        return Policy(
            act=wanted.mode is HangMode.ACT,
            after=float(wanted.after_seconds),
            act_after=float(wanted.act_after_seconds),
            canary=float(wanted.canary_seconds),
        )

    def _engine(self, watch: Watch) -> Engine | None:
        """Whom to ask: where it listens by its command line, else by the configuration."""
        config = self._config(watch.name)
        address = engine_probe.address_of(watch.pid)
        if address is None and config is not None:
            address = (config.probe_host, config.port)
        if address is None:
            return None
        if config is None:
            return Engine(*address)
        keys = [c.path for c in config.credentials if c.name == API_KEY_VARIABLE]
        return Engine(*address, keys[0] if keys else "", str(config.ready.warmup))


def _serves(engine: EngineStatus) -> bool:
    unit = engine.facts.unit
    return engine.state in SERVING and unit is not None and bool(unit.main_pid)


def _invocation(engine: EngineStatus) -> str:
    return "" if engine.facts.unit is None else engine.facts.unit.invocation_id


def _interval(policy: Policy | None) -> float:
    """Seconds between two looks at the counters."""
    if policy is None:
        return LOOK_MAX_S
    return min(LOOK_MAX_S, max(LOOK_MIN_S, policy.after / LOOKS))
