# SPDX-License-Identifier: Apache-2.0
"""The daemon's parts that need no systemd: loop, workers, orders, single instance, log."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkd.adapters.systemd_bus import JobResult, path_of, unit_at
from sparkd.core.status import EngineStatus, build
from sparkd.daemon import log
from sparkd.daemon.daemon import StartError
from sparkd.daemon.loop import Loop
from sparkd.daemon.main import only_instance
from sparkd.daemon.manager import Manager
from sparkd.daemon.orders import Answer, Order, Orders
from sparkd.daemon.worker import BusyError, Done, Results, Worker
from tests.unit.status_facts import engine, facts, record, unit

LIMIT = 30.0
ROOT = Path(__file__).resolve().parents[2]


# the loop


def run_loop(ready: Callable[[Loop], None], on_wake: Callable[[Loop], None]) -> int:
    loop = Loop(on_tick=lambda: None, on_wake=lambda: on_wake(loop))
    watchdog = threading.Timer(LIMIT, loop.quit, (99,))
    watchdog.start()
    try:
        ready(loop)
        return loop.run()
    finally:
        watchdog.cancel()


def test_another_thread_wakes_the_loop() -> None:
    def ready(loop: Loop) -> None:
        threading.Timer(0.05, loop.wake).start()

    assert run_loop(ready, lambda loop: loop.quit(7)) == 7


def test_hurrying_wakes_it_several_times_and_then_stops() -> None:
    seen: list[float] = []

    def on_wake(loop: Loop) -> None:
        seen.append(time.monotonic())
        if not loop._hurry_until:
            loop.quit(0)

    assert run_loop(lambda loop: loop.hurry(), on_wake) == 0
    assert len(seen) > 4


def test_a_callback_that_fails_does_not_end_the_source(capfd: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []

    def on_wake(loop: Loop) -> None:
        calls.append(1)
        loop.wake()
        if len(calls) < 3:
            raise ValueError("oops")
        loop.quit(0)

    assert run_loop(lambda loop: loop.wake(), on_wake) == 0
    assert len(calls) == 3
    assert "oops" in capfd.readouterr().err


def test_signals_arrive_in_the_loop() -> None:
    def ready(loop: Loop) -> None:
        loop.on_signal(signal.SIGUSR1, lambda: loop.quit(5))
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()

    assert run_loop(ready, lambda _loop: None) == 5


def test_a_descriptor_is_watched_until_it_is_not() -> None:
    reader, writer = os.pipe()
    seen: list[bytes] = []

    def ready(loop: Loop) -> None:
        def readable() -> None:
            seen.append(os.read(reader, 10))
            unwatch()
            os.write(writer, b"b")
            threading.Timer(0.2, loop.quit, (0,)).start()

        unwatch = loop.watch(reader, readable)
        os.write(writer, b"a")

    assert run_loop(ready, lambda _loop: None) == 0
    assert seen == [b"a"]
    os.close(reader)
    os.close(writer)


# the workers


@pytest.fixture
def results() -> Results:
    return Results(lambda: None)


@pytest.fixture
def worker(results: Results) -> Iterator[Worker]:
    made = Worker("test", results)
    yield made
    made.close(LIMIT)


def collect(results: Results, done: "queue.Queue[Any]", count: int) -> list[Any]:
    end = time.monotonic() + LIMIT
    found: list[Any] = []
    while len(found) < count and time.monotonic() < end:
        results.deliver()
        while not done.empty():
            found.append(done.get())
        time.sleep(0.01)
    return found


def test_work_is_done_in_order_and_comes_back_here(results: Results, worker: Worker) -> None:
    done: queue.Queue[Any] = queue.Queue()
    threads = []
    for number in range(20):
        worker.submit(lambda n=number: threads.append(threading.get_ident()) or n, done.put)  # type: ignore[misc]
    assert [outcome.value for outcome in collect(results, done, 20)] == list(range(20))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_a_failure_comes_back_as_one(results: Results, worker: Worker) -> None:
    done: queue.Queue[Any] = queue.Queue()
    worker.submit(lambda: 1 / 0, done.put)
    worker.submit(lambda: 5, done.put)
    first, second = collect(results, done, 2)
    assert isinstance(first.error, ZeroDivisionError)
    assert second == Done(5, None)


def test_a_full_queue_is_refused(results: Results, worker: Worker) -> None:
    gate = threading.Event()
    worker.submit(lambda: gate.wait(LIMIT), lambda _done: None)

    def fill() -> None:
        for _ in range(1000):
            worker.submit(lambda: None, lambda _done: None)

    with pytest.raises(BusyError):
        fill()
    gate.set()
    results.deliver()


# orders


class Waiting:
    """An order for engine a, and what its caller was told."""

    def __init__(self, verb: str = "restart", job: str = "/job/1") -> None:
        self.orders = Orders()
        self.told: list[Answer] = []
        self.order = Order(verb, "a", job, self.told.append)
        self.orders.add(self.order)
        self.unit = unit("a")
        self.last = record(time=self.order.given_wall - 100)

    def settle(self) -> list[str]:
        return self.orders.settle(self._engine, lambda _name: self.last)

    def _engine(self, name: str) -> EngineStatus | None:
        return build(facts(engine("a", unit=self.unit, last=self.last))).engine(name)


def test_an_order_is_answered_when_its_job_is_done() -> None:
    waiting = Waiting()
    waiting.settle()
    assert waiting.told == []
    waiting.orders.job_ended(JobResult("/job/2", "vllm-a.service", "done"))
    waiting.settle()
    assert waiting.told == [], "another job's end is not ours"
    waiting.orders.job_ended(JobResult("/job/1", "vllm-a.service", "done"))
    waiting.settle()
    assert [(a.engine, a.result, a.state) for a in waiting.told] == [("a", "done", "ready")]
    waiting.settle()
    assert len(waiting.told) == 1


def test_a_job_that_ended_before_its_path_was_known_counts() -> None:
    orders = Orders()
    told: list[Answer] = []
    orders.job_ended(JobResult("/job/1", "vllm-a.service", "done"))
    orders.add(Order("start", "a", "/job/1", told.append))
    orders.settle(lambda _name: None, lambda _name: None)
    assert [answer.result for answer in told] == ["done"]


def test_a_failed_start_waits_for_the_post_mortem_and_tells_its_reason() -> None:
    waiting = Waiting("start")
    waiting.unit = unit("a", active_state="deactivating", sub_state="stop-post")
    waiting.orders.job_ended(JobResult("/job/1", "vllm-a.service", "failed"))
    waiting.settle()
    assert waiting.told == []
    waiting.unit = unit("a", active_state="activating", sub_state="auto-restart")
    waiting.settle()
    assert waiting.told == [], "the record is on its way"
    waiting.last = record(time=waiting.order.given_wall + 1, reason="bad flag", hint="fix it")
    waiting.settle()
    (answer,) = waiting.told
    assert answer.result == "failed"
    assert answer.reason.startswith("bad flag; ")
    assert answer.reason.endswith("fix it")


def test_a_slow_post_mortem_takes_nothing_from_the_wait_for_its_record() -> None:
    waiting = Waiting("start")
    waiting.unit = unit("a", active_state="deactivating", sub_state="stop-post")
    waiting.orders.job_ended(JobResult("/job/1", "vllm-a.service", "canceled"))
    waiting.order.ended -= 60
    waiting.settle()
    waiting.unit = unit("a", active_state="inactive", sub_state="dead")
    waiting.settle()
    assert waiting.told == [], "its record is on its way"
    waiting.last = record(time=waiting.order.given_wall + 1, reason="bad flag")
    waiting.settle()
    assert waiting.told[0].reason.startswith("bad flag; ")


def test_a_reason_is_told_once() -> None:
    waiting = Waiting("start")
    waiting.orders.job_ended(JobResult("/job/1", "vllm-a.service", "failed"))
    waiting.last = record(
        time=waiting.order.given_wall + 1, reason="it is held", action_reason="it is held"
    )
    waiting.settle()
    assert waiting.told[0].reason == "it is held"


def test_without_a_record_a_failed_start_is_answered_all_the_same() -> None:
    waiting = Waiting("start")
    waiting.unit = unit("a", active_state="failed", sub_state="failed")
    waiting.orders.job_ended(JobResult("/job/1", "vllm-a.service", "failed"))
    waiting.order.ended -= 60
    waiting.settle()
    assert waiting.told[0].result == "failed"
    assert "failed" in waiting.told[0].reason


def test_a_lost_signal_does_not_keep_the_caller_for_ever() -> None:
    waiting = Waiting()
    waiting.settle()
    waiting.order.jobless_since -= 60
    waiting.settle()
    assert (waiting.told[0].result, waiting.told[0].state) == ("done", "ready")

    waiting = Waiting()
    waiting.unit = unit("a", active_state="failed", sub_state="failed")
    waiting.settle()
    waiting.order.jobless_since -= 60
    waiting.settle()
    waiting.order.ended -= 60
    waiting.settle()
    assert waiting.told[0].result == "unknown"


def test_a_job_that_is_still_there_is_waited_for() -> None:
    waiting = Waiting()
    waiting.unit = unit("a", active_state="activating", sub_state="start", job_type="start")
    waiting.settle()
    waiting.settle()
    assert waiting.order.jobless_since == 0
    assert waiting.told == []


def test_a_stop_that_was_carried_out_is_handed_back_once() -> None:
    waiting = Waiting("stop")
    waiting.orders.job_ended(JobResult("/job/1", "vllm-a.service", "done"))
    assert waiting.settle() == ["vllm-a.service"]
    assert waiting.settle() == []


# the answers


@pytest.mark.parametrize("has_news", [True, False])
def test_a_status_shows_what_systemd_had_said_before_it_was_asked_for(*, has_news: bool) -> None:
    shown = SimpleNamespace(
        status=build(facts(engine("a", unit=unit("a", active_state="inactive")))),
        observer=SimpleNamespace(has_news=has_news),
    )

    def look() -> None:
        shown.status = build(facts(engine("a")))

    rest: Any = None
    manager = Manager(
        shown, Orders(), rest, rest, rest, rest,  # type: ignore[arg-type]
        places=rest, storage=rest, hands=rest, after_apply=rest, look=look,
    )  # fmt: skip
    told: list[str] = []
    manager.handlers()["Status"](SimpleNamespace(reply=told.append))  # type: ignore[arg-type]
    [engine_shown] = json.loads(told[0])["engines"]
    assert engine_shown["state"] == ("ready" if has_news else "stopped")


# one instance, and its log


def test_a_second_instance_is_refused_and_told_by_whom(tmp_path: Path) -> None:
    first = only_instance(tmp_path)
    with pytest.raises(StartError, match=f"another sparkd is running .PID {os.getpid()}."):
        only_instance(tmp_path)
    os.close(first)
    os.close(only_instance(tmp_path))


def test_object_paths_are_systemds() -> None:
    path = "/org/freedesktop/systemd1/unit/vllm_2dq38_2db_2eservice"
    assert path_of("vllm-q38-b.service") == path
    assert unit_at(path) == "vllm-q38-b.service"


def test_log_lines_carry_their_priority(capfd: pytest.CaptureFixture[str]) -> None:
    log.info("hello")
    log.error("two\nlines")
    try:
        int("oops")
    except ValueError:
        log.exception("broken")
    lines = capfd.readouterr().err.splitlines()
    assert lines[:4] == ["<6>hello", "<3>two", "<3>lines", "<3>broken"]
    assert lines[-1].startswith("<3>ValueError: ")
    assert all(line.startswith("<3>") for line in lines[1:])


def test_a_line_says_more_where_more_is_given(capfd: pytest.CaptureFixture[str]) -> None:
    log.warning("100 % {sure}", unit="vllm-a.service", refused=["a b"])
    assert capfd.readouterr().err == "<4>100 % {sure} unit='vllm-a.service' refused=['a b']\n"


def test_a_lost_journal_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as nowhere:
        monkeypatch.setattr(sys, "stderr", nowhere)
        log.info("nobody hears this")
        monkeypatch.undo()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # what is buffered can be flushed


def test_the_daemon_imports_nothing_for_a_terminal() -> None:
    """structlog and httpx would, where these are installed: 6 MB that stay resident."""
    script = (
        "import sys\n"
        "import sparkd.daemon.main\n"
        "import httpx\n"
        "print([name for name in ('rich', 'click') if sys.modules.get(name)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "[]\n"
