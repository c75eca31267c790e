# SPDX-License-Identifier: Apache-2.0
"""The escape rule, row by row; tests/property/test_units_oracle.py asks systemd itself."""

import pytest

from sparkd.core.escape import (
    UnitTextError,
    quote_argument,
    quote_assignment,
    specifier_safe,
)


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        ("plain-1.0/x:y=z@a,b+c", "plain-1.0/x:y=z@a,b+c"),
        ("", '""'),
        (" ", '" "'),
        (";", '";"'),
        ("50%", '"50%%"'),
        ("%n", '"%%n"'),
        ("$HOME ${X}", '"$$HOME $${X}"'),
        ("ends with \\", '"ends with \\\\"'),
        ('say "x"', '"say \\"x\\""'),
        ("a\nb\tc\rd", '"a\\x0ab\\x09c\\x0dd"'),
        ("\x01\x1b\x1f \x7f", '"\\x01\\x1b\\x1f \\x7f"'),
        # The first characters that stay as they are, on both sides of the C1 block.
        ("\x80\x85\xa0", '"\x80\x85\xa0"'),
        ("é漢😀\u2028", '"é漢😀\u2028"'),
        ("it's", '"it\'s"'),
        ("~", '"~"'),
        ("*", '"*"'),
        ("\\x41", '"\\\\x41"'),
    ],
)
def test_argument(argument: str, word: str) -> None:
    assert quote_argument(argument) == word


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("1", "A=1"),
        ("", '"A="'),
        ("$HOME", '"A=$HOME"'),
        ("%h", '"A=%%h"'),
        ("a b", '"A=a b"'),
        ("a\nB=c", '"A=a\\x0aB=c"'),
        ("\\", '"A=\\\\"'),
    ],
)
def test_assignment(value: str, word: str) -> None:
    assert quote_assignment("A", value) == word


@pytest.mark.parametrize(
    "text", ["\0", "a\0b", "\ud800", "x\udfff", "\ufdd0", "a\ufffe", "\U0010ffff"]
)
def test_what_no_unit_can_carry_is_refused(text: str) -> None:
    with pytest.raises(UnitTextError):
        quote_argument(text)
    with pytest.raises(UnitTextError):
        quote_assignment("A", text)


def test_specifiers_are_doubled() -> None:
    assert specifier_safe("100%n%%") == "100%%n%%%%"
