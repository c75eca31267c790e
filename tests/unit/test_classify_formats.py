# SPDX-License-Identifier: Apache-2.0

"""The carriers of a log: structured journals, Docker's files, and their traps."""

import json

import pytest

from sparkd.core.lines import Source
from sparkd.core.logformats import read_lines

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


def read(*records):
    chunks = b"".join(r if isinstance(r, bytes) else r.encode() + b"\n" for r in records)
    return list(read_lines(chunks.splitlines(keepends=True)))


def entry(message, **fields):
    base = {"__CURSOR": "s=1", "__REALTIME_TIMESTAMP": "1", "_TRANSPORT": "stdout", "_PID": "42"}
    return {**base, **fields, "MESSAGE": message}


def test_json_text():
    assert read(json.dumps(entry(RECORD)))[0][1][:6] == PARSED


def test_json_bytes_because_of_colours():
    raw = "\x1b[1;36m(EngineCore pid=42)\x1b[0;0m" + RECORD.removeprefix("(EngineCore pid=42)")
    assert read(json.dumps(entry(list(raw.encode()))))[0][1][:6] == PARSED


def test_json_null_because_it_was_too_long():
    lines = read(json.dumps(entry(None)), json.dumps(entry(RECORD)))
    assert [line.message for _, line in lines] == ["", PARSED[5]]


@pytest.mark.parametrize("message", [[RECORD, RECORD], [300, -1], [[1]], {}, 5, True, [None]])
def test_json_messages_of_odd_shapes(message):
    assert read(json.dumps(entry(message)))


def test_json_sse_and_seq():
    assert read("data: " + json.dumps(entry(RECORD)))[0][1][:6] == PARSED
    assert read("\x1e" + json.dumps(entry(RECORD)))[0][1][:6] == PARSED


def test_json_pretty_counts_physical_lines():
    text = json.dumps(entry(RECORD), indent=8)
    lines = read(text, text)
    assert [line[:6] for _, line in lines] == [PARSED, PARSED]
    assert lines[1][0] == text.count("\n") + 2


def test_unfinished_pretty_json_is_text():
    assert [line.message for _, line in read("{", "a", RECORD)][-1] == PARSED[5]


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}, Source.KERNEL),
        ({"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"}, Source.ENGINE),
        ({"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "kernel"}, Source.ENGINE),
        ({"_TRANSPORT": "journal", "SYSLOG_IDENTIFIER": "systemd", "_PID": "1"}, Source.SYSTEMD),
        ({"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "systemd", "_PID": "77"}, Source.ENGINE),
        ({"_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "vllm"}, Source.ENGINE),
    ],
)
def test_journal_fields_tell_the_source_and_an_identifier_cannot_lie(fields, source):
    message = "NVRM: Xid (PCI:000f:01:00): 79, pid=1, name=x, GPU has fallen off the bus."
    assert read(json.dumps(entry(message, **fields)))[0][1].source is source


def export(*entries):
    out = b""
    for fields in entries:
        for key, value in fields.items():
            data = value if isinstance(value, bytes) else str(value).encode()
            if isinstance(value, bytes):
                out += key.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"
            else:
                out += key.encode() + b"=" + data + b"\n"
        out += b"\n"
    return out


def test_export_with_text_and_binary_fields():
    binary = b"\x1b[36m(EngineCore pid=42)\x1b[0m" + RECORD.encode().removeprefix(
        b"(EngineCore pid=42)"
    )
    blob = export(entry(RECORD), entry(binary), entry(b"\n\n__CURSOR=x\n\x00\n"), entry(RECORD))
    lines = [line[:6] for _, line in read(blob)]
    assert [line for line in lines if line[1]] == [PARSED, PARSED, PARSED]


def test_export_kernel_source():
    fields = entry("NVRM: x", _TRANSPORT="kernel", SYSLOG_IDENTIFIER="kernel")
    assert read(export(fields))[0][1].source is Source.KERNEL


def test_cut_off_export_does_not_raise():
    blob = export(entry(RECORD), entry(b"x" * 100))
    for end in range(len(blob)):
        read(blob[:end])


def test_verbose():
    text = (
        "Sun 2026-11-29 15:14:06.123456 UTC [s=6f;i=1;b=2;m=3;t=4;x=5]\n"
        "    _TRANSPORT=stdout\n    PRIORITY=6\n"
        f"    MESSAGE={RECORD}\n    _PID=42\n"
    )
    assert [line[:6] for _, line in read(text.rstrip("\n"), text.rstrip("\n"))] == [PARSED, PARSED]


def test_docker_json_file():
    text = json.dumps({"log": RECORD + "\n", "stream": "stderr", "time": "2026-11-29T15:14:06Z"})
    assert read(text)[0][1][:6] == PARSED


def test_the_rest_of_a_line_that_docker_cut_cannot_pose_as_a_record():
    first = json.dumps({"log": "x" * 100, "stream": "stderr", "time": "t"})
    rest = json.dumps({"log": RECORD + "\n", "stream": "stderr", "time": "t"})
    lines = [line for _, line in read(first, rest, rest)]
    assert [line.source for line in lines] == [Source.ENGINE, Source.OTHER, Source.ENGINE]


def test_the_rest_of_a_line_that_journald_cut_cannot_pose_as_a_record():
    first = json.dumps(entry("x" * 100, _LINE_BREAK="line-max", _STREAM_ID="a"))
    rest = json.dumps(entry(RECORD, _STREAM_ID="a"))
    other = json.dumps(entry(RECORD, _STREAM_ID="b"))
    sources = [line.source for _, line in read(first, other, rest, rest)]
    assert sources == [Source.ENGINE, Source.ENGINE, Source.OTHER, Source.ENGINE]


def test_nor_can_the_rest_of_one_in_which_another_process_wrote():
    first = json.dumps(entry("x" * 9000, _LINE_BREAK="pid-change", _STREAM_ID="a", _PID="1"))
    other = json.dumps(entry(RECORD, _STREAM_ID="a", _PID="2"))
    rest = json.dumps(entry(RECORD, _STREAM_ID="a", _PID="1"))
    sources = [line.source for _, line in read(first, other, rest, rest)]
    assert sources == [Source.ENGINE, Source.ENGINE, Source.OTHER, Source.ENGINE]


def test_json_that_is_no_log_is_text():
    assert read('{"a": 1}')[0][1].message == '{"a": 1}'
    assert read("{" * 5000)[0][1].message.startswith("{{{")
    assert read("[" * 100_000)


def test_byte_order_mark_and_missing_last_newline():
    assert read(b"\xef\xbb\xbf" + RECORD.encode())[0][1][:6] == PARSED


def test_line_numbers_of_text():
    assert [number for number, _ in read("a", "", "b")] == [1, 2, 3]
