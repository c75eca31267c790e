# SPDX-License-Identifier: Apache-2.0
"""The clocks. Pure code gets its time from here, through its callers."""

import time
from pathlib import Path

from sparkd.core.burst import Moment


def moment() -> Moment:
    """Now, on the boot clock and the wall clock."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return Moment(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
