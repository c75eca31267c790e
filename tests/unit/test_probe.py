# SPDX-License-Identifier: Apache-2.0
"""One question to real, hostile loopback servers: always a Reply, always by the deadline."""

import contextlib
import os
import socket
import struct
import threading
import time
import tracemalloc
import types
from pathlib import Path

import pytest

from sparkd.adapters import probe
from sparkd.core.gate import Reply, ReplyKind

GET = ("GET", "/v1/models", b"")
SHORT_S = 0.2
"""The deadline against servers that never finish."""
GENEROUS_S = 5.0
"""How late `ask` may be on a busy machine; the drips below would take minutes."""


class Server:
    """A listener whose one thread hands each connection to a function."""

    def __init__(self, family, address):
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind((address, 0))
        self.socket.listen(8)
        self.address = self.socket.getsockname()[:2]
        self.over = threading.Event()
        self.requests = []
        self._thread = None

    def run(self, behave):
        self._thread = threading.Thread(target=self._serve, args=(behave,), daemon=True)
        self._thread.start()
        return self.address

    def _serve(self, behave):
        while not self.over.is_set():
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                behave(self, connection)

    def close(self):
        self.over.set()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        if self._thread:
            self._thread.join(GENEROUS_S)
            assert not self._thread.is_alive()


@pytest.fixture
def server():
    it = Server(socket.AF_INET, "127.0.0.1")
    yield it
    it.close()


def read_request(server, connection):
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            raise ConnectionError
        data += part
    server.requests.append(data)


def replies(*parts):
    """Read the request, send the parts, close."""

    def behave(server, connection):
        read_request(server, connection)
        for part in parts:
            connection.sendall(part)

    return behave


def for_ever(first, part, pause=0.0):
    """Read the request, then send the same part until the test ends."""

    def behave(server, connection):
        read_request(server, connection)
        connection.sendall(first)
        while not server.over.wait(pause):
            connection.sendall(part)

    return behave


def asked(address, *, within=30.0, request=GET, **more):
    began = time.monotonic()
    reply = probe.ask(address, request, deadline=began + within, **more)
    assert isinstance(reply, Reply)
    assert time.monotonic() - began < within + GENEROUS_S
    return reply


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

GOOD = {
    "with a length": (OK + b"Content-Length: 2\r\n\r\nhi", b"hi"),
    "more than its length": (OK + b"Content-Length: 2\r\n\r\nhi there", b"hi"),
    "until it closes": (OK + b"\r\nhi", b"hi"),
    "HTTP/1.0": (b"HTTP/1.0 200\r\n\r\nhi", b"hi"),
    "no body": (OK + b"Content-Length: 0\r\n\r\n", b""),
    "odd case and spaces": (OK + b"CONTENT-length :  2 \r\n\r\nhi", b"hi"),
    "a length nobody can read": (OK + b"Content-Length: two\r\n\r\nhi", b"hi"),
    "a negative length": (OK + b"Content-Length: -5\r\n\r\nhi", b"hi"),
    "chunks": (CHUNKED + b"1\r\nh\r\n1;ext=1\r\ni\r\n0\r\n\r\n", b"hi"),
    "chunks in capitals": (CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
    "100 first": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"\r\nhi", b"hi"),
    "a body in binary": (OK + b"\r\n\x00\xff\xfe", b"\x00\xff\xfe"),
}


@pytest.mark.parametrize(("sent", "body"), GOOD.values(), ids=GOOD)
def test_understands(server, sent, body):
    assert asked(server.run(replies(sent))) == Reply(ReplyKind.ANSWERED, 200, body)


def test_understands_a_reply_that_comes_byte_by_byte(server):
    sent = CHUNKED + b"2\r\nhi\r\n0\r\n\r\n"
    assert asked(server.run(replies(*(bytes([b]) for b in sent)))).body == b"hi"


BROKEN = {
    "nothing at all": b"",
    "HTTP/0.9": b"<html>hello</html>",
    "binary junk": os.urandom(4096).replace(b"\r", b"x"),
    "junk that ends like a head": b"\x00\xff\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.2p1\r\n",
    "HTTP/2": b"HTTP/2 200\r\n\r\n",
    "no status": b"HTTP/1.1\r\n\r\n",
    "a status in letters": b"HTTP/1.1 abc\r\n\r\n",
    "a negative status": b"HTTP/1.1 -200\r\n\r\n",
    "half a head": OK + b"Content-",
    "cut off before its length": OK + b"Content-Length: 10\r\n\r\nhi",
    "a chunk cut off": CHUNKED + b"5\r\nhi",
    "no last chunk": CHUNKED + b"2\r\nhi\r\n",
    "a chunk of negative size": CHUNKED + b"-1\r\nhi\r\n0\r\n\r\n",
    "a chunk of no size": CHUNKED + b"\r\nhi\r\n",
    "a chunk of garbage": CHUNKED + b"zz\r\nhi\r\n0\r\n\r\n",
    "a chunk in Python's own notation": CHUNKED + b"0x2\r\nhi\r\n0\r\n\r\n",
    "a chunk with an underscore": CHUNKED + b"1_0\r\nhi\r\n0\r\n\r\n",
    "a chunk of an exabyte": CHUNKED + b"f" * 15 + b"\r\nhi",
    "a chunk size of 9,000 digits": CHUNKED + b"f" * 9000 + b"\r\nhi",
    "headers without end": OK + b"".join(b"X-%d: y\r\n" % n for n in range(100_000)),
    "20 KB of headers": OK + b"X: " + b"y" * 20_000 + b"\r\n\r\n",
    "one header of 1 MB": OK + b"X: " + b"y" * 1_000_000,
    "50 MB": OK + b"Content-Length: 52428800\r\n\r\n" + b"x" * 1_000_000,
    "1 MB in chunks of a byte": CHUNKED + b"1\r\nx\r\n" * 200_000,
    "a flood of 100-continue": b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000,
}


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN)
def test_is_not_fooled_by(server, sent):
    reply = asked(server.run(replies(sent)))
    assert reply.kind is ReplyKind.BROKEN
    assert reply.body == b""
    assert reply.detail.isascii()
    assert len(reply.detail) < 100, "nothing of what a stranger sent gets into a message"


def test_more_than_100_headers_are_no_problem(server):
    head = OK + b"".join(b"X-%d: y\r\n" % n for n in range(500)) + b"Content-Length: 2\r\n\r\nhi"
    assert asked(server.run(replies(head))).body == b"hi"


ENDLESS = {
    "accepts and stalls": lambda server, _: server.over.wait(),
    "reads and stalls": for_ever(b"", b"", 0.05),
    "drips its status line": for_ever(b"", b"H", 0.05),
    "drips headers": for_ever(OK, b"X: y\r\n", 0.05),
    "drips a body": for_ever(OK + b"Content-Length: 9999\r\n\r\n", b"x", 0.05),
    "drips until it closes, and never closes": for_ever(OK + b"\r\n", b"x", 0.05),
    "drips 100-continue": for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
    "drips chunks": for_ever(CHUNKED, b"1\r\nx\r\n", 0.05),
    "drips a chunk's size": for_ever(CHUNKED, b"0", 0.05),
}


@pytest.mark.parametrize("behave", ENDLESS.values(), ids=ENDLESS)
def test_ends_by_the_deadline_when_the_server(server, behave):
    assert asked(server.run(behave), within=SHORT_S).kind is ReplyKind.TIMEOUT


FLOODS = {
    "100-continue": for_ever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "chunks of a byte": for_ever(CHUNKED, b"1\r\nx\r\n" * 1000),
    "headers": for_ever(OK, b"X: y\r\n" * 1000),
    "body": for_ever(OK + b"\r\n", b"x" * 65536),
    "a chunk": for_ever(CHUNKED + b"ffffff\r\n", b"x" * 65536),
}


@pytest.mark.parametrize("behave", FLOODS.values(), ids=FLOODS)
def test_a_flood_is_cut_off_and_costs_little_memory(server, behave):
    address = server.run(behave)
    tracemalloc.start()
    try:
        reply = asked(address)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reply.kind is ReplyKind.BROKEN
    assert peak < 8 * probe.REPLY_MAX


def reset(_server, connection):
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def reset_in_the_body(server, connection):
    replies(OK + b"Content-Length: 10\r\n\r\nhi")(server, connection)
    reset(server, connection)


@pytest.mark.parametrize("behave", [reset, reset_in_the_body])
def test_a_reset_is_a_reply(server, behave):
    assert asked(server.run(behave)).kind is ReplyKind.BROKEN


def test_nobody_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
        assert asked(address).kind is ReplyKind.REFUSED


def test_a_redirect_is_an_answer_and_not_followed(server):
    other = Server(socket.AF_INET, "127.0.0.1")
    try:
        host, port = other.run(replies(OK + b"\r\nfollowed"))
        location = f"HTTP/1.1 302 Found\r\nLocation: http://{host}:{port}/\r\n".encode()
        address = server.run(replies(location + b"Content-Length: 0\r\n\r\n"))
        assert asked(address) == Reply(ReplyKind.ANSWERED, 302, b"")
        assert other.requests == []
    finally:
        other.close()


def test_no_proxy_from_the_environment(server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert asked(server.run(replies(OK + b"\r\nhi"))).body == b"hi"


def test_ipv6():
    server = Server(socket.AF_INET6, "::1")
    try:
        assert asked(server.run(replies(OK + b"\r\nhi"))).body == b"hi"
        assert b"\r\nHost: [::1]:%d\r\n" % server.address[1] in server.requests[0]
    finally:
        server.close()


def test_what_is_asked(server):
    address = server.run(replies(OK + b"\r\n"))
    more = (("X-data-parallel-rank", "3"),)
    asked(address, request=("POST", "/v1/completions", b'{"a": 1}'), key="s3cret", headers=more)
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    lines = head.split(b"\r\n")
    assert b"Authorization: Bearer s3cret" in lines
    assert b"Content-Length: 8" in lines
    assert b"Connection: close" in lines
    assert b"X-data-parallel-rank: 3" in lines
    assert body == b'{"a": 1}'


def test_no_key_no_header(server):
    asked(server.run(replies(OK + b"\r\n")))
    assert b"authorization" not in server.requests[0].lower()


def test_a_full_backlog_ends_by_the_deadline():
    """The kernel drops our SYN: the connection neither opens nor fails."""
    with socket.socket() as full, contextlib.ExitStack() as queue:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            waiting = queue.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        assert asked(full.getsockname(), within=SHORT_S).kind is ReplyKind.TIMEOUT


def test_a_server_that_never_reads_ends_by_the_deadline(server):
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    address = server.run(lambda server, _: server.over.wait())
    large = ("POST", "/v1/completions", b"x" * 20_000_000)
    assert asked(address, within=SHORT_S, request=large).kind is ReplyKind.TIMEOUT


def test_a_server_that_answers_and_closes_while_we_send(server):
    def behave(_server, connection):
        connection.recv(10)
        connection.sendall(b"HTTP/1.1 413 Too Large\r\n\r\n")

    large = ("POST", "/v1/completions", b"x" * 20_000_000)
    assert asked(server.run(behave), request=large).kind is ReplyKind.BROKEN


def test_a_half_closed_connection_still_answers(server):
    def behave(server, connection):
        read_request(server, connection)
        connection.shutdown(socket.SHUT_RD)
        connection.sendall(OK + b"Content-Length: 2\r\n\r\nhi")

    assert asked(server.run(behave)).body == b"hi"


def test_a_deadline_that_has_passed(server):
    address = server.run(replies(OK + b"\r\nhi"))
    assert asked(address, within=-1.0).kind is ReplyKind.TIMEOUT


@pytest.mark.parametrize("behave", [ENDLESS["accepts and stalls"], ENDLESS["drips a body"]])
def test_the_abort_descriptor_ends_it_in_the_middle(server, behave):
    address = server.run(behave)
    readable, writable = os.pipe()
    try:
        timer = threading.Timer(0.2, os.write, (writable, b"x"))
        timer.start()
        began = time.monotonic()
        reply = asked(address, within=60.0, abort_fd=readable)
        assert reply.kind is ReplyKind.ABORTED
        assert time.monotonic() - began < GENEROUS_S
        timer.join()
    finally:
        os.close(readable)
        os.close(writable)


def test_the_caller_can_look_around_and_give_up(server, monkeypatch):
    monkeypatch.setattr(probe, "LOOK_AROUND_S", 0.1)
    looks = []

    def look():
        looks.append(time.monotonic())
        return len(looks) == 2

    address = server.run(ENDLESS["drips a body"])
    assert asked(address, within=60.0, on_wait=look).kind is ReplyKind.ABORTED
    assert len(looks) == 2


def test_spurious_readiness_is_waited_out(server, monkeypatch):
    """Poll(2) may report a socket ready that then would block."""
    refusals = {"send": 3, "recv": 3}

    class Moody(socket.socket):
        def send(self, *args):
            return self.moody("send", super().send, args)

        def recv(self, *args):
            return self.moody("recv", super().recv, args)

        @staticmethod
        def moody(name, function, args):
            refusals[name] -= 1
            if refusals[name] >= 0:
                raise BlockingIOError
            return function(*args)

    address = server.run(replies(OK + b"\r\nhi"))
    names = {**vars(socket), "socket": Moody}
    monkeypatch.setattr(probe, "socket", types.SimpleNamespace(**names))
    assert asked(address).body == b"hi"
    assert max(refusals.values()) < 0


def test_no_descriptor_is_left_open(server):
    address = server.run(replies(b"junk\r\n\r\n"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        asked(address)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1  # the server may hold one
