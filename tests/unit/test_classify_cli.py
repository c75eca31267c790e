# SPDX-License-Identifier: Apache-2.0
"""`sparkctl classify`: its output, its exit codes, its stand-alone form, and the document."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.adapters.catalogue import load_catalogue
from sparkd.cli import classify

ROOT = Path(__file__).parent.parent.parent
CAPTURES = ROOT / "tests" / "corpus" / "captures"
DEATH = CAPTURES / "local-worker-sigkill-idle.txt"
PORT = CAPTURES / "local-init-port-in-use.txt"


def run(*arguments, stdin=b""):
    return subprocess.run(
        [sys.executable, "-m", "sparkd.cli.classify", *map(str, arguments)],
        input=stdin, capture_output=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip


def test_text_shows_rule_line_and_reason():
    done = run(DEATH)
    assert done.returncode == 0, done.stderr
    out = done.stdout.decode()
    assert out.startswith(f"{DEATH}: fatal-runtime (worker-died)\n")
    assert "  rule:     worker-died\n" in out
    assert "  line 3: (EngineCore pid=16026) ERROR" in out
    assert "  answer:   retry\n" in out


def test_json_is_an_array_in_order_of_the_arguments():
    done = run("--json", DEATH, PORT)
    found = json.loads(done.stdout)
    assert [(one["file"], one["label"], one["class"], one["signature"]) for one in found] == [
        (str(DEATH), "fatal-runtime", "worker-died", "worker-died"),
        (str(PORT), "fatal-init", "port-in-use", "port-in-use"),
    ]
    assert [one["line"] for one in found] == [3, 31]


def test_uneventful_log_has_no_line():
    found = json.loads(run("--json", "-", stdin=b"hello\n").stdout)
    assert found[0] | {"reason": ""} == {
        "file": "-", "label": "benign", "class": "", "signature": "", "line": None, "evidence": "",
        "answer": "none", "hint": "Nothing to do.", "reason": "",
    }  # fmt: skip


def test_unreadable_files_are_named_and_the_others_classified(tmp_path):
    done = run("--json", tmp_path / "none.log", tmp_path, DEATH)
    assert done.returncode == 1
    assert [one["label"] for one in json.loads(done.stdout)] == ["fatal-runtime"]
    told = done.stderr.decode()
    assert f"{tmp_path}/none.log: No such file or directory" in told
    assert f"{tmp_path}: Is a directory" in told


def test_no_files_is_a_usage_error():
    assert run().returncode == 2


def test_terminal_is_safe(tmp_path):
    log = tmp_path / "evil.log"
    log.write_bytes(b"vllm serve: error: \x1b]0;owned\x07\x1b[31m\xe2\x80\xae argument \x9b x\n")
    done = run(log)
    assert b"\x1b" not in done.stdout
    assert b"\x07" not in done.stdout
    assert b"\xe2\x80\xae" not in done.stdout


def test_overlong_line_is_bounded(tmp_path):
    log = tmp_path / "long.log"
    log.write_bytes(b"x" * (classify.LINE_CAP * 2 + 5) + b"\n" + DEATH.read_bytes())
    found = json.loads(run("--json", log).stdout)
    assert (found[0]["label"], found[0]["line"]) == ("fatal-runtime", 4)


def test_parser_of_sparkctl():
    parser = argparse.ArgumentParser()
    classify.add_parser(parser.add_subparsers())
    args = parser.parse_args(["classify", "--json", "a", "-"])
    assert (args.files, args.json, args.run) == (["a", "-"], True, classify.run)


def test_damaged_installation_is_reported(monkeypatch, capsys):
    def broken():
        raise classify.CatalogueError("/x/runtime.toml: Invalid value (at line 1, column 1)")

    monkeypatch.setattr(classify, "load_catalogue", broken)
    assert classify.main(["x"]) == 1
    assert "/x/runtime.toml: Invalid value" in capsys.readouterr().err


def test_document_is_current():
    current = (ROOT / "docs" / "signatures.md").read_text()
    assert current == classify.document(load_catalogue()), (
        "run: python3 -m sparkd.cli.classify --document > docs/signatures.md"
    )


@pytest.mark.parametrize("forbidden", ["dataclasses", "inspect", "sparkd.cli", "json"])
def test_the_restart_path_imports_little(forbidden):
    code = (
        "import sys, sparkd.core.classify, sparkd.core.boot, sparkd.adapters.catalogue;"
        f"sys.exit({forbidden!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0
