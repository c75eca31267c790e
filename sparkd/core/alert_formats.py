# SPDX-License-Identifier: Apache-2.0
"""An alert in words, as JSON, and as the request that a kind of receiver expects."""

import json
from datetime import UTC, datetime
from typing import NamedTuple

from sparkd.core.alerts import Alert, Kind, sentence, span
from sparkd.core.config_model import AlertFormat

LATE_S = 120.0
"""An alert that is sent so long after its event says when that was."""


_TAGS = {
    Kind.DEATH: "boom",
    Kind.HELD: "no_entry",
    Kind.STALLED: "hourglass",
    Kind.RECOVERED: "white_check_mark",
    Kind.SLOW_START: "turtle",
    Kind.SPARKD: "rotating_light",
    Kind.SUMMARY: "heavy_plus_sign",
    Kind.TEST: "test_tube",
}
_JSON = "application/json"


class Request(NamedTuple):
    """A POST, without its address and without anything secret."""

    headers: tuple[tuple[str, str], ...]
    body: bytes


def request(format_: AlertFormat, alert: Alert, host: str, now: float) -> Request:
    """The POST that tells a receiver of this kind about the alert."""
    identity = (("Idempotency-Key", alert.id),)
    match format_:
        case AlertFormat.NTFY:
            headers = (
                ("Content-Type", "text/plain; charset=utf-8"),
                ("Title", _ascii(alert.title)),
                ("Priority", "4" if alert.is_urgent else "3"),
                ("Tags", _TAGS[alert.kind]),
            )
            return Request(identity + headers, text(alert, host, now).encode())
        case AlertFormat.SLACK:
            return Request(
                (*identity, ("Content-Type", _JSON)), _json({"text": _slack(alert, host, now)})
            )
        case AlertFormat.JSON:
            return Request((*identity, ("Content-Type", _JSON)), stdin(alert, host, now))


def stdin(alert: Alert, host: str, now: float) -> bytes:
    """What a command reads."""
    return _json(to_json(alert, host, now))


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _slack(alert: Alert, host: str, now: float) -> str:
    """Slack's markup has three special characters; escaped, no text can mention or link."""
    words = f"{alert.title}\n{text(alert, host, now)}"
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _ascii(text: str) -> str:
    """A header's value: printable ASCII."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)


def text(alert: Alert, host: str, now: float) -> str:
    """The message for a person: lines, the title not among them."""
    lines = [alert.reason]
    late = now - alert.time
    if late >= LATE_S:
        lines.append(f"This happened {span(late)} ago, at {utc(alert.time)}.")
    if alert.action:
        lines.append(f"Then: {sentence(alert.action)}")
    if alert.evidence:
        lines.append(f"Log: {alert.evidence}")
    if alert.next_step:
        lines.append(f"Next: {sentence(alert.next_step)}")
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


def utc(moment: float) -> str:
    """A moment as '2026-11-29 14:03:11 UTC': who reads it may be elsewhere."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
