# SPDX-License-Identifier: Apache-2.0
"""What a terminal may get from us: text that cannot drive it, colour only where wanted."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TextIO

WIDTH_MAX = 2000
"""Characters of one neutralised text; a log line may be 48 KiB."""

# CSI (colours, cursor), OSC (titles, links; ended by BEL or ST), and the two-character escapes.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_=>])")
_COLOURS = {"green": "32", "yellow": "33", "red": "31", "cyan": "36", "bold": "1", "dim": "2"}

STATE_COLOURS: Mapping[str, str] = {
    "ready": "green",
    "waiting": "yellow",
    "starting": "yellow",
    "loading": "yellow",
    "restarting": "yellow",
    "stopping": "yellow",
    "stalled": "red",
    "held": "red",
    "stopped": "dim",
}


def neutralise(text: str) -> str:
    """Make a text harmless to print on one line.

    Whole escape sequences are dropped. Every other character that does not print by itself
    (controls, newlines, bidi overrides, zero-width characters, lone surrogates) is shown as its
    escape, so that an engine's log can neither drive the terminal nor forge a line of ours.
    """
    text = text[: WIDTH_MAX * 4]
    if not text.isprintable():
        text = _ESCAPES.sub("", text)
        text = "".join(c if c.isprintable() else _visible(c) for c in text)
    return text if len(text) <= WIDTH_MAX else text[: WIDTH_MAX - 1] + "…"


def _visible(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode("ascii")


class Paint(NamedTuple):
    """Colours a text, or leaves it alone."""

    enabled: bool

    def __call__(self, colour: str, text: str) -> str:
        """The text in this colour; '' is no colour."""
        if not self.enabled or not colour:
            return text
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def paint_for(stream: TextIO, environment: Mapping[str, str]) -> Paint:
    """Colour only on a terminal that can, and only when nobody objects (https://no-color.org)."""
    wanted = (
        not environment.get("NO_COLOR")
        and environment.get("TERM", "dumb") != "dumb"
        and environment.get("SYSTEMD_COLORS", "1").lower() not in {"0", "no", "false", "off"}
    )
    return Paint(wanted and stream.isatty())


def columns(rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()) -> list[str]:
    """Line up a table's cells; the columns in `right` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
