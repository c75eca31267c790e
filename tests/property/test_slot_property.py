# SPDX-License-Identifier: Apache-2.0
"""The start slot under any interleaving: a model of systemd, the two files, and N units.

The model knows the truth; `decide` sees it only through the files and through a systemd that
answers about some units and not about others. It is a model of the helper's protocol, not of
systemd: that systemd reports SubState and InvocationID as assumed here is tested on a real one.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sparkd.core import slot
from sparkd.core.slot import Claim, Phase, Waiter

UNITS = tuple(f"vllm-{name}.service" for name in "abcd")
ORDER = {UNITS[0]: 10, UNITS[1]: 10, UNITS[2]: 5, UNITS[3]: 50}
AFTER = {"start-pre": "start", "start": "start-post", "start-post": "running"}
GONE = ("failed", "auto-restart", "stop-post", "dead")
STARTING = {"start-pre", "start", "start-post"}
units = st.sampled_from(UNITS)
OBSTACLES = st.sampled_from(["", "", "waiting: the port is held"])


class Unit:
    def __init__(self):
        self.invocation = ""
        self.state = "dead"
        self.admitted = False  # await-slot has returned 0 in this invocation
        self.blocked = ""
        self.since = 0.0


class StartSlot(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.units = {unit: Unit() for unit in UNITS}
        self.claim: Claim | None = None
        self.waiting: dict[str, Waiter] = {}
        self.clock = 0.0
        self.starts = 0

    # what systemd and the engines do

    @rule(unit=units, blocked=OBSTACLES)
    def start(self, unit, blocked):
        it = self.units[unit]
        if it.state in STARTING | {"running"}:
            return
        self.starts += 1
        it.invocation, it.state, it.admitted = f"i{self.starts}", "start-pre", False
        it.since = self.clock = self.clock + 1.0
        it.blocked = blocked

    @rule()
    def get_on(self):
        for it in self.units.values():
            if it.admitted and it.state in AFTER:
                it.state = AFTER[it.state]

    @rule(unit=units, state=st.sampled_from(GONE))
    def die_or_be_killed(self, unit, state):
        """At any phase and with whatever it has left in the files."""
        self.units[unit].state = state

    @rule(unit=units, blocked=OBSTACLES)
    def see_an_obstacle(self, unit, blocked):
        self.units[unit].blocked = blocked

    @rule()
    def lose_the_files(self):
        """Somebody tidied /run/sparkd/waiting. (The claim itself is not anybody's to delete.)"""
        self.waiting.clear()

    # what await-slot does, under its lock

    def phase(self, unit):
        return Phase(self.units[unit].invocation, self.units[unit].state)

    def waits(self, unit):
        it = self.units[unit]
        return it.state == "start-pre" and not it.admitted

    @rule(unit=units, seen=st.frozensets(units))
    def await_slot_looks(self, unit, seen):
        self.look(unit, seen)

    @rule(order=st.permutations(UNITS))
    def everybody_looks(self, order):
        for unit in order:
            self.look(unit)

    def look(self, unit, seen=frozenset(UNITS)):
        it = self.units[unit]
        if not self.waits(unit):
            return None
        me = Waiter(unit, it.invocation, ORDER[unit], it.since, it.blocked)
        others = [
            (waiter, self.phase(waiter.unit) if waiter.unit in seen else None)
            for waiter in self.waiting.values()
            if waiter.unit != unit
        ]
        holder = self.claim.unit if self.claim else None
        decision = slot.decide(
            me, self.claim, self.phase(holder) if holder in seen else None, others
        )
        assert decision.reason
        if decision.take:
            self.goes_first(me)
            self.claim = Claim(unit, it.invocation)
            self.waiting.pop(unit, None)
            it.admitted = True
        else:
            self.waiting[unit] = me
        return decision

    def goes_first(self, me):
        """Whoever takes the slot, nobody who is known to wait has precedence."""
        assert not me.blocked
        for waiter in self.waiting.values():
            it = self.units[waiter.unit]
            if waiter.unit != me.unit and self.waits(waiter.unit) and not waiter.blocked:
                known = waiter.invocation_id == it.invocation
                assert not known or slot.precedence(me) < slot.precedence(waiter)

    # what must hold

    @invariant()
    def one_start_at_a_time(self):
        starting = [u for u, it in self.units.items() if it.admitted and it.state in STARTING]
        assert len(starting) <= 1, starting

    @precondition(lambda self: any(self.waits(unit) for unit in UNITS))
    @rule()
    def never_stuck(self):
        """Systemd visible, nobody starting, somebody free to go: within two looks one goes."""
        if any(it.admitted and it.state in STARTING for it in self.units.values()):
            return
        ready = [u for u in UNITS if self.waits(u) and not self.units[u].blocked]
        if not ready:
            return
        looks = [self.look(unit) for unit in (*UNITS, *UNITS)]
        assert any(decision and decision.take for decision in looks)


StartSlot.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestStartSlot = StartSlot.TestCase
