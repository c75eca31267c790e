# SPDX-License-Identifier: Apache-2.0
"""Which containers start again by themselves, and on which ports of the host."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparkd.core.doctor.ports import containers_started, published
from sparkd.core.doctor.units import Rival

_HOST_NETWORK = re.compile(r"(?m)^Network\s*=\s*host\b|--net(?:work)?[= ]host\b")


class Container(NamedTuple):
    """A container as its engine has it on disk."""

    engine: str
    """'docker' or 'podman', with the user where it is not root's."""
    name: str
    policy: str
    """'no', 'always', 'unless-stopped', 'on-failure'; '' counts as 'no'."""
    runs: bool
    stopped_by_hand: bool
    """'unless-stopped' then leaves it alone, after a reboot too."""
    command: tuple[str, ...]
    """Image, entry point and arguments."""
    host_network: bool
    """Then every port that it opens is the host's."""
    published: tuple[int, ...]
    """Ports of the host that lead into it."""


def rival(container: Container) -> Rival | None:
    """The container as somebody who starts a server; None for one that nobody starts again."""
    if container.policy in {"", "no"}:
        return None
    kept_down = container.stopped_by_hand and container.policy != "always"
    if kept_down and not container.runs:
        return None
    who = f"{container.engine} container {container.name} (restart: {container.policy})"
    # Behind a network of its own only published ports are the host's.
    text = " ".join(container.command) if container.host_network else ""
    return Rival(who, text, container.published)


def unit_rival(
    who: str, text: str, known: Sequence[Container], *, is_quadlet: bool
) -> Rival | None:
    """A unit that starts vLLM or one of the known containers; None for any other.

    Users have engines of their own: all containers of a name count, whoever's the unit starts.
    """
    names = set(containers_started(text))
    started = [one for one in known if one.name in names]
    if "vllm" not in text and not started:
        return None
    ports = {*_published(text), *(port for one in started for port in one.published)}
    # Behind a network of its own only published ports are the host's.
    own = "" if is_quadlet and not _HOST_NETWORK.search(text) else text
    lines = (own, *(" ".join(one.command) for one in started if one.host_network))
    return Rival(who, "\n".join(lines), tuple(sorted(ports)))


def _published(text: str) -> Iterator[int]:
    """Host ports of a quadlet's PublishPort=[IP:]HOST:CONTAINER."""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "PublishPort":
            yield from published(value)
