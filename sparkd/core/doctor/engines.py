# SPDX-License-Identifier: Apache-2.0
"""What an engine needs before its start is worth the minutes, looked at as its own user."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkd.core.doctor.model import Finding, finding


class Facts(NamedTuple):
    """What was seen; None where it could not be."""

    name: str
    user: str
    user_exists: bool
    executable: str
    executable_usable: bool | None
    untrusted: Sequence[str]
    """Files and folders of the executable that others can write, each with its reason."""
    model: str
    model_is_path: bool
    model_readable: bool | None
    missing: Sequence[str]
    """Weight files that are missing or cut short."""
    has_config: bool
    has_tokenizer: bool
    cache: str
    cache_is_default: bool
    cache_exists: bool
    cache_writable: bool | None
    nvcc: str
    """Where the engine's PATH finds nvcc; '' nowhere."""
    has_gpu: bool
    port: int
    holders: Sequence[str]
    """Who listens on the port and is not the engine's own unit."""


def judge(facts: Facts) -> Iterator[Finding]:
    """Everything that would keep this engine from starting, or from being trusted."""
    if not facts.user_exists:
        yield finding("DOC302", facts.name, f"there is no user {facts.user}")
    elif facts.executable_usable is False:
        yield finding("DOC303", facts.name, f"{facts.user} cannot run {facts.executable}")
    for reason in facts.untrusted:
        yield finding("DOC304", facts.name, reason)
    yield from _model(facts)
    # systemd makes the default folder at the first start.
    missing = facts.cache_is_default and not facts.cache_exists
    if facts.user_exists and facts.cache_writable is False and not missing:
        yield finding("DOC308", facts.name, f"{facts.user} cannot write {facts.cache}")
    if facts.has_gpu and not facts.nvcc:
        yield finding("DOC309", facts.name, "none of the folders in the unit's PATH has an nvcc")
    if facts.holders:
        yield finding("DOC310", facts.name, f"port {facts.port} is held by {facts.holders[0]}")


def _model(facts: Facts) -> Iterator[Finding]:
    if not facts.model_is_path:
        return
    if facts.model_readable is False:
        if facts.user_exists:
            yield finding("DOC305", facts.name, f"{facts.user} cannot read {facts.model}")
        return
    if facts.missing:
        named = ", ".join(facts.missing[:3])
        more = f" and {len(facts.missing) - 3} more" if len(facts.missing) > 3 else ""
        yield finding("DOC306", facts.name, f"missing or cut short: {named}{more}")
    lacking = [] if facts.has_config else ["config.json"]
    lacking += [] if facts.has_tokenizer else ["a tokenizer"]
    if lacking:
        yield finding("DOC307", facts.name, f"{facts.model} has no {' and no '.join(lacking)}")
