# SPDX-License-Identifier: Apache-2.0
"""D-Bus method calls through libsystemd's own client, sd-bus.

sparkctl uses it, not pydbus: loading GObject introspection takes 45 ms on Debian 12 and three times
that on Debian 13, ctypes takes 4 (measured), and an operator types `sparkctl status` all day. Only
stable sd-bus functions without variable arguments are used. The daemon, which must serve an object
and follow signals, uses pydbus and Gio.
"""

import ctypes
import errno
import select
import time
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from typing import Any

CONNECT_TIMEOUT_S = 5.0
"""The bus authenticates us in about a millisecond."""
_POLL_S = 1.0
"""How often a wait looks at its deadline when nothing arrives."""


class BusUnavailableError(Exception):
    """There is no bus, or the connection to it broke."""


class MethodError(Exception):
    """A call was answered with an error."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message or name)
        self.name = name
        """D-Bus error name, such as 'org.freedesktop.DBus.Error.ServiceUnknown'."""
        self.message = message


class NoAnswerError(Exception):
    """No answer came in time."""


class _Error(ctypes.Structure):
    _fields_ = (("name", c_char_p), ("message", c_char_p), ("need_free", c_int))


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL("libsystemd.so.0")
    pointer = POINTER(c_void_p)
    signatures: dict[str, tuple[Any, ...]] = {
        "sd_bus_open_system": (pointer,),
        "sd_bus_is_ready": (c_void_p,),
        "sd_bus_get_fd": (c_void_p,),
        "sd_bus_get_events": (c_void_p,),
        "sd_bus_process": (c_void_p, pointer),
        "sd_bus_send": (c_void_p, c_void_p, POINTER(c_uint64)),
        "sd_bus_message_new_method_call": (c_void_p, pointer, *([c_char_p] * 4)),
        "sd_bus_message_append_basic": (c_void_p, ctypes.c_char, c_void_p),
        "sd_bus_message_read_basic": (c_void_p, ctypes.c_char, c_void_p),
        "sd_bus_message_set_auto_start": (c_void_p, c_int),
        "sd_bus_message_set_allow_interactive_authorization": (c_void_p, c_int),
        "sd_bus_message_get_reply_cookie": (c_void_p, POINTER(c_uint64)),
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, c_int
    library.sd_bus_message_get_error.argtypes = (c_void_p,)
    library.sd_bus_message_get_error.restype = POINTER(_Error)
    for name in ("sd_bus_message_unref", "sd_bus_close_unref"):
        function = getattr(library, name)
        function.argtypes, function.restype = (c_void_p,), c_void_p
    return library


class Bus:
    """A connection to the system bus that makes calls and collects their answers.

    Raises:
        BusUnavailableError: there is no system bus.
    """

    def __init__(self) -> None:
        self._library = _library()
        self._bus = c_void_p()
        self._answers: dict[int, str | MethodError] = {}
        self._expected: set[int] = set()
        self._connect_by = time.monotonic() + CONNECT_TIMEOUT_S
        self._check(self._library.sd_bus_open_system(byref(self._bus)))

    def close(self) -> None:
        """Give the connection back. May be called twice."""
        if self._bus.value:
            self._library.sd_bus_close_unref(self._bus)
            self._bus = c_void_p()

    def call(
        self, target: tuple[str, str, str], member: str, arguments: Sequence[str | bool | int]
    ) -> int:
        """Send a call to (name, path, interface) and return the ticket to collect its answer with.

        The service is never started by the call. Arguments: text is 's', bool 'b', int 'u'.

        Raises:
            BusUnavailableError: the connection broke.
        """
        message = c_void_p()
        words = [word.encode() for word in (*target, member)]
        self._check(self._library.sd_bus_message_new_method_call(self._bus, byref(message), *words))
        try:
            self._check(self._library.sd_bus_message_set_auto_start(message, 0))
            self._check(
                self._library.sd_bus_message_set_allow_interactive_authorization(message, 1)
            )
            for argument in arguments:
                self._append(message, argument)
            cookie = c_uint64()
            self._check(self._library.sd_bus_send(self._bus, message, byref(cookie)))
        finally:
            self._library.sd_bus_message_unref(message)
        self._expected.add(cookie.value)
        return cookie.value

    def _append(self, message: c_void_p, argument: str | bool | int) -> None:  # noqa: FBT001
        append = self._library.sd_bus_message_append_basic
        if isinstance(argument, str):
            # For text, sd-bus takes the pointer to it, not a pointer to that pointer.
            text = ctypes.create_string_buffer(argument.encode())
            self._check(append(message, b"s", ctypes.cast(text, c_void_p)))
        elif isinstance(argument, bool):
            self._check(append(message, b"b", ctypes.cast(byref(c_int(argument)), c_void_p)))
        else:
            self._check(append(message, b"u", ctypes.cast(byref(c_uint32(argument)), c_void_p)))

    def wait(self, tickets: Sequence[int], timeout_s: float | None) -> int | None:
        """Wait until one of these calls is answered, and return its ticket.

        Returns:
            None when none was within `timeout_s` seconds; None as a timeout is no limit.

        Raises:
            BusUnavailableError: the connection broke, or the bus did not let us in.
        """
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        poller = select.poll()
        while True:
            self._process()
            for ticket in tickets:
                if ticket in self._answers:
                    return ticket
            now = time.monotonic()
            if now >= deadline:
                return None
            if now >= self._connect_by and self._library.sd_bus_is_ready(self._bus) <= 0:
                raise BusUnavailableError("the system bus does not let us in")
            fd = self._check(self._library.sd_bus_get_fd(self._bus))
            poller.register(fd, self._check(self._library.sd_bus_get_events(self._bus)))
            poller.poll(1000 * min(_POLL_S, deadline - now))

    def answer(self, ticket: int) -> str:
        """The text that a call was answered with.

        Raises:
            MethodError: it was answered with an error.
            KeyError: `wait` has not returned this ticket.
        """
        found = self._answers.pop(ticket)
        if isinstance(found, MethodError):
            raise found
        return found

    def _process(self) -> None:
        while True:
            message = c_void_p()
            more = self._check(self._library.sd_bus_process(self._bus, byref(message)))
            if message.value:
                try:
                    self._receive(message)
                finally:
                    self._library.sd_bus_message_unref(message)
            if not more:
                return

    def _receive(self, message: c_void_p) -> None:
        cookie = c_uint64()
        if self._library.sd_bus_message_get_reply_cookie(message, byref(cookie)) < 0:
            return  # a signal, such as NameAcquired
        if cookie.value not in self._expected:
            return
        self._expected.discard(cookie.value)
        error = self._library.sd_bus_message_get_error(message)
        if error:
            name, text = error.contents.name or b"", error.contents.message or b""
            self._answers[cookie.value] = MethodError(
                name.decode("utf-8", "replace"), text.decode("utf-8", "replace")
            )
            return
        value = c_char_p()
        read = self._library.sd_bus_message_read_basic
        done = read(message, b"s", ctypes.cast(byref(value), c_void_p))
        self._answers[cookie.value] = (
            (value.value or b"").decode("utf-8", "replace")
            if done > 0
            else MethodError("org.freedesktop.DBus.Error.InvalidSignature", "the answer is no text")
        )

    def _check(self, result: int) -> int:
        if result >= 0:
            return result
        name = errno.errorcode.get(-result, str(-result))
        raise BusUnavailableError(f"no system bus: {name}")
