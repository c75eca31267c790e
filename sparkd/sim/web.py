# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 on the event loop, as much of it as clients of vLLM use."""

import socket
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

from sparkd.sim.logs import Log
from sparkd.sim.loop import Loop

_HEAD_BYTES_MAX = 65_536
_BODY_BYTES_MAX = 64 << 20


class Request(NamedTuple):
    """One request; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    client: str  # address:port
    client_address: str

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]


class BadRequestError(ValueError):
    """What the client sent is not a request."""


class Connection:
    """One client connection: a request is handled to its end before the next is read."""

    def __init__(self, server: "Server", sock: socket.socket, address: tuple[str, int]) -> None:
        self._server = server
        self._sock = sock
        self._client = f"{address[0]}:{address[1]}"
        self._address = address[0]
        self._input = bytearray()
        self._output = bytearray()
        self._request: Request | None = None
        self._streaming = False
        self._close_after = False
        self._handled = False
        self.closed = False
        self.on_gone: Callable[[], None] | None = None
        server.loop.watch(sock, self._ready)

    # Answers

    def reply(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        """Answer the current request completely."""
        if self._request is None or self.closed:
            return
        head = [f"content-length: {len(body)}"]
        if body:
            head.append(f"content-type: {content_type}")
        self._start(status, head)
        if self._request.method != "HEAD":
            self._output += body
        self._end()

    def start_stream(self) -> None:
        """Begin an event stream as the answer to the current request."""
        if self._request is None or self.closed:
            return
        content_type = "content-type: text/event-stream; charset=utf-8"
        self._start(200, [content_type, "transfer-encoding: chunked"])
        self._streaming = True
        self._flush()

    def event(self, data: str) -> None:
        """Send one event of the stream."""
        if self.closed or not self._streaming:
            return
        payload = f"data: {data}\n\n".encode()
        self._output += f"{len(payload):x}\r\n".encode() + payload + b"\r\n"
        self._flush()

    def end_stream(self) -> None:
        """End the stream."""
        if self.closed or not self._streaming:
            return
        self._streaming = False
        self._output += b"0\r\n\r\n"
        self._end()

    def _start(self, status: int, headers: list[str]) -> None:
        if self._request is None:
            return
        phrase = HTTPStatus(status).phrase
        lines = [f"HTTP/1.1 {status} {phrase}", "server: uvicorn", *headers]
        if self._close_after:
            lines.append("connection: close")
        self._output += "\r\n".join(lines).encode() + b"\r\n\r\n"
        self._server.answered(self._request, f"{status} {phrase}", status)

    def _end(self) -> None:
        self._request = None
        self.on_gone = None
        self._flush()
        if self._close_after and not self._output:
            self.close()
        elif not self.closed and not self._handled:
            self._next()

    def close(self) -> None:
        """Drop the connection."""
        if self.closed:
            return
        self.closed = True
        self._server.loop.forget(self._sock)
        self._sock.close()
        gone, self.on_gone = self.on_gone, None
        self._server.gone(self)
        if gone is not None:
            gone()

    def close_when_idle(self) -> None:
        """Close now, or once the current request is answered."""
        self._close_after = True
        if self._request is None and not self._output:
            self.close()

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self._request is not None

    # Socket

    def _ready(self) -> None:
        if self._output:
            self._flush()
        if self.closed:
            return
        try:
            data = self._sock.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self._input += data
        if self._request is None:
            self._next()
        elif len(self._input) > _HEAD_BYTES_MAX + _BODY_BYTES_MAX:
            self.close()

    def _flush(self) -> None:
        try:
            while self._output:
                del self._output[: self._sock.send(self._output)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._server.loop.watch(self._sock, self._ready, write=bool(self._output))
        if self._close_after and not self._output and self._request is None:
            self.close()

    def _next(self) -> None:
        # Answers given at once come back here through _end: a loop, not a recursion.
        self._handled = True
        try:
            while not self.closed and self._request is None:
                request = self._parse()
                if request is None:
                    break
                self._request = request
                self._server.handle(request, self)
        except BadRequestError:
            self._server.log.uvicorn("Invalid HTTP request received.", "WARNING")
            self._close_after = True
            text = b"Invalid HTTP request received."
            self._output += (
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(text)
            ) + text
            self._flush()
        finally:
            self._handled = False

    def _parse(self) -> Request | None:
        head, separator, _rest = bytes(self._input[:_HEAD_BYTES_MAX]).partition(b"\r\n\r\n")
        if not separator:
            if len(self._input) >= _HEAD_BYTES_MAX or (self._input and not _plausible(head)):
                raise BadRequestError
            return None
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise BadRequestError
        headers = {}
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon:
                raise BadRequestError
            headers[name.strip().lower()] = value.strip()
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _BODY_BYTES_MAX:
            raise BadRequestError
        if "transfer-encoding" in headers:
            raise BadRequestError
        end = len(head) + 4 + int(length)
        if len(self._input) < end:
            if headers.get("expect", "").lower() == "100-continue" and end > len(self._input):
                self._continue(len(head) + 4)
            return None
        body = bytes(self._input[len(head) + 4 : end])
        del self._input[:end]
        wish = headers.get("connection", "").lower()
        self._close_after = wish == "close" or (words[2] == "HTTP/1.0" and wish != "keep-alive")
        return Request(words[0], words[1], headers, body, self._client, self._address)

    def _continue(self, body_start: int) -> None:
        if len(self._input) == body_start:
            self._output += b"HTTP/1.1 100 Continue\r\n\r\n"
            self._flush()


def _plausible(head: bytes) -> bool:
    method = head.split(b" ", 1)[0]
    return len(method) <= 16 and method.decode("latin-1").isalpha()


class Server:
    """Accepts connections on one socket and hands their requests to `handler`."""

    def __init__(
        self,
        loop: Loop,
        log: Log,
        handler: Callable[[Request, Connection], None],
        answered: Callable[[Request, str, int], None],
    ) -> None:
        self.loop = loop
        self.log = log
        self.handle = handler
        self.answered = answered
        self.connections: set[Connection] = set()
        self._when_empty: Callable[[], None] | None = None
        self._socket: socket.socket | None = None

    def listen(self, sock: socket.socket) -> None:
        """Accept clients from now on; raises OSError if another socket listens on the port."""
        sock.setblocking(False)
        sock.listen(2048)
        self._socket = sock
        self.loop.watch(sock, partial(self._accept, sock))

    def _accept(self, sock: socket.socket) -> None:
        try:
            client, address = sock.accept()
        except OSError:
            return
        client.setblocking(False)
        self.connections.add(Connection(self, client, address[:2]))

    def gone(self, connection: Connection) -> None:
        """Forget a closed connection."""
        self.connections.discard(connection)
        if not self.connections and self._when_empty is not None:
            done, self._when_empty = self._when_empty, None
            self.loop.call_later(0, done)

    def shut_down(self, done: Callable[[], None]) -> bool:
        """Close the port and the idle connections; call `done` when the busy ones are gone.

        Returns whether there are busy ones.
        """
        if self._socket is not None:
            self.loop.forget(self._socket)
            self._socket.close()
            self._socket = None
        for connection in list(self.connections):
            connection.close_when_idle()
        if self.connections:
            self._when_empty = done
            return True
        self.loop.call_later(0, done)
        return False
