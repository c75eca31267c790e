# SPDX-License-Identifier: Apache-2.0
"""Reading the log of an ended life: bounded, in order, nothing twice, and both ends of a flood."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.adapters.catalogue import load_catalogue
from sparkd.adapters.ended_log import Bounds, EndedLog
from sparkd.adapters.journal import Entry
from sparkd.core.classify import Classifier, ExitState
from sparkd.core.lines import Source, frame

AMPLE = Bounds()
READY = b"INFO:     Application startup complete."
FATAL = (
    b"(EngineCore pid=7) ERROR 11-29 10:00:00 [core.py:1510] EngineCore encountered a fatal error."
)
NOISE = b"(APIServer pid=1) INFO 11-29 10:00:00 [async_llm.py:1] Added request cmpl-1."


class FakeLog:
    """Keeps the promises of `InvocationLog`: forward only, and a time limit.

    `cpu_at` are the line that takes CPU time, and its seconds: when it is up depends on no machine.
    """

    def __init__(
        self,
        messages: list[bytes],
        seconds_each: float = 0.0,
        cpu_at: tuple[int, float] = (-1, 0.0),
    ) -> None:
        self.messages = messages
        self.at = 0
        self.seconds_each = seconds_each
        self.cpu_at = cpu_at

    def read(self, *, until: float = float("inf")) -> Iterator[Entry]:
        while time.monotonic() < until and self.at < len(self.messages):
            self.at += 1
            time.sleep(self.seconds_each)
            if self.at == self.cpu_at[0]:
                end = time.process_time() + self.cpu_at[1]
                while time.process_time() < end:
                    pass
            yield Entry(self.messages[self.at - 1], float(self.at), Source.ENGINE)

    def skip_to_last(self, lines: int) -> bool:
        before = self.at
        self.at = max(self.at, len(self.messages) - lines)
        return self.at > before


def numbers(log: EndedLog) -> list[int]:
    return [int(entry.realtime) for entry in log]


def expected(count: int, bounds: Bounds) -> list[int]:
    every = range(1, count + 1)
    return sorted({*every[: bounds.first], *every[-bounds.newest :]})


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 30))
def test_the_first_and_the_newest_are_read_in_order_and_once(count, first, newest):
    bounds = AMPLE._replace(first=first, newest=newest)
    log = EndedLog(FakeLog([NOISE] * count), bounds)
    read = numbers(log)
    assert read == expected(count, bounds)
    assert log.passed_over is (len(read) < count)


@pytest.mark.parametrize("limit", ["cpu_s", "wall_s"])
def test_when_time_is_up_the_last_lines_are_read_all_the_same(limit):
    bounds = AMPLE._replace(first=3, newest=50, last=5, **{limit: 0.0})
    log = EndedLog(FakeLog([NOISE] * 100), bounds)
    read = numbers(log)
    assert read[-5:] == [96, 97, 98, 99, 100]
    assert len(read) < 10
    assert read == sorted(set(read))
    assert log.passed_over is True


def test_the_last_lines_have_a_limit_too():
    bounds = AMPLE._replace(last=1000, wall_s=0.0, last_s=0.3)
    log = EndedLog(FakeLog([NOISE] * 1000, seconds_each=0.001), bounds)
    begin = time.monotonic()
    assert 0 < len(numbers(log)) < 1000
    assert time.monotonic() - begin < 5
    assert log.passed_over is True


@pytest.mark.parametrize("where", ["first", "after the start", "middle", "last"])
@pytest.mark.parametrize("is_slow", [False, True])
def test_the_fatal_line_at_either_end_of_a_flood_is_found(where, is_slow):
    """With a flood in the middle that is longer than the bounds, as one of minutes is."""
    bounds = Bounds(first=100, newest=2000, last=100)
    slow_at = (-1, 0.0)
    if is_slow:
        bounds = bounds._replace(cpu_s=0.5)
        slow_at = (3100, 0.5)  # among the newest, before the middle
    places = {"first": 1, "after the start": 90, "middle": 4000, "last": 4990}
    messages = [READY, *[NOISE] * 5000]
    messages[places[where]] = FATAL
    classifier = Classifier(load_catalogue())
    log = EndedLog(FakeLog(messages, cpu_at=slow_at), bounds)
    for entry in log:
        for line in frame(entry.message, entry.source):
            classifier.feed(line)
    assert log.passed_over
    found = classifier.verdict(ExitState("success", "exited", "0"), requested=False).cls
    is_missed = where == "middle" and is_slow
    assert found == ("exit-without-a-line" if is_missed else "engine-core-fatal"), "it is bounded"
