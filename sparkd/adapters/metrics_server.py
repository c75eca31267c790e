# SPDX-License-Identifier: Apache-2.0
"""`/metrics` over HTTP: a small bounded server in its own thread, fed with published snapshots.

A scraper that is slow, silent or greedy costs one of a few connections for some seconds, and never
the daemon's loop. What is sent is made by `exposition`.
"""

import contextlib
import http.client
import io
import selectors
import socket
import threading
import time
from ipaddress import ip_address
from typing import NamedTuple

from sparkd.adapters import exposition
from sparkd.core import metrics
from sparkd.core.metrics import Snapshot

CONNECTIONS_MAX = 16
REQUEST_MAX = 8 * 1024
CONNECTION_S = 5.0
"""From accept to close, whatever the peer does."""
RETRY_S = 0.2


class ListenError(Exception):
    """The address cannot be listened on, or must not be."""


class _Connection(NamedTuple):
    """A peer, what it has said, what it still gets, and when it is cut off."""

    socket: socket.socket
    received: bytearray
    pending: bytearray
    deadline: float


class MetricsServer:
    """Listens until `close`; `publish` replaces what is shown."""

    def __init__(self, host: str, port: int, *, allow_remote: bool = False) -> None:
        """Bind and start the thread.

        Raises:
            ListenError: with the address and the reason.
        """
        if not allow_remote and not ip_address(host).is_loopback:
            raise ListenError(f"{host} is no loopback address, and /metrics has no authentication")
        self._snapshot: Snapshot | None = None
        self._listener = _listen(host, port)
        self._wake, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._connections: dict[int, _Connection] = {}
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._listener.getsockname()[1])

    def publish(self, snapshot: Snapshot) -> None:
        """Show this from now on; rendered only when somebody asks."""
        self._snapshot = snapshot

    def close(self) -> None:
        """Stop listening and end the thread."""
        self._waker.close()
        self._thread.join(CONNECTION_S)
        for connection in [*self._connections.values()]:
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        self._wake.close()

    # the thread

    def _serve(self) -> None:
        while True:
            for key, mask in self._selector.select(self._patience()):
                if key.fileobj is self._wake:
                    return
                self._handle(key, mask)
            self._cut_off()

    def _handle(self, key: selectors.SelectorKey, mask: int) -> None:
        if key.fileobj is self._listener:
            self._accept()
            return
        connection = self._connections.get(key.fd)
        if connection is None:
            return  # it made room for another one a moment ago
        try:
            if mask & selectors.EVENT_READ:
                self._read(connection)
            else:
                self._write(connection)
        except OSError:
            self._drop(connection)

    def _patience(self) -> float | None:
        """Seconds until the first connection is cut off; nothing to wait for without one."""
        if not self._connections:
            return None
        first = min(connection.deadline for connection in self._connections.values())
        return max(0.0, first - time.monotonic())

    def _cut_off(self) -> None:
        now = time.monotonic()
        for connection in [c for c in self._connections.values() if c.deadline <= now]:
            self._drop(connection)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            # No descriptor left: the listener stays readable, so do not come back at once.
            time.sleep(RETRY_S)
            return
        peer.setblocking(False)
        if len(self._connections) >= CONNECTIONS_MAX:
            # Many idle ones must not lock a scraper out: the oldest has had its chance.
            self._drop(min(self._connections.values(), key=lambda c: c.deadline))
        deadline = time.monotonic() + CONNECTION_S
        connection = _Connection(peer, bytearray(), bytearray(), deadline)
        self._connections[peer.fileno()] = connection
        self._selector.register(peer, selectors.EVENT_READ)

    def _read(self, connection: _Connection) -> None:
        data = connection.socket.recv(4096)
        connection.received.extend(data)
        if b"\r\n\r\n" in connection.received or b"\n\n" in connection.received:
            connection.pending.extend(self._answer(bytes(connection.received)))
        elif not data:
            self._drop(connection)
            return
        elif len(connection.received) > REQUEST_MAX:
            connection.pending.extend(_response(431, b"request too large\n"))
        else:
            return
        self._selector.modify(connection.socket, selectors.EVENT_WRITE)

    def _write(self, connection: _Connection) -> None:
        sent = connection.socket.send(connection.pending)
        del connection.pending[:sent]
        if not connection.pending:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
            self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.socket.fileno(), None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()

    def _answer(self, request: bytes) -> bytes:
        first, _, rest = request.partition(b"\n")
        words = first.split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _response(400, b"this is an HTTP server\n")
        method, target = words[0], words[1].split(b"?", 1)[0]
        if target != b"/metrics":
            return _response(404, b"there is only /metrics\n")
        if method not in {b"GET", b"HEAD"}:
            return _response(405, b"only GET and HEAD\n")
        snapshot = self._snapshot
        if snapshot is None:
            return _response(503, b"no sample yet\n")
        try:
            headers = http.client.parse_headers(io.BytesIO(rest))
        except http.client.HTTPException:
            return _response(400, b"too many headers\n")
        accept = ",".join(headers.get_all("Accept", []))
        try:
            page = exposition.page(metrics.families(snapshot), accept)
        except Exception as error:  # noqa: BLE001  (the scraper is told, and the thread goes on)
            return _response(500, f"no page: {type(error).__name__}: {error}\n".encode())
        return _response(200, page.body, kind=page.content_type, head=method == b"HEAD")


_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def _response(
    status: int, body: bytes, *, kind: str = "text/plain; charset=utf-8", head: bool = False
) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {_PHRASES[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *(["Allow: GET, HEAD"] if status == 405 else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head else body)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind((host, port))
        listener.listen(CONNECTIONS_MAX)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener
