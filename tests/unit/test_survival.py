# SPDX-License-Identifier: Apache-2.0
"""The daemon on a machine that runs out of something, or is being upgraded under it."""

import ast
import configparser
import http.client
import os
import resource
import socket
import threading
import time
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sparkd.adapters import engine_probe, metrics_server
from sparkd.adapters.engine_probe import Engine
from sparkd.adapters.metrics_server import MetricsServer

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 30.0


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Every descriptor that this process may have is in use."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 64, before[1])
        )
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        try:
            while True:
                stack.callback(os.close, os.dup(0))
        except OSError:
            pass
        yield


def test_without_a_descriptor_an_engine_is_not_known_to_be_sick() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        engine = Engine("127.0.0.1", listener.getsockname()[1])
        with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
            engine_probe.health(engine)


def test_without_a_descriptor_metrics_pause_without_spinning_and_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paused = threading.Event()

    def pause(seconds: float) -> None:
        paused.set()
        time.sleep(seconds)

    clock = types.SimpleNamespace(monotonic=time.monotonic, sleep=pause)
    monkeypatch.setattr(metrics_server, "time", clock)
    server = MetricsServer("127.0.0.1", 0)
    scraper = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    try:
        with socket.socket() as client, no_descriptor_left():
            client.connect(("127.0.0.1", server.port))
            assert paused.wait(LIMIT_S), "the waiting listener is not asked again at once"
        scraper.request("GET", "/metrics")
        assert scraper.getresponse().status in {200, 503}
    finally:
        scraper.close()
        server.close()


def test_it_is_the_last_to_go_when_memory_is_short() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "units/sparkd.service")
    service = unit["Service"]
    assert int(service["OOMScoreAdjust"]) <= -900
    assert service["MemoryLow"]
    assert service["MemorySwapMax"] == "0", "the guard is not swapped out by what it is to end"
    assert int(service["Nice"]) <= -10, "the guard need not queue behind twenty compilers"
    assert service["MemoryMax"], "a leak of its own does not become the engines'"
    assert (service["Restart"], service["WatchdogSec"]) == ("always", "30")
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


MAY_BE_LATE = {"sparkd/core/config.py": "what [lint] ignores is read only where it is written"}


def late_imports(path: Path) -> set[str]:
    """Modules of sparkd that are imported inside of functions."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        node.module
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sparkd")
    }


def test_an_upgrade_under_a_running_daemon_changes_no_code_in_it() -> None:
    """What is imported late comes from the new package and meets the old one in memory."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("core", "adapters", "helpers", "daemon")
        for path in (ROOT / "sparkd" / folder).glob("*.py")
        if late_imports(path)
    }
    assert found == set(MAY_BE_LATE)
    assert late_imports(ROOT / "sparkd/cli/apply.py"), "the search finds what sparkctl does late"
