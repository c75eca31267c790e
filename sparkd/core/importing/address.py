# SPDX-License-Identifier: Apache-2.0
"""Where clients reach an engine today: its own address, or what its container publishes."""

import ipaddress

from sparkd.core.importing import codes
from sparkd.core.importing.draft import Entry
from sparkd.core.importing.model import Published, RefusalError
from sparkd.core.importing.subject import Subject
from sparkd.core.importing.vllm_args import ServeTable, ServeValue

ADDRESS_FLAGS = ("host", "port")
"""Flags of vLLM that are no flags in engines.d."""


def as_flags(table: ServeTable) -> list[str]:
    """Return the address on the command line of today: that inside a container."""
    return [
        part for name in ADDRESS_FLAGS if (entry := table.flags.get(name))
        for part in (f"--{name}", str(entry.value))
    ]  # fmt: skip


def entries(subject: Subject) -> list[Entry]:
    """Return the address and the port that clients use today.

    Raises:
        RefusalError: it cannot be known.
    """
    launch, notebook, flags = subject.launch, subject.notebook, subject.table.flags
    port = flags.get("port")
    number = _port(port)
    address, why = _host(flags.get("host"), subject)
    why_port = str(port.origin) if port else "vLLM's default"
    mapping = _published(number, subject)
    if mapping is not None and mapping.port:
        if mapping.port != number or mapping.host:
            notebook.add(
                mapping.origin, codes.PUBLISHED,
                f"the container's port {number} is published as"
                f" {mapping.host or '*'}:{mapping.port}, which is what clients use",
            )  # fmt: skip
        why_port = f"published; {number} inside the container"
        number = mapping.port
    elif mapping is not None:
        notebook.add(
            mapping.origin, codes.PUBLISHED,
            f"the container's port {number} is published under a number that is chosen at each"
            f" start: {number} is proposed",
        )  # fmt: skip
    if mapping is not None:
        address, why = mapping.host or address, "as published"
    if not port and not launch.published:
        notebook.add(launch.origin, codes.VLLM_DEFAULT, "no --port: vLLM's default, 8000")
    return [("host", address, why), ("port", number, why_port)]


def _published(number: int, subject: Subject) -> Published | None:
    """Return how the container's port `number` is published; None where it is not."""
    published = subject.launch.published
    for mapping in published:
        if not mapping.problem and mapping.container_port == number:
            return mapping
    for mapping in published:
        if mapping.problem:
            reason = f"the published port cannot be known: {mapping.problem}"
            raise RefusalError(mapping.origin, reason)
    if published:
        subject.notebook.add(
            published[0].origin, codes.PUBLISHED,
            f"the container's port {number}, on which vLLM listens, is not published",
        )  # fmt: skip
    return None


def _port(port: ServeValue | None) -> int:
    if port is None:
        return 8000
    if not isinstance(port.value, int) or isinstance(port.value, bool):
        raise RefusalError(port.origin, f"--port {port.value} is no number")
    return port.value


def _host(host: ServeValue | None, subject: Subject) -> tuple[str, str]:
    if host is None:
        if not subject.uses_image:  # inside a container that is what it must do
            subject.notebook.add(
                subject.launch.origin, codes.VLLM_DEFAULT,
                "no --host: vLLM then listens on every address, so 0.0.0.0 is written out",
            )  # fmt: skip
        return "0.0.0.0", "vLLM's default: every address"  # noqa: S104 - it is what runs today
    text = str(host.value)
    if text == "localhost":
        return "127.0.0.1", f"{host.origin}: localhost"
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise RefusalError(
            host.origin, f"--host {text} is a name: sparkd needs the IP address to listen on"
        ) from None
    return text, str(host.origin)
