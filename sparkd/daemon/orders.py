# SPDX-License-Identifier: Apache-2.0
"""Orders that were given to systemd, until their job has ended and the caller has an answer.

A failed start job ends while the unit is still on its way down: the answer waits for the
post-mortem, which knows the reason.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sparkd.adapters.systemd_bus import JobResult
from sparkd.core.end_of_life import Record
from sparkd.core.status import EngineStatus
from sparkd.core.unit_state import unit_of

ORDERS_MAX = 64
RESULTS_KEPT = 64
"""A job can end before its path has come back from the thread that queued it."""
RECORD_S = 5.0
"""How long the end-of-life record of a failed start is waited for once its unit is down."""
LOST_S = 15.0
"""A unit without any job for so long has none: the signal of its end was lost."""


class Answer(NamedTuple):
    """What an operator is told."""

    engine: str
    result: str
    """systemd's result of the job: 'done', 'failed', 'canceled', 'timeout', 'dependency'…."""
    reason: str
    state: str


class Order:
    """One order under way."""

    def __init__(
        self, verb: str, engine: str, job: str, answer: Callable[[Answer], None] | None
    ) -> None:
        self.verb = verb
        self.engine = engine
        self.job = job
        self.answer = answer
        self.given = time.monotonic()
        self.given_wall = time.time()
        self.result = ""
        self.ended = 0.0
        self.jobless_since = 0.0

    def end(self, result: str) -> None:
        """The job has ended."""
        self.result = result
        self.ended = time.monotonic()


class Orders:
    """Every order under way."""

    def __init__(self) -> None:
        self._orders: list[Order] = []
        self._results: OrderedDict[str, str] = OrderedDict()

    @property
    def is_full(self) -> bool:
        """Whether no more should be taken."""
        return len(self._orders) >= ORDERS_MAX

    def add(self, order: Order) -> None:
        """Follow this order from now on."""
        self._orders.append(order)
        if order.job in self._results:
            order.end(self._results[order.job])

    def job_ended(self, job: JobResult) -> None:
        """Note that a job is over."""
        self._results[job.path] = job.result
        while len(self._results) > RESULTS_KEPT:
            self._results.popitem(last=False)
        for order in self._orders:
            if order.job == job.path and not order.ended:
                order.end(job.result)

    def settle(
        self,
        engine_of: Callable[[str], EngineStatus | None],
        last_death: Callable[[str], Record | None],
    ) -> list[str]:
        """Answer what can be answered by what was just seen.

        Returns:
            The units whose order to stop has been carried out.
        """
        stopped = []
        for order in [*self._orders]:
            engine = engine_of(order.engine)
            if not order.ended:
                self._look_for_lost(order, engine)
            if order.ended and _is_over(order, engine, last_death(order.engine)):
                self._orders.remove(order)
                _answer(order, engine, last_death(order.engine))
                if order.verb == "stop" and order.result == "done":
                    stopped.append(unit_of(order.engine))
        return stopped

    def _look_for_lost(self, order: Order, engine: EngineStatus | None) -> None:
        unit = None if engine is None else engine.facts.unit
        now = time.monotonic()
        if unit is not None and unit.job_type:
            order.jobless_since = 0.0
        elif not order.jobless_since:
            order.jobless_since = now
        elif now - order.jobless_since > LOST_S:
            wanted = "inactive" if order.verb == "stop" else "active"
            there = unit is not None and unit.active_state == wanted
            order.end("done" if there else "unknown")


def _answer(order: Order, engine: EngineStatus | None, last: Record | None) -> None:
    if order.answer is not None:
        state = "" if engine is None else str(engine.state)
        order.answer(Answer(order.engine, order.result, _reason(order, engine, last), state))


def _is_over(order: Order, engine: EngineStatus | None, last: Record | None) -> bool:
    if order.verb == "stop" or order.result == "done" or engine is None:
        return True
    unit = engine.facts.unit
    if unit is not None and unit.active_state == "deactivating":
        # On a busy machine the post-mortem alone may take longer than the record is waited for.
        order.ended = time.monotonic()
        return False
    waited = time.monotonic() - order.ended
    return waited > RECORD_S or _died_of_it(order, last)


def _died_of_it(order: Order, last: Record | None) -> bool:
    if order.verb == "stop":
        return False
    return last is not None and not last.requested and last.time >= order.given_wall


def _reason(order: Order, engine: EngineStatus | None, last: Record | None) -> str:
    if order.result != "done":
        if last is not None and _died_of_it(order, last):
            # A start that was refused is its own reason for what follows: each sentence once.
            sentences = dict.fromkeys([last.reason, last.action_reason, last.hint])
            return "; ".join(filter(None, sentences))
        if order.result == "canceled":
            return "another order took its place"
        return f"the {order.verb} ended as '{order.result}'"
    return "" if engine is None else engine.judgement.reason
