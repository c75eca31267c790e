# SPDX-License-Identifier: Apache-2.0
"""Times as an operator reads and writes them."""

import time

from sparkd.cli.exits import CliError, Exit

_STEPS = ((86400, "d"), (3600, "h"), (60, "min"))


def span(seconds: float) -> str:
    """A duration in its two largest units: '42 s', '3 min 5 s', '2 h 10 min', '4 d'."""
    left = max(0, round(seconds))
    parts = []
    for size, unit in _STEPS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    if left or not parts:
        parts.append(f"{left} s")
    return " ".join(parts[:2])


def ago(moment: float, now: float) -> str:
    """How long ago, roughly: '42 s', '3 min', '2 h', '4 d'."""
    return span(now - moment).partition(" ")[0] + " " + span(now - moment).split(" ")[1]


def stamp(moment: float) -> str:
    """Local time, as systemctl shows it but sortable: '2026-11-29 14:03:11'."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def clock(moment: float, now: float) -> str:
    """Local time of day, '14:05'; with the date when that is another day's."""
    today = time.localtime(now)[:3] == time.localtime(moment)[:3]
    return time.strftime("%H:%M" if today else "%Y-%m-%d %H:%M", time.localtime(moment))


def parse_since(text: str, now: float) -> float:
    """Seconds since the epoch from '2h', '3d' (ago), '2026-11-29' or '2026-11-29 14:00' (local).

    Raises:
        CliError: it is neither; with both forms named.
    """
    from datetime import datetime  # noqa: PLC0415  (only this option pays for it)

    from sparkd.core.quantities import parse_duration  # noqa: PLC0415

    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise CliError(
            f"--since {text!r} is no time; write a span such as 2h or 3d, or a date such as"
            " 2026-11-29 or '2026-11-29 14:00'",
            Exit.USAGE,
        ) from None
