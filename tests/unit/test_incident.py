# SPDX-License-Identifier: Apache-2.0
"""One incident: its load, the lines around its end, and what a person is shown of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.adapters import incident_lookup
from sparkd.adapters.database import Detail, Incident
from sparkd.cli import incident
from sparkd.cli.terminal import Paint
from sparkd.core import timeline
from sparkd.core.lines import Source
from sparkd.core.status import Boot
from sparkd.core.timeline import Excerpt, Load, downsample, load_of
from tests.unit.status_facts import NOW, record

PLAIN = Paint(enabled=False)
STATS = (
    b"(APIServer pid=31141) INFO 11-29 15:25:24 [loggers.py:335] Engine 000: Avg prompt throughput:"
    b" 71.1 tokens/s, Avg generation throughput: 38.8 tokens/s, Running: 3 reqs, Waiting: 2 reqs,"
    b" GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%"
)


def test_the_load_is_read_from_vllms_own_line() -> None:
    assert load_of(STATS, Source.ENGINE, 5.0) == Load(5.0, 3, 2, 71.1, 38.8)
    older = STATS.replace(b"(APIServer pid=31141) ", b"").replace(b"Engine 000: ", b"")
    assert load_of(older, Source.ENGINE, 5.0) is not None


@pytest.mark.parametrize(
    "line",
    [
        b"a prompt says: " + STATS.partition(b"] ")[2],
        STATS.partition(b"] ")[2],
        STATS.replace(b"INFO", b"ERROR"),
        STATS.replace(b"71.1", b"9" * 400),
        STATS.replace(b"Running: 3 reqs", b"Running: many"),
        b"",
        b"\xff\xfe" + timeline.LOAD_MARK,
    ],
)
def test_a_quoted_or_broken_line_is_no_load(line: bytes) -> None:
    assert load_of(line, Source.ENGINE, 5.0) is None


def test_only_the_engine_tells_its_load() -> None:
    assert load_of(STATS, Source.KERNEL, 5.0) is None


points = st.lists(
    st.builds(
        Load, st.floats(0, 1e9), st.integers(0, 500), st.integers(0, 500), st.floats(0, 1e5),
        st.floats(0, 1e5),
    ),
    max_size=200,
)  # fmt: skip


@given(points)
def test_downsampling_is_bounded_and_keeps_the_peaks(found: list[Load]) -> None:
    found.sort()
    shown = downsample(found)
    assert len(shown) <= timeline.POINTS_MAX
    for member in ("running", "waiting"):
        peak = max((getattr(point, member) for point in found), default=0)
        assert max((getattr(point, member) for point in shown), default=0) == peak
    times = [point.time for point in shown]
    assert times == sorted(times)
    assert set(times) <= {point.time for point in found}


def feed(excerpt: Excerpt, *lines: bytes) -> list[str]:
    for number, line in enumerate(lines):
        excerpt.feed(line, float(number))
    return [("> " if shown.is_evidence else "") + shown.text for shown in excerpt.lines()]


def test_the_lines_around_the_evidence_are_kept() -> None:
    lines = [f"line {n}".encode() for n in range(100)]
    shown = feed(Excerpt("line 50"), *lines)
    assert shown == [
        *(f"line {n}" for n in range(50 - timeline.BEFORE, 50)),
        "> line 50",
        *(f"line {n}" for n in range(51, 51 + timeline.AFTER)),
    ]


@pytest.mark.parametrize("evidence", [None, "", "not there"])
def test_without_evidence_the_last_lines_are_shown(evidence: str | None) -> None:
    shown = feed(Excerpt(evidence), *(f"line {n}".encode() for n in range(100)))
    assert shown == [f"line {n}" for n in range(100 - timeline.BEFORE, 100)]


def test_a_capped_evidence_finds_its_line_and_hostile_lines_are_harmless() -> None:
    long = "EngineCore encountered a fatal error " + "x" * 5000
    (shown,) = feed(Excerpt(long[:239] + "…"), long.encode() + b"\x1b[2J\r\n")
    assert shown.startswith("> EngineCore")
    assert len(shown) < timeline.TEXT_MAX + 30
    assert shown.isprintable()


def test_a_record_that_was_logged_as_json_is_shown_as_its_lines() -> None:
    said = (
        b'{"asctime": "2026-11-29 15:00:00,1", "levelname": "ERROR", "name": "vllm.v1.engine.core",'
        b' "processName": "EngineCore", "process": 7, "message": "EngineCore failed.",'
        b' "exc_info": "Traceback (most recent call last):\\nRuntimeError: boom"}'
    )
    head = "(EngineCore pid=7) ERROR 11-29 15:00:00 [core.py:0] "
    evidence = head + "RuntimeError: boom"
    shown = feed(Excerpt(evidence), b"before", said, b'{"not": "a record"}')
    assert shown == [
        "before",
        head + "EngineCore failed.",
        head + "Traceback (most recent call last):",
        "> " + evidence,
        '{"not": "a record"}',
    ]
    stats = said.replace(b"ERROR", b"INFO").replace(b"v1.engine.core", b"v1.metrics.loggers")
    assert load_of(
        stats.replace(b"EngineCore failed.", STATS.partition(b"] ")[2]), Source.ENGINE, 5.0,
    ) == Load(5.0, 3, 2, 71.1, 38.8)  # fmt: skip


# as shown


def detail(**changes: object) -> dict[str, object]:
    made = Detail(
        7,
        Incident(record(invocation="3f2a9c1d" + "0" * 24, evidence="boom\x1b[2J"), 65.0),
        {"time": NOW.wall - 999, "seconds": 30.0, "vllm_version": "0.27.1", "compile": "warm"},
        Boot("a", "2" * 32, NOW.wall + 55, 30.0),
        2,
        NOW.wall - 86400,
    )
    value = incident_lookup.to_json(made)
    value |= {"events": [], "load": [], "log": {"lines": [], "complete": True}, "notes": []}
    return {**value, **changes}


def shown(**changes: object) -> str:
    return "\n".join(incident.lines(detail(**changes), NOW.wall + 3600, PLAIN))


def test_a_person_is_shown_everything() -> None:
    load = Load(NOW.wall - 60, 3, 2, 71.1, 38.8)._asdict()
    line = {"time": NOW.wall, "text": "boom", "is_evidence": True}
    text = shown(
        events=[{"time": NOW.wall, "text": "a: died"}],
        load=[load],
        log={"lines": [line], "complete": True},
    )
    for part in (
        "3f2a9c1d  a  engine-core-fatal",
        "exit 0; it was ready",
        "the engine core died",
        "restart: death 1 of 3",
        "1 min 5 s, ready again",
        "the same class 2 times, last",
        "vLLM 0.27.1, warm compile cache",
        "WHAT FOLLOWED",
        "a: died",
        "LOAD BEFORE THE END",
        "71.1",
        "LOG",
        "boom",
    ):
        assert part in text
    assert "\x1b" not in text


def test_what_is_not_known_is_not_shown() -> None:
    text = shown(boot=None, next_ready=None, dark_seconds=None, notes=["the journal is gone"])
    assert "still, for 1 h" in text
    assert "this life" not in text
    assert "LOAD" not in text
    assert "the journal is gone" in text
    assert "dark" not in shown(requested=True)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("1", True), ("1234567", True), ("3f2a9c1d", True), ("a" * 32, True), ("12345678", True),
        ("", False), ("3f2a9c1", False), ("a" * 33, False), ("A" * 8, False), ("1\n", False),
        ("%", False), ("../x", False),
    ],
)  # fmt: skip
def test_what_can_name_an_incident(text: str, *, is_one: bool) -> None:
    assert incident_lookup.is_id(text) is is_one
    assert ascii(text)[1:-1] in incident_lookup.refusal(text, ())
