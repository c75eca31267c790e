# SPDX-License-Identifier: Apache-2.0
"""The methods of io.github.sparkd.Manager1: what each answers, when, and to whom."""

import json
import pwd
from collections.abc import Callable
from typing import Any

from sparkd.adapters import alert_post, alert_queue, applying, incident_lookup, operations
from sparkd.adapters.alert_post import Tried
from sparkd.adapters.alert_queue import Row
from sparkd.adapters.applying import Flags
from sparkd.adapters.bus_service import Call
from sparkd.adapters.database import Database, Detail, Incident
from sparkd.adapters.operations import Verb
from sparkd.adapters.service_manager import BusError, ServiceManager
from sparkd.adapters.state_files import StateFiles
from sparkd.adapters.unit_files import ApplyBusyError, ApplyError
from sparkd.core import status as core_status
from sparkd.core.bus_contract import APPLY_CONFIG, MANAGE_ENGINES
from sparkd.core.config import ConfigErrors
from sparkd.core.schema import ENGINE_NAME
from sparkd.daemon import log
from sparkd.daemon.alerter import Alerter
from sparkd.daemon.orders import Answer, Order, Orders
from sparkd.daemon.supervisor import Supervisor
from sparkd.daemon.worker import BusyError, Done, Worker

INCIDENTS_MAX = 1000


class Manager:
    """Answers calls; slow work goes to the workers, and its answer comes later."""

    def __init__(
        self,
        supervisor: Supervisor,
        orders: Orders,
        systemd: ServiceManager,
        files: StateFiles,
        database: Database,
        alerter: Alerter,
        *,
        places: applying.Places,
        storage: Worker,
        hands: Worker,
        after_apply: Callable[[], None],
        look: Callable[[], None],
    ) -> None:
        """`storage` owns the database; `hands` gives orders and writes units; `look` looks anew."""
        self._supervisor = supervisor
        self._orders = orders
        self._systemd = systemd
        self._files = files
        self._database = database
        self._alerter = alerter
        self._places = places
        self._storage = storage
        self._hands = hands
        self._after_apply = after_apply
        self._look = look
        self._applying = False

    def handlers(self) -> dict[str, Callable[[Call], None]]:
        """The methods by name."""
        return {
            "Status": self._status,
            "Incidents": self._incidents,
            "Incident": self._incident,
            "Alerts": self._alerts,
            "TestAlert": self._test_alert,
            "Start": lambda call: self._order(call, operations.START),
            "Stop": lambda call: self._order(call, operations.STOP),
            "Restart": lambda call: self._order(call, operations.RESTART),
            "Apply": self._apply,
        }

    # reading

    def _status(self, call: Call) -> None:
        if self._supervisor.observer.has_news:
            # systemd spoke before this question came, and the loop looks last: whoever asks when
            # `systemctl start` has returned must not be shown what was before.
            self._look()
        call.reply(_text(core_status.to_json(self._supervisor.status)))

    def _incidents(self, call: Call) -> None:
        limit, engine = call.arguments
        if engine and not ENGINE_NAME.match(engine):
            call.fail("NoSuchEngine", f"{engine!r} is no engine's name")
            return

        def answer(done: Done[list[Incident]]) -> None:
            if done.value is None:
                call.fail("Failed", f"cannot read the incidents: {done.error}")
            elif engine and not done.value and self._supervisor.status.engine(engine) is None:
                call.fail("NoSuchEngine", f"there is no engine {engine}")
            else:
                rows = [core_status.incident_json(*incident) for incident in done.value]
                call.reply(_text(rows))

        count = min(limit, INCIDENTS_MAX)
        self._submit(call, self._storage, lambda: self._database.incidents(count, engine), answer)

    def _incident(self, call: Call) -> None:
        (identity,) = call.arguments

        def answer(done: Done[list[Detail]]) -> None:
            if done.value is None:
                call.fail("Failed", f"cannot read the incidents: {done.error}")
            elif len(done.value) != 1:
                call.fail("NoSuchIncident", incident_lookup.refusal(identity, done.value))
            else:
                call.reply(_text(incident_lookup.to_json(done.value[0])))

        if not incident_lookup.is_id(identity):
            call.fail("NoSuchIncident", incident_lookup.refusal(identity, ()))
            return
        self._submit(call, self._storage, lambda: self._database.find(identity), answer)

    # alerts

    def _alerts(self, call: Call) -> None:
        (limit,) = call.arguments
        count = min(limit, INCIDENTS_MAX)

        def answer(done: Done[list[Row]]) -> None:
            if done.value is None:
                call.fail("Failed", f"cannot read the queue of alerts: {done.error}")
            else:
                call.reply(_text([alert_queue.to_json(row) for row in done.value]))

        self._submit(call, self._storage, lambda: self._alerter.rows(count), answer)

    def _test_alert(self, call: Call) -> None:
        def answer(done: Done[list[Tried]]) -> None:
            if done.value is None:
                call.fail("Failed", f"the test failed: {done.error}")
            else:
                call.reply(_text([tried.to_json() for tried in done.value]))

        def start(_uid: int) -> None:
            try:
                if not self._alerter.test(answer):
                    call.fail("Config", alert_post.NOBODY)
            except BusyError as error:
                call.fail("Busy", str(error))

        call.with_authorization(MANAGE_ENGINES, start)

    # orders about one engine

    def _order(self, call: Call, verb: Verb) -> None:
        engine, _wait = call.arguments
        if not ENGINE_NAME.match(engine):
            call.fail("NoSuchEngine", f"{engine!r} is no engine's name")
            return
        call.with_authorization(MANAGE_ENGINES, lambda uid: self._give(call, verb, uid))

    def _give(self, call: Call, verb: Verb, uid: int) -> None:
        engine, wait = call.arguments
        found = self._supervisor.status.engine(engine)
        if found is None:
            call.fail("NoSuchEngine", f"there is no engine {engine}")
            return
        unit = found.facts.unit
        if verb.releases and unit is not None and unit.load_state in {"not-found", "masked"}:
            call.fail("Failed", f"{engine}: {found.judgement.reason}")
            return
        if self._orders.is_full:
            call.fail("Busy", "too many orders are under way")
            return

        def given(done: Done[str]) -> None:
            if done.value is None:
                why = operations.describe_failure(done.error or BusError("no answer"))
                call.fail("Failed", f"{engine}: cannot {verb.name}: {why}")
                return
            answer = (lambda told: call.reply(_text(told._asdict()))) if wait else None
            self._orders.add(Order(verb.name, engine, done.value, answer))
            if not wait:
                reason = f"{verb.name} is queued"
                call.reply(_text(Answer(engine, "queued", reason, found.state)._asdict()))

        def give() -> str:
            return operations.operate(self._systemd, self._files, verb, engine, author(uid))

        self._submit(call, self._hands, give, given)

    def forget_failure(self, unit: str) -> None:
        """After a stop that was asked for: how the process took the signal is no failure."""

        def done(outcome: Done[None]) -> None:
            if outcome.error is not None:
                log.warning(f"cannot reset {unit}: {outcome.error}")

        try:
            self._hands.submit(lambda: self._systemd.reset_failed(unit), done)
        except BusyError:
            log.warning(f"too busy to reset {unit}")

    # the configuration

    def _apply(self, call: Call) -> None:
        flags = Flags(*call.arguments)

        def start(uid: int) -> None:
            def answer(done: Done[dict[str, object]]) -> None:
                if done.value is not None:
                    call.reply(_text(done.value))
                else:
                    call.fail(*_refusal(done.error))

            if not self.apply(flags, author(uid), answer):
                call.fail("Busy", "another apply is running")

        call.with_authorization(APPLY_CONFIG, start)

    def apply(
        self, flags: Flags, who: str, then: Callable[[Done[dict[str, object]]], None]
    ) -> bool:
        """Apply in the worker; False when an apply is already under way."""
        if self._applying:
            return False

        def done(outcome: Done[dict[str, object]]) -> None:
            self._applying = False
            self._after_apply()
            then(outcome)

        try:
            self._hands.submit(
                lambda: applying.apply(self._systemd, flags, who, self._places), done
            )
        except BusyError:
            return False
        self._applying = True
        return True

    def _submit(self, call: Call, worker: Worker, work: Any, then: Any) -> None:  # noqa: ANN401
        try:
            worker.submit(work, then)
        except BusyError as error:
            call.fail("Busy", str(error))


def author(uid: int) -> str:
    """Who gave an order, by name where the system knows one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _refusal(error: Exception | None) -> tuple[str, str]:
    """Error name and message of an apply that failed."""
    match error:
        case ConfigErrors():
            return "Config", str(error)
        case ApplyBusyError():
            return "Busy", str(error)
        case ApplyError() | BusError() | OSError():
            return "Failed", operations.describe_failure(error)
        case _:
            return "Failed", f"sparkd failed: {type(error).__name__}: {error}"


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
