# SPDX-License-Identifier: Apache-2.0
"""sparkd's own object on the system bus: who may call what is decided by the caller's identity.

Served with Gio, not with pydbus' publish(): that lets another process take the name, cannot answer
later, and leaks on property reads. A handler answers at once from a snapshot or keeps its `Call`
and answers when its work is done; the loop never waits.
"""

import ctypes
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import ClassVar

import gi
from gi.repository import Gio, GLib

from sparkd.adapters.systemd_bus import Untyped, bus_error
from sparkd.core.bus_contract import ERROR_PREFIX, ERRORS, INTERFACE, INTROSPECTION, NAME, PATH

DO_NOT_QUEUE = 4
PRIMARY_OWNER = 1
CREDENTIALS_S = 5.0
AUTHORIZATION_S = 120.0
"""A person may have to type a password."""
OF_A_CALLER = 4
"""Calls of one connection that may wait for the word on its owner at a time,"""
OF_ALL = 48
"""and of all. The bus grants our own connection 128 open questions: were they all spent on
strangers' orders, sparkd could not see systemd any more (measured)."""
AT_POLKIT = 24
"""Half of them, so that a crowd that waits for passwords keeps no room from root."""


class NameTakenError(Exception):
    """Another process owns the bus name."""


class Call:
    """One method call that waits for its answer; it must be answered exactly once."""

    def __init__(
        self, con: Untyped, invocation: Untyped, sender: str, method: str, arguments: Untyped
    ) -> None:
        self._con = con
        self._invocation = invocation
        self.sender = sender
        self.method = method
        self.arguments: tuple[Untyped, ...] = arguments

    def reply(self, text: str) -> None:
        """Answer with one string."""
        invocation, self._invocation = self._invocation, None
        if invocation is not None:
            invocation.return_value(GLib.Variant("(s)", (text,)))
            _drop_leaked_reference(invocation)

    def fail(self, error: str, message: str) -> None:
        """Answer with an error from the contract's list."""
        # A name that D-Bus does not accept would mean no answer at all.
        name = ERROR_PREFIX + error
        if error not in ERRORS:
            raise ValueError(f"{error} is not in the contract")
        invocation, self._invocation = self._invocation, None
        if invocation is not None:
            invocation.return_dbus_error(name, _plain(message) or error)
            _drop_leaked_reference(invocation)

    def with_authorization(self, action: str, then: Callable[[int], None]) -> None:
        """Go on with the caller's uid when it is root or polkit allows the action, else refuse."""
        _Authorization(self._con, self, action, then)

    @property
    def is_interactive(self) -> bool:
        """Whether the caller lets polkit ask for a password."""
        flags = self._invocation.get_message().get_flags()
        return bool(flags & Gio.DBusMessageFlags.ALLOW_INTERACTIVE_AUTHORIZATION)


class Service:
    """The published object; lives as long as the connection."""

    def __init__(
        self,
        con: Untyped,
        handlers: Mapping[str, Callable[[Call], None]],
        properties: Mapping[str, str],
    ) -> None:
        self._con = con
        self._handlers = handlers
        self._properties = properties

    def publish(self) -> None:
        """Take the name, then serve: nobody else can hold it, and nobody can take it away.

        Raises:
            NameTakenError: another process has it.
            BusError: the bus does not answer.
        """
        interface = Gio.DBusNodeInfo.new_for_xml(INTROSPECTION).lookup_interface(INTERFACE)
        # register_object is deprecated since GLib 2.84, its replacement does not exist before.
        register = getattr(self._con, "register_object_with_closures2", self._con.register_object)
        register(PATH, interface, self._method, self._property, None)
        try:
            answer = self._con.call_sync(
                "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus",
                "RequestName", GLib.Variant("(su)", (NAME, DO_NOT_QUEUE)), None,
                Gio.DBusCallFlags.NONE, int(CREDENTIALS_S * 1000), None,
            )  # fmt: skip
        except GLib.GError as error:
            raise bus_error(error) from error
        if answer.unpack()[0] != PRIMARY_OWNER:
            raise NameTakenError(f"another process owns {NAME}")

    def _method(
        self,
        con: Untyped,
        sender: str,
        _path: str,
        _iface: str,
        method: str,
        parameters: Untyped,
        inv: Untyped,
    ) -> None:
        call = Call(con, inv, sender, method, parameters.unpack())
        try:
            self._handlers[method](call)
        except Exception as error:
            # Without this the caller would wait until its own time-out.
            call.fail("Failed", f"sparkd failed: {type(error).__name__}: {error}")
            raise

    def _property(self, _con: Untyped, _sender: str, _path: str, _iface: str, name: str) -> Untyped:
        return GLib.Variant("s", self._properties[name])


class _Authorization:
    """Who calls, and may they? Asked without blocking: uid first, then polkit."""

    _waiting: ClassVar[Counter[str]] = Counter()
    """Open questions by caller."""
    _at_polkit: ClassVar[set["_Authorization"]] = set()

    def __init__(self, con: Untyped, call: Call, action: str, then: Callable[[int], None]) -> None:
        self._con = con
        self._call = call
        self._action = action
        self._then = then
        self._uid = -1
        if self._waiting[call.sender] >= OF_A_CALLER or self._waiting.total() >= OF_ALL:
            call.fail("Busy", "too many orders wait for permission")
            return
        self._waiting[call.sender] += 1
        arguments = GLib.Variant("(s)", (call.sender,))
        self._ask(
            ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus"),
            "GetConnectionUnixUser", arguments, CREDENTIALS_S, self._got_uid,
        )  # fmt: skip

    def _ask(
        self,
        peer: tuple[str, str, str],
        method: str,
        arguments: Untyped,
        limit: float,
        then: Untyped,
    ) -> None:
        self._con.call(
            *peer, method, arguments, None, Gio.DBusCallFlags.NONE, int(limit * 1000), None, then
        )

    def _got_uid(self, con: Untyped, result: Untyped) -> None:
        try:
            self._uid = con.call_finish(result).unpack()[0]
        except GLib.GError:
            self._refuse("the caller is gone")
            return
        if self._uid == 0:
            self._done()
            self._then(0)
            return
        if len(self._at_polkit) >= AT_POLKIT:
            self._done()
            self._call.fail("Busy", "too many orders wait for permission")
            return
        self._at_polkit.add(self)
        subject = ("system-bus-name", {"name": GLib.Variant("s", self._call.sender)})
        flags = 1 if self._call.is_interactive else 0
        arguments = GLib.Variant("((sa{sv})sa{ss}us)", (subject, self._action, {}, flags, ""))
        self._ask(
            ("org.freedesktop.PolicyKit1", "/org/freedesktop/PolicyKit1/Authority",
             "org.freedesktop.PolicyKit1.Authority"),
            "CheckAuthorization", arguments, AUTHORIZATION_S, self._got_answer,
        )  # fmt: skip

    def _got_answer(self, con: Untyped, result: Untyped) -> None:
        try:
            allowed = con.call_finish(result).unpack()[0][0]
        except GLib.GError:
            self._refuse("polkit does not answer; ask as root")
            return
        if allowed:
            self._done()
            self._then(self._uid)
        else:
            self._refuse(f"polkit does not allow {self._action}; ask as root")

    def _refuse(self, why: str) -> None:
        self._done()
        self._call.fail("NotPermitted", f"not permitted: {why}")

    def _done(self) -> None:
        self._at_polkit.discard(self)
        self._waiting[self._call.sender] -= 1
        if not self._waiting[self._call.sender]:
            del self._waiting[self._call.sender]


def _plain(text: str) -> str:
    """Text that D-Bus accepts: no NUL, and valid UTF-8 even where a file's name was not."""
    return text.replace("\0", " ").encode("utf-8", "backslashreplace").decode()


@functools.cache
def _leaks() -> bool:
    """Whether this PyGObject keeps a reference to every call that it delivers (about 2 kB each)."""
    glib = (GLib.MAJOR_VERSION, GLib.MINOR_VERSION, GLib.MICRO_VERSION)
    return bool(gi.version_info < (3, 49)) and glib < (2, 82, 3)


@functools.cache
def _object_unref() -> Callable[[int], None]:
    unref = ctypes.CDLL("libgobject-2.0.so.0").g_object_unref
    unref.argtypes = [ctypes.c_void_p]
    unref.restype = None

    def drop(address: int) -> None:
        unref(address)

    return drop


def _drop_leaked_reference(invocation: Untyped) -> None:
    if _leaks():
        _object_unref()(hash(invocation))  # a GObject wrapper's hash is the object's address
