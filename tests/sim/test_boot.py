# SPDX-License-Identifier: Apache-2.0
import json
import re
import socket
import subprocess
from pathlib import Path

import pytest

RECORD = re.compile(
    r"\((?:APIServer|EngineCore|Worker(?:_TP\d)?) pid=\d+\) (?:INFO|WARNING|ERROR) "
    r"\d\d-\d\d \d\d:\d\d:\d\d \[[a-z_]+\.py:\d+\] ?.*"
)
BARE = re.compile(
    r"|INFO:     .*|Loading safetensors checkpoint shards: .*|Capturing CUDA graphs .*100%.*"
)

STAGES = (
    "version 0.32.0",
    "non-default args: {'model_tag': '/models/tiny'",
    "Resolved architecture: ",
    "Using max model len 2048",
    "Initializing a V1 LLM engine (v0.32.0) with config: model='/models/tiny'",
    "Starting to load model /models/tiny",
    "Loading safetensors checkpoint shards:   0% Completed | 0/2",
    "Loading safetensors checkpoint shards: 100% Completed | 2/2",
    "Loading weights took",
    "Model loading took 17.50 GiB memory",
    "Available KV cache memory: 16.00 GiB",
    "GPU KV cache size: 1,048,576 tokens",
    "Maximum concurrency for 2,048 tokens per request: 512.00x",
    "Graph capturing finished",
    "init engine (profile, create kv cache, warmup model) took",
    "Supported tasks: ['generate']",
    "Starting vLLM server on http://127.0.0.1:",
    "INFO:     Started server process [",
    "INFO:     Waiting for application startup.",
    "INFO:     Application startup complete.",
)


def test_boot_prints_the_stages_in_order_and_only_known_shapes(start):
    output = start("--max-model-len", "2k", shards=2).ready().output
    assert "Using max model len 2000" in output
    output = start("--max-model-len", "2K", shards=2).ready().output
    position = 0
    for stage in STAGES:
        position = output.index(stage, position)
    for line in output.splitlines():
        assert RECORD.fullmatch(line) or BARE.fullmatch(line), line


def test_port_is_bound_early_and_refuses_until_startup_is_complete(start):
    engine = start(load_seconds=20).has_said("world_size=")
    with pytest.raises(ConnectionRefusedError):
        engine.get("/health")
    with socket.socket() as rival, pytest.raises(OSError, match="in use"):
        rival.bind(("127.0.0.1", engine.port))


def test_process_tree_looks_like_vllm(start):
    engine = start("--tensor-parallel-size", "2").ready()
    core = engine.core()
    assert Path(f"/proc/{engine.pid}/comm").read_text() == "vllm\n"
    assert Path(f"/proc/{core}/comm").read_text() == "VLLM::EngineCor\n"
    assert Path(f"/proc/{core}/cmdline").read_bytes().rstrip(b"\0") == b"VLLM::EngineCore"
    workers = engine.children(core)
    names = [Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0") for pid in workers]
    assert names == [b"VLLM::Worker_TP0", b"VLLM::Worker_TP1"]


def test_one_gpu_has_no_worker(start):
    engine = start().ready()
    assert engine.children(engine.core()) == []


def test_life_file_wins_and_is_read_again_at_each_start(start, tmp_path):
    file = tmp_path / "life.json"
    settings = {"SPARKD_SIM_LIFE_FILE": file, "version": "0.30.0"}
    first = start(**settings).ready()
    assert first.get("/version").json() == {"version": "0.30.0"}
    file.write_text(json.dumps({"version": "0.31.1", "death": "init-failed"}))
    second = start(**settings)
    assert second.exit_status() == 1
    assert "version 0.31.1" in second.output
    assert first.get("/health").status == 200


def test_a_life_that_contradicts_itself_is_refused_with_every_problem(start, tmp_path):
    file = tmp_path / "life.json"
    file.write_text('{"load_seconds": "long", "deth": "hang"}')
    engine = start(SPARKD_SIM_LIFE_FILE=file, death="boredom")
    assert engine.exit_status() == 78
    for part in (
        "SPARKD_SIM_DEATH: boredom: must be one of none, cuda-illegal-instruction",
        f"{file}: load_seconds: long: ",
        f"{file}: deth: unknown setting; the settings are death",
    ):
        assert part in engine.output


def test_an_unknown_flag_is_taken_unless_flags_are_strict(start):
    flags = ("--max-num-seq-typo", "4")
    start(*flags).ready()
    strict = start(*flags, strict_flags=1)
    assert strict.exit_status() == 2
    assert strict.output.endswith("vllm: error: unrecognized arguments: --max-num-seq-typo 4\n")
    assert strict.output.startswith("usage: vllm [-h] [-v]\n")


def test_a_flag_value_that_cannot_be_read_is_a_usage_error(start):
    engine = start("--max-model-len", "much")
    assert engine.exit_status() == 2
    assert "vllm serve: error: argument --max-model-len: invalid" in engine.output


def test_secrets_do_not_show_in_the_log(start):
    engine = start("--api-key", "s3cret-flag", VLLM_API_KEY="s3cret-environment").ready()
    assert "s3cret" not in engine.output


def test_version_and_help(vllm):
    def run(*arguments: str) -> str:
        command = [vllm, *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=30
        ).stdout

    assert run("--version") == "0.32.0\n"
    assert "SPARKD_SIM_DEATH_AT_REQUEST" in run("--help")
    assert "cuda-illegal-instruction" in run("serve", "--help")


def test_install_leaves_a_real_vllm_alone(vllm, tmp_path):
    real = tmp_path / "bin" / "vllm"
    real.parent.mkdir()
    real.write_text("#!/bin/sh\n")
    result = subprocess.run(
        [vllm, "install", str(tmp_path)], check=False, capture_output=True, text=True, timeout=30
    )
    assert result.returncode == 1
    assert "is not a simulated engine" in result.stderr
    assert real.read_text() == "#!/bin/sh\n"


def test_memory_is_really_touched_during_the_load(start):
    engine = start(memory_mib=64).ready()
    status = Path(f"/proc/{engine.core()}/status").read_text()
    assert int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) > 64 * 1024


def test_a_peak_of_the_load_is_given_back(start):
    engine = start(peak_mib=64).ready()
    status = Path(f"/proc/{engine.core()}/status").read_text()
    peak, now = (int(re.search(rf"{key}:\s+(\d+) kB", status)[1]) for key in ("VmHWM", "VmRSS"))
    assert peak - now > 60 * 1024
