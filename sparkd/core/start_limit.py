# SPDX-License-Identifier: Apache-2.0
"""systemd's start limit as a backstop that cannot trip before sparkd's own burst limit.

sparkd holds an engine at the `burst`-th unrequested end of life within a sliding window. systemd
counts every start, in fixed windows, manual ones included, and after its limit it leaves the unit
failed without a reason. So its limit only has to end the loops that sparkd's helpers did not count,
for example because they are not installed.
"""

from math import ceil
from typing import NamedTuple

STOP_TIMEOUT_SECONDS = 60
"""TimeoutStopSec= of every engine: the ladder TERM, TERM, KILL fits in, and so does post-mortem."""

# The interval in which systemd counts, in windows: long, so that slow loops are bounded as well.
_WINDOWS = 4
# `systemctl restart` by hand counts for systemd; `sparkctl` resets the count before each start.
_MANUAL_STARTS = 10
# A unit may be in stop-sigterm, final-sigterm and stop-post, each for the stop timeout.
_STOP_STAGES = 3


class StartLimit(NamedTuple):
    """Values for StartLimitIntervalSec= and StartLimitBurst=: one more start is refused."""

    interval_seconds: int
    burst: int


def backstop(burst: int, window_seconds: int, delay_seconds: int) -> StartLimit:
    """Return a limit that no history permitted by sparkd reaches.

    An automatic start follows an end of life by at most `lag`, so the ends of life behind all
    automatic starts of one interval lie within interval + lag. Each window in there holds at most
    `burst` - 1 of them, or the engine would be held and not started again. One start by boot or
    `systemctl start` and some by hand come on top.

    Args:
        burst: the unrequested end of life that holds the engine, 1 or more.
        window_seconds: length of the sliding window in which they count.
        delay_seconds: RestartSec=.
    """
    interval = _WINDOWS * window_seconds
    # systemd adds up to a few tenths of a second to RestartSec=; a tenth of it and 5 s are ample.
    lag = _STOP_STAGES * STOP_TIMEOUT_SECONDS + ceil(delay_seconds * 1.1) + 5
    automatic = ceil((interval + lag) / window_seconds) * (burst - 1)
    return StartLimit(interval, automatic + 1 + _MANUAL_STARTS)
