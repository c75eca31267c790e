# SPDX-License-Identifier: Apache-2.0
"""The connection to the bus: made once, and made again when the bus was restarted.

While it is lost sparkd goes on showing what it saw last, marked as old, and acts on nothing. When
the bus stays away for longer the daemon ends, and systemd starts it again.
"""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sparkd import __version__
from sparkd.adapters import systemd_bus
from sparkd.adapters.bus_service import Call, NameTakenError, Service
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.systemd_bus import JobResult, Systemd, Untyped, Watch
from sparkd.daemon import log
from sparkd.daemon.loop import Loop

GRACE_S = 15.0
"""A scraper with a usual interval sees once that systemd is not visible."""
RETRY_S = 0.5


class Ears(NamedTuple):
    """Who is told what systemd says, in the loop."""

    on_unit: Callable[[str], None]
    on_job: Callable[[JobResult], None]
    on_everything: Callable[[], None]
    """Also when the bus was lost, and when it is back."""


class BusLink:
    """systemd as it is heard, asked and answered for over one connection at a time."""

    def __init__(self, loop: Loop) -> None:
        """Connect, and introspect systemd.

        Raises:
            BusError: there is no bus or no systemd on it.
        """
        self._loop = loop
        self._retry = loop.every(self._try_again)
        self._bus = systemd_bus.connect()
        self.systemd = Systemd(self._bus)
        self._lost_at = 0.0

    def open(self, ears: Ears, handlers: Mapping[str, Callable[[Call], None]]) -> None:
        """Hear systemd and serve sparkd's own object, from now on and over later connections.

        Raises:
            NameTakenError: another process has sparkd's name.
            BusError: systemd does not answer.
        """
        self._ears = ears
        self._handlers = handlers
        self._attach(self._bus)

    def _attach(self, bus: Untyped) -> None:
        Watch(bus, **self._ears._asdict())
        self.systemd.subscribe()
        Service(bus.con, self._handlers, {"Version": __version__}).publish()
        bus.con.connect("closed", self._lost)
        self._bus = bus

    def _lost(self, con: Untyped, *_: Untyped) -> None:
        if con is not self._bus.con or self._lost_at:
            return
        self._lost_at = time.monotonic()
        log.error("lost the system bus: what is shown is old until it is back")
        self._retry.set(RETRY_S)
        self._ears.on_everything()

    def _try_again(self) -> None:
        away = time.monotonic() - self._lost_at
        try:
            bus = systemd_bus.connect()
            self.systemd.use(bus)
            self._attach(bus)
        except (BusError, NameTakenError) as error:
            if away > GRACE_S:
                log.critical(f"the system bus stays away: leaving, to be started again: {error}")
                self._loop.quit(1)
            return
        self._lost_at = 0.0
        self._retry.set(None)
        log.warning(f"the system bus is back after {away:.1f} s")
        self._ears.on_everything()
