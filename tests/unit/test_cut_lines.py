# SPDX-License-Identifier: Apache-2.0
"""Entries that are the rest of a line: never a record, and a record after a progress bar is one."""

from sparkd.core.cut_lines import CUT_MIN, CutLines

LONG = b"x" * CUT_MIN
BAR = b"Loading:  10%|\r" * 2000
RECORD = (
    b"(EngineCore pid=2) ERROR 11-29 15:00:00 [core.py:1] EngineCore encountered a fatal error."
)


def rests(*entries: tuple[bytes, str, str]) -> list[bool]:
    """For each (message, line break, process) of one stream."""
    cut = CutLines()
    return [cut.is_rest(message, end, "s", pid) for message, end, pid in entries]


def test_the_rest_comes_from_the_same_process_whoever_writes_in_between() -> None:
    for end in ("line-max", "pid-change"):
        seen = rests((LONG, end, "1"), (RECORD, "", "2"), (RECORD, "", "1"), (RECORD, "", "1"))
        assert seen == [False, False, True, False]


def test_a_rest_may_be_cut_again_however_short_it_is() -> None:
    seen = rests(
        (LONG, "line-max", "1"), (b"x", "pid-change", "1"), (RECORD, "", "2"), (RECORD, "", "1")
    )
    assert seen == [False, True, False, True]


def test_a_record_behind_a_progress_bar_is_no_rest() -> None:
    for bar in (BAR, b"Loading:  10%|"):
        assert rests((bar, "pid-change", "2"), (b"INFO", "", "1"), (RECORD, "", "2")) == [False] * 3


def test_nothing_is_awaited_once_entries_were_passed_over() -> None:
    cut = CutLines()
    cut.is_rest(LONG, "line-max", "s", "1")
    assert cut.is_waiting
    cut.forget()
    assert not cut.is_waiting
    assert not cut.is_rest(RECORD, "", "s", "1")


def test_what_is_remembered_is_bounded() -> None:
    cut = CutLines()
    for stream in range(10_000):
        cut.is_rest(LONG, "line-max", str(stream), "1")
    assert len(cut._cut) < 1000
