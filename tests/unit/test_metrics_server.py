# SPDX-License-Identifier: Apache-2.0
"""The server of /metrics, over loopback, with the scrapers that one would rather not have."""

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from sparkd.adapters import metrics_server
from sparkd.adapters.metrics_server import ListenError, MetricsServer
from sparkd.core.metrics import Snapshot
from sparkd.core.status import build
from tests.unit.status_facts import engine, facts

LIMIT = 30.0


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer("127.0.0.1", 0)
    made.publish(Snapshot(build(facts(engine()))))
    yield made
    made.close()


def ask(server: MetricsServer, method: str = "GET", path: str = "/metrics") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    with contextlib.closing(connection):
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def raw(server: MetricsServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)


def rest(peer: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as the end."""
    data = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while chunk := peer.recv(65536):
            data += chunk
    return data


def test_metrics_are_served_and_nothing_else(server: MetricsServer) -> None:
    status, body = ask(server)
    assert status == 200
    assert b'sparkd_engine_ready{engine="a"} 1.0\n' in body
    assert ask(server, path="/metrics?x=1")[0] == 200
    for path in ("/", "/metrics/", "/metricsx", "/../metrics", "/status"):
        assert ask(server, path=path)[0] == 404, path
    for method in ("POST", "PUT", "DELETE"):
        assert ask(server, method)[0] == 405, method


def test_head_has_the_length_and_no_body(server: MetricsServer) -> None:
    with raw(server) as peer:
        peer.sendall(b"HEAD /metrics HTTP/1.1\r\n\r\n")
        head, _, body = rest(peer).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert f"Content-Length: {len(ask(server)[1])}".encode() in head
    assert body == b""


def test_the_content_type_is_that_of_the_text_format(server: MetricsServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        kind = connection.getresponse().getheader("Content-Type", "")
    assert kind == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        (["Accept: application/openmetrics-text;version=1.0.0;q=0.9,*/*;q=0.1"], "application/o"),
        (["accept: text/html", "ACCEPT:application/openmetrics-text"], "application/o"),
        (["Accept: */*"], "text/plain; version="),
        (["Accept: \xff,;;=,"], "text/plain; version="),
        (["Accept:"], "text/plain; version="),
        (["nonsense"], "text/plain; version="),
    ],
)
def test_the_scraper_chooses_the_format(
    server: MetricsServer, headers: list[str], kind: str
) -> None:
    lines = ["GET /metrics HTTP/1.1", *headers, "", ""]
    with raw(server) as peer:
        peer.sendall("\r\n".join(lines).encode("latin-1"))
        head = rest(peer).partition(b"\r\n\r\n")[0].decode()
    assert head.startswith("HTTP/1.1 200 ")
    assert f"\r\nContent-Type: {kind}" in head


def test_too_many_headers_are_refused(server: MetricsServer) -> None:
    with raw(server) as peer:
        peer.sendall(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n")
        assert rest(peer).startswith(b"HTTP/1.1 400 ")
    assert ask(server)[0] == 200


def test_a_page_that_cannot_be_made_is_told_and_ends_nothing(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(metrics_server.metrics, "families", lambda _snapshot: [None])
        status, body = ask(server)
        assert status == 500
        assert b"AttributeError" in body
    assert ask(server)[0] == 200


def test_a_new_snapshot_replaces_the_old(server: MetricsServer) -> None:
    server.publish(Snapshot(build(facts(engine("b")))))
    body = ask(server)[1]
    assert b'{engine="b"}' in body
    assert b'{engine="a"}' not in body


def test_before_the_first_sample_it_says_so() -> None:
    empty = MetricsServer("127.0.0.1", 0)
    assert ask(empty)[0] == 503
    empty.close()


@pytest.mark.parametrize(
    "data", [b"\r\n\r\n", b"GET\r\n\r\n", b"\xff\x00\r\n\r\n", b"GET /metrics SMTP\r\n\r\n"]
)
def test_what_is_no_http_is_refused(server: MetricsServer, data: bytes) -> None:
    with raw(server) as peer:
        peer.sendall(data)
        assert rest(peer).startswith(b"HTTP/1.1 400 ")


def test_an_endless_header_is_cut_off(server: MetricsServer) -> None:
    with raw(server) as peer:
        sent = 0
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while sent < 1 << 24:
                sent += peer.send(b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 60_000)
        assert sent < 1 << 24, "it must not take 16 MB of headers"
    assert ask(server)[0] == 200


def test_a_request_in_pieces_is_understood(server: MetricsServer) -> None:
    with raw(server) as peer:
        for byte in b"GET /metrics HTTP/1.1\r\n\r\n":
            peer.sendall(bytes([byte]))
        assert rest(peer).startswith(b"HTTP/1.1 200 ")


def test_silent_and_dripping_peers_are_cut_off(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_server, "CONNECTION_S", 0.5)
    with raw(server) as silent, raw(server) as dripping:
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while time.monotonic() - began < LIMIT:
                dripping.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - began < LIMIT, "a drip must not keep a connection open"
        assert rest(silent) == b""


def test_a_reader_that_never_reads_does_not_keep_others_waiting(server: MetricsServer) -> None:
    lots = [engine(f"e{n}", model="/m" * 90) for n in range(3000)]
    server.publish(Snapshot(build(facts(*lots))))
    with raw(server) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert ask(server)[0] == 200


def test_idle_connections_do_not_lock_a_scraper_out(server: MetricsServer) -> None:
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        for _ in range(metrics_server.CONNECTIONS_MAX * 3):
            stack.enter_context(raw(server))
        assert ask(server)[0] == 200
        assert threading.active_count() == before, "a connection must not cost a thread"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_are_kept_out_by_default(host: str) -> None:
    with pytest.raises(ListenError, match="loopback"):
        MetricsServer(host, 0)


def test_an_address_that_is_permitted_is_listened_on() -> None:
    MetricsServer("0.0.0.0", 0, allow_remote=True).close()


def test_a_busy_port_is_named(server: MetricsServer) -> None:
    with pytest.raises(ListenError, match=str(server.port)):
        MetricsServer("127.0.0.1", server.port)


def test_closing_frees_the_port_and_the_thread() -> None:
    other = MetricsServer("127.0.0.1", 0)
    port, before = other.port, threading.active_count()
    with raw(other):
        other.close()
    assert threading.active_count() == before - 1
    MetricsServer("127.0.0.1", port).close()
