# SPDX-License-Identifier: Apache-2.0
"""Which events somebody is told about, in what words, and how often.

Pure: an alert's `id` follows from the event alone, so an event that is read twice makes the same
alert, and the queue takes it once. Text from an engine's log is neutralised here, and stripped of
what looks like a token; it only ever travels as data (a request's body, a command's stdin).
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from sparkd.core.burst import seconds_text
from sparkd.core.end_of_life import Record
from sparkd.core.lines import neutralise
from sparkd.core.secrecy import redact

TEXT_MAX = 400
"""Characters of one part of a message; evidence is a log line, and those can be 48 KiB."""
LATE_S = 120.0
"""An alert that is sent so long after its event says when that was."""
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

START_FACTOR = 1.5
"""A start is slow when it takes this many times the slowest of the starts it is compared with."""
START_HISTORY = 10
"""How many earlier starts are looked at."""
START_HISTORY_MIN = 3
"""Fewer starts teach nothing."""
START_MARGIN_S = 60.0
"""A start of seconds varies by more than half without meaning anything."""


class Kind(StrEnum):
    """What an alert is about; all but the last two can be chosen in the configuration."""

    DEATH = "death"
    HELD = "held"
    STALLED = "stalled"
    RECOVERED = "recovered"
    SLOW_START = "slow-start"
    SPARKD = "sparkd"
    SUMMARY = "summary"
    TEST = "test"


SELECTABLE = tuple(kind for kind in Kind if kind not in {Kind.SUMMARY, Kind.TEST})
_URGENT = frozenset({Kind.HELD, Kind.SPARKD, Kind.STALLED})


class Result(StrEnum):
    """What became of an alert, as `sparkd_alerts_total` counts it."""

    SENT = "sent"
    SUPPRESSED = "suppressed"
    REFUSED = "refused"
    DROPPED = "dropped"


class Alert(NamedTuple):
    """One thing that somebody is told."""

    id: str
    """32 hexadecimal digits; the same event always has the same. Receivers drop repeats by it."""
    kind: Kind
    engine: str
    """'' when it is about sparkd itself."""
    subject: str
    """What it is about within kind and engine, such as the class of a death."""
    time: float
    """When it happened, seconds since the epoch."""
    title: str
    reason: str
    action: str = ""
    """What sparkd or systemd did about it."""
    evidence: str = ""
    next_step: str = ""
    """What a person should do; '' for nothing."""
    invocation_id: str = ""

    @property
    def key(self) -> str:
        """Alerts with the same key within the deduplication window are one."""
        return f"{self.kind}/{self.engine}/{self.subject}"

    @property
    def is_urgent(self) -> bool:
        """Whether somebody has to act; such an alert passes the rate limit."""
        return self.kind in _URGENT


class Policy(NamedTuple):
    """`[alerts]`: what is sent, and how often at most."""

    kinds: frozenset[Kind]
    dedup_s: float
    limit: int
    """Alerts per hour that are not urgent."""


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


def alert_id(kind: str, engine: str, what: str) -> str:
    """The identity of what happened; `what` is an invocation, or whatever happens only once."""
    return hashlib.sha256("\0".join((kind, engine, what)).encode()).hexdigest()[:32]


def said(text: str | None) -> str:
    """Text from a log or a record as one harmless line without tokens."""
    return redact(neutralise(" ".join((text or "").split()), TEXT_MAX))


# from events to alerts


def of_death(record: Record, policy: Policy) -> Alert | None:
    """A death, or the hold that it led to; None for a requested end."""
    if record.requested:
        return None
    held = record.action == "hold"
    # Who wants to hear of deaths only hears of the one that held the engine as well.
    kind = Kind.HELD if held and Kind.HELD in policy.kinds else Kind.DEATH
    when = "" if record.was_ready else " before it was ready"
    ending = ", and is held" if held else ""
    step = record.hint
    if held:
        release = f"sparkctl start {record.engine} starts it again"
        step = f"{_sentence(record.hint)} When the cause is mended, {release}.".strip()
    return Alert(
        id=alert_id("end", record.engine, record.invocation_id),
        kind=kind,
        engine=record.engine,
        subject=record.invocation_id if held else said(record.cls),
        time=record.time,
        title=f"{record.engine} died{when}{ending}: {said(record.cls)}",
        reason=said(record.reason),
        action=said(record.action_reason),
        evidence=said(record.evidence),
        next_step=said(step),
        invocation_id=record.invocation_id,
    )


def of_recovery(engine: str, invocation_id: str, ready_at: float, dark_s: float) -> Alert:
    """An engine serves again after an end that nobody asked for."""
    return Alert(
        id=alert_id(Kind.RECOVERED, engine, invocation_id),
        kind=Kind.RECOVERED,
        engine=engine,
        subject="",
        time=ready_at,
        title=f"{engine} serves again",
        reason=f"It was not available for {span(dark_s)}.",
        invocation_id=invocation_id,
    )


def of_stall(engine: str, invocation_id: str, at: float, reason: str, *, is_over: bool) -> Alert:
    """An engine makes no progress while it has work, or moves again by itself."""
    step = (
        f"sparkctl status {engine} shows its progress; sparkctl restart {engine} ends the stall."
        " Many stalls end by themselves."
    )
    return Alert(
        id=alert_id("moves" if is_over else "stalled", engine, f"{invocation_id}/{at:.6f}"),
        kind=Kind.RECOVERED if is_over else Kind.STALLED,
        engine=engine,
        subject="stall" if is_over else "",
        time=at,
        title=f"{engine} moves again" if is_over else f"{engine} makes no progress",
        reason=said(reason),
        next_step="" if is_over else step,
        invocation_id=invocation_id,
    )


def of_slow_start(
    engine: str, invocation_id: str, at: float, seconds: float, budget: float
) -> Alert:
    """A start takes longer than this engine's starts have taken."""
    return Alert(
        id=alert_id(Kind.SLOW_START, engine, invocation_id),
        kind=Kind.SLOW_START,
        engine=engine,
        subject="",
        time=at,
        title=f"{engine} starts slowly",
        reason=(
            f"This start has taken {span(seconds)}; by its earlier starts {span(budget)} would"
            " have been long."
        ),
        next_step=f"sparkctl status {engine} shows how far it is.",
        invocation_id=invocation_id,
    )


def of_journal_gap(at: float, reason: str) -> Alert:
    """Events may have been missed."""
    return Alert(
        id=alert_id("gap", "", f"{at:.3f}"),
        kind=Kind.SPARKD,
        engine="",
        subject="journal-gap",
        time=at,
        title="sparkd may have missed events",
        reason=said(reason),
        next_step="Look at journalctl --disk-usage: the journal may be too small.",
    )


def of_daemon_end(unit: str, result: str, status: str, invocation_id: str, at: float) -> Alert:
    """The daemon itself ended in a way that it should not."""
    how = f"systemd calls its result '{said(result)}'" + (f" ({said(status)})" if status else "")
    return Alert(
        id=alert_id("daemon", unit, invocation_id or f"{at:.0f}"),
        kind=Kind.SPARKD,
        engine="",
        subject=said(result),
        time=at,
        title=f"{said(unit)} failed",
        reason=f"{how}.",
        action="systemd starts it again. The engines run on, and so does what restarts them.",
        next_step=f"journalctl -u {said(unit)} -n 50 shows why.",
        invocation_id=invocation_id,
    )


def of_test(at: float, unique: str) -> Alert:
    """What `sparkctl alert test` sends."""
    return Alert(
        id=alert_id(Kind.TEST, "", unique),
        kind=Kind.TEST,
        engine="",
        subject="",
        time=at,
        title="Test alert of sparkd",
        reason="Somebody ran 'sparkctl alert test'. Nothing is wrong.",
    )


def start_budget(starts: Sequence[tuple[float, str]], kind: str = "") -> float | None:
    """How long a start may take, learned from earlier ones; None while there are too few.

    Args:
        starts: seconds and 'cold', 'warm' or '' of earlier starts that became ready, newest first.
        kind: the same of the start in question; '' compares with every start, so that a cold one
            that does not say so yet is not called slow for it.
    """
    alike = [seconds for seconds, its in starts if not kind or its in {kind, ""}][:START_HISTORY]
    if len(alike) < START_HISTORY_MIN:
        return None
    return max(max(alike) * START_FACTOR, max(alike) + START_MARGIN_S)


# how often


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


# in words


def text(alert: Alert, host: str, now: float) -> str:
    """The message for a person: lines, the title not among them."""
    lines = [alert.reason]
    late = now - alert.time
    if late >= LATE_S:
        lines.append(f"This happened {span(late)} ago, at {utc(alert.time)}.")
    if alert.action:
        lines.append(f"Then: {_sentence(alert.action)}")
    if alert.evidence:
        lines.append(f"Log: {alert.evidence}")
    if alert.next_step:
        lines.append(f"Next: {_sentence(alert.next_step)}")
    if alert.invocation_id and alert.kind in {Kind.DEATH, Kind.HELD}:
        lines.append(f"More: sparkctl incident {alert.invocation_id[:8]}")
    lines.append(f"Host: {host}")
    return "\n".join(line for line in lines if line)


def to_json(alert: Alert, host: str, now: float) -> dict[str, object]:
    """The JSON that a generic webhook and a command get; members may be added, none renamed."""
    return {
        "version": 1,
        **alert._asdict(),
        "kind": str(alert.kind),
        "engine": alert.engine or None,
        "host": host,
        "urgent": alert.is_urgent,
        "age_seconds": round(max(0.0, now - alert.time), 1),
        "text": text(alert, host, now),
    }


def from_json(value: Mapping[str, object]) -> Alert | None:
    """An alert as the queue keeps it; None when another version wrote something else."""
    members = {name: value.get(name, "") for name in Alert._fields}
    moment = members.pop("time")
    if not isinstance(moment, int | float) or isinstance(moment, bool):
        return None
    if not all(isinstance(member, str) for member in members.values()):
        return None
    if members["kind"] not in set(Kind):
        return None
    members["kind"] = Kind(str(members["kind"]))
    return Alert(time=float(moment), **members)  # type: ignore[arg-type]  # checked above


def span(seconds: float) -> str:
    """A duration for people: '45 s', '20 min', '13.1 h'."""
    return seconds_text(max(0.0, seconds)) if seconds < 172_800 else f"{seconds / 86400:.1f} days"


def utc(moment: float) -> str:
    """A moment as '2026-11-29 14:03:11 UTC': who reads it may be elsewhere."""
    from datetime import UTC, datetime  # noqa: PLC0415  (only a late alert needs it)

    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"


def _sentence(words: str) -> str:
    words = words.strip()
    return words if not words or words.endswith((".", "!", "?")) else f"{words}."
