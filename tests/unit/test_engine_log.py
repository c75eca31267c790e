# SPDX-License-Identifier: Apache-2.0
"""Following a log: a death is found whatever is logged around it, and a look stays short."""

import time
from collections import deque
from collections.abc import Iterator

import pytest

from sparkd.adapters import engine_log
from sparkd.adapters.catalogue import load_catalogue
from sparkd.adapters.engine_log import EngineLog
from sparkd.adapters.journal import Entry
from sparkd.core.lines import Source

CATALOGUE = load_catalogue()
READY = b"INFO:     Application startup complete."
FATAL = (
    b"(EngineCore pid=7) ERROR 11-29 10:00:00 [core.py:1510] EngineCore encountered a fatal error."
)
NOISE = b"(APIServer pid=1) INFO 11-29 10:00:00 [async_llm.py:1] Added request cmpl-1."
STATS = (
    b"(APIServer pid=1) INFO 11-29 10:00:00 [loggers.py:257] Engine 000: Avg prompt throughput:"
    b" 0.0 tokens/s, Avg generation throughput: %s tokens/s, Running: 2 reqs, Waiting: 1 reqs,"
    b" GPU KV cache usage: 1.0%%, Prefix cache hit rate: 0.0%%"
)


class Journal:
    """Entries in place of journald's; `read` honours its time limit as the real one does."""

    def __init__(self, _invocation: str) -> None:
        self.entries: deque[Entry] = deque()

    def skip_to_last(self, _lines: int) -> bool:
        return False

    def read(self, *, until: float) -> Iterator[Entry]:
        while self.entries and time.monotonic() < until:
            yield self.entries.popleft()


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(engine_log, "InvocationLog", Journal)
    return EngineLog("a", "1" * 32, 1, CATALOGUE)


def say(log, *messages, age=0.0):
    now = time.time() - age
    log._log.entries += [Entry(message, now, Source.ENGINE) for message in messages]


def test_a_quiet_engine_is_alive(log):
    say(log, READY, NOISE)
    news = log.look()
    assert (news.fatal, news.moved, news.requests, news.dropped) == ("", False, 0, 0)


def test_a_fatal_line_is_told_with_its_class_and_stands(log):
    say(log, READY, FATAL)
    for _ in range(3):
        news = log.look()
        assert news.fatal == "the engine died: engine core fatal"
        assert news.cls == "engine-core-fatal"
        assert "fatal error" in news.evidence


def test_the_statistics_line_tells_of_tokens_and_of_requests(log):
    say(log, READY, STATS % b"12.5")
    assert log.look()[4:6] == (True, 3)
    assert log.look()[4:6] == (False, 3), "moved only since the last look"
    say(log, STATS % b"0.0")
    assert log.look()[4:6] == (False, 3)


def test_a_client_cannot_forge_a_statistics_line(log):
    say(log, READY, STATS.split(b"] ")[1] % b"99.9")
    assert log.look().moved is False
    # vLLM prefixes each line of a record, also where a client's name for a request has several.
    say(log, STATS.replace(b"loggers.py:257", b"async_llm.py:1") % b"99.9")
    assert log.look().moved is False


def test_a_stop_that_systemd_did_not_order_counts_as_an_end(log):
    shutdown = (
        b"(APIServer pid=1) INFO 11-29 10:00:00 [launcher.py:1]"
        b" [shutdown] API server: shutdown triggered"
    )
    say(log, READY, shutdown)
    news = log.look()
    assert news.cls == "external-sigterm"
    assert "told to stop" in news.fatal


def test_a_late_look_passes_over_no_fatal_record_that_is_json(log, monkeypatch):
    monkeypatch.setattr(engine_log, "LOOK_S", 0.02)
    fatal = (
        b'{"asctime": "2026-11-29 10:00:00,1", "levelname": "ERROR", "name": "vllm.v1.engine.core",'
        b' "processName": "EngineCore", "process": 7, "message": "EngineCore encountered a fatal'
        b' error.", "exc_info": "Traceback (most recent call last):\\nRuntimeError: x"}'
    )
    say(log, READY, *[NOISE] * 20_000, fatal, *[NOISE] * 5000, age=engine_log.LATE_S + 5)
    news = log.look()
    while not news.is_complete:
        news = log.look()
    assert news.dropped > 10_000
    assert (news.cls, news.fatal != "") == ("engine-core-fatal", True)


def test_in_a_flood_a_look_is_short_and_the_fatal_line_is_found(log, monkeypatch):
    """200,000 lines that are old by the time they are read, the fatal one in the middle."""
    monkeypatch.setattr(engine_log, "LOOK_S", 0.05)
    say(log, READY)
    say(log, *[NOISE] * 100_000, FATAL, *[NOISE] * 100_000, age=engine_log.LATE_S + 5)
    news = log.look()
    assert news.is_complete is False
    looks = 1
    while not news.is_complete:
        news = log.look()
        looks += 1
    assert news.fatal
    assert news.dropped > 100_000
    assert looks < 1000
