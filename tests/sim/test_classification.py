# SPDX-License-Identifier: Apache-2.0
"""What sparkd concludes from a simulated life is what it concludes from the real thing."""

import os
import signal

import pytest
from conftest import wait_until
from test_http import post_without_waiting

from sparkd.adapters.catalogue import load_catalogue
from sparkd.core.classify import ExitState, Verdict, classify
from sparkd.core.lines import frame

SERVING = [
    ("cuda-illegal-instruction", "cuda-illegal-instruction"),
    ("cuda-illegal-memory-access", "cuda-illegal-memory-access"),
    ("cuda-oom", "cuda-out-of-memory"),
    ("no-kernel-image", "no-kernel-image"),
    ("core-killed", "engine-core-killed"),
    ("core-abort", "engine-core-aborted"),
    ("worker-died", "worker-died"),
    ("worker-segfault", "worker-died"),
    ("orphan", "cuda-illegal-memory-access"),
    ("port-kept", "cuda-illegal-memory-access"),
    ("silent-exit-0", "exit-without-a-line"),
    ("exit", "exit-without-a-line"),
    ("main-killed", "main-process-killed"),
    ("segfault", "main-process-crashed"),
]

STARTING = [
    ("kv-cache-too-small", "kv-below-max-len"),
    ("no-kv-cache-memory", "kv-too-small"),
    ("free-memory", "gpu-free-memory"),
    ("mamba-blocks", "mamba-blocks"),
    ("init-failed", "engine-core-init-failed"),
    ("no-kernel-image", "no-kernel-image"),
    ("cuda-oom", "cuda-out-of-memory"),
    ("core-killed", "engine-core-killed-in-init"),
    ("bad-flag", "bad-flag"),
    ("port-in-use", "port-in-use"),
    ("model-missing", "model-missing"),
    ("exit", "start-failed-unexplained"),
]


@pytest.fixture(scope="module")
def catalogue():
    return load_catalogue()


def verdict(catalogue, engine) -> Verdict:
    """The verdict that systemd's view of this engine's end and its output lead to."""
    status = engine.process.poll()
    if status is None:
        state = None
    elif status < 0:
        state = ExitState("signal", "killed", signal.Signals(-status).name.removeprefix("SIG"))
    else:
        state = ExitState("exit-code" if status else "success", "exited", str(status))
    lines = [line for raw in engine.output.splitlines() for line in frame(raw)]
    return classify(lines, catalogue, exit_state=state)


@pytest.mark.parametrize(("kind", "expected"), SERVING)
def test_a_death_in_service(start, catalogue, kind, expected):
    engine = start(death=kind, death_after_seconds=0, linger_seconds=0, load_seconds=0.05)
    engine.exit_status()
    found = verdict(catalogue, engine)
    assert (found.label, found.cls) == ("fatal-runtime", expected), found


@pytest.mark.parametrize(("kind", "expected"), STARTING)
def test_a_failed_start(start, catalogue, kind, expected):
    in_service_too = kind in dict(SERVING)
    moment = {"death_at_load": 0.5} if in_service_too else {}
    engine = start(death=kind, load_seconds=0.05, **moment)
    engine.exit_status()
    found = verdict(catalogue, engine)
    assert (found.label, found.cls) == ("fatal-init", expected), found


@pytest.mark.parametrize(("kind", "expected"), SERVING)
def test_a_death_in_service_that_is_logged_as_json(start, catalogue, kind, expected):
    life = {"death_after_seconds": 0, "linger_seconds": 0, "load_seconds": 0.05}
    engine = start("--logging-config.formatter", "json", death=kind, **life)
    engine.exit_status()
    assert '"levelname": "INFO"' in engine.output
    assert "(EngineCore pid=" not in engine.output
    found = verdict(catalogue, engine)
    assert (found.label, found.cls) == ("fatal-runtime", expected), found


@pytest.mark.parametrize(("kind", "expected"), STARTING)
def test_a_failed_start_that_is_logged_as_json(start, catalogue, kind, expected):
    moment = {"death_at_load": 0.5} if kind in dict(SERVING) else {}
    config = '{"formatter": "json", "log_level": "INFO"}'
    engine = start("--logging-config", config, death=kind, load_seconds=0.05, **moment)
    engine.exit_status()
    found = verdict(catalogue, engine)
    assert (found.label, found.cls) == ("fatal-init", expected), found


def test_a_flood_does_not_hide_the_cause(start, catalogue):
    life = {"flood_before": 1000, "flood_after": 5000}
    engine = start(death="cuda-illegal-instruction", death_after_seconds=0, **life)
    engine.exit_status()
    assert verdict(catalogue, engine).cls == "cuda-illegal-instruction"


def test_a_kept_api_server(start, catalogue):
    engine = start(death="keep-alive", death_after_seconds=0).ready()
    engine.has_said("AsyncLLM output_handler failed.")
    for _ in range(8):
        assert engine.get("/health").status == 503
    assert verdict(catalogue, engine).cls == "keep-alive-503"


def test_an_engine_that_hangs_under_load(start, catalogue):
    engine = start(stats_seconds=0.2, tokens_per_second=20).ready()
    client = post_without_waiting(engine, tokens=500)
    wait_until(lambda: engine.metric("vllm:num_requests_running") == 1, "a running request")
    engine.die("hang")
    engine.has_said("Avg generation throughput: 0.0 tokens/s, Running: 1 reqs")
    found = verdict(catalogue, engine)
    assert (found.label, found.cls) == ("hang", "frozen-engine-health-200")
    client.close()


def test_a_clean_stop_is_clean(start, catalogue):
    engine = start().ready()
    engine.complete()
    engine.term().exit_status()
    assert verdict(catalogue, engine).label == "clean-stop"


def test_a_stop_of_the_group_in_a_start(start, catalogue):
    engine = start(load_seconds=20).has_said("world_size=")
    os.killpg(engine.pid, signal.SIGTERM)
    engine.has_said("Process EngineCore:")
    found = wait_until(lambda: verdict(catalogue, engine), "a verdict")
    assert (found.label, found.cls) == ("hang", "sigterm-during-init-hang")


def test_a_serving_engine_is_benign(start, catalogue):
    engine = start().ready()
    engine.complete()
    assert verdict(catalogue, engine).label == "benign"
