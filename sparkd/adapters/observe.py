# SPDX-License-Identifier: Apache-2.0
"""Gathers the facts that a status is made of. It decides nothing: `core.status.build` does.

The daemon keeps one observer and has it re-read what a signal named; sparkctl, while there is no
daemon, makes one and looks once. What cannot be seen keeps its last known value and is marked so.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from sparkd import __version__
from sparkd.adapters import clock, guests
from sparkd.adapters.config_view import ConfigView, View
from sparkd.adapters.host import Host
from sparkd.adapters.service_manager import BusError, Viewer
from sparkd.adapters.state_files import StateFiles
from sparkd.core.burst import Policy
from sparkd.core.config_model import RestartPolicy
from sparkd.core.end_of_life import Record
from sparkd.core.guards import GuardFacts
from sparkd.core.schema import ENGINE_NAME
from sparkd.core.slot import Claim, Phase, Waiter
from sparkd.core.status import Boot, EngineFacts, Facts, GuestFacts
from sparkd.core.unit_state import UnitFacts, engine_of, unit_of

DEFAULT_RESTART = RestartPolicy(burst=3, window_seconds=3600, delay_seconds=5)
"""Shown while there has never been a good configuration; the units carry their own."""


class History(NamedTuple):
    """What is remembered of earlier lives, by engine."""

    deaths: Mapping[str, Record]
    boots: Mapping[str, Boot]


NO_HISTORY = History({}, {})


class Observer:
    """The state of the host as last seen."""

    def __init__(
        self,
        viewer: Viewer,
        config: ConfigView,
        files: StateFiles,
        *,
        daemon: str,
    ) -> None:
        self._viewer = viewer
        self._config = config
        self._files = files
        self._daemon = daemon
        self._host = Host()
        self._units: dict[str, UnitFacts] = {}
        self._claim: tuple[Claim | None, Phase | None] = (None, None)
        self._stale: set[str] = set()
        self._everything_stale = True
        self._loaded: list[str] = []
        self._view = config.look()
        self._blind = ""
        self._seen_at = 0.0

    def ask_guards(self, ask: Callable[[], GuardFacts]) -> None:
        """Take what is said of compilers from the guards from now on."""
        self._host.ask_guards(ask)

    @property
    def blind(self) -> str:
        """Why systemd could not be seen at the last look; '' when it could."""
        return self._blind

    def mark(self, unit: str) -> None:
        """This unit may have changed."""
        self._stale.add(unit)

    def mark_everything(self) -> None:
        """Anything may have changed."""
        self._everything_stale = True

    @property
    def has_news(self) -> bool:
        """Whether something was marked since the last look, and systemd could be seen then."""
        return bool(self._stale or self._everything_stale) and not self._blind

    def unit(self, name: str) -> UnitFacts | None:
        """A unit as last seen."""
        return self._units.get(name)

    def look(self) -> None:
        """Read again what was marked. The first question without an answer ends the look."""
        self._view = self._config.look()
        try:
            if self._everything_stale:
                self._loaded = self._viewer.loaded_engine_units()
            known = set(map(unit_of, self.names()))
            stale = known if self._everything_stale else self._stale | (known - self._units.keys())
            fresh = {unit: self._viewer.unit(unit) for unit in sorted(stale & known)}
            self._look_at_slot(fresh)
        except BusError as error:
            self._blind = str(error)
            self._everything_stale = True
            return
        seen = {**self._units, **fresh}
        self._units = {unit: facts for unit, facts in seen.items() if unit in known}
        self._stale.clear()
        self._everything_stale = False
        self._blind = ""
        self._seen_at = clock.moment().wall

    def _look_at_slot(self, fresh: Mapping[str, UnitFacts]) -> None:
        """The claim, and what systemd says of its unit, which need not be one of the engines."""
        claim = self._files.claim()
        if claim is None:
            self._claim = (None, None)
            return
        unit = fresh.get(claim.unit) or self._units.get(claim.unit)
        unit = unit or self._viewer.unit(claim.unit)
        phase = Phase(unit.invocation_id, unit.sub_state)
        if guests.is_guest(claim.unit):
            phase = guests.claim_phase(claim.unit, phase)
        self._claim = (claim, phase)

    def names(self) -> list[str]:
        """Every engine: configured, with a unit of ours, or loaded under an engine's name."""
        known = self._view.names()
        loaded = (engine_of(unit) for unit in self._loaded)
        strangers = sorted(n for n in loaded if n not in known and ENGINE_NAME.match(n))
        return [*known, *strangers]

    def view(self) -> View:
        """The configuration and the unit files, as of the last look."""
        return self._view

    def facts(self, history: History) -> Facts:
        """Everything, as of the last look; memory and the ledgers as of now."""
        view = self._view
        restart = DEFAULT_RESTART if view.config is None else view.config.host.restart
        claim, phase = self._claim
        if claim is not None and phase is not None and guests.is_guest(claim.unit):
            # It becomes ready without a signal of systemd's.
            phase = guests.claim_phase(claim.unit, phase)
        waiters = [w for w in self._files.waiters() if guests.may_wait(w)]
        names = self.names()
        return Facts(
            version=__version__,
            daemon=self._daemon,
            now=clock.moment(),
            host=self._host.sample(),
            engines=[self._engine(name, view, history) for name in names],
            policy=Policy(restart.burst, restart.window_seconds),
            claim=claim,
            claim_phase=None if self._blind else phase,
            waiters=waiters,
            guests=[*_guests(), *_waiting_guests(waiters)],
            blind=self._blind,
            seen_at=self._seen_at,
            config_errors=view.errors,
        )

    def _engine(self, name: str, view: View, history: History) -> EngineFacts:
        config = view.engine(name)
        unit = self._units.get(unit_of(name))
        running = None
        if unit is not None and unit.active_state in {"active", "reloading", "activating"}:
            running = self._files.launch_hash(unit.unit, unit.invocation_id)
        return EngineFacts(
            name=name,
            unit=unit,
            ledger=self._files.ledger(name),
            config=view.facts(name, running),
            port=None if config is None else config.port,
            model=None if config is None else config.model,
            last=history.deaths.get(name),
            boot=history.boots.get(name),
        )


def _guests() -> list[GuestFacts]:
    """Every guest that lives, for the status."""
    return [
        GuestFacts(
            guest.unit, "ready" if guests.is_ready(guest) else "starting",
            guest.invocation_id, guest.pid, guest.user, guest.command, guest.port, guest.peak,
            guest.since,
        )
        for guest in guests.all_noted()
        if guests.is_alive(guest)
    ]  # fmt: skip


def _waiting_guests(waiters: Sequence[Waiter]) -> list[GuestFacts]:
    """Every launch by hand that waits for the slot, for the status."""
    found = []
    for waiter in waiters:
        if guests.is_guest(waiter.unit):
            pid = int(waiter.invocation_id.partition(":")[0])
            reason = waiter.blocked or "waiting for the start slot"
            found.append(GuestFacts(waiter.unit, "waiting", pid=pid, reason=reason))
    return found
