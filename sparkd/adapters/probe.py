# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.1 question to an engine, under one wall deadline.

A library's time-out is per read: a server that drips a byte at a time, or sends `100 Continue` for
ever, holds such a probe as long as it likes (7 and 8 s for a 1 s time-out, measured). Here one
deadline covers connect, write and read, the reply is capped, redirects and proxies do not exist, a
file descriptor (a pidfd) can end the wait at once, and the caller can look around meanwhile.
Importing `http.client` alone would double the
time a helper takes to start.
"""

import contextlib
import errno
import select
import socket
import time
from collections.abc import Callable

from sparkd.core.gate import Reply, ReplyKind

REPLY_MAX = 256 * 1024
"""Bytes of headers and body that are read by default; /v1/models is a few hundred."""
HEADERS_MAX = 16 * 1024
LOOK_AROUND_S = 1.0
"""How often `on_wait` is called."""


class _Stop(Exception):  # noqa: N818  (control flow of this module, never seen outside)
    def __init__(self, kind: ReplyKind, detail: str) -> None:
        super().__init__(detail)
        self.reply = Reply(kind, detail=detail)


def ask(
    address: tuple[str, int],
    request: tuple[str, str, bytes],
    *,
    deadline: float,
    key: str = "",
    abort_fd: int = -1,
    on_wait: Callable[[], bool] = lambda: False,
    accept: str = "application/json",
    reply_max: int = REPLY_MAX,
    headers: tuple[tuple[str, str], ...] = (),
) -> Reply:
    """Send one request and read its reply.

    Args:
        address: Host (an address, not a name) and port.
        request: Method, path and body; a body is sent as JSON.
        deadline: On time.monotonic(); everything ends there.
        key: Bearer token, if the engine wants one.
        abort_fd: When this becomes readable the question ends as ABORTED.
        on_wait: Called about every second of waiting; the question ends as ABORTED when it says so.
        accept: The Accept: header.
        reply_max: Bytes of headers and body that are read at most.
        headers: More headers, names and values.

    Returns:
        The reply; no exception for anything that a peer can do.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        line = _Line(connection, deadline, abort_fd, on_wait, reply_max)
        try:
            line.connect(address)
            line.send(_request_bytes(address, request, key, accept, headers))
            return _read_reply(line)
        except _Stop as stop:
            return stop.reply
        except ConnectionRefusedError:
            return Reply(ReplyKind.REFUSED, detail="connection refused")
        except OSError as error:
            return Reply(ReplyKind.BROKEN, detail=error.strerror or "connection failed")


def _request_bytes(
    address: tuple[str, int],
    request: tuple[str, str, bytes],
    key: str,
    accept: str,
    headers: tuple[tuple[str, str], ...],
) -> bytes:
    method, path, body = request
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}:{address[1]}",
        "User-Agent: sparkd",
        f"Accept: {accept}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if key:
        head.append(f"Authorization: Bearer {key}")
    if body:
        head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(head).encode("latin-1", "replace") + b"\r\n\r\n" + body


class _Line:
    """A connection whose every wait ends at the deadline or when the caller wants it to end."""

    def __init__(
        self,
        sock: socket.socket,
        deadline: float,
        abort_fd: int,
        on_wait: Callable[[], bool],
        reply_max: int,
    ) -> None:
        self._socket = sock
        self._deadline = deadline
        self._abort_fd = abort_fd
        self._on_wait = on_wait
        self._reply_max = reply_max
        self._look_around_at = time.monotonic() + LOOK_AROUND_S
        self._total = 0

    def connect(self, address: tuple[str, int]) -> None:
        code = self._socket.connect_ex(address)
        if code == errno.EINPROGRESS:
            self._wait(select.POLLOUT)
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code == errno.ECONNREFUSED:
            raise ConnectionRefusedError
        if code:
            raise OSError(code, errno.errorcode.get(code, "error"))

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(select.POLLOUT)
            with contextlib.suppress(BlockingIOError):
                rest = rest[self._socket.send(rest) :]

    def receive(self) -> bytes:
        while True:
            self._wait(select.POLLIN)
            with contextlib.suppress(BlockingIOError):
                data = self._socket.recv(65536)
                break
        self._total += len(data)
        if self._total > self._reply_max:
            raise _Stop(ReplyKind.BROKEN, f"the reply is larger than {self._reply_max} bytes")
        return data

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        if self._abort_fd >= 0:
            poll.register(self._abort_fd, select.POLLIN)
        while (now := time.monotonic()) < self._deadline:
            if now >= self._look_around_at:
                self._look_around_at = now + LOOK_AROUND_S
                if self._on_wait():
                    raise _Stop(ReplyKind.ABORTED, "the wait was given up")
            ready = dict(poll.poll((min(self._deadline, self._look_around_at) - now) * 1000))
            if self._abort_fd in ready:
                raise _Stop(ReplyKind.ABORTED, "the main process ended")
            if ready:
                return
        raise _Stop(ReplyKind.TIMEOUT, "no whole reply within the time allowed")


def _read_reply(line: _Line) -> Reply:
    buffer = b""
    while True:
        head, buffer = _read_head(line, buffer)
        status, headers = _parse_head(head)
        if status >= 200:
            return Reply(ReplyKind.ANSWERED, status, _read_body(line, buffer, headers))


def _read_head(line: _Line, buffer: bytes) -> tuple[bytes, bytes]:
    while b"\r\n\r\n" not in buffer:
        if len(buffer) > HEADERS_MAX:
            break
        buffer += _more(line)
    head, _, rest = buffer.partition(b"\r\n\r\n")
    if len(head) > HEADERS_MAX:
        raise _Stop(ReplyKind.BROKEN, f"headers larger than {HEADERS_MAX} bytes")
    return head, rest


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *rows = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if not (words[0].startswith("HTTP/1.") and len(words) > 1 and words[1].isdecimal()):
        raise _Stop(ReplyKind.BROKEN, "the listener does not speak HTTP")
    headers = {}
    for row in rows:
        name, _, value = row.partition(":")
        headers[name.strip().lower()] = value.strip()
    return int(words[1][:4]), headers


def _read_body(line: _Line, buffer: bytes, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _read_chunked(line, buffer)
    length = headers.get("content-length", "")
    wanted = int(length) if length.isdecimal() and len(length) < 12 else None
    if wanted is not None:
        while len(buffer) < wanted:
            buffer += _more(line)
        return buffer[:wanted]
    while data := line.receive():
        buffer += data
    return buffer


def _read_chunked(line: _Line, buffer: bytes) -> bytes:
    body = b""
    while True:
        while b"\r\n" not in buffer:
            buffer += _more(line)
        size_text, _, buffer = buffer.partition(b"\r\n")
        digits = size_text.split(b";")[0].strip()
        if not digits or digits.strip(b"0123456789abcdefABCDEF"):
            raise _Stop(ReplyKind.BROKEN, "a chunk has no size")
        size = int(digits, 16)
        if size == 0:
            return body
        while len(buffer) < size + 2:
            buffer += _more(line)
        body += buffer[:size]
        buffer = buffer[size + 2 :]


def _more(line: _Line) -> bytes:
    data = line.receive()
    if not data:
        raise _Stop(ReplyKind.BROKEN, "the connection was closed before a whole reply")
    return data
