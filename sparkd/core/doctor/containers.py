# SPDX-License-Identifier: Apache-2.0
"""Which containers start again by themselves, and on which ports of the host."""

from typing import NamedTuple

from sparkd.core.doctor.units import Rival


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
