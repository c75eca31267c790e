# SPDX-License-Identifier: Apache-2.0
"""Which engines there are, from the file names alone: no daemon, no bus, no TOML."""

import os
import re
from collections.abc import Iterable

from sparkd.cli.exits import CliError, Exit

CONFIG = "/etc/sparkd/engines.d"
UNITS = "/etc/systemd/system"

_NAME = re.compile(r"[a-z][a-z0-9-]{0,47}\Z")


def names(config: str = CONFIG, units: str = UNITS) -> list[str]:
    """Engines that have a file in `config` or a unit in `units`, sorted.

    A folder that cannot be read has no engines.
    """
    found = {file.removesuffix(".toml") for file in _listed(config) if file.endswith(".toml")}
    for file in _listed(units):
        if file.startswith("vllm-") and file.endswith(".service"):
            found.add(file.removeprefix("vllm-").removesuffix(".service"))
    return sorted(name for name in found if _NAME.match(name))


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  (pathlib takes 5 ms to import)
    except OSError:
        return []


def require(engines: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are no engine.

    Raises:
        CliError: with every unknown name, and the known ones.
    """
    there = list(known)
    unknown = [name for name in engines if name not in there]
    if unknown:
        listed = ", ".join(there) or "none"
        quoted = ", ".join(repr(name) for name in unknown)
        raise CliError(f"no such engine: {quoted}; there are: {listed}", Exit.NO_SUCH_ENGINE)
