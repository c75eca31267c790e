# SPDX-License-Identifier: Apache-2.0
"""What somebody is told: an alert for each kind of event.

Pure: an alert's `id` follows from the event alone, so an event that is read twice makes the same
alert, and the queue takes it once. Text from an engine's log is neutralised here, and stripped of
what looks like a token; it only ever travels as data (a request's body, a command's stdin).
"""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from sparkd.core.burst import seconds_text
from sparkd.core.end_of_life import Record
from sparkd.core.lines import neutralise
from sparkd.core.secrecy import redact

TEXT_MAX = 400
"""Characters of one part of a message; evidence is a log line, and those can be 48 KiB."""


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
        step = f"{sentence(record.hint)} When the cause is mended, {release}.".strip()
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


def sentence(words: str) -> str:
    """The words with a full stop."""
    words = words.strip()
    return words if not words or words.endswith((".", "!", "?")) else f"{words}."
