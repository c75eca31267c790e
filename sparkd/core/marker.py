# SPDX-License-Identifier: Apache-2.0
"""The marker by which sparkd knows its own unit files, and hashes that tell what changed.

systemd loads an `[X-…]` section without a word and ignores it. The content hash covers the whole
file, so an edit by hand is seen. The launch hash covers only what a running engine was started
with, so that a change of limits or of the gate does not call for a restart; it is also an
environment variable of the engine, where `await-slot` finds it.
"""

import hashlib
import re
from typing import NamedTuple

SECTION = "[X-Sparkd]"
LAUNCH_HASH_VARIABLE = "SPARKD_LAUNCH_HASH"

UNSEALED = "sha256:" + "0" * 64
"""Stands for both hashes in a text that `seal` has not completed."""

_KEY = re.compile(r"([A-Za-z]+)=(.*)\Z")
_CONTENT_LINE = re.compile(r"^ContentHash=.*$", re.MULTILINE)
_VOLATILE_LINE = re.compile(r"^(?:ContentHash|Version)=.*$", re.MULTILINE)
_LAUNCH_LINES = re.compile(rf"^(LaunchHash=|Environment={LAUNCH_HASH_VARIABLE}=).*$", re.MULTILINE)
# [Service] settings that a daemon-reload puts into effect, or that only the next start, stop or
# restart reads: they need no new engine process.
_NOT_LAUNCH = re.compile(
    r"(?:ExecStartPre|ExecStartPost|ExecStopPost|Restart|RestartSec|Timeout\w+|KillMode|OOMPolicy"
    r"|MemoryHigh|MemoryMax|NotifyAccess|LogRateLimit\w+)\Z"
)


class Marker(NamedTuple):
    """What the `[X-Sparkd]` section says; `engine` is empty for the slice and the target."""

    engine: str
    version: str
    content_hash: str
    launch_hash: str


def marker_of(text: str) -> Marker | None:
    """Return the marker of a unit file, or None: then sparkd did not write it."""
    keys: dict[str, str] = {}
    in_section = False
    for line in text.splitlines():
        if line.startswith("["):
            in_section = line.strip() == SECTION
        elif in_section and (match := _KEY.match(line)):
            keys[match[1]] = match[2].strip()
    if "ContentHash" not in keys:
        return None
    return Marker(
        engine=keys.get("Engine", ""),
        version=keys.get("Version", ""),
        content_hash=keys["ContentHash"],
        launch_hash=keys.get("LaunchHash", ""),
    )


def is_hand_edited(text: str) -> bool:
    """Return whether a file with sparkd's marker is no longer what sparkd wrote."""
    marker = marker_of(text)
    return marker is not None and marker.content_hash != _content_hash(text)


def launch_hash(text: str) -> str | None:
    """Return the hash that an engine started from this file carries; None without one."""
    marker = marker_of(text)
    return (marker.launch_hash or None) if marker else None


def same_content(one: str, other: str) -> bool:
    """Return whether two unit files differ in nothing but the sparkd version that wrote them."""
    return _VOLATILE_LINE.sub("", one) == _VOLATILE_LINE.sub("", other)


def seal(text: str) -> str:
    """Replace the hashes, `UNSEALED` in `text`, by the real ones."""
    launch = _digest("\n".join(_launch_lines(text)))
    text = _LAUNCH_LINES.sub(lambda line: line[1] + launch, text)
    content = _content_hash(text)
    return _CONTENT_LINE.sub(f"ContentHash={content}", text)


def _content_hash(text: str) -> str:
    return _digest(_CONTENT_LINE.sub(f"ContentHash={UNSEALED}", text))


def _launch_lines(text: str) -> list[str]:
    kept: list[str] = []
    in_service = keeping = False
    for line in text.splitlines():
        if line.startswith("["):
            in_service = line == "[Service]"
        elif in_service and line and not line.startswith("#"):
            if not line.startswith(" "):  # otherwise it continues the setting above
                key = line.partition("=")[0]
                own = line.startswith(f"Environment={LAUNCH_HASH_VARIABLE}=")
                keeping = not own and not _NOT_LAUNCH.match(key)
            if keeping:
                kept.append(line)
    return kept


def _digest(text: str) -> str:
    # Text read from a disk may hold anything; surrogateescape keeps odd bytes apart.
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
