# SPDX-License-Identifier: Apache-2.0
"""Every way to fail: the exit status, the lines and what is left behind."""

import os
import signal
import socket
import time
from pathlib import Path

import pytest
from conftest import alive, wait_until

FATAL = "EngineCore encountered a fatal error."
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
BY_SIGNAL = "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
STOP_ASKED = "[shutdown] API server: shutdown triggered"
FINISHED = "INFO:     Finished server process ["

EXCEPTIONS = {
    "cuda-illegal-instruction": "CUDA error: an illegal instruction was encountered",
    "cuda-illegal-memory-access": "CUDA error: an illegal memory access was encountered",
    "cuda-oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",
    "no-kernel-image": "no kernel image is available for execution on the device",
}

FAILED_STARTS = {
    "kv-cache-too-small": "larger than the available KV cache memory",
    "no-kv-cache-memory": "No available memory for the cache blocks",
    "free-memory": "less than desired GPU memory utilization (0.25,",
    "mamba-blocks": "max_num_seqs (256) exceeds available Mamba cache blocks (85)",
    "init-failed": "RuntimeError: simulated failure of the start",
}


def in_order(output: str, *parts: str) -> None:
    position = 0
    for part in parts:
        assert part in output[position:], f"{part!r} is not after the part before it in\n{output}"
        position = output.index(part, position) + len(part)


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_an_exception_in_a_request_ends_with_500_and_exit_0(start, kind):
    engine = start(death=kind, death_at_request=2).ready()
    assert engine.complete().status == 200
    answer = engine.complete(50)
    assert (answer.status, "EngineCore encountered" in answer.text) == (500, True)
    assert engine.exit_status() == 0
    output = engine.output
    in_order(output, "Dumping input data for V1 LLM engine (v0.32.0)", FATAL, EXCEPTIONS[kind])
    in_order(output, FATAL, "Process EngineCore:", EXCEPTIONS[kind])
    in_order(output, FATAL, "AsyncLLM output_handler failed.", DEAD, "Shutting down", FINISHED)
    assert STOP_ASKED not in output
    assert BY_SIGNAL not in output


def test_a_stream_ends_with_an_error_event(start):
    engine = start(death="cuda-oom", death_at_request=1).ready()
    body = {"prompt": "x", "max_tokens": 9, "stream": True}
    answer = engine.post("/v1/completions", body)
    assert answer.status == 200
    assert '"error":{"message":"EngineCore encountered an issue.' in answer.text
    assert engine.exit_status() == 0


@pytest.mark.parametrize("kind", EXCEPTIONS)
def test_the_same_exception_in_a_start_is_exit_1(start, kind):
    engine = start(death=kind, death_at_load=0.5)
    assert engine.exit_status() == 1
    output = engine.output
    in_order(output, "EngineCore failed to start.", EXCEPTIONS[kind], "Process EngineCore:")
    assert output.endswith(
        "RuntimeError: Engine core initialization failed. See root cause above. "
        "Failed core proc(s): {'EngineCore': 1}\n"
    )
    assert FATAL not in output


@pytest.mark.parametrize("kind", FAILED_STARTS)
def test_failed_starts(start, kind):
    engine = start("--gpu-memory-utilization", "0.25", death=kind)
    assert engine.exit_status() == 1
    in_order(
        engine.output,
        "EngineCore failed to start.",
        FAILED_STARTS[kind],
        "Engine core initialization failed",
    )
    assert "Application startup complete" not in engine.output


def test_an_unknown_flag_as_a_death(start):
    engine = start(death="bad-flag")
    assert engine.exit_status() == 2
    assert "vllm: error: unrecognized arguments: --" in engine.output


def test_a_missing_model(start):
    engine = start(death="model-missing")
    assert engine.exit_status() == 1
    assert "HFValidationError: Repo id must be" in engine.output.splitlines()[-1]


@pytest.mark.parametrize("real", [True, False])
def test_a_port_in_use_is_seen_before_the_load(start, real):
    first = start().ready()
    engine = start(port=first.port) if real else start(death="port-in-use")
    assert engine.exit_status() == 1
    assert engine.output.endswith("OSError: [Errno 98] Address already in use\n")
    assert "Initializing a V1 LLM engine" not in engine.output


def test_an_idle_engine_whose_core_is_killed_answers_503_then_exits_0(start):
    engine = start(watchdog_seconds=8).ready()
    core = engine.core()
    os.kill(core, signal.SIGKILL)
    wait_until(lambda: engine.get("/health").status == 503, "503")
    assert engine.get("/v1/models").status == 200
    assert engine.exit_status() == 0
    in_order(engine.output, BY_SIGNAL, "MPClient: start timeout=default", DEAD, FINISHED)
    assert FATAL not in engine.output


def test_a_killed_core_under_load_does_not_wait_for_the_watchdog(start):
    engine = start(death="core-killed", death_at_request=1, watchdog_seconds=3600).ready()
    assert engine.complete().status == 500
    assert engine.exit_status() == 0
    in_order(engine.output, BY_SIGNAL, DEAD, FINISHED)


def test_a_core_killed_in_its_start_is_exit_1_without_a_cause(start):
    engine = start(load_seconds=20).has_said("world_size=")
    os.kill(engine.core(), signal.SIGKILL)
    assert engine.exit_status() == 1
    assert "Failed core proc(s): {'EngineCore': -9}" in engine.output
    assert "EngineCore failed to start." not in engine.output


def test_a_core_that_aborts(start):
    engine = start(death="core-abort", death_after_seconds=0).ready()
    assert engine.exit_status() == 0
    in_order(engine.output, "terminate called after throwing an instance of 'c10::", BY_SIGNAL)


@pytest.mark.parametrize(
    ("kind", "code"), [("worker-died", -9), ("worker-segfault", -11)], ids=["killed", "segfault"]
)
def test_a_lost_worker(start, kind, code):
    engine = start(death=kind, death_after_seconds=0).ready()
    assert engine.exit_status() == 0
    died = (
        f"Worker proc VllmWorker-0 died unexpectedly (exit code: {code}), shutting down executor."
    )
    in_order(engine.output, died, FATAL, "RuntimeError: Executor failed.", DEAD, FINISHED)


def test_a_worker_lost_under_load(start):
    engine = start(death="worker-died", death_at_request=1).ready()
    assert engine.complete(50).status == 500
    assert engine.exit_status() == 0
    in_order(engine.output, "died unexpectedly", "Dumping input data", "RuntimeError: cancelled")


def test_a_worker_lost_in_the_start(start):
    engine = start(death="worker-died", death_at_load=0.5)
    assert engine.exit_status() == 1
    in_order(engine.output, "died unexpectedly", "EngineCore failed to start.", "'EngineCore': 1")


@pytest.mark.parametrize("how", ["kind", "environment"])
def test_a_kept_api_server_answers_503_for_ever(start, how):
    if how == "kind":
        engine = start(death="keep-alive", death_after_seconds=0).ready()
    else:
        environment = {"VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "1"}
        engine = start(death="cuda-oom", death_after_seconds=0, **environment).ready()
    engine.has_said(DEAD)
    for _ in range(3):
        assert engine.complete().status == 500
        assert engine.get("/health").status == 503
    assert engine.term().exit_status() == 0


def test_a_hang_answers_everything_but_inference(start):
    engine = start(death="hang", death_at_request=2).ready()
    engine.complete(3)
    with pytest.raises(TimeoutError):
        engine.complete(3, timeout=0.3)
    for path in ("/health", "/v1/models", "/version"):
        assert engine.get(path).status == 200
    assert engine.metric("vllm:generation_tokens_total") == 3
    assert engine.metric("vllm:num_requests_running") == 0
    assert engine.process.poll() is None


def test_a_start_that_hangs_never_listens(start):
    engine = start(death="hang", death_at_load=0.6).has_said("Model loading took")
    with pytest.raises(ConnectionRefusedError):
        engine.get("/health")
    assert "Available KV cache memory" not in engine.output
    assert engine.process.poll() is None


@pytest.mark.parametrize("kind", ["orphan", "port-kept"])
def test_what_is_left_behind(start, kind):
    engine = start(linger_seconds=300).ready()
    core = engine.core()
    engine.die(kind)
    try:
        assert engine.exit_status() == 0
        in_order(engine.output, FATAL, DEAD, FINISHED)
        # Its server may be gone before it has left the session; from then on it is deaf.
        wait_until(lambda: os.getsid(core) == core and is_deaf(core), "the core to be by itself")
        os.kill(core, signal.SIGTERM)
        assert alive(core)
        with socket.socket() as sock:
            bound = sock.connect_ex(("127.0.0.1", engine.port)) == 0
        assert bound == (kind == "port-kept")
        if kind == "port-kept":
            assert start(port=engine.port).exit_status() == 1
    finally:
        os.kill(core, signal.SIGKILL)


def is_deaf(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(row.split()[1] for row in status.splitlines() if row.startswith("SigIgn:"))
    return bool(int(ignored, 16) & 1 << (signal.SIGTERM - 1))


def test_what_is_left_behind_goes_by_itself(start):
    engine = start(linger_seconds=0.3).ready()
    core = engine.core()
    engine.die("orphan")
    engine.exit_status()
    wait_until(lambda: not alive(core), "the orphan to end")


def test_a_killed_main_process_takes_its_core_along_a_moment_later(start):
    engine = start(death="main-killed", death_after_seconds=3).ready()
    core = engine.core()
    os.kill(core, signal.SIGSTOP)  # so that its moment begins when it is let go on
    assert engine.exit_status() == -signal.SIGKILL
    assert alive(core)
    os.kill(core, signal.SIGCONT)
    begun = time.monotonic()
    wait_until(lambda: not alive(core), "the core to end")
    assert time.monotonic() - begun >= 0.9
    assert engine.output.splitlines()[-1] == "INFO:     Application startup complete."


@pytest.mark.parametrize(
    ("life", "status"),
    [
        ({"death": "silent-exit-0"}, 0),
        ({"death": "segfault"}, -signal.SIGSEGV),
        ({"death": "exit", "exit_status": 7}, 7),
    ],
    ids=["silent-exit-0", "segfault", "exit"],
)
@pytest.mark.parametrize("moment", [{"death_after_seconds": 3}, {"death_at_load": 0.2}])
def test_ends_without_a_line(start, life, status, moment):
    # A load of seconds: its core must be seen before it is gone.
    engine = start(load_seconds=0.05 if "death_after_seconds" in moment else 15, **life, **moment)
    core = engine.core()
    assert engine.exit_status() == status
    wait_until(lambda: not alive(core), "the core to end")
    assert "EngineCore encountered" not in engine.output
    assert "Traceback" not in engine.output


def test_a_flood_surrounds_the_fatal_line(start):
    life = {"flood_before": 3000, "flood_after": 1500}
    engine = start(death="cuda-oom", death_after_seconds=0, **life).ready()
    assert engine.exit_status() == 0
    before, fatal, after = engine.output.partition(FATAL)
    assert fatal
    assert before.count("tensor row") == 3000
    assert after.count("tensor row") == 1500


def test_a_death_that_eats_memory(start):
    engine = start(death="eat-memory", death_after_seconds=0, memory_mib=48).ready()
    core = engine.core()

    def resident_kib() -> int:
        pages = int(Path(f"/proc/{core}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // 1024

    wait_until(lambda: resident_kib() > 48 * 1024, "48 MiB resident")
    assert engine.complete().status == 200


def test_death_on_demand(start):
    engine = start().ready()
    refused = engine.die("boredom")
    assert refused.status == 400
    assert "must be one of none, cuda-illegal-instruction" in refused.text
    assert engine.die("mamba-blocks").status == 400
    assert engine.die("worker-died").status == 409
    assert engine.die("hang", load_seconds=3).status == 400
    assert engine.post("/sim/die", ["hang"]).status == 400
    assert engine.complete().status == 200
    answer = engine.die("exit", exit_status=9)
    assert (answer.status, answer.json()) == (202, {"dying": "exit"})
    assert engine.exit_status() == 9


@pytest.mark.parametrize("kind", ["cuda-illegal-instruction", "core-killed", "core-abort"])
def test_death_on_demand_looks_like_the_planned_one(start, kind):
    engine = start().ready()
    assert engine.die(kind).status == 202
    assert engine.exit_status() == 0
    assert DEAD in engine.output
