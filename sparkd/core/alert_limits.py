# SPDX-License-Identifier: Apache-2.0
"""How often somebody is told: repeats, the rate, summaries, retries, and how much may wait."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from sparkd.core.alerts import Alert, Kind, Policy, alert_id

PENDING_MAX = 1000
"""Alerts that may wait for one destination; then the oldest go first."""
KEEP_S = 7 * 86400.0
"""An alert that could not be delivered for so long is dropped."""
NEWS_S = 3600.0
"""An empty queue alerts on nothing older: enabling alerts does not retell the journal."""
SUMMARY_S = 60.0
"""A summary of what was suppressed comes after the deduplication window, at least so long after."""
RETRY_FIRST_S = 5.0
RETRY_CAP_S = 900.0
HOUR_S = 3600.0


class Past(NamedTuple):
    """An alert that was admitted earlier."""

    key: str
    time: float
    """When it happened."""
    queued: float
    """When it was admitted."""
    counts: bool = True
    """Whether it counts towards the rate limit."""


class Admission(StrEnum):
    """Whether an alert goes out by itself."""

    SEND = "send"
    REPEATED = "repeated"
    LIMITED = "limited"
    UNWANTED = "unwanted"


def admit(alert: Alert, past: Sequence[Past], policy: Policy, now: float) -> Admission:
    """Whether this alert goes out by itself or is only counted for the next summary.

    Repeats are judged by when things happened, so that what is read late after an outage of sparkd
    is not taken for a burst; the rate by when alerts are sent.
    """
    if alert.kind in {Kind.SUMMARY, Kind.TEST}:
        return Admission.SEND
    if alert.kind not in policy.kinds:
        return Admission.UNWANTED
    if any(p.key == alert.key and abs(alert.time - p.time) < policy.dedup_s for p in past):
        return Admission.REPEATED
    recent = sum(p.counts and 0 <= now - p.queued < HOUR_S for p in past)
    if not alert.is_urgent and recent >= policy.limit:
        return Admission.LIMITED
    return Admission.SEND


def summary(suppressed: Sequence[tuple[Alert, float]], policy: Policy, now: float) -> Alert | None:
    """One alert for all that were suppressed, once the first of them has waited long enough.

    Args:
        suppressed: alerts and when they were suppressed, oldest first.
        policy: `[alerts]`.
        now: seconds since the epoch.
    """
    if not suppressed:
        return None
    waited = now - suppressed[0][1]
    if 0 <= waited < max(policy.dedup_s, SUMMARY_S):
        return None
    counts = Counter((a.kind, a.engine, a.subject) for a, _ in suppressed)
    parts = [_counted(*what, count) for what, count in counts.most_common(10)]
    if len(counts) > 10:
        parts.append(f"and {len(counts) - 10} other kinds")
    total = len(suppressed)
    return Alert(
        id=alert_id(Kind.SUMMARY, "", "".join(sorted(a.id for a, _ in suppressed))),
        kind=Kind.SUMMARY,
        engine="",
        subject="",
        time=max(a.time for a, _ in suppressed),
        title=f"{total} more alert{'' if total == 1 else 's'} suppressed",
        reason="; ".join(parts) + ".",
        next_step="sparkctl incidents shows each of them.",
    )


def _counted(kind: Kind, engine: str, subject: str, count: int) -> str:
    about = f" of {engine}" if engine else ""
    which = f" ({subject})" if subject and kind is not Kind.HELD else ""
    return f"{count} x {kind}{about}{which}"


def retry_delay(failures: int, jitter: float, asked: float | None = None) -> float:
    """Seconds until the next attempt: doubling from 5 s to 15 min, 25 % up or down.

    Args:
        failures: attempts that failed in a row, at least 1.
        jitter: from 0 to 1, so that receivers that come back are not met by everybody at once.
        asked: what the receiver asked for (Retry-After); heeded up to the same cap.
    """
    delay = min(RETRY_CAP_S, RETRY_FIRST_S * 2.0 ** min(failures - 1, 16))
    delay *= 0.75 + 0.5 * min(max(jitter, 0.0), 1.0)
    return min(RETRY_CAP_S, max(delay, asked or 0.0))


def is_due(next_at: float, now: float) -> bool:
    """Whether it is time for another attempt; a clock that was set back does not delay it."""
    return next_at <= now or next_at - now > RETRY_CAP_S
