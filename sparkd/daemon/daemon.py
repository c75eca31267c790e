# SPDX-License-Identifier: Apache-2.0
"""The daemon put together: one loop owns every part, in the order in which they come to life."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparkd import __version__
from sparkd.adapters import applying, database, journal, notify, proc
from sparkd.adapters.alert_post import Places as AlertPlaces
from sparkd.adapters.applying import Flags
from sparkd.adapters.bus_service import NameTakenError
from sparkd.adapters.config_files import CONFIG_DIRECTORY
from sparkd.adapters.config_view import ConfigView, Paths
from sparkd.adapters.database import Database, DatabaseError
from sparkd.adapters.metrics_server import ListenError, MetricsServer
from sparkd.adapters.observe import History, Observer
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.state_files import StateFiles
from sparkd.adapters.systemd_bus import JobResult
from sparkd.adapters.unit_files import UNIT_DIRECTORY, ApplyBusyError, ApplyError
from sparkd.core import events
from sparkd.core.config_model import ListenAddress
from sparkd.core.events import Event
from sparkd.core.memory_guard import Life
from sparkd.core.metrics import Alerts
from sparkd.core.projection import Entry
from sparkd.daemon import ending, log, recorder
from sparkd.daemon.alerter import Alerter
from sparkd.daemon.bus_link import BusLink, Ears
from sparkd.daemon.guard import Guard, Hands
from sparkd.daemon.guard import settings as guard_settings
from sparkd.daemon.loop import Loop
from sparkd.daemon.manager import Manager
from sparkd.daemon.orders import Orders
from sparkd.daemon.projector import Projector
from sparkd.daemon.supervisor import Supervisor
from sparkd.daemon.watching import Watcher
from sparkd.daemon.worker import Done, Results, Worker

DEFAULT_LISTEN = ListenAddress("127.0.0.1", 9837)
RESYNC_S = 60.0
"""Everything is read again so often, should a signal ever have been lost."""
GOODBYE_S = 5.0


class Places(NamedTuple):
    """Where everything is."""

    config: Path = CONFIG_DIRECTORY
    units: Path = UNIT_DIRECTORY
    database: str = database.PATH
    run: str = "/run/sparkd"
    state: str = "/var/lib/sparkd"


class StartError(Exception):
    """The daemon cannot start; the message says why and what to do."""


class Daemon:
    """Everything that runs in sparkd's process."""

    def __init__(self, places: Places) -> None:
        """Connect, take the bus name, and look at everything once.

        Raises:
            StartError: another sparkd owns the name, or the journal cannot be read.
            BusError: there is no bus or no systemd on it.
        """
        self._places = places
        self._loop = Loop(on_tick=self._on_tick, on_wake=self._on_wake)
        self._results = Results(self._loop.wake)
        self._storage = Worker("storage", self._results)
        self._hands = Worker("hands", self._results)
        self._post = Worker("post", self._results)
        self._resync_at = 0.0
        self._reload_asked = False
        self._leaving = False
        self._metrics: MetricsServer | None = None
        self._metrics_at: ListenAddress | None = None
        self._no_metrics = ""

        self._link = BusLink(self._loop)
        self._systemd = self._link.systemd
        self._database = _open_database(places.database)
        self._orders = Orders()
        files = StateFiles(places.run, places.state)
        paths = Paths(places.config, places.units)
        observer = Observer(self._systemd, ConfigView(paths), files, daemon="running")
        history = History(self._database.last_deaths(), self._database.last_boots())
        self._supervisor = Supervisor(observer, history)
        self._files = files
        self._guard = Guard(Hands(self._end, self._tell), places.run)
        observer.ask_guards(lambda: self._guard.facts)
        self._applies = applying.Places(
            paths, Path(places.state) / "revisions", Path(places.run) / "apply.lock",
            places.database,
        )  # fmt: skip
        alert_places = AlertPlaces(
            f"{places.state}/alerts.db", f"{places.run}/alerts.db", f"{places.run}/alerts.lock"
        )
        self._alerter = Alerter(self._database, self._post, alert_places)
        self._watcher = Watcher(
            self._supervisor, self._systemd, files, self._loop, self._results,
            state=Path(places.state),
        )  # fmt: skip
        self._supervisor.show_progress(self._watcher.shown)
        self._manager = Manager(
            self._supervisor, self._orders, self._systemd, files, self._database, self._alerter,
            places=self._applies, storage=self._storage, hands=self._hands,
            after_apply=self._after_apply, look=self._refresh,
        )  # fmt: skip

    def start(self) -> None:
        """Come to life: what can fail first, what others can see last.

        Raises:
            StartError: as the message says.
            BusError: systemd does not answer.
        """
        self._guard.start()
        ears = Ears(self._unit_changed, self._job_ended, self._everything_changed)
        try:
            self._link.open(ears, self._manager.handlers())
            self._projector = Projector(
                self._database, self._places.database, self._storage, self._loop,
                on_entries=self._supervisor.take_in, before_write=self._before_write,
            )  # fmt: skip
        except NameTakenError as error:
            raise StartError(f"another sparkd is running: {error}") from error
        except OSError as error:
            raise StartError(f"cannot read the journal: {error}") from error
        self._finish_interrupted_apply()
        self._configure_alerts()
        self._projector.pump()
        self._refresh()
        if self._supervisor.observer.blind:
            raise BusError(self._supervisor.observer.blind)
        self._configure_guard()
        self._serve_metrics()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.on_signal(number, self._leave)
        self._loop.on_signal(signal.SIGHUP, self._reload)

    def run(self) -> int:
        """Serve until told to leave."""
        log.info(f"sparkd {__version__} is up")
        notify.send("READY=1")
        code = self._loop.run()
        self._guard.close(GOODBYE_S)
        self._storage.close(GOODBYE_S)
        self._hands.close(GOODBYE_S)
        self._watcher.close()
        self._post.close(GOODBYE_S)
        if self._metrics is not None:
            self._metrics.close()
        self._database.close()
        return code

    # what happens

    def _on_tick(self) -> None:
        now = time.monotonic()
        if now >= self._resync_at:
            self._resync_at = now + RESYNC_S
            self._supervisor.observer.mark_everything()
        self._on_wake()
        # Last: a loop whose work fails every time is as dead as one that is stuck.
        if self._guard.is_well:
            notify.send("WATCHDOG=1")

    def _on_wake(self) -> None:
        self._results.deliver()
        self._projector.pump()
        self._refresh()
        look_up = self._supervisor.status.engine
        for unit in self._orders.settle(look_up, self._supervisor.last_death):
            self._manager.forget_failure(unit)

    def _refresh(self) -> None:
        figures, in_memory = self._alerter.figures, bool(self._alerter.trouble)
        self._supervisor.refresh(
            self._projector.totals,
            self._projector.dark,
            Alerts(figures.totals, figures.queued, in_memory),
            projection_failed=bool(self._projector.trouble),
            notes=self._notes(),
        )
        self._show_guard()
        self._watcher.adjust()
        self._alerter.watch(self._supervisor.status, self._storage)
        self._alerter.pump()

    def _notes(self) -> list[str]:
        """What does not work just now, for the status."""
        alerts = self._alerter.trouble
        notes = [
            self._projector.trouble,
            f"alerts are kept in memory only: {alerts}" if alerts else "",
            self._no_metrics,
        ]
        return [note for note in notes if note]

    def _configure_alerts(self) -> None:
        config = self._supervisor.observer.view().config
        self._alerter.configure(None if config is None else config.host.alerts)

    # what the guard has others do

    def _configure_guard(self) -> None:
        config = self._supervisor.observer.view().config
        self._guard.configure(guard_settings(config, proc.memory().total))

    def _show_guard(self) -> None:
        config = self._supervisor.observer.view().config
        orders = {} if config is None else {e.name: e.order for e in config.engines}
        self._guard.see(ending.lives(self._supervisor.status, orders))

    def _end(self, life: Life, reason: str) -> None:
        ending.end(self._files, life, reason)

    def _tell(self, event: Event, text: str, priority: str, fields: dict[str, str]) -> None:
        def write() -> None:
            journal.send(event, text, priority=priority, **{events.REASON: text, **fields})

        self._results.put(write)

    def _unit_changed(self, unit: str) -> None:
        self._supervisor.observer.mark(unit)
        self._loop.hurry()
        self._loop.wake()

    def _job_ended(self, job: JobResult) -> None:
        self._orders.job_ended(job)
        self._supervisor.observer.mark(job.unit)
        self._loop.wake()

    def _everything_changed(self) -> None:
        self._supervisor.observer.mark_everything()
        self._loop.wake()

    def _leave(self) -> None:
        if not self._leaving:
            self._leaving = True
            log.info("asked to leave; the engines stay")
            notify.send("STOPPING=1")
            self._loop.quit(0)

    # reloading and applying

    def _reload(self) -> None:
        """SIGHUP: apply the configuration; more of them meanwhile count as one more."""
        usec = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        flags = Flags()
        if self._manager.apply(flags, "systemctl reload", self._reloaded):
            notify.send("RELOADING=1", f"MONOTONIC_USEC={usec}")
        else:
            self._reload_asked = True

    def _reloaded(self, done: Done[dict[str, object]]) -> None:
        notify.send("READY=1")
        if done.error is not None:
            log.error(f"the configuration was not applied: {done.error}")
        elif done.value is not None:
            kinds = ("written", "removed", "refused", "pending")
            changed = {kind: done.value[kind] for kind in kinds if done.value[kind]}
            if changed:
                log.info("applied the configuration:", **changed)

    def _before_write(self, entries: Sequence[Entry]) -> None:
        """In the worker: what must be on disk before the journal's position moves."""
        self._alerter.take_in(entries)
        recorder.take_in(entries, self._applies.revisions)

    def _after_apply(self) -> None:
        self._supervisor.observer.mark_everything()
        self._refresh()
        self._configure_guard()
        self._configure_alerts()
        self._serve_metrics()
        if self._reload_asked:
            self._reload_asked = False
            self._reload()

    def _finish_interrupted_apply(self) -> None:
        try:
            if done := applying.repair(self._systemd, self._applies):
                log.warning(done)
        except (ApplyBusyError, ApplyError, BusError) as error:
            log.error(f"an interrupted apply is not finished: {error}")

    def _serve_metrics(self) -> None:
        """Listen where the configuration says; a broken one changes nothing."""
        config = self._supervisor.observer.view().config
        wanted = DEFAULT_LISTEN if config is None else config.host.metrics
        if wanted == self._metrics_at:
            return
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        try:
            # The configuration has refused another address unless metrics.allow-remote is set.
            server = MetricsServer(wanted.host, wanted.port, allow_remote=config is not None)
        except ListenError as error:
            self._no_metrics = f"no /metrics: {error}"
            log.error(self._no_metrics)
            return
        self._metrics, self._metrics_at, self._no_metrics = server, wanted, ""
        self._supervisor.publish_to(server.publish)


def _open_database(path: str) -> Database:
    """The database, or one in memory: supervision does not depend on a disk."""
    try:
        return database.open_database(path)
    except DatabaseError as error:
        log.error(f"incidents are kept in memory only: {error}")
        return database.open_in_memory(str(error))
