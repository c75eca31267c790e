# SPDX-License-Identifier: Apache-2.0
"""The daemon's part in alerting: before the journal's position moves, off the loop, and once."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.adapters import database
from sparkd.adapters.alert_post import Places, PostOffice
from sparkd.adapters.alert_queue import QueueError
from sparkd.core.config import Source, load
from sparkd.core.config_model import AlertConfig
from sparkd.core.projection import Entry
from sparkd.core.status import Boot, build
from sparkd.daemon.alerter import Alerter
from sparkd.daemon.worker import Results, Worker
from tests.unit.alert_receivers import Receiver
from tests.unit.status_facts import engine, facts, record, unit

LIMIT = 60.0
ROOT = Path(__file__).resolve().parents[2]


class Bench:
    """An alerter with its workers; `settle` is the loop."""

    def __init__(self, folder: Path) -> None:
        self.places = Places(*(str(folder / name) for name in ("d/a.db", "r/a.db", "r/a.lock")))
        self.database = database.open_database(str(folder / "d/sparkd.db"))
        self.results = Results(lambda: None)
        self.post = Worker("post", self.results)
        self.storage = Worker("storage", self.results)
        self.receiver = Receiver()
        self.alerter = self.fresh()

    def fresh(self) -> Alerter:
        return Alerter(self.database, self.post, self.places)

    def config(self, more: str = "dedup = '0s'") -> AlertConfig:
        text = f'[alerts]\nwebhook = "{self.receiver.url}"\n{more}'
        return load([Source("sparkd.toml", text)], None).host.alerts

    def told(self, count: int) -> list[str]:
        """Turn the loop until so many alerts have come; their titles."""
        end = time.monotonic() + LIMIT
        while len(self.receiver.seen) < count or self.alerter._delivering:
            assert time.monotonic() < end, self.receiver.seen
            self.alerter.pump()
            self.results.deliver()
            time.sleep(0.005)
        return [json.loads(seen.body)["title"] for seen in self.receiver.seen]

    def close(self) -> None:
        self.post.close(LIMIT)
        self.storage.close(LIMIT)
        self.receiver.close()
        self.database.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def death(number: int = 1) -> Entry:
    row = record(invocation=f"{number:032x}", time=time.time())
    return Entry(row, database.to_text(row))


def boot(number: int, seconds: float = 30.0) -> Entry:
    row = Boot("a", f"{number:032x}", time.time(), seconds)
    return Entry(row, json.dumps(row._asdict()))


def test_an_event_is_told_once_though_it_is_read_again(bench: Bench) -> None:
    bench.alerter.configure(bench.config())
    entries = [death(1), boot(2)]
    # Killed before the database had them: a new daemon reads the same events.
    bench.alerter.take_in(entries)
    bench.alerter = bench.fresh()
    bench.alerter.configure(bench.config())
    bench.alerter.take_in(entries)
    bench.database.take_in(entries, "c")
    assert bench.told(2) == ["a died: engine-core-fatal", "a serves again"]
    bench.alerter.take_in([])
    assert bench.alerter.figures.totals == {("death", "sent"): 1, ("recovered", "sent"): 1}
    assert bench.alerter.figures.queued == 0


def test_what_waits_survives_a_daemon_and_goes_to_the_corrected_address(bench: Bench) -> None:
    bench.receiver.status = 500
    bench.alerter.configure(bench.config())
    bench.alerter.take_in([death(1)])
    bench.told(1)
    bench.receiver.status = 200
    bench.alerter = bench.fresh()
    bench.alerter.configure(bench.config("format = 'slack'"))
    office = bench.alerter._office
    assert office is not None
    for queue in office._queues.values():
        queue._db.execute("UPDATE destinations SET next_at = 0")
    end = time.monotonic() + LIMIT
    while len(bench.receiver.seen) < 2 and time.monotonic() < end:
        bench.alerter.pump()
        bench.results.deliver()
    assert json.loads(bench.receiver.seen[1].body)["text"].startswith("a died: ")


def test_nobody_configured_means_nothing_is_kept(bench: Bench) -> None:
    bench.alerter.configure(load([], None).host.alerts)
    bench.alerter.take_in([death(1)])
    bench.alerter.pump()
    assert not Path(bench.places.disk).exists()
    assert not bench.alerter.test(lambda _done: None)
    assert bench.alerter.rows(10) == []


def test_the_daemon_loads_an_http_library_for_a_webhook_only() -> None:
    script = """
import sys
import sparkd.daemon.main
from sparkd.adapters import alert_delivery
for name in ("httpx", "httpcore", "rich", "click"):
    assert not sys.modules.get(name), name
alert_delivery.load_http()
assert sys.modules["httpx"]
assert not sys.modules.get("rich")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LIMIT, cwd=ROOT)


def test_a_queue_that_cannot_be_written_is_said_and_costs_no_incident(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bench.alerter.configure(bench.config())

    def refuse(*_: object) -> int:
        raise QueueError("no space left")

    monkeypatch.setattr(PostOffice, "enter", refuse)
    bench.alerter.take_in([death(1)])
    assert bench.alerter.trouble == "no space left"
    assert "1 alerts cannot be queued: no space left" in capfd.readouterr().err

    def fail(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(PostOffice, "enter", fail)
    bench.alerter.take_in([death(2)])
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_start_that_takes_too_long_is_told_while_it_does(bench: Bench) -> None:
    bench.alerter.configure(bench.config())
    earlier = [boot(number) for number in (1, 2, 3)]
    bench.alerter.take_in(earlier)
    bench.database.take_in(earlier, "c")
    now = facts().now.wall
    loading = unit(
        active_state="activating", sub_state="start-post", main_start=now - 100, main_pid=7,
        invocation_id=f"{9:032x}",
    )  # fmt: skip
    status = build(facts(engine("a", unit=loading)))
    bench.alerter.watch(status, bench.storage)
    # The first look only learned how long starts take.
    end = time.monotonic() + LIMIT
    while not bench.alerter._starts and time.monotonic() < end:
        time.sleep(0.005)
    for _ in range(3):
        bench.alerter.watch(status, bench.storage)
    assert bench.told(1) == ["a starts slowly"]
    late = Boot("a", f"{9:032x}", time.time(), 120.0)
    bench.alerter.take_in([Entry(late, json.dumps(late._asdict()))])
    bench.alerter.take_in([death(10)])
    assert bench.told(2)[1:] == ["a died: engine-core-fatal"]
