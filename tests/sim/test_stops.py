# SPDX-License-Identifier: Apache-2.0
"""Requested stops, which also exit 0: what tells them from a death."""

import os
import signal
import time
from pathlib import Path

from conftest import alive, wait_until
from test_http import post_without_waiting

DEAD = "EngineDeadError: EngineCore encountered an issue."
CLEAN_STOP = (
    "[shutdown] API server: shutdown triggered",
    "[shutdown] API server: stopping engine client mode=abort timeout=0s",
    "[shutdown] MPClient: start timeout=0s",
    "[shutdown] MPClient: stopping engine manager",
    "[shutdown] Process manager: send sigterm to process EngineCore",
    "[shutdown] MPClient: engine manager stopped",
    "[shutdown] MPClient: cleaning up background resources",
    "[shutdown] MPClient: complete",
    "[shutdown] API server: engine client stopped",
    "[shutdown] API server: signalling HTTP server shutdown",
    "[shutdown] API server: shutting down FastAPI HTTP server",
    "INFO:     Shutting down",
    "INFO:     Waiting for application shutdown.",
    "INFO:     Application shutdown complete.",
)


def assert_clean_stop(engine) -> None:
    assert engine.exit_status() == 0
    position = 0
    for line in CLEAN_STOP:
        position = engine.output.index(line, position)
    assert "Finished server process" not in engine.output


def test_a_clean_stop(start):
    engine = start().ready()
    core = engine.core()
    assert_clean_stop(engine.term())
    assert "trigger received signal=SIGTERM" in engine.output
    assert DEAD not in engine.output
    assert not alive(core)


def test_a_stop_of_the_whole_group_is_a_clean_stop_too(start):
    engine = start("--tensor-parallel-size", "2").ready()
    os.killpg(engine.pid, signal.SIGTERM)
    assert_clean_stop(engine)
    assert "died unexpectedly" not in engine.output
    assert "exited unexpectedly" not in engine.output


def test_a_clean_stop_under_load_has_the_traceback_of_a_death(start):
    engine = start(tokens_per_second=20).ready()
    client = post_without_waiting(engine, tokens=500)
    wait_until(lambda: engine.metric("vllm:num_requests_running") == 1, "a running request")
    engine.term()
    assert b"500 Internal Server Error" in client.recv(4096)
    client.close()
    assert_clean_stop(engine)
    assert DEAD in engine.output


def test_a_stop_that_drains(start):
    engine = start("--shutdown-timeout", "100", tokens_per_second=50).ready()
    client = post_without_waiting(engine, tokens=300)
    wait_until(lambda: engine.metric("vllm:num_requests_running") == 1, "a running request")
    engine.term()
    assert b"200 OK" in client.recv(4096)
    client.close()
    assert engine.exit_status() == 0
    assert "mode=drain timeout=100s" in engine.output
    assert "draining in-flight requests count=1" in engine.output


def test_a_stop_of_a_frozen_engine_waits_for_its_clients(start):
    engine = start(death="hang", death_at_request=1).ready()
    client = post_without_waiting(engine, tokens=5)
    wait_until(lambda: engine.get("/load").json() == {"server_load": 1}, "the request")
    # An engine counts as frozen once a request waited a second without a step.
    time.sleep(1.2)
    engine.term().has_said("Waiting for connections to close. (CTRL+C to force quit)")
    assert engine.process.poll() is None
    client.close()
    assert engine.exit_status() == 0


def test_the_first_sigterm_in_a_start_is_lost(start):
    engine = start(load_seconds=5.0).has_said("Starting to load model")
    engine.term().ready()
    assert engine.get("/health").status == 200
    assert_clean_stop(engine.term())


def test_two_sigterms_in_a_start_end_it_by_sigint(start):
    engine = start(load_seconds=20).has_said("world_size=")
    wait_until(lambda: ended_by_term(engine), "the end")
    assert engine.exit_status() == -signal.SIGINT
    assert engine.output.endswith("KeyboardInterrupt: terminated\n")


def test_a_sigterm_to_the_group_in_a_start_leaves_a_main_that_waits(start):
    engine = start(load_seconds=20).has_said("world_size=")
    core = engine.core()
    os.killpg(engine.pid, signal.SIGTERM)
    engine.has_said("EngineCore failed to start.").has_said("Process EngineCore:")
    wait_until(lambda: not alive(core), "the core to be a zombie")
    assert engine.children() == [core]
    assert engine.process.poll() is None
    wait_until(lambda: ended_by_term(engine), "the end")
    assert engine.exit_status() == -signal.SIGINT


def test_a_version_that_does_not_lose_the_sigterm(start):
    engine = start(load_seconds=20, lose_first_sigterm=0).has_said("world_size=")
    assert engine.term().exit_status() == -signal.SIGINT


def test_a_sigterm_during_the_imports_leaves_no_line(start):
    engine = start(import_seconds=60)
    wait_until(lambda: is_python(engine.pid), "the process")
    assert engine.term().exit_status() == -signal.SIGTERM
    assert engine.output == ""


def test_a_deaf_engine_needs_sigkill(start):
    engine = start(deaf=1).ready()
    core = engine.core()
    os.killpg(engine.pid, signal.SIGTERM)
    assert engine.complete().status == 200
    assert engine.process.poll() is None
    os.killpg(engine.pid, signal.SIGKILL)
    assert engine.exit_status() == -signal.SIGKILL
    wait_until(lambda: not alive(core), "the core to end")


def test_a_slow_stop_is_still_a_clean_stop(start):
    engine = start(stop_seconds=3).ready()
    engine.term().has_said("shutdown triggered")
    assert engine.process.poll() is None
    assert_clean_stop(engine)


def ended_by_term(engine) -> bool:
    # Again and again: two signals that a process has not taken yet are one signal.
    return engine.process.poll() is not None or engine.term().process.poll() is not None


def is_python(pid: int) -> bool:
    return b"serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
