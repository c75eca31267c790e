# SPDX-License-Identifier: Apache-2.0
"""The linters, and the rules of this repository that no linter knows, as tests."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SPDX = "SPDX-License-Identifier: Apache-2.0"
# Formats that cannot carry a comment, that quote foreign output word for word, or that are prose.
NO_HEADER = {".md", ".json", ".txt", ".log", ".jsonl", ".typed"}
NO_HEADER_FILES = {
    ".editorconfig",
    ".gitignore",
    "LICENSE",
    "packaging/debian/control",
    "packaging/debian/copyright",
    "packaging/debian/changelog.in",
    "packaging/debian/README.Debian",
    "packaging/debian/source/format",
    "packaging/debian/sparkd.install",
    "packaging/debian/sparkd.dirs",
    "packaging/debian/sparkd.docs",
    "packaging/debian/sparkd.examples",
    "packaging/debian/sparkd.manpages",
    "packaging/debian/sparkd.lintian-overrides",
}

# What decides may look at nothing but its arguments: no clock, no process, no file, no network.
IMPURE = {
    "asyncio", "ctypes", "fcntl", "gi", "glob", "http", "httpx", "io", "logging", "multiprocessing",
    "os", "psutil", "pydbus", "random", "select", "shutil", "socket", "sqlite3",
    "subprocess", "systemd", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
CORE = ("sparkd.core", "sparkd.__version__")
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "__import__"}
# datetime and pathlib are values too; these of their parts are not.
IMPURE_METHODS = {"now", "today", "utcnow", "read_text", "read_bytes", "write_text", "write_bytes"}
# These, and all they import, run on every start and death of an engine, for which 15 ms count.
CHEAP = (
    "admission", "burst", "slot", "gate", "end_of_life", "lines", "preflight", "signatures",
    "classify",
)  # fmt: skip


def tracked(*patterns: str) -> list[Path]:
    """Files that are in git or about to be."""
    argv = ["git", "-c", f"safe.directory={REPO}", "-C", str(REPO), "ls-files", "-z", "--cached"]
    argv += ["--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [REPO / name for name in names if name]
    assert files
    return [path for path in files if path.is_file() and not path.is_symlink()]


def python_files() -> list[Path]:
    shebang = re.compile(rb"#!/usr/bin/(env )?python3")
    return [p for p in tracked() if p.suffix == ".py" or shebang.match(first_line(p))]


def first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline(200)


def run(*argv: str) -> None:
    done = subprocess.run(
        argv, cwd=REPO, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def tool(name: str) -> str:
    """The tool beside this Python, or on PATH; its absence is a failure, not a skip."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is not installed: run the tests with scripts/test"
    return found


def test_ruff_check() -> None:
    run(tool("ruff"), "check", "--quiet", *map(str, python_files()))


def test_ruff_format() -> None:
    run(tool("ruff"), "format", "--check", "--quiet", *map(str, python_files()))


def test_mypy_strict() -> None:
    run(tool("mypy"), "--no-incremental", "--strict", "sparkd")


def test_shellcheck() -> None:
    shells = [
        path
        for path in tracked()
        if re.match(rb"#!(/usr)?/bin/(env )?(ba|da)?sh\b", first_line(path))
    ]
    assert len(shells) >= 2
    run(tool("shellcheck"), "--external-sources", *map(str, shells))


def test_every_file_names_its_license() -> None:
    missing = []
    for path in tracked():
        name = path.relative_to(REPO).as_posix()
        if path.suffix in NO_HEADER or name in NO_HEADER_FILES or name.startswith("tests/corpus/"):
            continue
        head = path.read_text(errors="replace").splitlines()[:4]
        if not any(SPDX in line for line in head):
            missing.append(name)
    assert not missing


def test_nothing_names_a_machine_or_a_registry() -> None:
    # Written with gaps, so that this file does not find itself.
    words = (
        "/wo rk/main", "/wo rk/shared", "/wo rk/.library", "/tmp/te am", "../sha red",
        "deb.deb ian.org", "py pi.org", "pythonho sted.org", "npm js.org", "npm js.com",
        "download.pyto rch.org",
    )  # fmt: skip
    forbidden = re.compile("|".join(re.escape(word.replace(" ", "")) for word in words))
    found = [
        f"{path.relative_to(REPO)}:{number}: {line.strip()[:120]}"
        for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if forbidden.search(line)
    ]
    assert not found


def core_files() -> list[Path]:
    files = sorted((REPO / "sparkd/core").rglob("*.py"))
    assert len(files) > 5
    return files


def imports(path: Path) -> dict[str, int]:
    """Every module that the file imports, with the line."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name: node.lineno for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            module = node.module or ""
            found |= {module: node.lineno}
            found |= {f"{module}.{alias.name}": node.lineno for alias in node.names}
    return found


@pytest.mark.parametrize("path", core_files(), ids=lambda p: p.relative_to(REPO).as_posix())
def test_core_is_pure(path: Path) -> None:
    bad = [
        f"line {line}: imports {name}"
        for name, line in imports(path).items()
        if name.split(".")[0] in IMPURE
        or (name.startswith("sparkd.") and not name.startswith(CORE))
    ]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
                bad.append(f"line {node.lineno}: calls {node.func.id}()")
            if isinstance(node.func, ast.Attribute) and node.func.attr in IMPURE_METHODS:
                bad.append(f"line {node.lineno}: calls .{node.func.attr}()")
    assert not bad


def test_the_start_path_imports_no_dataclasses() -> None:
    modules = [f"sparkd.core.{name}" for name in CHEAP]
    # save_evidence runs beside an engine that hangs: no start waits for it.
    helpers = {path.stem for path in (REPO / "sparkd/helpers").glob("*.py")} - {"save_evidence"}
    modules += [f"sparkd.helpers.{name}" for name in sorted(helpers)]
    costly = "dataclasses inspect asyncio httpx gi pydbus psutil structlog importlib.metadata"
    script = f"""
import sys
sys.path[:0] = [{str(REPO)!r}, "/usr/lib/python3/dist-packages"]
import importlib
for name in {modules!r}:
    importlib.import_module(name)
print([name for name in {costly.split()!r} if name in sys.modules])
"""
    # As the installed launchers do: the distribution's Python, without site.
    argv = ["/usr/bin/python3", "-IS", "-B", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_the_rules_bite(tmp_path: Path) -> None:
    """The purity rule finds what it should; otherwise a pass would say nothing."""
    bad = tmp_path / "bad.py"
    bad.write_text("import os.path\nfrom time import monotonic\nfrom sparkd.adapters import proc\n")
    names = imports(bad)
    assert {"os.path", "time", "time.monotonic", "sparkd.adapters.proc"} <= names.keys()
