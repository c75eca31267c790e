# SPDX-License-Identifier: Apache-2.0
"""Every capture of the corpus comes out with its label, and with its class where text tells it."""

import csv
from pathlib import Path

import pytest

from sparkd.adapters.catalogue import load_catalogue
from sparkd.cli.classify import classify_file

CAPTURES = Path(__file__).parent.parent / "corpus" / "captures"
CATALOGUE = load_catalogue()

# The index names a class by what was done to the engine. Where the log tells something else or
# more, this is what a reader of the log alone must say.
TOLD = {
    # Nothing in the text sets the abort apart from a kill: the API server saw EngineCore vanish.
    "local-enginecore-sigabrt-idle.txt": "engine-core-killed",
    # The worker failed to start because memory was short, and says so.
    "local-init-worker-exception.txt": "gpu-free-memory",
}


def index() -> list[dict[str, str]]:
    with (CAPTURES / "index.tsv").open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_index_and_captures_agree():
    assert {row["file"] for row in index()} == {path.name for path in CAPTURES.glob("*.txt")}


@pytest.mark.parametrize("row", index(), ids=lambda row: row["file"])
def test_capture(row):
    verdict = classify_file(str(CAPTURES / row["file"]), CATALOGUE)
    expected = TOLD.get(row["file"], row["class"])
    assert (verdict.label, verdict.cls) == (row["label"], expected), verdict.reason
    lines = (CAPTURES / row["file"]).read_bytes().split(b"\n")
    assert verdict.evidence[:40].encode() in lines[verdict.position - 1]
