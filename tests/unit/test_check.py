# SPDX-License-Identifier: Apache-2.0
"""`sparkctl check` as an operator runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = 'model = "org/m"\nport = 8001\n[runtime]\nvenv = "/opt/vllm"\n[serve]\n'


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    (directory / "engines.d").mkdir(parents=True)
    for path in (directory, directory / "engines.d"):
        path.chmod(0o755)
    put(directory / "engines.d/m.toml", ENGINE + "gpu-memory-utilization = 0.25\n")
    return directory


def put(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o644)


def check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "sparkd.cli.check", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_a_good_configuration(etc: Path) -> None:
    result = check(etc, "--memory-total=121G")
    assert result.returncode == 0
    assert result.stderr == ""
    assert result.stdout == (
        "1 engine, OK\nENGINE  PORT  ORDER  MEMORY  MODEL\nm       8001  50     25%     org/m\n"
    )


def test_no_engine_at_all(etc: Path) -> None:
    (etc / "engines.d/m.toml").unlink()
    result = check(etc)
    assert (result.returncode, result.stdout) == (0, "0 engines, OK\n")


def test_a_refused_configuration(etc: Path) -> None:
    put(etc / "engines.d/m.toml", ENGINE.replace("port", "prt"))
    result = check(etc, "--memory-total=none")
    assert result.returncode == 78
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"{etc}/engines.d/m.toml:1: port: is required and must be an integer from 1024 to 65535",
        f"{etc}/engines.d/m.toml:2: prt: is no known key (did you mean port?)",
    ]


def test_json_for_scripts(etc: Path) -> None:
    good = json.loads(check(etc, "--json", "--memory-total=none").stdout)
    assert good["ok"] is True
    assert good["engines"][0]["unit"] == "vllm-m.service"
    put(etc / "engines.d/m.toml", "[")
    refused = check(etc, "--json")
    assert refused.returncode == 78
    assert refused.stderr == ""
    (error,) = json.loads(refused.stdout)["errors"]
    assert (error["file"], error["line"]) == (f"{etc}/engines.d/m.toml", 1)


def test_json_holds_whatever_bytes_are_in_a_name(etc: Path) -> None:
    odd = etc.rename(etc.parent / "e\udcff\x1b[2Jtc")
    put(odd / "engines.d/m.toml", "[")
    argv = [sys.executable, "-m", "sparkd.cli.check", "--json", str(odd)]
    strict = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False, env=strict)
    assert (done.returncode, done.stderr) == (78, b"")
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["errors"][0]["file"] == f"{odd}/engines.d/m.toml"


def test_memory_is_this_machines_unless_another_is_named(etc: Path) -> None:
    put(etc / "sparkd.toml", '[host]\nreserve = "1000T"\n')
    assert "over-commits memory" in check(etc).stderr
    assert "over-commits memory" in check(etc, "--memory-total=121G").stderr
    assert check(etc, "--memory-total=none").returncode == 0


def test_a_bad_credential_file_is_found(etc: Path) -> None:
    text = ENGINE + 'gpu-memory-utilization = 0.1\n[credentials]\nA = "/nonexistent/a"\n'
    put(etc / "engines.d/m.toml", text)
    result = check(etc, "--memory-total=none")
    assert result.returncode == 78
    assert "m.toml:8: credentials.A: /nonexistent/a: names a file that cannot be used" in (
        result.stderr
    )


def test_a_wrong_option_is_a_usage_error(etc: Path) -> None:
    result = check(etc, "--memory-total=lots")
    assert result.returncode == 2
    assert "neither a size nor none" in result.stderr
