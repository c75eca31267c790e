# SPDX-License-Identifier: Apache-2.0
"""Runs a program for what it prints; for commands that look once, not for the daemon."""

import os
import subprocess
from collections.abc import Sequence

TIMEOUT_S = 15.0
_MAX_BYTES = 8 << 20


def output(argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> str | None:
    """Its standard output; None when it is missing, fails or takes too long."""
    environment = {
        **os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "cat",
    }  # fmt: skip
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout[:_MAX_BYTES].decode("utf-8", "replace") if done.returncode == 0 else None
