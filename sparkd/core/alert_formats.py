# SPDX-License-Identifier: Apache-2.0
"""An alert as the request that a kind of receiver expects."""

import json
from typing import NamedTuple

from sparkd.core import alerts
from sparkd.core.alerts import Alert, Kind
from sparkd.core.config_model import AlertFormat

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
            return Request(identity + headers, alerts.text(alert, host, now).encode())
        case AlertFormat.SLACK:
            return Request(
                (*identity, ("Content-Type", _JSON)), _json({"text": _slack(alert, host, now)})
            )
        case AlertFormat.JSON:
            return Request((*identity, ("Content-Type", _JSON)), stdin(alert, host, now))


def stdin(alert: Alert, host: str, now: float) -> bytes:
    """What a command reads."""
    return _json(alerts.to_json(alert, host, now))


def _json(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _slack(alert: Alert, host: str, now: float) -> str:
    """Slack's markup has three special characters; escaped, no text can mention or link."""
    words = f"{alert.title}\n{alerts.text(alert, host, now)}"
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _ascii(text: str) -> str:
    """A header's value: printable ASCII."""
    return "".join(c if " " <= c <= "~" else "?" for c in text)
