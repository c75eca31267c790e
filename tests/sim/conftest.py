# SPDX-License-Identifier: Apache-2.0
"""Starts simulated engines as a service manager would: the installed `vllm`, over loopback."""

import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SAFETY_SECONDS = 120.0
POLL_SECONDS = 0.01


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Poll until `condition` holds; the limit only keeps a broken simulator from hanging a run."""
    deadline = time.monotonic() + SAFETY_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(POLL_SECONDS)
    pytest.fail(f"waited {SAFETY_SECONDS:.0f} s for {what}")


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


class Answer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.text = body.decode()

    def json(self) -> Any:
        return json.loads(self.text)


class Engine:
    """One run of `vllm serve`."""

    def __init__(self, vllm: Path, log: Path, port: int, flags: list[str], life: dict) -> None:
        self.port = port
        self._log = log
        environment = {"PATH": os.environ["PATH"]}
        for key, value in life.items():
            name = key if key.isupper() else f"SPARKD_SIM_{key.upper()}"
            environment[name] = str(value)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [vllm, "serve", "/models/tiny", "--port", str(port), *flags],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self._log.read_text()

    def has_said(self, text: str) -> "Engine":
        wait_until(lambda: text in self.output, f"{text!r} in the log:\n{self.output}")
        return self

    def ready(self) -> "Engine":
        return self.has_said("Application startup complete.")

    def exit_status(self) -> int:
        return self.process.wait(SAFETY_SECONDS)

    def children(self, pid: int | None = None) -> list[int]:
        text = Path(f"/proc/{pid or self.pid}/task/{pid or self.pid}/children").read_text()
        return [int(word) for word in text.split()]

    def core(self) -> int:
        return wait_until(self.children, "an EngineCore")[0]

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = SAFETY_SECONDS,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body).encode() if body is not None else None
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()

    def get(self, path: str, **kwargs: Any) -> Answer:
        return self.request("GET", path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> Answer:
        return self.request("POST", path, body, **kwargs)

    def complete(self, tokens: int = 2, **kwargs: Any) -> Answer:
        return self.post("/v1/completions", {"prompt": "once", "max_tokens": tokens}, **kwargs)

    def die(self, kind: str, **settings: Any) -> Answer:
        return self.post("/sim/die", {"kind": kind, **settings})

    def metric(self, sample: str) -> float:
        for line in self.get("/metrics").text.splitlines():
            name, _space, value = line.rpartition(" ")
            if name.startswith(sample):
                return float(value)
        pytest.fail(f"no sample {sample}")

    def term(self) -> "Engine":
        self.process.send_signal(signal.SIGTERM)
        return self

    def close(self) -> None:
        # The session holds only processes that this object started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(SAFETY_SECONDS)


@pytest.fixture(scope="session", autouse=True)
def _no_core_dumps() -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    venv = tmp_path_factory.mktemp("venv")
    command = [sys.executable, "-m", "sparkd.sim.engine", "install", str(venv)]
    root = Path(__file__).parents[2]
    subprocess.run(command, check=True, cwd=root, timeout=SAFETY_SECONDS, capture_output=True)
    return venv / "bin" / "vllm"


@pytest.fixture
def start(vllm: Path, tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """A function that starts an engine: flags, then settings of its life by keyword."""
    engines: list[Engine] = []

    def run(*flags: str, port: int | None = None, **life: Any) -> Engine:
        settings = {"load_seconds": 0.05, "watchdog_seconds": 0.1, "tokens_per_second": 200, **life}
        log = tmp_path / f"engine-{len(engines)}.log"
        engine = Engine(vllm, log, port or free_port(), list(flags), settings)
        engines.append(engine)
        return engine

    yield run
    for engine in engines:
        engine.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
