# SPDX-License-Identifier: Apache-2.0
"""What lint asks of environments and checkpoints, with real files and real processes."""

import argparse
import json
import os
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from lint_helper import engine_text

from sparkd.adapters import lint_facts
from sparkd.core.config import Source, load
from sparkd.core.config_model import Config
from sparkd.core.lint.checkpoint import read_checkpoint
from sparkd.core.lint.facts import Facts
from sparkd.core.lint.vllm_help import Flag, parse_help

MANY = "".join(f"  --flag-{number} VALUE\n" for number in range(60))
# What the script does when it is asked; it counts how often.
# The distribution's Python: the one that runs the tests may lie in root's home, closed to others.
SCRIPT = """#!/usr/bin/python3 -I
import os, sys
with open({log!r}, "a") as log:
    log.write(" ".join(sys.argv[1:]) + " uid=%d\\n" % os.getuid())
{body}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "cache"
    monkeypatch.setattr(
        lint_facts, "_cache_file", lambda fingerprint: directory / f"{fingerprint}.json"
    )
    return directory


def make_venv(directory: Path, body: str, version: str = "0.27.1") -> Path:
    venv = directory / "venv"
    information = venv / f"lib/python3.12/site-packages/vllm-{version}.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n\nVersion: of the text\n"
    )
    (information / "RECORD").write_text("")
    (venv / "bin").mkdir()
    script = venv / "bin/vllm"
    script.write_text(SCRIPT.format(log=str(directory / "log"), body=body))
    script.chmod(0o755)
    return venv


def config_for(venv: Path, model: str = "org/m", user: str = "root") -> Config:
    text = engine_text(top=f'user = "{user}"\n')
    text = text.replace("/opt/vllm", str(venv)).replace("/models/m", model)
    return load([Source("m.toml", text, "m")], None)


def ask(config: Config, *, ask: bool = True) -> Facts:
    return lint_facts.gather(config, None, this_machine=False, ask=ask)


def calls(directory: Path) -> list[str]:
    log = directory / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_the_flags_are_asked_once_and_kept(tmp_path: Path) -> None:
    venv = make_venv(tmp_path, f"print({MANY!r})")
    config = config_for(venv)
    for _ in range(2):
        known = ask(config).engine("m")
        assert known.version == "0.27.1"
        assert known.flags is not None
        assert set(known.flags) == {f"flag-{number}" for number in range(60)}
    assert calls(tmp_path) == [f"serve --help=all uid={os.getuid()}"]


def test_a_changed_environment_is_asked_again(tmp_path: Path) -> None:
    venv = make_venv(tmp_path, f"print({MANY!r})")
    ask(config_for(venv))
    (record,) = venv.glob("lib/*/site-packages/*/RECORD")
    record.write_text("another wheel\n")
    ask(config_for(venv))
    assert len(calls(tmp_path)) == 2


def test_nothing_is_run_when_that_is_not_wanted(tmp_path: Path) -> None:
    venv = make_venv(tmp_path, f"print({MANY!r})")
    assert ask(config_for(venv), ask=False).engine("m").flags is None
    assert calls(tmp_path) == []
    ask(config_for(venv))
    assert ask(config_for(venv), ask=False).engine("m").flags is not None


@pytest.mark.parametrize(
    "body", ["sys.exit(1)", "print('  --help  show this')", f"print({MANY!r}); sys.exit(2)"]
)
def test_an_answer_that_is_none_is_not_believed_and_not_kept(
    tmp_path: Path, cache: Path, body: str
) -> None:
    assert ask(config_for(make_venv(tmp_path, body))).engine("m").flags is None
    assert [line.rpartition(" ")[0] for line in calls(tmp_path)] == [
        "serve --help=all", "serve --help",
    ]  # fmt: skip
    assert not cache.exists()


def test_an_older_vllm_answers_the_plain_help(tmp_path: Path) -> None:
    body = f"if sys.argv[2] == '--help': print({MANY!r})\nelse: sys.exit(2)"
    assert ask(config_for(make_venv(tmp_path, body))).engine("m").flags is not None


def test_a_vllm_that_never_answers_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pid"

    def communicate(process: Any, timeout: float) -> None:
        # The time is up as soon as the child is there.
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    body = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'new')!r}, 'w').write(str(child.pid))\n"
        f"os.rename({str(tmp_path / 'new')!r}, {str(file)!r})\n"
        "time.sleep(600)"
    )
    assert ask(config_for(make_venv(tmp_path, body))).engine("m").flags is None
    pid = int(file.read_text())
    assert not Path(f"/proc/{pid}").exists() or _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_runs_an_environment_as_the_engines_user(tmp_path: Path) -> None:
    venv = make_venv(tmp_path, f"print({MANY!r})")
    (tmp_path / "log").touch()
    (tmp_path / "log").chmod(0o666)
    for directory in [tmp_path, *tmp_path.parents]:
        if str(directory).startswith("/tmp/"):
            directory.chmod(directory.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    assert ask(config_for(venv, user="nobody")).engine("m").flags is not None
    assert calls(tmp_path) == ["serve --help=all uid=65534"]


@pytest.mark.skipif(os.geteuid() != 0, reason="root is the case at hand")
def test_root_runs_nothing_for_a_user_who_does_not_exist(tmp_path: Path) -> None:
    venv = make_venv(tmp_path, f"print({MANY!r})")
    assert ask(config_for(venv, user="no-such-user")).engine("m").flags is None
    assert calls(tmp_path) == []


def test_no_environment_no_facts(tmp_path: Path) -> None:
    known = ask(config_for(tmp_path / "nothing")).engine("m")
    assert (known.version, known.flags, known.checkpoint) == (None, None, None)


def test_two_versions_side_by_side_are_no_version(tmp_path: Path) -> None:
    venv = make_venv(tmp_path, "")
    other = venv / "lib/python3.12/site-packages/vllm-0.26.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Version: 0.26.0\n")
    assert lint_facts.installed_version(venv) is None


def test_a_version_that_is_none_is_not_repeated(tmp_path: Path) -> None:
    venv = make_venv(tmp_path, "")
    (metadata,) = venv.glob("lib/*/site-packages/*/METADATA")
    metadata.write_text("Name: vllm\nVersion: \x1b[2J\n")
    assert lint_facts.installed_version(venv) is None


def put_model(directory: Path, config: Any, **files: bytes) -> str:
    directory.mkdir()
    text = config if isinstance(config, str) else json.dumps(config)
    (directory / "config.json").write_text(text)
    for name, content in files.items():
        (directory / name.replace("__", ".").replace("_", "-")).write_bytes(content)
    return str(directory)


def tensors(data: bytes) -> bytes:
    """A whole safetensors file of 50 bytes and the data."""
    header = json.dumps({"w": {"data_offsets": [0, len(data)]}}).encode().ljust(42)
    return len(header).to_bytes(8, "little") + header + data


def test_a_checkpoint_on_disk(tmp_path: Path) -> None:
    model = put_model(
        tmp_path / "model",
        {"model_type": "nemotron_h", "max_position_embeddings": 262144},
        a__safetensors=tensors(b"1234"), b__safetensors=tensors(b"56"),
    )  # fmt: skip
    (tmp_path / "model/consolidated.safetensors").write_bytes(b"again")
    quant = {"producer": {"name": "modelopt"},
             "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}  # fmt: skip
    (tmp_path / "model/hf_quant_config.json").write_text(json.dumps(quant))
    known = ask(config_for(tmp_path / "nothing", model)).engine("m").checkpoint
    assert known is not None
    assert known._asdict() == {
        "model_type": "nemotron_h", "quantization": "modelopt", "algorithm": "NVFP4",
        "weight_only": False, "kv_quantization": "FP8", "is_mamba2": True, "is_hybrid": True,
        "has_vision": False, "max_positions": 262144, "weights": 106, "shards": 2,
    }  # fmt: skip


def test_the_size_of_an_incomplete_checkpoint_is_not_known(tmp_path: Path) -> None:
    torn = put_model(tmp_path / "torn", {"model_type": "llama"}, a__safetensors=tensors(b"1")[:-1])
    held_up = put_model(tmp_path / "fifo", {"model_type": "llama"}, a__safetensors=tensors(b"1"))
    os.mkfifo(tmp_path / "fifo/b.safetensors")
    for model in (torn, held_up):
        known = ask(config_for(tmp_path / "nothing", model)).engine("m").checkpoint
        assert known is not None
        assert (known.model_type, known.weights, known.shards) == ("llama", 0, 0)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\x00"])
def test_a_broken_config_json_is_no_checkpoint(tmp_path: Path, text: str) -> None:
    model = put_model(tmp_path / "model", text)
    assert ask(config_for(tmp_path / "nothing", model)).engine("m").checkpoint is None


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    os.mkfifo(tmp_path / "model/config.json")
    model = str(tmp_path / "model")
    assert ask(config_for(tmp_path / "nothing", model)).engine("m").checkpoint is None


def test_the_machines_own_memory() -> None:
    config = load([Source("m.toml", engine_text(), "m")], None)
    here = lint_facts.gather(config, 1, this_machine=True, ask=False).host
    assert here.memory_total == 1
    assert here.swap_total is not None
    assert here.min_free is not None
    there = lint_facts.gather(config, 1, this_machine=False, ask=False).host
    assert (there.memory_total, there.swap_total, there.gpu) == (1, None, None)


def checkpoint(config: dict[str, Any], hf_quant: dict[str, Any] | None = None) -> Any:
    return read_checkpoint(config, hf_quant or {}, 0, 0)


def test_what_a_config_json_says_of_the_architecture() -> None:
    layers = ["linear_attention"] * 3 + ["full_attention"]
    nested = checkpoint(
        {"model_type": "qwen3_5", "vision_config": {"depth": 27},
         "text_config": {"layer_types": layers, "max_position_embeddings": 262144}}
    )  # fmt: skip
    assert (nested.is_hybrid, nested.is_mamba2, nested.has_vision) == (True, False, True)
    assert nested.max_positions == 262144
    assert checkpoint({"hybrid_override_pattern": "MEM*EM"}).is_mamba2
    assert not checkpoint({"hybrid_override_pattern": "****"}).is_hybrid
    dense = checkpoint({"model_type": "llama", "layer_types": ["full_attention"]})
    assert (dense.is_hybrid, dense.has_vision, dense.max_positions) == (False, False, None)


@pytest.mark.parametrize(
    "rope", [{"rope_scaling": {"type": "yarn", "factor": 4.0}},
             {"rope_parameters": {"rope_type": "longrope"}}],
)  # fmt: skip
def test_a_scaled_window_is_not_known(rope: dict[str, Any]) -> None:
    assert checkpoint({"max_position_embeddings": 32768, **rope}).max_positions is None


@pytest.mark.parametrize(
    ("declared", "method", "algorithm", "weight_only", "kv"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq", "", True, ""),
        ({"quant_method": "fp8"}, "fp8", "", None, ""),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt", "NVFP4", False, ""),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, "modelopt", "W4A16_NVFP4",
         True, ""),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
          "config_groups": {"g": {"weights": {"num_bits": 4}, "input_activations": None}}},
         "compressed-tensors", "nvfp4-pack-quantized", True, ""),
        ({"quant_method": "compressed_tensors", "format": "nvfp4-pack-quantized",
          "config_groups": {"g": {"input_activations": {"num_bits": 4}}},
          "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
         "compressed-tensors", "nvfp4-pack-quantized", False, "float8"),
        ("nonsense", "", "", None, ""),
    ],
)  # fmt: skip
def test_what_a_config_json_says_of_the_quantization(
    declared: Any, method: str, algorithm: str, *, weight_only: bool | None, kv: str
) -> None:
    known = checkpoint({"quantization_config": declared})
    assert known.quantization == method
    assert known.algorithm == algorithm
    assert known.weight_only is weight_only
    assert known.kv_quantization == kv


@pytest.mark.parametrize("columns", [60, 80, 500])
def test_argparses_own_help_is_read_back(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = argparse.ArgumentParser("vllm serve", description="Serve. See `--not-a-flag`.")
    parser.add_argument("model_tag", nargs="?")
    group = parser.add_argument_group("ModelConfig", "Configuration of --no-model at all.")
    group.add_argument("--model", help="A name, or --revision of it.")
    group.add_argument("--kv-cache-dtype", choices=["auto", "fp8", "bfloat16"])
    group.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction, help="No graphs.")
    group.add_argument("--quantization", "-q", help="Whether deprecated methods are used.")
    group.add_argument("--old-flag", help="First of all: old. --old-flag is deprecated since 0.9.")
    group.add_argument("--older-flag", help="[DEPRECATED] Use --model instead of this one.")
    group.add_argument(
        "--tool-call-parser", metavar="{hermes,mistral} or name registered in --plugin"
    )
    group.add_argument("--served-model-name", nargs="+")
    flags = parse_help(parser.format_help())
    assert set(flags) == {
        "help", "model", "kv-cache-dtype", "enforce-eager", "no-enforce-eager", "quantization",
        "old-flag", "older-flag", "tool-call-parser", "served-model-name",
    }  # fmt: skip
    assert flags["kv-cache-dtype"].choices == ("auto", "fp8", "bfloat16")
    assert flags["tool-call-parser"] == flags["model"] == flags["quantization"] == Flag()
    assert flags["old-flag"].deprecation == "--old-flag is deprecated since 0.9."
    assert flags["older-flag"].deprecation.startswith("[DEPRECATED]")
