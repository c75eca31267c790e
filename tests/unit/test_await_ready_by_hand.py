# SPDX-License-Identifier: Apache-2.0
"""await-ready as a real process against real HTTP servers, the way a person runs it by hand.

Each engine is a process in a control group of its own, as systemd would put it: whose listener it
is decides. Under a unit (status line, log, records) the gate is tested on a real systemd.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from sparkd.adapters import proc

TIMEOUT_S = 120
LOOKS_S = 5
"""Enough for a gate to begin and to look at least once, on a busy machine as well."""
ROOT = Path(__file__).parents[2]
TREE = next(
    (path for path in (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup")) if path.is_dir()),
    Path("/nonexistent"),
)
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 and "CI" not in os.environ,
    reason="only root may make control groups; CI must be root",
)

ENGINE = """
import http.server, json, os, signal, socket, sys, threading, time

life = json.loads(sys.argv[1])
born = time.monotonic()


class Endpoint(http.server.BaseHTTPRequestHandler):
    def answer(self, status, value=None):
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/health":
            self.answer(200 if time.monotonic() - born > life.get("load_s", 0) else 503)
        elif self.path == "/version":
            self.answer(200, {"version": "0.27.1"})
        elif self.refused():
            self.answer(401, {"error": "Unauthorized"})
        else:
            self.answer(200, {"data": [{"id": name} for name in life.get("names", ["m"])]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if life.get("dies_at_warmup"):
            os.kill(os.getpid(), signal.SIGKILL)
        if life.get("stalls_at_warmup"):
            time.sleep(60)
        if self.refused():
            self.answer(401)
        elif self.path in life.get("tasks", ["/v1/completions"]):
            self.answer(200, {"data": [1], "choices": [1]})
        else:
            self.answer(404, {"detail": "Not Found"})

    def refused(self):
        key = life.get("key")
        return key and self.headers.get("Authorization") != "Bearer " + key

    def log_message(self, *args):
        pass


def drip(port):
    server = socket.create_server(("127.0.0.1", port))
    print(server.getsockname()[1], flush=True)

    def serve(connection):
        try:
            while True:
                connection.sendall(life["drip"].encode())
                time.sleep(0.02)
        except OSError:
            pass

    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()


if "drip" in life:
    drip(life.get("port", 0))
if life.get("silent"):
    print(0, flush=True)
    sys.stdin.read()
http.server.ThreadingHTTPServer.allow_reuse_port = life.get("shares", False)
server = http.server.ThreadingHTTPServer(("127.0.0.1", life.get("port", 0)), Endpoint)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Engine:
    """A running process and the port it listens on."""

    def __init__(self, process):
        self.process = process
        self.pid = process.pid
        self.port = int(process.stdout.readline())


@pytest.fixture
def start():
    """Start an engine; `own_group=False` leaves it where the test is."""
    parent = TREE / f"sparkd-test-{os.getpid()}.slice"
    running = []

    def start(*, own_group=True, **life):
        process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, json.dumps(life)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        group = parent / f"vllm-{len(running)}.service" if own_group else None
        running.append((process, group))
        if group:
            group.mkdir(parents=True)
            (group / "cgroup.procs").write_text(str(process.pid))
        return Engine(process)

    yield start
    for process, group in running:
        with process:
            process.kill()
        if group:
            group.rmdir()
    if parent.is_dir():
        parent.rmdir()


NOBODY = types.SimpleNamespace(pid=1, port=9)
GATE = "from sparkd.helpers.await_ready import main; raise SystemExit(main())"


def gate(engine, *words, **options):
    """The gate's command for an engine; `options` replace what it is usually asked."""
    asked = {"pid": engine.pid, "port": engine.port, "served-name": "m", "budget": 20}
    asked |= {name.replace("_", "-"): value for name, value in options.items()}
    argv = [f"--{name}={value}" for name, value in asked.items()]
    return subprocess.Popen(
        [sys.executable, "-c", GATE, *argv, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcome(process):
    try:
        said = process.communicate(timeout=TIMEOUT_S)[0]
    finally:
        process.kill()
    assert "Traceback" not in said, said
    return process.returncode, said


def judge(engine, *words, **options):
    return outcome(gate(engine, *words, **options))


def test_ready(start):
    status, said = judge(start(), expect_version="0.27.1")
    assert status == 0
    assert "ready after" in said
    assert "serves m and answered a request" in said


def test_ready_once_it_has_loaded(start):
    assert judge(start(load_s=0.6))[0] == 0


def test_every_served_name(start):
    assert judge(start(names=["m", "alias"]), "--served-name=alias")[0] == 0


@pytest.mark.parametrize("task", ["/v1/completions", "/v1/embeddings", "/score"])
def test_an_engine_of_any_task(start, task):
    assert judge(start(tasks=[task]))[0] == 0


def test_no_warmup(start):
    assert judge(start(tasks=[]), warmup="none")[0] == 0


@pytest.mark.parametrize(
    ("life", "options", "reason"),
    [
        ({"names": ["other"]}, {}, "serves other, but the configuration says m"),
        ({}, {"expect_version": "0.27.0"}, "/version says 0.27.1, but expect-version is 0.27.0"),
        ({"key": "k"}, {}, "asks for an API key"),
        ({"tasks": []}, {}, "supports none of the warm-up requests"),
        ({"tasks": ["/score"]}, {"warmup": "embedding"}, "supports none of the warm-up requests"),
    ],
)
def test_what_will_fail_again(start, life, options, reason):
    status, said = judge(start(**life), **options)
    assert status == 78
    assert reason in said


def test_an_api_key(start, tmp_path):
    key = "canary-0123456789"
    (tmp_path / "key").write_text(f"{key}\n")
    (tmp_path / "wrong").write_text("canary-wrong")
    engine = start(key=key, load_s=0.5)
    process = gate(engine, api_key_file=tmp_path / "key")
    cmdline = Path(f"/proc/{process.pid}/cmdline").read_text()
    environment = Path(f"/proc/{process.pid}/environ").read_text()
    status, said = outcome(process)
    assert status == 0
    assert "canary" not in said + cmdline + environment
    status, said = judge(engine, api_key_file=tmp_path / "wrong")
    assert status == 78
    assert "refuses the configured API key" in said
    assert "canary" not in said


@pytest.mark.parametrize("pid", ["", "0", "4194305", "9" * 30])
def test_no_process_is_a_dead_process(pid):
    status, said = judge(NOBODY, pid=pid)
    assert status == 1
    assert "the main process is gone" in said


def test_a_dead_process_that_nobody_has_reaped(start):
    engine = start()
    engine.process.kill()
    os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)
    assert judge(engine)[0] == 1


def until_it_waits(process):
    """Wait until a gate has a hold of the process that it waits for, and obeys signals."""
    end = time.monotonic() + TIMEOUT_S
    while not any("pidfd" in name for name in descriptors(process.pid)):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)


def descriptors(pid):
    """What a process has open; some may be closed meanwhile."""
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield str(fd.readlink())


LIVES = {
    "while it loads": {"load_s": 60},
    "while nothing listens": {"silent": True},
    "while it drips": {"drip": "HTTP/1.1 100 Continue\r\n\r\n"},
    "while the warm-up takes its time": {"stalls_at_warmup": True},
}


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_a_death_ends_the_wait_within_a_second(start, life):
    """That second is a promise, not a benchmark: the gate took 1080 s for it where it lied."""
    engine = start(**life)
    process = gate(engine, port=engine.port or 9, budget=600)
    until_it_waits(process)
    time.sleep(0.6)  # so that it is in the middle of it
    assert process.poll() is None
    engine.process.kill()
    killed = time.monotonic()
    status, said = outcome(process)
    assert time.monotonic() - killed < 1.0
    assert status == 1
    assert "the main process is gone" in said


def test_a_death_at_the_warmup(start):
    assert judge(start(dies_at_warmup=True))[0] == 1


@pytest.mark.parametrize(
    "life",
    [
        {"silent": True},
        {"drip": ""},
        {"drip": "HTTP/1.1 100 Continue\r\n\r\n" * 100},
        {"stalls_at_warmup": True},
    ],
)
def test_the_deadline(start, life):
    engine = start(**life)
    status, said = judge(engine, port=engine.port or 9, budget=0.5)
    assert status == 1
    assert "not ready after" in said


def test_somebody_elses_listener_is_never_ready(start):
    """It answers every question as the engine would, for the whole wait."""
    stranger = start()
    engine = start(silent=True)
    status, said = judge(engine, port=stranger.port, budget=LOOKS_S)
    assert status == 1
    assert f"port {stranger.port} is held by " in said
    assert f"(PID {stranger.pid}, vllm-0.service), which is not this engine" in said


def test_a_listener_shared_with_a_stranger_is_never_ready(start):
    """The kernel hands a part of the connections to the stranger."""
    stranger = start(shares=True)
    engine = start(shares=True, port=stranger.port)
    status, said = judge(engine, budget=LOOKS_S)
    assert status == 1
    assert f"(PID {stranger.pid}, vllm-0.service), which is not this engine" in said


def test_a_process_without_a_control_group_of_its_own_is_never_ready(start):
    engine = start(own_group=False)
    if proc.cgroup_of(engine.pid) not in {"", "/"}:
        return  # under a service manager it has one: the test's own
    status, said = judge(engine, budget=LOOKS_S)
    assert status == 1
    assert "has no control group of its own" in said


def test_terminated_by_hand_is_not_ready(start):
    process = gate(start(load_s=60), budget=600)
    until_it_waits(process)
    process.send_signal(signal.SIGTERM)
    assert outcome(process)[0] == 1


@pytest.mark.parametrize("words", [["--port=x"], ["--warmup=chat"], ["--nonsense"]])
def test_wrong_usage(words):
    assert judge(NOBODY, *words)[0] == 2
