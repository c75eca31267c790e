# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  log lines keep their length
"""Framing: wrappers off, prefix parsed, glued records cut, and no way to forge a prefix."""

import pytest

from sparkd.core.lines import (
    MESSAGE_CAP,
    RAW_CAP,
    TRUNCATED,
    Line,
    Source,
    frame,
    neutralise,
    process_kind,
)

RECORD = (
    "(EngineCore pid=42) ERROR 11-29 15:00:00 [core.py:1512] EngineCore encountered a fatal error."
)
PARSED = (
    Source.ENGINE,
    "EngineCore",
    42,
    "ERROR",
    "core.py",
    "EngineCore encountered a fatal error.",
)


def only(raw: bytes | str) -> Line:
    lines = frame(raw)
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize(
    "wrapper",
    [
        "",
        "vllm-1  | ",
        "0|vllm     | ",
        "2026-11-29T15:14:06.123456789Z ",
        "2026-11-29T15:14:06.123456789Z stderr F ",
        "2026-11-29 15:14:06,123 ",
        "[pod/vllm-0/vllm] ",
        "[pod/vllm-0/vllm] 2026-11-29T15:14:06.123456789Z ",
        "vllm-1  | 2026-11-29T15:14:06.123456789Z ",
        "Nov 29 15:14:06 spark vllm[4711]: ",
        "Nov  9 15:14:06.123456 spark vllm[4711]: ",
        "Nov 29 15:14:06 spark VLLM::EngineCor[4711]: ",
        "2026-11-29T15:14:06+0000 spark vllm[4711]: ",
        "2026-11-29T15:14:06.123456+01:00 spark vllm[4711]: ",
        "Sun 2026-11-29 15:14:06 UTC spark vllm-nemotron.service[4711]: ",
        "[  123.456789] spark vllm[4711]: ",
        "1764428046.123456 spark vllm[4711]: ",
        "^C",
        "29/11/26 15:14:06 - ",
        "\x1b[36mvllm-1  | \x1b[0m",
    ],
)
def test_wrappers_are_stripped(wrapper):
    assert only(wrapper + RECORD)[:6] == PARSED


@pytest.mark.parametrize(
    ("prefix", "process", "pid"),
    [
        ("(APIServer pid=7)", "APIServer", 7),
        ("(ApiServer_1 pid=7)", "ApiServer_1", 7),
        ("(MainProcess pid=7)", "MainProcess", 7),
        ("(EngineCore_DP0 pid=7)", "EngineCore_DP0", 7),
        ("(EngineCore_0 pid=7)", "EngineCore_0", 7),
        ("(StageEngineCoreProc pid=7)", "StageEngineCoreProc", 7),
        ("(Worker pid=7)", "Worker", 7),
        ("(Worker_DP0_TP0_EP0 pid=7)", "Worker_DP0_TP0_EP0", 7),
        ("(VllmWorker-0 pid=7)", "VllmWorker-0", 7),
        ("(VllmWorker rank=0 pid=7)", "VllmWorker", 7),
        ("\x1b[1;36m(EngineCore_DP0 pid=271)\x1b[0;0m", "EngineCore_DP0", 271),
    ],
)
def test_processes_of_every_version(prefix, process, pid):
    line = only(f"{prefix} INFO 10-02 08:11:09 [v1/engine/core.py:77] hello")
    assert (line.process, line.pid, line.level, line.file, line.message) == (
        process, pid, "INFO", "core.py", "hello",
    )  # fmt: skip


def test_process_without_level_is_a_bare_line_with_a_name():
    line = only("(EngineCore_DP0 pid=9) RuntimeError: boom")
    assert (line.process, line.pid, line.level, line.message) == (
        "EngineCore_DP0", 9, "", "RuntimeError: boom",
    )  # fmt: skip


@pytest.mark.parametrize(
    "before",
    [
        "Processed prompts:   0%|          | 0/3 [00:00<?, ?it/s]",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.0it/s]",
        "(EngineCore pid=42) Capturing CUDA graphs (decode, FULL):  10%|#   | 1/9 [00:00<?, ?it/s]",
        "See https://nanobind.readthedocs.io/en/latest/refleaks.html",
        "\r  0%|   | 0/3\r 50%|## | 1/3 [00:00<?, ?it/s]",
    ],
)
def test_record_glued_behind_a_bar_is_found(before):
    assert frame(before + RECORD)[-1][:6] == PARSED


def test_traceback_glued_behind_a_note_is_cut():
    lines = frame("See https://nanobind.readthedocs.io/x.htmlTraceback (most recent call last):")
    assert [line.message for line in lines] == [
        "See https://nanobind.readthedocs.io/x.html", "Traceback (most recent call last):",
    ]  # fmt: skip


@pytest.mark.parametrize("separator", ["\r", "\x85", "\u2028", "\v", "\f", "]", "it/s]", ".html"])
def test_a_clients_text_inside_a_record_never_becomes_a_record(separator):
    client = "(APIServer pid=1) INFO 11-29 15:00:00 [async_llm.py:795] Request x failed (bad request): 5%|"
    line = only(client + separator + RECORD)
    assert (line.process, line.level) == ("APIServer", "INFO")


def test_quoted_text_is_not_unwrapped():
    line = only(f"ValueError: '15:14:06 {RECORD}'")
    assert (line.process, line.level) == ("", "")


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("Nov 29 15:14:06 spark kernel: NVRM: Xid", Source.KERNEL),
        ("Nov 29 15:14:06 spark kernel: [  12.000001] NVRM: Xid", Source.KERNEL),
        ("[  123.456789] NVRM: Xid", Source.KERNEL),
        ("<4>[  123.456789] NVRM: Xid", Source.KERNEL),
        ("[Sun Nov 29 15:14:06 2026] NVRM: Xid", Source.KERNEL),
        ("2026-11-29T15:14:06+0000 spark kernel: NVRM: Xid", Source.KERNEL),
        ("Nov 29 15:14:06 spark systemd[1]: NVRM: Xid", Source.SYSTEMD),
        ("NVRM: Xid", Source.ENGINE),
    ],
)
def test_source_comes_from_the_wrapper(text, source):
    line = only(text)
    assert (line.source, line.message) == (source, "NVRM: Xid")


def test_a_known_source_is_not_overruled_by_text():
    line = frame("Nov 29 15:14:06 spark kernel: NVRM: Xid", Source.ENGINE)[0]
    assert line.source is Source.ENGINE


def test_message_of_several_lines():
    lines = frame(f"{RECORD}\n\n{RECORD}\r\n")
    assert [line[:6] for line in lines] == [PARSED, PARSED]


def test_empty_message_is_one_empty_line():
    assert only("").message == ""
    assert only(b"").message == ""


def test_caps_are_marked():
    line = only("(EngineCore pid=1) ERROR 11-29 15:00:00 [dump_input.py:72] " + "x" * 50_000)
    assert line.message == "x" * MESSAGE_CAP + TRUNCATED
    assert len(line.raw) == RAW_CAP + len(TRUNCATED)
    assert line.raw.endswith(TRUNCATED)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("bell\x07", "bell\\x07"),
        ("bidi\u202etext", "bidi\\u202etext"),
        ("c1\x9b31m", "c1\\x9b31m"),
        ("tab\there", "tab here"),
        ("\ud800", "\\ud800"),
        ("漢字 é", "漢字 é"),
    ],
)
def test_neutralise(text, safe):
    assert neutralise(text) == safe


def test_undecodable_bytes_are_shown():
    assert only(b"a\xff\x00b").message == "a\\xff\\x00b"


@pytest.mark.parametrize(
    ("process", "kind"),
    [
        ("EngineCore_DP1", "EngineCore"), ("StageEngineCoreProc", "EngineCore"),
        ("VllmWorker-0", "Worker"), ("Worker_TP1", "Worker"), ("ApiServer_0", "APIServer"),
        ("APIServer", "APIServer"), ("MainProcess", "MainProcess"), ("", ""),
    ],
)  # fmt: skip
def test_process_kind(process, kind):
    assert process_kind(process) == kind
