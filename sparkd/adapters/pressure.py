# SPDX-License-Identifier: Apache-2.0
"""The kernel's word when tasks wait for memory: a PSI trigger costs nothing until it fires."""

import os
from pathlib import Path

from sparkd.adapters.host import PRESSURE

TRIGGER = b"full 150000 2000000\0"
"""All tasks waited for 150 ms of 2 s. From Linux 6.5 a window of 2 s needs no privilege; before, to
set a trigger needs CAP_SYS_RESOURCE."""


def open_trigger(path: Path = PRESSURE) -> int | None:
    """A descriptor that polls POLLPRI when it fires, at most once in 2 s; None: not possible."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.write(fd, TRIGGER)
    except OSError:
        os.close(fd)
        return None
    return fd
