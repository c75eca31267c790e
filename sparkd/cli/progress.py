# SPDX-License-Identifier: Apache-2.0
"""One line on a terminal that says what is being waited for, and goes away again."""

import os
from collections.abc import Mapping
from typing import TextIO

from sparkd.cli.terminal import neutralise

_CLEAR = "\r\x1b[K"


class Progress:
    """Rewrites one line of a terminal; on anything else it writes nothing."""

    def __init__(self, stream: TextIO, environment: Mapping[str, str]) -> None:
        self._stream = stream
        self.enabled = stream.isatty() and environment.get("TERM", "dumb") != "dumb"
        self._shown = False

    def show(self, texts: Mapping[str, str]) -> None:
        """Show the engines that are waited for, each with what it is doing."""
        if self.enabled:
            self._stream.write(_CLEAR + line(texts, _width(self._stream)))
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Take the line away before something else is printed."""
        if self._shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._shown = False


def line(texts: Mapping[str, str], width: int) -> str:
    """The line, cut so that the terminal does not wrap it."""
    whole = neutralise("; ".join(f"{engine}: {text}" for engine, text in texts.items()))
    return whole if len(whole) < width else whole[: max(0, width - 2)] + "…"


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
