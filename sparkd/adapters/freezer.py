# SPDX-License-Identifier: Apache-2.0
"""Stops compilers and lets them go on, and leaves none behind that nobody would let go on.

Each frozen process has an empty file `PID.START` in the run folder, there before the SIGSTOP and
until after the SIGCONT. Whoever finds such files and no daemon lets the processes go on: the helper
`thaw`, which systemd runs when sparkd has ended, however it ended, and before it starts.

A process is named by its pidfd and its start time, never by its number alone.
"""

import contextlib
import os
import signal
from pathlib import Path

from sparkd.adapters import proc
from sparkd.core.storm import Key


class Freezer:
    """The frozen processes of this host."""

    def __init__(self, run: str = "/run/sparkd") -> None:
        self._folder = Path(run) / "frozen"

    def freeze(self, key: Key) -> bool:
        """Stop a process; False when it is gone or cannot be stopped.

        Raises:
            OSError: it cannot be recorded, so it is not stopped.
        """
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        record = self._record(key)
        record.touch()
        if _signal(key, signal.SIGSTOP):
            return True
        record.unlink(missing_ok=True)
        return False

    def thaw(self, key: Key) -> None:
        """Let a process go on."""
        _signal(key, signal.SIGCONT)
        self._record(key).unlink(missing_ok=True)

    def recorded(self) -> list[Key]:
        """Every process that was frozen and not let go on."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError:
            return []
        parts = [name.split(".") for name in names]
        return [Key(*map(int, p)) for p in parts if len(p) == 2 and all(w.isdigit() for w in p)]

    def thaw_all(self) -> int:
        """Let every recorded process go on; returns how many there were."""
        keys = self.recorded()
        for key in keys:
            with contextlib.suppress(OSError):
                self.thaw(key)
        return len(keys)

    def _record(self, key: Key) -> Path:
        return self._folder / f"{key.pid}.{key.start}"


def _signal(key: Key, number: signal.Signals) -> bool:
    try:
        fd = os.pidfd_open(key.pid)
    except OSError:
        return False
    try:
        # Opened first: if the number is still that of the process meant, then so is the pidfd.
        if proc.start_time(key.pid) != key.start:
            return False
        signal.pidfd_send_signal(fd, number)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
