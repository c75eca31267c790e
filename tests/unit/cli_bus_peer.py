# SPDX-License-Identifier: Apache-2.0
"""A daemon with scripted answers on a private bus: the peer of test_cli_bus.py.

It publishes the daemon's own service object, so the interface is the real one.
"""

import json
import os
import signal
import sys

from gi.repository import Gio, GLib

from sparkd.adapters.bus_service import Call, Service

WAITING: list[Call] = []


def _status(call: Call) -> None:
    engines = [{"name": "late", "reason": "loads"}, {"name": "other", "reason": "is ready"}]
    call.reply(json.dumps({"version": "9", "daemon": "running", "engines": engines}))


def _incidents(call: Call) -> None:
    limit, engine = call.arguments
    if engine == "no-json":
        call.reply("{")
    else:
        call.reply(json.dumps([{"limit": limit, "engine": engine}]))


def _apply(call: Call) -> None:
    if call.arguments[1]:
        call.fail("Config", "a.toml:1: port: must be\nb.toml:2: model: must be")
    else:
        call.reply(json.dumps({"arguments": call.arguments}))


def _operate(call: Call) -> None:
    engine, wait = call.arguments
    if engine == "busy":
        call.fail("Busy", "a start is under way")
    elif engine == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    elif engine == "late":
        WAITING.append(call)  # answered after the next call
    else:
        call.reply(json.dumps({"engine": engine, "result": "done", "wait": wait}))
        # Late enough that a busy client has read the other answers before.
        GLib.timeout_add(500, _answer_late)


def _answer_late() -> bool:
    while WAITING:
        WAITING.pop().reply(json.dumps({"engine": "late", "result": "failed"}))
    return GLib.SOURCE_REMOVE


def _main() -> None:
    flags = (
        Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT
        | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION
    )
    address = os.environ["DBUS_SYSTEM_BUS_ADDRESS"]
    connection = Gio.DBusConnection.new_for_address_sync(address, flags, None, None)
    handlers = {"Status": _status, "Incidents": _incidents, "Apply": _apply}
    operations = dict.fromkeys(("Start", "Stop", "Restart"), _operate)
    Service(connection, handlers | operations, {"Version": "9"}).publish()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    GLib.MainLoop().run()


_main()
