# SPDX-License-Identifier: Apache-2.0
"""systemctl, for the helpers: they need a handful of properties and no D-Bus library.

One call takes about 10 ms; importing a D-Bus binding takes longer than that. None always means
"could not be seen", which is never the same as "not there".

The program is named by its path. The helpers run as root with the engine's PATH, which begins with
folders that the engine's user may be able to write, such as its virtual environment's.
"""

import subprocess
from collections.abc import Mapping, Sequence

SYSTEMCTL = "/usr/bin/systemctl"
TIMEOUT_S = 10.0
"""systemd answers in milliseconds; while it re-executes itself, within a few seconds."""


def show(units: Sequence[str], properties: Sequence[str]) -> list[Mapping[str, str]] | None:
    """The named properties of each unit, in the order asked; None when systemd does not answer."""
    argv = [SYSTEMCTL, "show", "--property=" + ",".join(properties), "--", *units]
    out = _run(argv)
    if out is None:
        return None
    blocks: list[Mapping[str, str]] = [
        dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        for block in out.strip("\n").split("\n\n")
    ]
    return blocks if len(blocks) == len(units) else None


def job_type(unit: str) -> str | None:
    """The type of the job that is queued or running on the unit, '' for none."""
    out = _run([SYSTEMCTL, "list-jobs", "--no-legend", "--no-pager", "--full", "--", unit])
    if out is None:
        return None
    rows = [line.split() for line in out.splitlines()]
    return next((row[2] for row in rows if len(row) >= 4 and row[1] == unit), "")


def stop_no_block(unit: str) -> bool:
    """Queue a stop job, which also cancels a pending automatic restart."""
    return _run([SYSTEMCTL, "stop", "--no-block", "--", unit]) is not None


def kill(unit: str, whom: str = "main") -> bool:
    """Send SIGKILL to the main process of a unit, or to 'all' of them."""
    argv = [SYSTEMCTL, "kill", f"--kill-whom={whom}", "--signal=KILL", "--", unit]
    return _run(argv) is not None


def _run(argv: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
