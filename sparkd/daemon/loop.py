# SPDX-License-Identifier: Apache-2.0
"""The one loop. Every source in it is made once and lives as long as the process.

On PyGObject 3.42 (Debian 12) each one-shot GLib callback leaks 130 bytes for ever (measured), so
there is no idle_add: other threads and signal handlers write to one eventfd, and two timers repeat.
"""

import os
import signal
import time
from collections.abc import Callable

from gi.repository import GLib

from sparkd.daemon import log

TICK_S = 10.0
"""Slow enough to cost nothing (a 1 s timer alone took 0.16 % of a core), fast enough to ping."""
HURRY_MS = 250
HURRY_S = 2.0
"""journald wakes its readers up to 250 ms late: after a change the loop looks by itself."""


class Loop:
    """GLib's main loop with one tick, one wake-up and the signals of a daemon."""

    def __init__(self, *, on_tick: Callable[[], None], on_wake: Callable[[], None]) -> None:
        self._main = GLib.MainLoop()
        self._code = 0
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._hurry_until = 0.0
        self._on_wake = on_wake
        GLib.unix_fd_add_full(
            # Below the signals of the bus: what has arrived is marked first, then read once.
            GLib.PRIORITY_DEFAULT_IDLE, self._wake_fd, GLib.IOCondition.IN, self._woken,
        )  # fmt: skip
        self._tick = self._timer(int(_tick_s() * 1000), on_tick)
        self._hurry = self._timer(HURRY_MS, self.wake)
        self._hurry.set_ready_time(-1)

    def wake(self) -> None:
        """Have `on_wake` called soon, from any thread; many calls in a row count once."""
        os.eventfd_write(self._wake_fd, 1)

    def hurry(self) -> None:
        """Something is happening: wake up by itself a few times in the next seconds."""
        if not self._hurry_until:
            self._hurry.set_ready_time(GLib.get_monotonic_time() + HURRY_MS * 1000)
        self._hurry_until = time.monotonic() + HURRY_S

    def every(self, callback: Callable[[], None]) -> "Pace":
        """A timer that rests until it is given a pace."""
        return Pace(_guarded(callback))

    def watch(self, fd: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back whenever the descriptor is readable.

        Returns:
            What ends the watch; call it before the descriptor is closed.
        """
        guarded = _guarded(callback)
        source = GLib.unix_fd_add_full(
            GLib.PRIORITY_DEFAULT, fd, GLib.IOCondition.IN, lambda *_: guarded()
        )
        return lambda: GLib.source_remove(source)

    def on_signal(self, number: signal.Signals, callback: Callable[[], None]) -> None:
        """Call back in the loop when the process gets a signal."""
        GLib.unix_signal_add(GLib.PRIORITY_HIGH, number, _guarded(callback))

    def run(self) -> int:
        """Run until `quit`; returns its code."""
        self._main.run()
        return self._code

    def quit(self, code: int) -> None:
        """End `run`; the first non-zero code counts."""
        self._code = self._code or code
        self._main.quit()

    def _timer(self, interval_ms: int, callback: Callable[[], None]) -> "GLib.Source":
        source = GLib.timeout_source_new(interval_ms)
        guarded = _guarded(callback)
        source.set_callback(lambda *_: guarded())
        source.attach(None)
        return source

    def _woken(self, *_: object) -> bool:
        os.eventfd_read(self._wake_fd)
        if self._hurry_until and time.monotonic() > self._hurry_until:
            # A timer re-arms itself when its callback has returned, so it is parked here.
            self._hurry.set_ready_time(-1)
            self._hurry_until = 0.0
        return _guarded(self._on_wake)()


class Pace:
    """Calls back at a pace that can be changed, or rests."""

    def __init__(self, callback: Callable[[], bool]) -> None:
        self._callback = callback
        self._seconds: float | None = None
        self._source: GLib.Source | None = None

    def set(self, seconds: float | None) -> None:
        """Call back every so many seconds from now on; None rests. The same pace changes nothing.

        A source is made anew for each new pace, which is rare.
        """
        if seconds == self._seconds:
            return
        self._seconds = seconds
        if self._source is not None:
            self._source.destroy()
            self._source = None
        if seconds is not None:
            self._source = GLib.timeout_source_new(int(seconds * 1000))
            self._source.set_callback(lambda *_: self._callback())
            self._source.attach(None)


def _guarded(callback: Callable[[], None]) -> Callable[[], bool]:
    """Keep a source alive: PyGObject removes one whose callback raises, and says little."""

    def call() -> bool:
        try:
            callback()
        except Exception:  # noqa: BLE001  (logged with its trace; the loop goes on)
            log.exception("a callback of the loop failed")
        return True

    return call


def _tick_s() -> float:
    """The tick pings systemd's watchdog: at least three times in its period."""
    period = os.environ.get("WATCHDOG_USEC", "")
    return min(TICK_S, int(period) / 3e6) if period.isdigit() and int(period) else TICK_S
