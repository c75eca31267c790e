# SPDX-License-Identifier: Apache-2.0
"""sd_notify(3): what a process tells the systemd that started it."""

import contextlib

from systemd._daemon import notify as _notify  # the C part: `systemd.daemon` imports much more


def send(*assignments: str) -> None:
    """Send 'KEY=value' lines; nothing happens when systemd did not start this process.

    A line that cannot be sent is lost: a gate that knows its answer must not fail over telling how
    far it is. systemd refuses for a moment when it dies under us (seen: a host that goes down).
    """
    with contextlib.suppress(OSError):
        _notify("\n".join(assignments))


def status(text: str, *, extend_s: float = 0.0) -> None:
    """Set the unit's status line and, with `extend_s`, move this command's time limit.

    The extension counts from now and is not added to what is left; it never makes the limit come
    earlier (measured). A helper that waits repeats it.
    """
    lines = [f"STATUS={text}"]
    if extend_s:
        lines.append(f"EXTEND_TIMEOUT_USEC={int(extend_s * 1e6)}")
    send(*lines)
