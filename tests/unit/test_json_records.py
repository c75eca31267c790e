# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  log lines keep their length
"""A record that was logged as JSON is framed as the text that it would have been."""

import json
import time

import pytest

from sparkd.core import json_records
from sparkd.core.lines import MESSAGE_CAP, RAW_CAP, TRUNCATED, Source, frame

# Printed by vLLM 0.32.0's own logging set-up with python-json-logger 4.2.0.
FATAL = r"""{"asctime": "2026-11-29 15:00:00,032", "levelname": "ERROR", "name": "vllm.v1.engine.core", "processName": "EngineCore", "process": 42, "message": "EngineCore encountered a fatal error.", "exc_info": "Traceback (most recent call last):\n  File \"/x/core.py\", line 17, in run\n    raise RuntimeError('\u00e9')\nRuntimeError: CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in docs", "vllm_process_name": "EngineCore"}"""
ACCESS = r"""{"asctime": "2026-11-29 15:00:00,038", "levelname": "INFO", "name": "uvicorn.access", "processName": "MainProcess", "process": 42, "message": "127.0.0.1:5 - \"GET /health HTTP/1.1\" 503", "vllm_process_name": "APIServer"}"""
ASGI = r"""{"asctime": "2026-11-29 15:00:00,038", "levelname": "ERROR", "name": "uvicorn.error", "processName": "MainProcess", "process": 42, "message": "Exception in ASGI application\n", "exc_info": "Traceback (most recent call last):\n(EngineCore pid=42) ERROR 11-29 15:00:00 [core.py:1] EngineCore encountered a fatal error.", "vllm_process_name": "APIServer"}"""
COLOURED = r"""{"asctime": "2026-11-29 15:00:00,038", "levelname": "INFO", "name": "uvicorn.error", "processName": "MainProcess", "process": 42, "message": "Started server process [4]", "vllm_process_name": "APIServer", "color_message": "Started server process [\u001b[36m%d\u001b[0m]"}"""
PLAIN = "(EngineCore pid=42) ERROR 11-29 15:00:00 [core.py:0] "


def record(**members: object) -> str:
    base = {"levelname": "ERROR", "name": "vllm.v1.engine.core", "message": "boom", "process": 42,
            "vllm_process_name": "EngineCore"}  # fmt: skip
    return json.dumps({k: v for k, v in {**base, **members}.items() if v is not ...})


def test_a_record_with_a_traceback_is_the_lines_of_the_text_formatter() -> None:
    lines = frame(FATAL)
    assert {line[:5] for line in lines} == {(Source.ENGINE, "EngineCore", 42, "ERROR", "core.py")}
    assert [line.message for line in lines] == [
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "/x/core.py", line 17, in run',
        "    raise RuntimeError('é')",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "Search for `cudaErrorIllegalAddress' in docs",
    ]
    assert lines[0].raw == PLAIN + "EngineCore encountered a fatal error."


def test_what_uvicorn_says_stays_bare_and_its_traceback_poses_as_nothing() -> None:
    assert (
        frame(ACCESS)[0][:6] == frame('INFO:     127.0.0.1:5 - "GET /health HTTP/1.1" 503')[0][:6]
    )
    assert frame(COLOURED)[0].message == "INFO:     Started server process [4]"
    lines = frame(ASGI)
    assert [line.message for line in lines][:2] == [
        "ERROR:    Exception in ASGI application",
        "Traceback (most recent call last):",
    ]
    assert {line[:5] for line in lines} == {(Source.ENGINE, "", 0, "", "")}


@pytest.mark.parametrize(
    "front",
    ["(EngineCore pid=42) ", "vllm-1  | (EngineCore pid=42) ", "Nov 29 15:14:06 spark vllm[4]: "],
)
def test_carriers_and_the_process_in_front_of_the_object(front: str) -> None:
    """Up to 0.31 vLLM writes the process in front of whatever a formatter makes (seen in #57957)."""
    (line,) = frame(front + record(vllm_process_name="EngineCore"))
    assert line[:6] == (Source.ENGINE, "EngineCore", 42, "ERROR", "core.py", "boom")


def test_the_process_in_front_wins() -> None:
    (line,) = frame("(APIServer pid=7) " + record(processName="MainProcess"))
    assert (line.process, line.pid) == ("APIServer", 7)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"levelname": ..., "level": "error"}, ("ERROR", "core.py", "boom")),
        ({"levelname": ..., "severity": "WARN"}, ("WARNING", "core.py", "boom")),
        ({"levelname": "FATAL"}, ("CRITICAL", "core.py", "boom")),
        ({"filename": "async_llm.py", "lineno": 9}, ("ERROR", "async_llm.py", "boom")),
        ({"pathname": "/opt/vllm/v1/engine/core.py"}, ("ERROR", "core.py", "boom")),
        ({"name": ..., "logger": "vllm.v1.x"}, ("ERROR", "x.py", "boom")),
        ({"message": ..., "msg": "text"}, ("ERROR", "core.py", "text")),
        ({"nested": {"levelname": "INFO", "a": [1, {"b": "}]"}]}}, ("ERROR", "core.py", "boom")),
        ({"message": "\x1b[31mred\x1b[0m\r"}, ("ERROR", "core.py", "red")),
        ({"number": 10**400, "float": 1e300, "none": None, "yes": True}, ("ERROR", "core.py", "boom")),
    ],
)  # fmt: skip
def test_other_formatters_names(members: dict[str, object], expected: tuple[str, ...]) -> None:
    (line,) = frame(record(**members))
    assert (line.level, line.file, line.message) == expected


def test_a_traceback_may_be_a_list_of_lines() -> None:
    lines = frame(record(exc_info=["Traceback (most recent call last):", 'E: "x"'], stack_info="S"))
    assert [line.message for line in lines] == [
        "boom",
        "Traceback (most recent call last):",
        'E: "x"',
        "S",
    ]


def test_a_record_that_journald_cut_off_keeps_what_came_before() -> None:
    """At 48 KiB. vLLM writes the message before the traceback."""
    for end in range(FATAL.index("fatal error.") + 14, len(FATAL)):
        assert frame(FATAL[:end])[0] == frame(FATAL)[0]
    cut = record(exc_info=["x" * 9, "\\\u00e9\n" * 30], more={"a": [1, {"b": "c"}]}, last=12.5)
    for end in range(1, len(cut)):
        assert frame(cut[:end])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "{not json}",
        '{"levelname": "ERROR"}',
        record(levelname="LOUD"),
        record(levelname=40),
        record(message=...),
        record(message={"levelname": "ERROR"}),
        record(name=...),
        record(name="x y"),
        record(name="../../etc"),
        record(vllm_process_name=...),
        '{"levelname": "ERROR", "name": "vllm.v1.engine.core" oops',
        '{"levelname": nope, "name": "vllm.v1.engine.core", "message": "x", "process": 1}',
        '["levelname", "ERROR"]',
    ],
)
def test_what_is_no_record_stays_the_text_that_it_is(text: str) -> None:
    (line,) = frame(text)
    assert (line.level, line.file, line.message) == ("", "", text[:MESSAGE_CAP])


def test_an_unknown_process_speaks_for_nobody() -> None:
    (line,) = frame(
        record(vllm_process_name="EngineCore pid=1) ERROR 11-29 15:00:00 [core.py:1] x(")
    )
    assert line.level == ""
    (line,) = frame(record(vllm_process_name="DPSupervisor"))
    assert (line.process, line.level) == ("", "")


def test_nothing_in_a_text_poses_as_a_member_or_as_another_record() -> None:
    forged = '", "levelname": "ERROR", "vllm_process_name": "EngineCore", "x": "'
    said = record(levelname="INFO", vllm_process_name="APIServer", message=forged)
    assert {(line.process, line.level) for line in frame(said)} == {("APIServer", "INFO")}
    glue = "50%|##|](EngineCore pid=1) ERROR 11-29 15:00:00 [core.py:1] EngineCore encountered a fatal error."
    for front in ("", "Processed prompts:   0%|  | 0/1 [00:00<?, ?it/s]"):
        lines = frame(front + record(levelname="INFO", vllm_process_name="APIServer", message=glue))
        assert (lines[-1].process, lines[-1].level, lines[-1].message) == (
            "APIServer",
            "INFO",
            glue,
        )
        assert len(lines) == (2 if front else 1)


def test_a_plain_record_behind_a_bar_is_not_cut_again() -> None:
    bar = "Processed prompts:   0%|  | 0/1 [00:00<?, ?it/s]"
    said = "(APIServer pid=1) INFO 11-29 15:00:00 [logger.py:1] prompt: 'x](EngineCore pid=1) ERROR 11-29 15:00:00 [core.py:1] y'"
    lines = frame(bar + said)
    assert [line.process for line in lines] == ["", "APIServer"]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ' + "[" * 60_000,
        '{"a": ' + '{"a": ' * 10_000,
        "{" + ", ".join(f'"k{n}": {n}' for n in range(6000)),
        '{"a": "' + "\\u00e9" * 10_000,
        '{"a": "' + "\\" * 60_000,
        '{"' * 30_000,
        "{" + " " * 60_000,
        "{" + ", " * 30_000 + '"a": 1}',
        '{"a": ["' + '", "' * 15_000,
        '{"a": ' + "9" * 60_000 + "}",
        "5%|" + '](a pid=1) {"' * 5000,
        '5%|]{"a": ' * 6000,
    ],
    ids=range(12),
)  # fmt: skip
def test_hostile_objects_cost_little(text: str) -> None:
    begin = time.process_time()
    for line in frame(text):
        assert len(line.message) <= MESSAGE_CAP + len(TRUNCATED)
        assert len(line.raw) <= RAW_CAP + len(TRUNCATED)
    assert time.process_time() - begin < 2, "a blow-up would take minutes"


def test_a_record_of_many_lines_is_bounded_and_keeps_both_ends() -> None:
    lines = frame(record(message="first\n" + "x\n" * 20_000 + "last"))
    assert len(lines) == json_records.LINES_MAX
    assert (lines[0].message, lines[-1].message) == ("first", "last")
