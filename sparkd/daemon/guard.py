# SPDX-License-Identifier: Apache-2.0
"""The storm guard and the memory guard: one thread of their own.

They must act while the rest of the daemon may be waiting for a systemd or a journald that has no
memory to answer. So this thread asks nobody: it reads /proc, sends signals and writes to /run. What
it has to say and what needs systemd is handed to others.

At rest it wakes once a second and reads two lines of /proc. While compilers run or memory is short
it looks five times a second; a PSI trigger wakes it at once.
"""

import os
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sparkd.adapters import host, journal, pressure, proc, start_hold
from sparkd.adapters.compilers import Compilers
from sparkd.adapters.freezer import Freezer
from sparkd.adapters.kernel_log import REFUSED, KernelLog
from sparkd.core import events, guards, memory_guard, storm
from sparkd.core.config_model import Config
from sparkd.core.events import Event
from sparkd.core.guards import Episode, GuardFacts
from sparkd.core.memory_guard import Life, Step
from sparkd.core.storm import Compiler
from sparkd.daemon import log

REST_S = 1.0
OFF_S = 30.0
"""With both guards off compilers are only counted."""
BUSY_S = 0.2
ALERT_S = 10.0
"""How long a trigger keeps the guard awake."""
OVER_S = 5.0
"""A storm is over when no compiler was seen for so long."""
REFRESH_S = 10.0
"""How often a hold of starts is said again; it expires by itself."""
KILLERS_S = 300.0
KILLERS = frozenset({"earlyoom", "systemd-oomd", "nohang", "oomd"})
SILENT_S = OFF_S + 15.0
"""A guard that has not looked for so long is stuck."""


class Settings(NamedTuple):
    """What the configuration says, with sizes in bytes of this machine."""

    storm: storm.Mode
    memory: memory_guard.Policy
    max_jobs: int
    job_memory: int


def settings(config: Config | None, memory_total: int) -> Settings:
    """From the configuration; the defaults where there is none."""
    if config is None:
        floor = memory_total * 6 // 100
        memory = memory_guard.Policy(memory_guard.Mode.PROTECT, floor)
        return Settings(storm.Mode.THROTTLE, memory, 4, 4 << 30)
    policy = config.host.guards
    return Settings(
        policy.storm,
        memory_guard.Policy(policy.memory, policy.floor.of(memory_total)),
        config.host.compile.max_jobs,
        policy.job_memory.of(memory_total),
    )


class Hands(NamedTuple):
    """What the guard has others do; each returns at once."""

    end: Callable[[Life, str], None]
    """End one, for this reason."""
    tell: Callable[[Event, str, str, dict[str, str]], None]
    """Write an entry: kind, sentence, priority, more fields."""


class Guard:
    """Both guards."""

    def __init__(self, hands: Hands, run: str = "/run/sparkd") -> None:
        self._hands = hands
        self._run = run
        self._freezer = Freezer(run)
        self._compilers = Compilers()
        self._settings = settings(None, proc.memory().total)
        self._lives: Sequence[Life] = ()
        self._storm = storm.State()
        self._memory = memory_guard.State()
        self._episode: Episode | None = None
        self._said = ""
        self._step_reason = ""
        self._held_at = 0.0
        self._cannot_hold = False
        self._last_compiler = 0.0
        self._killers: tuple[str, ...] = ()
        self._killers_at = 0.0
        self._freezes = 0
        self._steps: Counter[str] = Counter()
        self._facts = GuardFacts()
        self._alert_until = 0.0
        self._looked = time.monotonic()
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._trigger = pressure.open_trigger()
        self._kernel = _kernel_log()
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        if self._trigger is not None:
            self._poll.register(self._trigger, select.POLLPRI)
        self._thread = threading.Thread(target=self._live, name="guard", daemon=True)

    # what the loop uses

    def start(self) -> None:
        """Begin; what an earlier daemon has left frozen goes on first."""
        self._freezer.thaw_all()
        self._hold_starts("")
        self._thread.start()

    def configure(self, chosen: Settings) -> None:
        """Obey these settings from the next look on."""
        self._settings = chosen
        os.eventfd_write(self._wake, 1)

    def see(self, lives: Sequence[Life]) -> None:
        """These engines and guests are there, and could be ended; none before the first call."""
        self._lives = lives

    def close(self, patience_s: float) -> None:
        """Let everything go on and end."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join(patience_s)

    @property
    def facts(self) -> GuardFacts:
        """What is to be shown."""
        return self._facts

    @property
    def is_well(self) -> bool:
        """Whether it has looked lately."""
        return time.monotonic() - self._looked < SILENT_S

    # the thread

    def _live(self) -> None:
        while not self._closing:
            wait = REST_S
            try:
                wait = self._look()
            except Exception:  # noqa: BLE001  (said with its trace; nothing may stay frozen)
                log.exception("the guard failed, and lets every compiler go on")
                self._let_go()
            for fd, _ in self._poll.poll(wait * 1000):
                if fd == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    self._alert_until = time.monotonic() + ALERT_S
        self._let_go()

    def _let_go(self) -> None:
        self._freezer.thaw_all()
        self._storm = storm.State()
        self._hold_starts("")
        self._memory = memory_guard.State()

    def _look(self) -> float:
        """Look and act; returns how long to rest."""
        now = self._looked = time.monotonic()
        chosen = self._settings
        available = proc.memory().available
        compilers = self._compilers.look()
        self._guard_memory(chosen, available, now)
        self._guard_storm(chosen, compilers, available, now)
        self._look_for_killers(now)
        self._publish(chosen, compilers)
        if chosen.storm is storm.Mode.OFF and chosen.memory.mode is memory_guard.Mode.OFF:
            return OFF_S
        # A start is where storms come from: within a second 20 compilers would have grown.
        starts = any(life.starting for life in self._lives)
        alert = now < self._alert_until or not self._memory.quiet
        return BUSY_S if starts or alert or self._compilers.building else REST_S

    # compilers

    def _guard_storm(
        self, chosen: Settings, compilers: Sequence[Compiler], available: int, now: float
    ) -> None:
        policy = storm.Policy(
            chosen.max_jobs,
            chosen.job_memory,
            available - chosen.memory.floor,
            self._memory.throttled and chosen.memory.mode is not memory_guard.Mode.OBSERVE,
        )
        match chosen.storm:
            case storm.Mode.OFF:
                if self._storm.frozen:
                    self._let_go()
                self._said = ""
                return
            case storm.Mode.OBSERVE:
                if self._storm.frozen:
                    self._let_go()
                decision = storm.decide(storm.State(), compilers, policy, now)
                self._said = ""
            case storm.Mode.THROTTLE:
                decision = storm.decide(self._storm, compilers, policy, now)
                self._carry_out(decision)
                self._said = decision.reason
        observed = chosen.storm is storm.Mode.OBSERVE
        self._follow(decision, compilers, available, now, observed=observed)

    def _carry_out(self, decision: storm.Decision) -> None:
        for compiler in decision.thaw:
            self._freezer.thaw(compiler.key)
        for compiler in decision.freeze:
            self._freezes += self._freezer.freeze(compiler.key)
        for key in self._storm.frozen.keys() - decision.state.frozen.keys():
            self._freezer.thaw(key)  # it has ended: only its record is left
        self._storm = decision.state

    def _follow(
        self,
        decision: storm.Decision,
        compilers: Sequence[Compiler],
        available: int,
        now: float,
        *,
        observed: bool,
    ) -> None:
        """Say when a storm begins and what it was when it is over."""
        if compilers:
            self._last_compiler = now
        if self._episode is None and decision.reason:
            self._episode = Episode(now)
            who = guards.owners_text(guards.owners(compilers))
            does = "would be frozen (storm.mode is observe)" if observed else "are frozen"
            text = f"{decision.reason}; {who}; the younger ones {does} until it is their turn"
            self._hands.tell(Event.STORM, text, journal.Priority.WARNING, {})
        if self._episode is None:
            return
        if compilers:
            self._episode = guards.widen(self._episode, compilers, decision.state, available)
        elif now - self._last_compiler > OVER_S:
            text = guards.summary(self._episode, self._last_compiler)
            self._episode = None
            self._hands.tell(Event.STORM_OVER, text, journal.Priority.NOTICE, {})

    # memory

    def _guard_memory(self, chosen: Settings, available: int, now: float) -> None:
        refused = self._kernel is not None and self._kernel.says(REFUSED)
        near = available < 2 * chosen.memory.floor or now < self._alert_until
        stall = (host.pressure_full_avg10() or 0.0) if near or not self._memory.quiet else 0.0
        sample = memory_guard.Sample(now, available, stall, refused)
        lives = () if self._memory.quiet and not near else self._lives
        decision = memory_guard.decide(self._memory, sample, lives, chosen.memory)
        was_holding, self._memory = self._memory.holding, decision.state
        acts = chosen.memory.mode is not memory_guard.Mode.OBSERVE
        if decision.step is not None:
            self._take_step(decision, acts=acts)
        if self._memory.holding and acts:
            if now - self._held_at >= REFRESH_S:
                self._held_at = now
                self._hold_starts(f"memory is short: {self._step_reason}")
        elif was_holding:
            self._hold_starts("")
            self._held_at = 0.0

    def _hold_starts(self, reason: str) -> None:
        """Hold every start for this reason, or none for ''.

        A /run that cannot be written is said once and costs only the hold: the guard's other steps
        need no file.
        """
        try:
            if reason:
                start_hold.write(reason, self._run)
            else:
                start_hold.drop(self._run)
        except OSError as error:
            if not self._cannot_hold:
                log.warning(f"cannot change whether starts are held in {self._run}: {error}")
            self._cannot_hold = True
        else:
            self._cannot_hold = False

    def _take_step(self, decision: memory_guard.Decision, *, acts: bool) -> None:
        step = decision.step
        assert step is not None  # noqa: S101  (for the type checker)
        self._step_reason = "" if step is Step.RELAX else decision.reason
        if acts:
            self._steps[step] += 1
        if acts and decision.victim is not None:
            self._hands.end(decision.victim, decision.reason)
        text = decision.reason if acts else f"{decision.reason} (memory.mode is observe: not done)"
        fields = {"SPARKD_STEP": step.value}
        if decision.victim is not None:
            fields[events.UNIT] = decision.victim.unit
            fields[events.ENGINE] = decision.victim.name
            fields[events.INVOCATION_ID] = decision.victim.invocation_id
        mild = step is Step.RELAX
        priority = journal.Priority.NOTICE if mild else journal.Priority.ERROR
        self._hands.tell(Event.MEMORY_GUARD, text, priority, fields)

    def _look_for_killers(self, now: float) -> None:
        if now < self._killers_at:
            return
        self._killers_at = now + KILLERS_S
        self._killers = tuple(sorted(set(host.named(KILLERS).values())))

    def _publish(self, chosen: Settings, compilers: Sequence[Compiler]) -> None:
        running, frozen, paused = guards.count(compilers, self._storm.frozen)
        self._facts = GuardFacts(
            storm_mode=chosen.storm,
            memory_mode=chosen.memory.mode,
            running=running,
            frozen=frozen,
            paused=paused,
            resident=sum(c.rss for c in compilers),
            owners=guards.owners(compilers),
            storm=self._said,
            memory=self._step_reason,
            holding=self._memory.holding,
            freezes=self._freezes,
            steps=tuple(sorted(self._steps.items())),
            killers=self._killers,
        )


def _kernel_log() -> KernelLog | None:
    try:
        return KernelLog()
    except OSError as error:
        log.warning(f"cannot read the kernel's lines: {error}")
        return None
