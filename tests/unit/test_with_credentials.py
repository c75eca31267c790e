# SPDX-License-Identifier: Apache-2.0
"""Credentials become environment of the program and nothing else, as a real process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TIMEOUT_S = 20
ROOT = Path(__file__).parents[2]
CANARY = "hf_canary-0123456789"
SHOW = """
import json, os, sys
cmdline = open("/proc/self/cmdline").read()
print(json.dumps([sys.argv[1:], dict(os.environ), os.getpid(), cmdline]))
"""


@pytest.fixture
def credentials(tmp_path):
    (tmp_path / "HF_TOKEN").write_text(f"{CANARY}\n")
    (tmp_path / "VLLM_API_KEY").write_text("  key with spaces é \n\n")
    return tmp_path


def run(*words, credentials):
    environment = {"PATH": "/usr/bin", "PYTHONPATH": str(ROOT), "KEPT": "1"}
    if credentials is not None:
        environment["CREDENTIALS_DIRECTORY"] = str(credentials)
    with subprocess.Popen(
        [sys.executable, "-c", "from sparkd.helpers.with_credentials import main; main()", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, err = process.communicate(timeout=TIMEOUT_S)
    return process, out, err


PROGRAM = ("--", sys.executable, "-c", SHOW)


def test_credentials_become_environment_and_arguments_stay(credentials):
    arguments = ["serve", "--x={}", "", "a b", "--", "--export=NO", "é", "$HOME %n"]
    process, out, err = run(
        "--export=HF_TOKEN", "--export=VLLM_API_KEY", *PROGRAM, *arguments, credentials=credentials
    )
    argv, environment, pid, cmdline = json.loads(out)
    assert process.returncode == 0
    assert argv == arguments
    assert environment["HF_TOKEN"] == CANARY
    assert environment["VLLM_API_KEY"] == "key with spaces é"
    assert environment["KEPT"] == "1"
    assert "NO" not in environment
    assert pid == process.pid, "it became the program: systemd's main process stays the same"
    assert CANARY not in cmdline
    assert err == ""


def test_only_what_is_named_is_exported(credentials):
    _, out, _ = run("--export=VLLM_API_KEY", *PROGRAM, credentials=credentials)
    assert "HF_TOKEN" not in json.loads(out)[1]


def test_the_exit_status_is_the_programs(credentials):
    process, _, _ = run("--", "/bin/sh", "-c", "exit 7", credentials=credentials)
    assert process.returncode == 7


@pytest.mark.parametrize("content", [None, b"\xff" + CANARY.encode(), CANARY.encode() + b"\0x"])
def test_a_credential_that_cannot_be_used(credentials, content):
    name = "VLLM_API_KEY"
    (credentials / name).unlink()
    if content is not None:
        (credentials / name).write_bytes(content)
    process, out, err = run(
        "--export=HF_TOKEN", f"--export={name}", *PROGRAM, credentials=credentials
    )
    assert process.returncode == 78
    assert name in err
    assert CANARY not in out + err
    assert "Traceback" not in err


def test_no_credentials_folder():
    process, _, err = run("--export=HF_TOKEN", *PROGRAM, credentials=None)
    assert process.returncode == 78
    assert "HF_TOKEN" in err


@pytest.mark.parametrize("name", ["", "A=B"])
def test_a_name_that_no_variable_can_have(credentials, name):
    (credentials / "A=B").write_text(CANARY)
    process, out, err = run(f"--export={name}", *PROGRAM, credentials=credentials)
    assert process.returncode == 78
    assert CANARY not in out + err
    assert "Traceback" not in err


def test_a_program_that_is_not_there(credentials):
    process, out, err = run(
        "--export=HF_TOKEN", "--", "/nonexistent/vllm", CANARY, credentials=credentials
    )
    assert process.returncode == 203
    assert "/nonexistent/vllm" in err
    assert CANARY not in out + err


@pytest.mark.parametrize(
    "words", [(), ("--",), ("--export=HF_TOKEN",), ("HF_TOKEN", "--", "/bin/true"), ("/bin/true",)]
)
def test_wrong_usage(credentials, words):
    process, _, err = run(*words, credentials=credentials)
    assert process.returncode == 2
    assert err.startswith("usage: with-credentials")
