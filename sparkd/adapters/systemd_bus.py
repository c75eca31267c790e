# SPDX-License-Identifier: Apache-2.0
"""systemd over D-Bus: what the units are doing, and the few orders that sparkd gives.

pydbus makes the method calls: its proxy is made once, and every call has a time-out, because its
default is to wait for ever. Property reads and signals go through the Gio connection below it:
there pydbus has no time-out at all, and its signals cost five times as much (measured).
"""

import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pydbus  # noqa: F401  (gives Gio's connections their `pydbus`)
from gi.repository import Gio, GLib

from sparkd.adapters.service_manager import BusError, ServiceManager
from sparkd.core.unit_state import UnitFacts

NAME = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = f"{NAME}.Manager"
PROPERTIES = "org.freedesktop.DBus.Properties"
UNIT_PATHS = f"{MANAGER_PATH}/unit/"
ENGINE_PATHS = f"{UNIT_PATHS}vllm_2d"
"""How the object paths of all units named 'vllm-…' begin."""

Untyped: TypeAlias = Any
"""What pydbus and gi give and take: neither has types."""

TIMEOUT_S = 5.0
"""systemd answers within milliseconds, and within a few seconds while it re-executes itself."""
RELOAD_S = 60.0
"""daemon-reload runs every generator."""


class JobResult(NamedTuple):
    """The end of a job: 'done', 'failed', 'canceled', 'timeout', 'dependency', 'skipped'."""

    path: str
    unit: str
    result: str


def connect() -> Untyped:
    """A connection of our own to the system bus, which pydbus then wraps.

    The one that GLib shares stays closed for ever after the bus was lost, and ends the process.

    Raises:
        BusError: there is no bus, or it does not answer.
    """
    kind = Gio.DBusConnectionFlags
    flags = kind.AUTHENTICATION_CLIENT | kind.MESSAGE_BUS_CONNECTION
    limit = Gio.Cancellable()
    # A bus that accepts and says nothing: GLib has no time-out for that.
    timer = threading.Timer(TIMEOUT_S, limit.cancel)
    timer.start()
    try:
        address = Gio.dbus_address_get_for_bus_sync(Gio.BusType.SYSTEM, None)
        return Gio.DBusConnection.new_for_address_sync(address, flags, None, limit).pydbus
    except GLib.GError as error:
        raise bus_error(error) from error
    finally:
        timer.cancel()


class Systemd(ServiceManager):
    """The system's service manager. Methods may be called from any thread."""

    def __init__(self, bus: Untyped) -> None:
        """Introspect the manager once.

        Raises:
            BusError: systemd does not answer.
        """
        self.use(bus)

    def use(self, bus: Untyped) -> None:
        """Talk over this connection from now on; as `__init__`."""
        try:
            manager = bus.get(NAME, MANAGER_PATH, timeout=TIMEOUT_S)[MANAGER]
        except GLib.GError as error:
            raise bus_error(error) from error
        self._con, self._manager = bus.con, manager

    # what it says

    def unit(self, name: str) -> UnitFacts:
        """The state of a unit; one that does not exist has load_state 'not-found'.

        Raises:
            BusError: systemd does not answer.
        """
        path = path_of(name)
        unit = self._properties(path, f"{NAME}.Unit")
        # A guest's scope has none of these, nor their interface.
        is_service = name.endswith(".service")
        service = self._properties(path, f"{NAME}.Service") if is_service else unit
        job, job_path = _get(unit, "Job") or (0, "/")
        return UnitFacts(
            unit=name,
            load_state=_get(unit, "LoadState") or "",
            active_state=_get(unit, "ActiveState") or "",
            sub_state=_get(unit, "SubState") or "",
            result=_get(service, "Result") or "",
            main_pid=_get(service, "MainPID") or 0,
            invocation_id=bytes(_get(unit, "InvocationID") or ()).hex(),
            status_text=_get(service, "StatusText") or "",
            unit_file_state=_get(unit, "UnitFileState") or "",
            fragment_path=_get(unit, "FragmentPath") or "",
            drop_ins=tuple(_get(unit, "DropInPaths") or ()),
            need_daemon_reload=bool(_get(unit, "NeedDaemonReload")),
            n_restarts=_get(service, "NRestarts") or 0,
            job_type=self._job_type(job_path) if job else "",
            state_change=_seconds(unit, "StateChangeTimestamp"),
            active_enter=_seconds(unit, "ActiveEnterTimestamp"),
            inactive_exit=_seconds(unit, "InactiveExitTimestamp"),
            main_start=_seconds(service, "ExecMainStartTimestamp"),
        )

    def loaded_engine_units(self) -> list[str]:
        """Every 'vllm-*.service' that systemd has in memory, whoever wrote it.

        Raises:
            BusError: systemd does not answer.
        """
        rows = self._call("ListUnitsByPatterns", [], ["vllm-*.service"])
        return [row[0] for row in rows if row[2] != "not-found"]

    def is_stopping(self) -> bool:
        """Whether the host is shutting down.

        Raises:
            BusError: systemd does not answer.
        """
        return bool(self._property(MANAGER_PATH, MANAGER, "SystemState") == "stopping")

    def _job_type(self, path: str) -> str:
        try:
            return str(self._property(path, f"{NAME}.Job", "JobType"))
        except BusError as error:
            if error.name:
                return ""  # it ended between the two questions
            raise

    def _property(self, path: str, interface: str, name: str) -> Untyped:
        arguments = GLib.Variant("(ss)", (interface, name))
        return self._ask(path, "Get", arguments).unpack()[0]

    def _properties(self, path: str, interface: str) -> Untyped:
        """A whole interface's properties, still packed: unpacking costs more than the call."""
        return self._ask(path, "GetAll", GLib.Variant("(s)", (interface,))).get_child_value(0)

    def _ask(self, path: str, method: str, arguments: Untyped) -> Untyped:
        try:
            return self._con.call_sync(
                NAME, path, PROPERTIES, method, arguments, None,
                Gio.DBusCallFlags.NONE, int(TIMEOUT_S * 1000), None,
            )  # fmt: skip
        except GLib.GError as error:
            raise bus_error(error) from error

    # orders

    def start(self, unit: str, mode: str = "replace") -> str:
        """Queue a start job.

        Returns:
            The job's object path.

        Raises:
            BusError: systemd refuses or does not answer.
        """
        return str(self._call("StartUnit", unit, mode))

    def stop(self, unit: str) -> str:
        """Queue a stop job, which also cancels a pending automatic restart; as `start`."""
        return str(self._call("StopUnit", unit, "replace"))

    def restart(self, unit: str) -> str:
        """Queue a restart job; as `start`."""
        return str(self._call("RestartUnit", unit, "replace"))

    def kill_main(self, unit: str, number: int) -> None:
        """Send a signal to the unit's main process; that queues no job.

        Raises:
            BusError: systemd refuses or does not answer.
        """
        self._call("KillUnit", unit, "main", int(number))

    def reset_failed(self, unit: str) -> None:
        """Forget a failure and the start limit's count; nothing to forget is no error.

        Raises:
            BusError: systemd does not answer.
        """
        try:
            self._call("ResetFailedUnit", unit)
        except BusError as error:
            if error.name != f"{NAME}.NoSuchUnit":
                raise

    def reload(self) -> None:
        """daemon-reload; running units are not touched.

        Raises:
            BusError: systemd does not answer in time.
        """
        self._call("Reload", timeout=RELOAD_S)

    def enable(self, units: list[str]) -> None:
        """Enable unit files for the next boots; the running system learns of it by `reload`.

        Raises:
            BusError: systemd refuses.
        """
        self._call("EnableUnitFiles", units, False, False, timeout=RELOAD_S)

    def disable(self, units: list[str]) -> None:
        """Undo `enable`; as there."""
        self._call("DisableUnitFiles", units, False, timeout=RELOAD_S)

    def subscribe(self) -> None:
        """Ask systemd to send signals to this connection.

        Raises:
            BusError: systemd does not answer.
        """
        try:
            self._call("Subscribe")
        except BusError as error:
            if error.name != f"{NAME}.AlreadySubscribed":
                raise

    def _call(self, method: str, *arguments: object, timeout: float = TIMEOUT_S) -> Untyped:
        try:
            return getattr(self._manager, method)(*arguments, timeout=timeout)
        except GLib.GError as error:
            raise bus_error(error) from error


class Watch:
    """systemd's signals. They only say that something may have changed: read it again.

    PropertiesChanged comes two or three times with the same state, and for every unit after a
    daemon-reload, so it is never an edge.
    """

    def __init__(
        self,
        bus: Untyped,
        *,
        on_unit: Callable[[str], None],
        on_job: Callable[[JobResult], None],
        on_everything: Callable[[], None],
    ) -> None:
        """Subscribe for the life of the connection.

        Args:
            bus: From `connect`.
            on_unit: An engine's unit changed; its name.
            on_job: A job ended, of any unit.
            on_everything: systemd was reloaded or replaced itself; nothing read before counts.
        """
        self._con = bus.con
        self._on_unit = on_unit
        self._on_job = on_job
        self._on_everything = on_everything
        for interface in (f"{NAME}.Unit", f"{NAME}.Service"):
            self._on(PROPERTIES, "PropertiesChanged", None, interface, self._properties)
        self._on(MANAGER, "JobRemoved", MANAGER_PATH, None, self._job)
        self._on(MANAGER, "Reloading", MANAGER_PATH, None, self._reloading)
        self._con.signal_subscribe(
            "org.freedesktop.DBus", "org.freedesktop.DBus", "NameOwnerChanged",
            "/org/freedesktop/DBus", NAME, Gio.DBusSignalFlags.NONE, self._owner,
        )  # fmt: skip

    def _on(
        self,
        interface: str,
        name: str,
        path: str | None,
        arg0: str | None,
        callback: Untyped,
    ) -> None:
        flags = Gio.DBusSignalFlags.NONE
        self._con.signal_subscribe(NAME, interface, name, path, arg0, flags, callback)

    def _properties(self, _con: Untyped, _sender: str, path: str, *_rest: Untyped) -> None:
        if path.startswith(ENGINE_PATHS):
            self._on_unit(unit_at(path))

    def _job(self, *signal: Untyped) -> None:
        _, path, unit, result = signal[-1].unpack()
        self._on_job(JobResult(path, unit, result))

    def _reloading(self, *signal: Untyped) -> None:
        if not signal[-1].unpack()[0]:
            self._on_everything()

    def _owner(self, *_arguments: Untyped) -> None:
        self._on_everything()


def path_of(unit: str) -> str:
    """The object path of a unit; systemd loads the unit when the path is asked for."""
    return UNIT_PATHS + re.sub(r"[^A-Za-z0-9]", lambda m: f"_{ord(m[0]):02x}", unit)


def unit_at(path: str) -> str:
    """The unit's name at an object path."""
    label = path.removeprefix(UNIT_PATHS)
    return re.sub(r"_([0-9a-f]{2})", lambda m: chr(int(m[1], 16)), label)


def _get(packed: Untyped, name: str) -> Untyped:
    value = packed.lookup_value(name, None)
    return None if value is None else value.unpack()


def _seconds(packed: Untyped, name: str) -> float:
    return float(_get(packed, name) or 0) / 1e6


def bus_error(error: Untyped) -> BusError:
    """Ours for GLib's."""
    name = Gio.DBusError.get_remote_error(error) or ""
    message = str(error.message)
    _, mark, rest = message.partition(f"GDBus.Error:{name}: ")
    return BusError((rest if mark else message).strip() or "no answer", name)
