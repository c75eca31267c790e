# SPDX-License-Identifier: Apache-2.0
"""`[alerts]`: values that are more than a number or a path, and the rules between its keys."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sparkd.core.config_model import AlertConfig, AlertFormat, Webhook
from sparkd.core.secrecy import contains_secret
from sparkd.core.text import has_control_character, is_plain_path

KINDS: Final = ("death", "held", "stalled", "recovered", "slow-start", "sparkd")
"""What can be chosen; a test holds it to be what `core.alerts` knows."""
DESTINATIONS_MAX: Final = 8
_ARGUMENTS_MAX = 64
_WEBHOOK_KEYS = frozenset({"url", "format", "credential"})
# Where the address itself is what lets anybody post.
_SECRET_ADDRESS = re.compile(
    r"https?://(?:hooks\.slack\.com/|[^/]*\.?discord(?:app)?\.com/api/webhooks/"
    r"|[^/]*\.webhook\.office\.com/)",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?P<host>[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?:[/?][!-\"$-~]*)?\Z"
)


class Address(NamedTuple):
    """What matters of an address before anything is sent there."""

    scheme: str
    host: str


def url(value: object) -> str:
    """An address to post to that holds no secret.

    Raises:
        TypeError, ValueError: it is none.
    """
    if type(value) is not str:
        raise TypeError(value)
    address(value)
    if _SECRET_ADDRESS.match(value) or contains_secret(value):
        raise ValueError("secret")
    return value


def address(text: str) -> Address:
    """Any address to post to, from the configuration or from a credential's file.

    Raises:
        ValueError: it is none; the text is not repeated.
    """
    found = _ADDRESS.match(text) if len(text) <= 2048 else None
    if found is None or not 1 <= int(found["port"] or 80) <= 65535:
        raise ValueError("no http or https address")
    return Address(found["scheme"], found["host"].strip("[]"))


def is_private_link(target: Address) -> bool:
    """Whether nobody in between can read what is sent there: TLS, or this very host."""
    if target.scheme == "https" or target.host == "localhost":
        return True
    try:
        return ipaddress.ip_address(target.host).is_loopback
    except ValueError:
        return False


def command(value: object) -> tuple[str, ...]:
    """An argument vector; empty for none.

    Raises:
        TypeError, ValueError: it is none.
    """
    if type(value) is not list or not all(type(item) is str for item in value):
        raise TypeError(value)
    if not value:
        return ()
    if not is_plain_path(value[0]) or len(value) > _ARGUMENTS_MAX:
        raise ValueError(value)
    if any(has_control_character(item) or len(item) > 4096 for item in value):
        raise ValueError(value)
    if contains_secret(value):
        raise ValueError("secret")
    return tuple(value)


def kinds(value: object) -> frozenset[str]:
    """Which kinds of alerts are sent.

    Raises:
        TypeError, ValueError: it is no list of kinds.
    """
    if type(value) is not list or not all(type(item) is str for item in value):
        raise TypeError(value)
    if not set(value) <= set(KINDS):
        raise ValueError(value)
    return frozenset(value)


def webhooks(value: object) -> tuple[Mapping[str, Any], ...]:
    """Further webhooks, each a table of url, format and credential.

    Raises:
        TypeError, ValueError: one of them is none.
    """
    if type(value) is not list or not all(type(item) is dict for item in value):
        raise TypeError(value)
    if len(value) > DESTINATIONS_MAX - 2:
        raise ValueError(value)
    found = []
    for item in value:
        if not item.keys() <= _WEBHOOK_KEYS or not item.keys() & {"url", "credential"}:
            raise ValueError(item)
        credential = item.get("credential")
        if credential is not None and not (type(credential) is str and is_plain_path(credential)):
            raise ValueError(item)
        found.append(
            {
                "url": None if item.get("url") is None else url(item["url"]),
                "format": AlertFormat(item.get("format", "json")),
                "credential": credential,
            }
        )
    return tuple(found)


def broken_rules(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Keys of `[alerts]` that contradict each other, with the rule that is broken."""
    found = []
    for hook in _tables(values):
        if hook["url"] and hook["credential"] and not is_private_link(address(hook["url"])):
            key = "webhook" if hook["url"] == values.get("alerts.webhook") else "more-webhooks"
            found.append((key, "must be https when a credential goes with it"))
    return found


def config(values: Mapping[str, Any]) -> AlertConfig:
    """`[alerts]` from checked values."""
    hooks = tuple(
        Webhook("webhook" if number == 1 else f"webhook-{number}", **table)
        for number, table in enumerate(_tables(values), start=1)
    )
    return AlertConfig(
        webhooks=hooks,
        command=values["alerts.command"],
        kinds=values["alerts.kinds"],
        rate_limit=values["alerts.rate-limit"],
        dedup_seconds=values["alerts.dedup"],
        proxy=values.get("alerts.proxy"),
    )


def _tables(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    first = {
        "url": values.get("alerts.webhook"),
        "format": values["alerts.format"],
        "credential": values.get("alerts.credential"),
    }
    more = list(values["alerts.more-webhooks"])
    return [first, *more] if first["url"] or first["credential"] else more
