# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  log lines keep their length
"""Whatever the bytes and whatever carries them: framing and verdicts hold."""

import json
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.adapters.catalogue import load_catalogue
from sparkd.core.classify import Classifier
from sparkd.core.lines import MESSAGE_CAP, RAW_CAP, TRUNCATED, frame
from sparkd.core.logformats import read_lines

CAPTURES = sorted((Path(__file__).parent.parent / "corpus" / "captures").glob("local-*.txt"))
CATALOGUE = load_catalogue()

FRAGMENTS = [
    b"(EngineCore pid=42) ERROR 11-29 15:00:00 [core.py:1512] ", b"EngineCore encountered a fatal error.",
    b"\x1b[36m", b"\x1b]0;", b"\r", b"\n", b"50%|##| 1/2 [00:00<?, ?it/s]", b"vllm-1  | ",
    b"Nov 29 15:14:06 spark kernel: ", b"Nov 29 15:14:06 spark systemd[1]: ", b"__CURSOR=x\n", b"MESSAGE\n",
    b"\x05\x00\x00\x00\x00\x00\x00\x00", b"{", b'{"MESSAGE": [1, 2]}', b"data: {", b"    MESSAGE=",
    b"oom-kill:constraint=A,task_memcg=/vllm,task=VLLM::EngineCor,pid=42,", b"\xff\xfe", b"\x00",
    b'{"levelname": "ERROR", "vllm_process_name": "EngineCore", "name": "vllm.v1.engine.core", "message": "',
    b'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 503', b"Stopping x", b"CUDA error: ", b" " * 300,
]  # fmt: skip
HOSTILE = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=40)), max_size=30).map(
    b"".join
)


def chunks(data: bytes) -> list[bytes]:
    return data.splitlines(keepends=True) if b"\n" in data else [data]


def judge(pairs):
    classifier = Classifier(CATALOGUE, complete=True)
    for number, line in pairs:
        classifier.feed(line, number)
    verdict = classifier.verdict()
    return verdict.label, verdict.cls, verdict.signature


@given(HOSTILE)
def test_framing_never_raises_and_is_bounded(data):
    lines = frame(data)
    assert lines
    for line in lines:
        assert len(line.message) <= MESSAGE_CAP + len(TRUNCATED)
        assert len(line.raw) <= RAW_CAP + len(TRUNCATED)
        assert line.raw.isprintable()
        assert line.message.isprintable()


@given(st.text(max_size=300))
def test_framing_never_raises_on_text(text):
    assert frame(text)


@given(HOSTILE)
def test_framing_what_was_framed_changes_nothing(data):
    for line in frame(data):
        again = frame(line.raw)
        assert len(again) == 1
        if not line.raw.endswith(TRUNCATED) and line.level:
            assert again[0][1:6] == line[1:6]


@settings(max_examples=200)
@given(HOSTILE)
def test_classifying_never_raises(data):
    classifier = Classifier(CATALOGUE)
    for number, line in read_lines(chunks(data)):
        classifier.feed(line, number)
    for requested in (None, True, False):
        assert classifier.verdict(requested=requested).reason.endswith(".")


@settings(max_examples=100)
@given(HOSTILE)
def test_a_verdict_is_only_read_off(data):
    classifier = Classifier(CATALOGUE)
    for line in frame(data):
        classifier.feed(line)
    assert classifier.verdict() == classifier.verdict()


def short(line: bytes) -> bytes:
    return b"Nov 29 15:14:06 spark vllm[4711]: " + line


def iso(line: bytes) -> bytes:
    return b"2026-11-29T15:14:06+0000 spark vllm[4711]: " + line


def docker(line: bytes) -> bytes:
    return b"2026-11-29T15:14:06.123456789Z " + line


def compose(line: bytes) -> bytes:
    return b"vllm-1  | " + line


def cri(line: bytes) -> bytes:
    return b"2026-11-29T15:14:06.123456789+00:00 stdout F " + line


def docker_file(line: bytes) -> bytes:
    return json.dumps({"log": line.decode() + "\n", "stream": "stdout", "time": "t"}).encode()


def journal_json(line: bytes) -> bytes:
    fields = {"__CURSOR": "x", "_TRANSPORT": "stdout", "MESSAGE": line.decode()}
    return json.dumps(fields).encode()


def journal_json_bytes(line: bytes) -> bytes:
    return json.dumps({"_TRANSPORT": "stdout", "MESSAGE": list(line)}).encode()


def journal_export(line: bytes) -> bytes:
    return b"__CURSOR=x\n_TRANSPORT=stdout\nMESSAGE=" + line + b"\n"


def journal_export_binary(line: bytes) -> bytes:
    size = len(line).to_bytes(8, "little")
    return b"__CURSOR=x\n_TRANSPORT=stdout\nMESSAGE\n" + size + line + b"\n"


def crlf(line: bytes) -> bytes:
    return line + b"\r"


def coloured(line: bytes) -> bytes:
    head, mark, tail = line.partition(b") ")
    return b"\x1b[1;36m" + head + mark[:1] + b"\x1b[0;0m" + mark[1:] + tail if mark else line


PLAIN = re.compile(
    r"\((?P<process>[^()]{1,40}) pid=(?P<pid>\d+)\) (?P<level>[A-Z]+) (?P<day>\d\d-\d\d) "
    r"(?P<time>\d\d:\d\d:\d\d) \[(?P<path>[\w./-]+)\.py:\d+\] ?(?P<message>.*)",
    re.DOTALL,
)
SERVER = re.compile(r"(?P<level>INFO|WARNING|ERROR): {4,6}(?P<message>.*)", re.DOTALL)


def vllm_json(line: bytes) -> bytes:
    """What vLLM 0.32 prints with `--logging-config.formatter json`; other lines stay as they are."""
    text = line.decode("utf-8", "backslashreplace")
    plain, server = PLAIN.fullmatch(text), SERVER.fullmatch(text)
    if plain:
        found = plain.groupdict()
        clock = f"2026-{found['day']} {found['time']},123"
        name = "vllm." + found["path"].replace("...", "x").strip("/").replace("/", ".")
    elif server:
        found = {**server.groupdict(), "process": "APIServer", "pid": "1"}
        clock, name = "2026-11-29 15:00:00,123", "uvicorn.error"
    else:
        return line
    return json.dumps(
        {
            "asctime": clock,
            "levelname": found["level"],
            "name": name,
            "processName": "MainProcess",
            "process": int(found["pid"]),
            "message": found["message"],
            "vllm_process_name": found["process"],
        }
    ).encode()


def prefixed_json(line: bytes) -> bytes:
    """What vLLM up to 0.31 makes of a JSON formatter's line."""
    wrapped = vllm_json(line)
    plain = PLAIN.fullmatch(line.decode("utf-8", "backslashreplace"))
    if wrapped == line or plain is None:
        return wrapped
    members = {**json.loads(wrapped), "vllm_process_name": None}
    return f"({plain['process']} pid={plain['pid']}) {json.dumps(members)}".encode()


def docker_of_json(line: bytes) -> bytes:
    return docker_file(vllm_json(line))


def journal_of_json(line: bytes) -> bytes:
    return journal_json(vllm_json(line))


WRAPPERS = [
    short, iso, docker, compose, cri, docker_file, journal_json, journal_json_bytes, journal_export,
    journal_export_binary, crlf, coloured, vllm_json, prefixed_json, docker_of_json, journal_of_json,
]  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: wrapper.__name__)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_the_verdict_does_not_depend_on_the_carrier(path, wrapper):
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    plain = judge(read_lines([line + b"\n" for line in lines]))
    wrapped = b"".join(wrapper(line) + b"\n" for line in lines)
    assert judge(read_lines(chunks(wrapped))) == plain
    assert plain[0]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(CAPTURES), st.lists(st.sampled_from(WRAPPERS), min_size=1, max_size=4))
def test_a_log_may_change_its_carrier(path, wrappers):
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    mixed = b"".join(wrappers[i % len(wrappers)](line) + b"\n" for i, line in enumerate(lines))
    plain = judge(read_lines([line + b"\n" for line in lines]))
    assert judge(read_lines(chunks(mixed))) == plain


class Json(logging.Formatter):
    """The members that python-json-logger writes in vLLM's configuration of it."""

    def format(self, record: logging.LogRecord) -> str:
        members = {
            "asctime": self.formatTime(record),
            "levelname": record.levelname,
            "name": record.name,
            "processName": record.processName,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            members["exc_info"] = self.formatException(record.exc_info)
        return json.dumps({**members, "vllm_process_name": "EngineCore"})


class Text(logging.Formatter):
    """vLLM's prefix on every line of a record."""

    def format(self, record: logging.LogRecord) -> str:
        clock = self.formatTime(record, "%m-%d %H:%M:%S")
        head = f"(EngineCore pid={record.process}) {record.levelname} {clock} [core.py:0] "
        return "\n".join(head + line for line in super().format(record).split("\n"))


QUOTED = st.lists(
    st.one_of(
        st.text(max_size=60),
        st.sampled_from([p.decode("latin-1") for p in FRAGMENTS] + ['"', "\\", '", "level": "'])
    ),
    max_size=12,
).map("".join)  # fmt: skip


@given(QUOTED, st.one_of(st.none(), QUOTED), st.sampled_from(["DEBUG", "INFO", "WARNING", "ERROR"]))
@settings(max_examples=300)
def test_a_record_as_json_is_the_record_as_text(text, error, level):
    exc_info = None if error is None else (RuntimeError, RuntimeError(error), None)
    number = logging.getLevelName(level)
    record = logging.LogRecord("vllm.v1.engine.core", number, "core.py", 1, text, (), exc_info)
    as_text = [line for one in Text().format(record).split("\n") for line in frame(one)]
    as_json = frame(Json().format(record))
    # A journal has the text line by line; empty lines say nothing.
    assert [line for line in as_json if line.message] == [line for line in as_text if line.message]


@given(st.sampled_from(CAPTURES), QUOTED)
@settings(max_examples=100, deadline=None)
def test_a_clients_text_in_json_changes_no_label(path, text):
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    said = json.dumps(
        {"levelname": "INFO", "name": "vllm.entrypoints.logger", "process": 1,
         "message": f"Received request x: prompt: {text!r}", "vllm_process_name": "APIServer"}
    )  # fmt: skip
    before = judge(read_lines([line + b"\n" for line in lines]))
    lines.insert(len(lines) // 2, said.encode())
    assert judge(read_lines([line + b"\n" for line in lines]))[0] == before[0]


@given(st.sampled_from(CAPTURES), HOSTILE)
@settings(max_examples=100, deadline=None)
def test_a_clients_text_changes_no_label(path, text):
    """Whatever a client writes, escaped in a record of the API server, leaves the label alone."""
    lines = path.read_bytes().rstrip(b"\n").split(b"\n")
    said = (
        b"(APIServer pid=1) INFO 11-29 15:41:20 [request_logger.py:65] Received request: prompt: %r"
    )
    before = judge(read_lines([line + b"\n" for line in lines]))
    lines.insert(len(lines) // 2, said % text)
    assert judge(read_lines([line + b"\n" for line in lines]))[0] == before[0]


@pytest.mark.parametrize("signature", CATALOGUE.signatures, ids=lambda signature: signature.id)
def test_hostile_lines_match_in_bounded_time(signature):
    """A blow-up would not end within the test run's own time limit."""
    regex = CATALOGUE._regex(signature)
    literal = signature.literal
    for filler in ("", " ", "a", "0", "(", ".", "'", "] ", "Error: "):
        unit = literal + filler
        regex.search((unit * (MESSAGE_CAP // len(unit) + 1))[:MESSAGE_CAP])
        regex.search((filler * MESSAGE_CAP)[: MESSAGE_CAP - len(literal)] + literal)
