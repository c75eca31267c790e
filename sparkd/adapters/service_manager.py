# SPDX-License-Identifier: Apache-2.0
"""What sparkd needs of systemd, whichever way it is reached.

The daemon reaches it through pydbus and Gio (`systemd_bus`); a command that runs for a moment can
use something that loads faster.
"""

from typing import Protocol

from sparkd.core.unit_state import UnitFacts


class BusError(Exception):
    """systemd could not be asked, or said no.

    `name` is the D-Bus error name ('org.freedesktop.systemd1.NoSuchUnit'), '' when no answer came.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class Viewer(Protocol):
    """Reading the state of units. Every method raises BusError when systemd does not answer."""

    def unit(self, name: str) -> UnitFacts:
        """The state of a unit; one that does not exist has load_state 'not-found'."""

    def loaded_engine_units(self) -> list[str]:
        """Every 'vllm-*.service' that systemd has in memory, whoever wrote it."""


class ServiceManager(Viewer, Protocol):
    """The orders that sparkd gives. Every method raises BusError when systemd refuses."""

    def start(self, unit: str, mode: str = "replace") -> str:
        """Queue a start job; returns its object path."""

    def stop(self, unit: str) -> str:
        """Queue a stop job, which also cancels a pending automatic restart; as `start`."""

    def restart(self, unit: str) -> str:
        """Queue a restart job; as `start`."""

    def reset_failed(self, unit: str) -> None:
        """Forget a failure and the start limit's count; nothing to forget is no error."""

    def reload(self) -> None:
        """daemon-reload; running units are not touched."""

    def enable(self, units: list[str]) -> None:
        """Enable unit files for the next boots; the running system learns of it by `reload`."""

    def disable(self, units: list[str]) -> None:
        """Undo `enable`."""
