# SPDX-License-Identifier: Apache-2.0
"""The lint part of `sparkctl check` as an operator runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.core.lint.registry import RULES

ENGINE = (
    'model = "org/m"\nport = 8001\n[runtime]\nvenv = "/nonexistent/venv"\n[serve]\n'
    "gpu-memory-utilization = 0.25\n"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.toml"
    path.touch(0o644)
    return path


def check(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from sparkd.cli.main import main; sys.exit(main(sys.argv[1:]))"
    argv = [sys.executable, "-c", code, "check", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_a_warning_is_told_and_does_not_fail(file: Path) -> None:
    file.write_text(ENGINE + "enforce-eager = true\n")
    result = check(file, "--memory-total=121G")
    assert result.returncode == 0
    assert result.stderr == (
        f"{file}:7: SPK404 warning: serve.enforce-eager: CUDA graphs and torch.compile are off:"
        " each token waits for the CPU (instead: remove enforce-eager)\n"
    )
    assert result.stdout.splitlines()[0] == "1 engine, 1 warning"


def test_an_error_fails_with_1(file: Path) -> None:
    file.write_text(ENGINE + "enable-auto-tool-choice = true\nenforce-eager = true\n")
    result = check(file, "--memory-total=121G")
    assert result.returncode == 1
    assert result.stdout.splitlines()[0] == "1 engine, 1 error, 1 warning"
    assert [line.split()[1] for line in result.stderr.splitlines()] == ["SPK409", "SPK404"]


def test_an_ignored_error_does_not_fail_and_is_counted(file: Path) -> None:
    ignore = '[lint]\nignore = { SPK409 = "a plugin sets the parser" }\n'
    file.write_text(ENGINE + "enable-auto-tool-choice = true\n" + ignore)
    result = check(file, "--memory-total=121G")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == "1 engine, OK, 1 ignored"
    (finding,) = json.loads(check(file, "--memory-total=121G", "--json").stdout)["findings"]
    assert finding["ignored"] == "a plugin sets the parser"


def test_a_wrong_ignore_is_a_refused_configuration(file: Path) -> None:
    file.write_text(ENGINE + '[lint]\nignore = { SPK4 = "typo" }\n')
    result = check(file, "--memory-total=121G")
    assert result.returncode == 78
    assert "lint.ignore.SPK4: is no code of a lint rule" in result.stderr


def test_json_has_every_field(file: Path) -> None:
    file.write_text(ENGINE + "enable-auto-tool-choice = true\n")
    result = check(file, "--memory-total=121G", "--json")
    answer = json.loads(result.stdout)
    assert (result.returncode, answer["ok"], answer["errors"]) == (1, False, [])
    assert answer["findings"] == [
        {
            "code": "SPK409",
            "severity": "error",
            "engine": "m",
            "file": str(file),
            "line": 7,
            "key": "serve.enable-auto-tool-choice",
            "sentence": "vLLM refuses to start: automatic tool choice requires a tool-call-parser",
            "instead": "tool-call-parser beside it",
            "reference": "https://docs.vllm.ai/en/latest/features/tool_calling/",
            "ignored": None,
        }
    ]


def test_lint_waits_for_an_accepted_configuration(file: Path) -> None:
    file.write_text(ENGINE + "enforce-eager = true\nport = 1\n")
    result = check(file, "--memory-total=121G", "--json")
    assert result.returncode == 78
    assert json.loads(result.stdout)["findings"] == []


def test_explain() -> None:
    result = check("--explain", "spk409")
    assert result.returncode == 0
    assert result.stdout.startswith("SPK409: tool choice without a parser (error)\n")
    assert 'ignore = { SPK409 = "…" }' in result.stdout
    overview = check("--explain").stdout.splitlines()
    assert [line.split()[0] for line in overview] == [rule.code for rule in RULES]
    unknown = check("--explain", "SPK000")
    assert unknown.returncode == 2
    assert "no lint rule has this code" in unknown.stderr
