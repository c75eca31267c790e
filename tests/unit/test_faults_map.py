# SPDX-License-Identifier: Apache-2.0
"""docs/faults.md has every fault once, and the tests that it names are there."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/faults.md"
FAULTS = 77
ROW = re.compile(r"^\| (\d+) \|(.*)\|$", re.MULTILINE)
PROOF = re.compile(r"`([\w/]+\.py)::(\w+)`")


@functools.cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the test functions of a file, whether or not in a class."""
    if not path.is_file():
        return frozenset()
    nodes = ast.walk(ast.parse(path.read_text()))
    names = (node.name for node in nodes if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


def problems(text: str) -> Iterator[str]:
    numbers = [int(number) for number, _ in ROW.findall(text)]
    if numbers != list(range(1, FAULTS + 1)):
        missing = set(range(1, FAULTS + 1)) - set(numbers)
        yield f"rows must be 1 to {FAULTS}, each once and in order; missing: {sorted(missing)}"
    for number, row in ROW.findall(text):
        cells = [cell.strip() for cell in row.split(" | ")]
        if len(cells) != 3 or not all(cells):
            yield f"row {number}: must have a fault, what sparkd does, and a proof"
            continue
        proofs = PROOF.findall(cells[2])
        if not proofs:
            yield f"row {number}: names no test"
        if cells[2].count("::") != len(proofs):
            yield f"row {number}: a test that is not written as `folder/file.py::test`"
        for path, test in proofs:
            if test not in names_in(ROOT / "tests" / path):
                yield f"row {number}: there is no {path}::{test}"


def test_every_fault_has_its_row_and_every_named_test_exists() -> None:
    assert list(problems(PAGE.read_text())) == []


def test_what_is_missing_is_found() -> None:
    text = PAGE.read_text()
    proof = "`unit/test_faults_map.py::test_what_is_missing_is_found`"
    assert not [p for p in problems(ROW.sub(rf"| \1 | a | b | {proof} |", text)) if "there is" in p]
    assert any("there is no" in p for p in problems(text.replace("::test_", "::test_x", 1)))
    assert any("missing: [44]" in p for p in problems(text.replace("\n| 44 |", "\n| forty-four |")))
    assert any("names no test" in p for p in problems(PROOF.sub("", text)))
