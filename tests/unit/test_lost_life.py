# SPDX-License-Identifier: Apache-2.0
"""A life whose end nobody recorded: what the next start finds of it, and what is then recorded."""

from pathlib import Path

import pytest

from sparkd.adapters import clock
from sparkd.adapters.state_files import StateFiles
from sparkd.core import burst
from sparkd.core.burst import Ledger, Moment
from sparkd.core.end_of_life import HOST_WENT_DOWN, Finding
from sparkd.helpers import await_slot, post_mortem

UNIT = "vllm-a.service"
LAST, OWN = "1" * 32, "2" * 32
BEFORE = Moment("another boot", 60.0, 1.79e9)
CUT_OFF = burst.begin(Ledger(), LAST, BEFORE)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateFiles:
    monkeypatch.setenv("INVOCATION_ID", OWN)
    return StateFiles(str(tmp_path / "run"), str(tmp_path / "state"))


def found(files: StateFiles) -> list[str]:
    return await_slot.lost_life(files, "a", UNIT)


def judge(files: StateFiles, *words: str, finding: Finding | None) -> post_mortem.Record:
    options = post_mortem.parser().parse_args(["--engine=a", f"--unit={UNIT}", *words])
    ending = post_mortem.Ending(LAST, post_mortem.NOT_SEEN, None, requested=False)
    return post_mortem.judge(options, files, ending, finding)


def test_nothing_was_lost(files: StateFiles) -> None:
    assert found(files) == []
    files.write_started(UNIT, OWN, "")
    assert found(files) == [], "this very start"


def test_a_life_of_this_boot_that_nobody_recorded(files: StateFiles) -> None:
    files.write_started(UNIT, LAST, "")
    await_slot.remember_start(files, "a", LAST)
    assert found(files) == [f"--lost={LAST}"]


def test_a_start_that_goes_ahead_is_on_disk_and_none_of_this_boot_is_lost(
    files: StateFiles, tmp_path: Path
) -> None:
    await_slot.remember_start(files, "a", OWN)
    begun = StateFiles(str(tmp_path / "run of the next boot"), str(tmp_path / "state")).ledger("a")
    assert begun.begun is not None
    assert begun.begun.invocation_id == OWN
    assert begun.begun.at.boot_id == clock.moment().boot_id
    assert found(files) == []


def test_a_start_of_another_boot_took_the_host_down(files: StateFiles) -> None:
    files.write_ledger("a", CUT_OFF)
    assert found(files) == [f"--lost={LAST}", "--host-went-down"]
    assert await_slot.lost_life(files, "b", "vllm-b.service") == []


def test_one_that_was_ready_did_not(files: StateFiles) -> None:
    files.write_ledger("a", burst.after_ready(CUT_OFF, BEFORE))
    assert found(files) == []


def test_a_start_that_can_be_noted_nowhere_goes_ahead(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "ledger").write_text("and another one")
    files = StateFiles(str(tmp_path / "run"), str(tmp_path / "state"))
    await_slot.remember_start(files, "a", OWN)
    assert files.ledger("a") == Ledger()


def test_it_is_counted_once_and_held_at_the_limit(files: StateFiles) -> None:
    for number in (1, 2):
        files.write_ledger("a", burst.begin(files.ledger("a"), LAST, BEFORE))
        words = found(files)
        record = judge(files, *words, "--burst=2", finding=HOST_WENT_DOWN)
        assert (record.cls, record.requested, record.was_ready) == ("host-went-down", False, False)
        assert record.reason == "the host went down while it started"
        assert record.hint
        assert len(files.ledger("a").deaths) == 1, f"once, also the {number}. time it is found"
        assert found(files) == [], "and it is forgotten"
    files.write_ledger("a", burst.begin(files.ledger("a"), "3" * 32, BEFORE))
    options = post_mortem.parser().parse_args(["--engine=a", f"--unit={UNIT}", "--burst=2"])
    third = post_mortem.Ending("3" * 32, post_mortem.NOT_SEEN, None, requested=False)
    record = post_mortem.judge(options, files, third, HOST_WENT_DOWN)
    assert record.action == "hold"
    held = files.ledger("a").held
    assert held is not None
    assert "the last was host-went-down" in held.reason


def test_a_stop_in_the_middle_of_a_start_counts_nothing_and_is_forgotten(
    files: StateFiles,
) -> None:
    files.write_ledger("a", CUT_OFF)
    options = post_mortem.parser().parse_args(["--engine=a", f"--unit={UNIT}"])
    ending = post_mortem.Ending(LAST, post_mortem.NOT_SEEN, None, requested=True)
    assert post_mortem.judge(options, files, ending, None).requested
    assert files.ledger("a") == Ledger()
