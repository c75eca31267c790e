# SPDX-License-Identifier: Apache-2.0
"""sparkd's questions to engines that serve, hang, are locked or die: simulated ones."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sparkd.adapters import engine_probe
from sparkd.adapters.engine_probe import Engine
from sparkd.core import progress
from sparkd.core.hang import Canary
from sparkd.core.lingering import Health

SHORT_S = 1.0
LONG_S = 30.0


def address(engine: Any, key_file: str = "") -> Engine:
    host, port = engine_probe.address_of(engine.pid) or ("", 0)
    assert (host, port) == ("127.0.0.1", engine.port)
    return Engine(host, port, key_file)


@pytest.fixture
def never() -> Any:
    fd = os.eventfd(0, os.EFD_CLOEXEC)
    yield fd
    os.close(fd)


def canary(engine: Engine, fd: int, limit_s: float = LONG_S) -> Canary:
    return engine_probe.one_token(engine, limit_s=limit_s, abort_fd=fd)


def test_a_token_moves_the_counters_and_only_that(start: Any, never: int) -> None:
    engine = start().ready()
    whom = address(engine)
    first = engine_probe.look(whom, engine.pid, for_compilers=True)
    assert first.counters is not None
    assert not first.silent
    assert first.compilers == 0
    assert engine_probe.health(whom) is Health.HEALTHY
    second = engine_probe.look(whom, engine.pid, for_compilers=False)
    assert second.counters is not None
    assert not progress.moved(first.counters, second.counters)
    assert canary(whom, never) is Canary.ANSWERED
    third = engine_probe.look(whom, engine.pid, for_compilers=False)
    assert third.counters is not None
    assert progress.moved(second.counters, third.counters)


def test_a_frozen_core_answers_everything_but_a_token(start: Any, never: int) -> None:
    engine = start().ready()
    whom = address(engine)
    os.kill(engine.core(), signal.SIGSTOP)
    assert engine_probe.health(whom) is Health.HEALTHY
    assert engine_probe.look(whom, engine.pid, for_compilers=False).counters is not None
    assert canary(whom, never, SHORT_S) is Canary.FAILED


def test_a_canary_can_be_called_off(start: Any, never: int) -> None:
    engine = start().ready()
    os.kill(engine.core(), signal.SIGSTOP)
    threading.Timer(0.3, os.eventfd_write, (never, 1)).start()
    assert canary(address(engine), never, 600.0) is Canary.INCONCLUSIVE


def test_a_key_is_sent_and_a_wrong_one_says_nothing_about_the_engine(
    start: Any, never: int, tmp_path: Path
) -> None:
    engine = start(VLLM_API_KEY="k-1").ready()
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("k-1\n")
    wrong.write_text("k-2\n")
    assert canary(address(engine, str(right)), never) is Canary.ANSWERED
    for file in (str(wrong), "", str(tmp_path / "none")):
        assert canary(address(engine, file), never) is Canary.INCONCLUSIVE


def test_an_embedding_engine_is_asked_in_its_own_way(start: Any, never: int) -> None:
    engine = start("--runner", "pooling").ready()
    assert canary(address(engine), never) is Canary.ANSWERED


def test_a_zombie_fails(start: Any, never: int) -> None:
    engine = start(VLLM_KEEP_ALIVE_ON_ENGINE_DEATH="1").ready()
    whom = address(engine)
    engine.die("keep-alive")
    deadline = time.monotonic() + LONG_S
    while engine_probe.health(whom) is Health.HEALTHY and time.monotonic() < deadline:
        time.sleep(0.05)
    assert engine_probe.health(whom) is Health.FAILING
    assert canary(whom, never) in {Canary.FAILED, Canary.INCONCLUSIVE}


def test_a_server_that_is_gone_or_frozen_is_silent(
    start: Any, never: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_probe, "QUESTION_S", SHORT_S)
    engine = start().ready()
    whom = address(engine)
    os.kill(engine.pid, signal.SIGSTOP)
    assert engine_probe.look(whom, engine.pid, for_compilers=False).silent
    assert engine_probe.health(whom) is Health.FAILING
    assert canary(whom, never) is Canary.FAILED
    os.kill(engine.pid, signal.SIGKILL)
    engine.exit_status()
    assert engine_probe.look(whom, engine.pid, for_compilers=False).silent
    assert engine_probe.health(whom) is Health.FAILING
    assert engine_probe.address_of(engine.pid) is None
