# SPDX-License-Identifier: Apache-2.0
"""Text from logs cannot drive the terminal, and colour comes only where it is wanted."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.cli.progress import Progress, line
from sparkd.cli.terminal import WIDTH_MAX, Paint, columns, neutralise, paint_for


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ünï 漢字", "plain text, ünï 漢字"),
        ("\x1b[31;1mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bc", "\\x1bc"),  # a reset is no sequence that we know: shown, not sent
        ("a\nb\r\tc", "a\\nb\\r c"),
        ("safe\u202egpj.exe", "safe\\u202egpj.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("C1 \x9b31m", "C1 \\x9b31m"),
        ("\ud800", "\\ud800"),
        ("\x1b[", "\\x1b["),
    ],
)
def test_what_cannot_be_seen_is_shown(text, shown):
    assert neutralise(text) == shown


@given(st.text(st.characters()))
def test_every_result_prints_on_one_line_and_is_bounded(text):
    shown = neutralise(text)
    assert shown.isprintable()
    assert len(shown) <= WIDTH_MAX


def test_a_long_text_is_cut():
    assert len(neutralise("x" * 100_000)) == WIDTH_MAX
    assert neutralise("\x1b" * 100_000).endswith("…")


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
        ({"TERM": "xterm", "SYSTEMD_COLORS": "0"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(environment, wanted):
    assert paint_for(_Terminal(), environment).enabled is wanted
    assert not paint_for(io.StringIO(), environment).enabled


def test_paint_adds_nothing_when_off():
    assert Paint(enabled=False)("red", "x") == "x"
    assert Paint(enabled=True)("", "x") == "x"
    assert Paint(enabled=True)("red", "x") == "\x1b[31mx\x1b[0m"


def test_columns_line_up():
    assert columns([("A", "N"), ("bbb", "10")], right=frozenset({1})) == ["A     N", "bbb  10"]


def test_progress_is_one_line_that_goes_away():
    terminal = _Terminal()
    progress = Progress(terminal, {"TERM": "xterm"})
    progress.clear()
    progress.show({"a": "loading\x1b[2J weights", "b": "waiting"})
    progress.clear()
    progress.clear()
    assert terminal.getvalue() == "\r\x1b[Ka: loading weights; b: waiting\r\x1b[K"


@pytest.mark.parametrize(
    ("stream", "environment"), [(io.StringIO(), {"TERM": "xterm"}), (_Terminal(), {"TERM": "dumb"})]
)
def test_progress_is_for_terminals(stream, environment):
    progress = Progress(stream, environment)
    progress.show({"a": "loading"})
    progress.clear()
    assert stream.getvalue() == ""
    assert not progress.enabled


@given(st.text(), st.integers(1, 200))
def test_progress_never_wraps(text, width):
    assert len(line({"a": text}, width)) < max(width, 2)
