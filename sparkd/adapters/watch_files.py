# SPDX-License-Identifier: Apache-2.0
"""What was learned about each engine by watching it: a small file each, below the state folder."""

import json
from pathlib import Path

from sparkd.adapters.state_files import read_json, write_atomic
from sparkd.core import burst


class WatchFiles:
    """The files below one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def longest(self, engine: str) -> float:
        """Seconds of the longest stall that ended by itself; 0 when none is known."""
        value = read_json(self._folder / f"{engine}.json") or {}
        return max(0.0, burst.finite(value.get("longest_stall")) or 0.0)

    def remember(self, engine: str, longest: float) -> None:
        """Keep it for the next invocation.

        Raises:
            OSError: it could not be written.
        """
        text = json.dumps({"longest_stall": round(longest, 1)}) + "\n"
        write_atomic(self._folder / f"{engine}.json", text)
