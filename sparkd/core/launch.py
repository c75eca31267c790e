# SPDX-License-Identifier: Apache-2.0
"""Where a running engine listens, read from its command line: the configuration may be newer."""

from collections.abc import Sequence

DEFAULT_PORT = 8000
"""vLLM's own."""
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104
"""The address to ask for an engine that listens on every address."""


def address(argv: Sequence[str]) -> tuple[str, int] | None:
    """Host and port of a `vllm serve`; None for another program or a host that is a name."""
    if "serve" not in argv:
        return None
    options = list(argv[argv.index("serve") + 1 :])
    port = _last(options, "--port")
    host = _last(options, "--host") or ""
    host = ANY.get(host, "127.0.0.1" if host == "localhost" else host)
    if port and not (port.isdecimal() and len(port) < 6):
        return None
    if not host.replace(".", "").isdecimal() and ":" not in host:
        return None
    return host, int(port) if port else DEFAULT_PORT


def _last(options: Sequence[str], name: str) -> str:
    value = ""
    for index, word in enumerate(options):
        if word == name and index + 1 < len(options):
            value = options[index + 1]
        elif word.startswith(f"{name}="):
            value = word.removeprefix(f"{name}=")
    return value
