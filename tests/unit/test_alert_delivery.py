# SPDX-License-Identifier: Apache-2.0
"""Alerts reach receivers that are down, slow, stalled or wrong: none is lost, none comes twice."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparkd.adapters import alert_delivery, alert_queue
from sparkd.adapters.alert_post import Places, PostOffice
from sparkd.adapters.alert_queue import AlertQueue, QueueError
from sparkd.core import alert_limits, alerts
from sparkd.core.alerts import Alert, Kind
from sparkd.core.config import Source, load
from sparkd.core.config_model import AlertConfig, AlertFormat, Webhook
from tests.unit.alert_receivers import Receiver, closed_port, raw_server
from tests.unit.certificates import (
    CertificatePair,
    certificate_authority,
    self_signed,
    signed_by,
)

ROOT = Path(__file__).resolve().parents[2]
CANARY = "canary-8f2e1d7c"
LIMIT = 60.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(*(str(tmp_path / name) for name in ("disk/a.db", "run/a.db", "run/a.lock")))


def config(text: str) -> AlertConfig:
    return load([Source("sparkd.toml", f"[alerts]\ndedup = '0s'\n{text}")], None).host.alerts


def death(number: int = 1, **changes: Any) -> Alert:
    made = Alert(
        id=alerts.alert_id("end", "a", str(number)), kind=Kind.DEATH, engine="a", subject="oom",
        time=time.time(), title="a died: oom", reason="it ran out of memory", evidence="oom-kill",
    )  # fmt: skip
    return made._replace(**changes)


def hook(url: str | None, credential: str | None = None) -> Webhook:
    return Webhook("webhook", url, AlertFormat.JSON, credential)


def post(url: str | None, credential: str | None = None) -> alert_delivery.Outcome:
    return alert_delivery.post(hook(url, credential), death(), "h", time.time(), None)


def secret(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    file = tmp_path / "secret"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


# one attempt


def test_a_receiver_gets_the_alert_once(receiver: Receiver) -> None:
    assert post(receiver.url) == alert_delivery.Outcome(taken=True, detail="HTTP 200")
    (seen,) = receiver.seen
    assert json.loads(seen.body)["title"] == "a died: oom"
    assert seen.headers["Idempotency-Key"] == death().id
    assert "Authorization" not in seen.headers


@pytest.mark.parametrize(
    ("status", "refused"),
    [
        (500, False),
        (503, False),
        (401, False),
        (404, False),
        (429, False),
        (400, True),
        (422, True),
    ],
)
def test_an_error_is_no_delivery(receiver: Receiver, status: int, *, refused: bool) -> None:
    receiver.status = status
    outcome = post(receiver.url)
    assert (outcome.taken, outcome.refused, outcome.detail) == (False, refused, f"HTTP {status}")


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    other = Receiver()
    receiver.status, receiver.headers = 302, {"Location": other.url}
    outcome = post(receiver.url)
    assert (outcome.taken, "redirects" in outcome.detail) == (False, True)
    assert other.seen == []
    other.close()


def test_a_receiver_may_ask_for_patience(receiver: Receiver) -> None:
    receiver.status, receiver.headers = 429, {"Retry-After": "120"}
    assert post(receiver.url).retry_after == 120.0
    receiver.headers = {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}
    assert post(receiver.url).retry_after is None


def test_the_environments_proxy_is_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{closed_port()}")
    assert post(receiver.url).taken


def test_a_configured_proxy_is_used(receiver: Receiver) -> None:
    outcome = alert_delivery.post(
        hook("http://receiver.invalid/x"), death(), "h", time.time(), receiver.url
    )
    assert outcome.taken
    assert receiver.seen[0].path == "http://receiver.invalid/x"


def test_nobody_listens() -> None:
    outcome = post(f"http://127.0.0.1:{closed_port()}/")
    assert outcome == alert_delivery.Outcome(
        taken=False, detail="cannot be reached: Connection refused"
    )


def silent(peer: socket.socket) -> None:
    peer.recv(65536)
    time.sleep(LIMIT)


def trickling(peer: socket.socket) -> None:
    """Never idle for long, never done: what bounds each step bounds nothing."""
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        peer.sendall(b"X: y\r\n")
        time.sleep(0.2)


def garbage(peer: socket.socket) -> None:
    peer.recv(65536)
    peer.sendall(os.urandom(4096))


def hanging_up(peer: socket.socket) -> None:
    peer.recv(10)


@pytest.mark.parametrize("behave", [silent, trickling, garbage, hanging_up])
def test_a_bad_receiver_is_left_at_the_deadline(
    behave: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_delivery, "DEADLINE_S", 1.0)
    monkeypatch.setattr(alert_delivery, "STEP_S", 2.0)
    done: list[alert_delivery.Outcome] = []
    with raw_server(behave) as url:
        thread = threading.Thread(target=lambda: done.append(post(url)), daemon=True)
        thread.start()
        thread.join(LIMIT)
    assert not thread.is_alive()
    assert not done[0].taken


@contextmanager
def tls_receiver(pair: CertificatePair) -> Iterator[tuple[str, list[bytes]]]:
    """A receiver over TLS that answers 200; its address, and the beginnings of its requests."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    asked: list[bytes] = []

    def behave(peer: socket.socket) -> None:
        with context.wrap_socket(peer, server_side=True) as tls:
            data = tls.recv(65536)
            while not data.rstrip().endswith(b"}"):
                more = tls.recv(65536)
                if not more:
                    return  # it hung up in the middle
                data += more
            asked.append(data)
            tls.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with raw_server(behave) as url:
        yield url.replace("http:", "https:"), asked


def test_a_self_signed_certificate_is_not_trusted(tmp_path: Path) -> None:
    with tls_receiver(self_signed(tmp_path)) as (url, asked):
        outcome = post(url)
    assert not outcome.taken
    assert not outcome.refused, "it is kept and tried again"
    assert "certificate is not trusted" in outcome.detail
    assert "self-signed" in outcome.detail.replace(" ", "-")
    assert "update-ca-certificates" in outcome.detail
    assert asked == []


def test_a_certificate_of_the_hosts_authorities_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = certificate_authority(tmp_path)
    # Where OpenSSL looks for the host's authorities.
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with tls_receiver(signed_by(authority, tmp_path, "IP:127.0.0.1")) as (url, asked):
        outcome = post(url)
    assert (outcome.taken, outcome.detail) == (True, "HTTP 200")
    assert asked[0].startswith(b"POST / HTTP/1.1\r\n")


def test_a_trusted_authoritys_certificate_for_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = certificate_authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with tls_receiver(signed_by(authority, tmp_path, "DNS:other.example.org")) as (url, asked):
        outcome = post(url)
    assert not outcome.taken
    assert "mismatch" in outcome.detail
    assert asked == []


# secrets


def test_a_credential_becomes_the_authorization_header(receiver: Receiver, tmp_path: Path) -> None:
    assert post(receiver.url, secret(tmp_path, f"Bearer {CANARY}\n")).taken
    assert receiver.seen[0].headers["Authorization"] == f"Bearer {CANARY}"


def test_a_credential_may_be_the_whole_address(receiver: Receiver, tmp_path: Path) -> None:
    assert post(None, secret(tmp_path, f"{receiver.url}/{CANARY}\n")).taken
    assert receiver.seen[0].path.endswith(CANARY)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (f"http://x.example/{CANARY}", 0o600),
        (f"{CANARY}", 0o600),
        (f"https://x/{CANARY}\nmore", 0o600),
        (f"https://x/{CANARY}", 0o640),
        (f"https://127.0.0.1:1/{CANARY}", 0o600),
        ("", 0o600),
        (CANARY * 1000, 0o600),
    ],
)
def test_no_error_repeats_a_credential(tmp_path: Path, text: str, mode: int) -> None:
    outcome = post(None, secret(tmp_path, text, mode))
    assert not outcome.taken
    assert CANARY not in outcome.detail


def test_a_link_or_a_folder_is_no_credential(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(secret(tmp_path, "Bearer x"))
    for name in ("link", ".", "missing"):
        assert not post(receiver.url, str(tmp_path / name)).taken
    assert receiver.seen == []


# commands


def program(tmp_path: Path, body: str) -> tuple[str, ...]:
    file = tmp_path / "tell"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return (str(file), "one argument", "$(touch /tmp/never)")


def test_a_command_reads_json_and_sees_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    command = program(tmp_path, f'cat >{tmp_path}/in; printf "%s|" "$@" >{tmp_path}/argv; env')
    evil = death(evidence="$(reboot) `reboot` ; reboot")
    assert alert_delivery.run(command, evil, "h", time.time()).taken
    assert json.loads((tmp_path / "in").read_text())["evidence"] == evil.evidence
    assert (tmp_path / "argv").read_text() == "one argument|$(touch /tmp/never)|"
    command = program(tmp_path, f"env >{tmp_path}/env")
    assert alert_delivery.run(command, evil, "h", time.time()).taken
    seen = (tmp_path / "env").read_text()
    assert CANARY not in seen
    assert "reboot" not in seen


def test_a_command_that_fails_did_not_take_it(tmp_path: Path) -> None:
    outcome = alert_delivery.run(program(tmp_path, "exit 3"), death(), "h", time.time())
    assert (outcome.taken, outcome.detail.endswith("exit status 3")) == (False, True)
    outcome = alert_delivery.run(("/nonexistent/tell",), death(), "h", time.time())
    assert "cannot be run" in outcome.detail
    # One that does not read what it is sent is judged by its exit status all the same.
    big = death(evidence="e" * 200_000)
    assert alert_delivery.run(program(tmp_path, "exit 0"), big, "h", time.time()).taken


def test_a_command_that_hangs_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_delivery, "COMMAND_S", 5.0)
    command = program(tmp_path, f"sleep 300 & echo $! >{tmp_path}/child; wait")
    assert not alert_delivery.run(command, death(), "h", time.time()).taken
    child = int((tmp_path / "child").read_text())
    end = time.monotonic() + LIMIT
    while Path(f"/proc/{child}/cmdline").exists() and time.monotonic() < end:
        if not Path(f"/proc/{child}/cmdline").read_bytes():
            break  # a zombie that nobody in this container reaps
        time.sleep(0.05)
    assert time.monotonic() < end


# the queue


def deliver(office: PostOffice) -> int:
    """Deliver all that can be, as if every pause were over."""
    count = 0
    while count < 1000:
        due = office.next_due()
        if due is None:
            break
        for queue in office._queues.values():
            queue._db.execute("UPDATE destinations SET next_at = 0")
        if office.deliver_one() is None:
            break
        count += 1
    return count


def test_none_is_lost_and_none_comes_twice_while_the_receiver_fails(
    receiver: Receiver, places: Places
) -> None:
    office = PostOffice(config(f'webhook = "{receiver.url}"'), places)
    receiver.status = 500
    office.enter([death(n) for n in range(5)])
    for _ in range(7):
        assert office.deliver_one() is not None
        for queue in office._queues.values():
            queue._db.execute("UPDATE destinations SET next_at = 0")
    failed = len(receiver.seen)
    assert failed == 7
    receiver.status = 200
    # Read again after a restart of the daemon, in another process' office.
    other = PostOffice(office.config, places)
    other.enter([death(n) for n in range(5)])
    deliver(other)
    ids = [json.loads(seen.body)["id"] for seen in receiver.seen[failed:]]
    assert ids == [death(n).id for n in range(5)], "each once, in order"
    assert other.figures().totals == {("death", "sent"): 5}
    assert other.figures().queued == 0


def test_a_failed_attempt_makes_the_destination_wait(receiver: Receiver, places: Places) -> None:
    office = PostOffice(config(f'webhook = "{receiver.url}"'), places)
    receiver.status, receiver.headers = 503, {"Retry-After": "600"}
    office.enter([death(1), death(2)])
    assert office.deliver_one() is not None
    assert office.deliver_one() is None, "not due yet"
    assert (office.next_due() or 0) - time.time() > 500
    assert len(receiver.seen) == 1


def test_a_receiver_that_fails_holds_up_no_other(receiver: Receiver, places: Places) -> None:
    more = f'[{{ url = "{receiver.url}" }}]'
    office = PostOffice(
        config(f'webhook = "http://127.0.0.1:{closed_port()}/"\nmore-webhooks = {more}'), places
    )
    office.enter([death(1), death(2)])
    while office.deliver_one() is not None:
        pass
    assert len(receiver.seen) == 2
    states = {(row.destination, row.state) for row in office.rows(10)}
    assert states == {("webhook", "pending"), ("webhook-2", "sent")}


def test_an_alert_that_a_receiver_refuses_holds_up_no_other(
    receiver: Receiver, places: Places
) -> None:
    office = PostOffice(config(f'webhook = "{receiver.url}"'), places)
    receiver.status = 422
    office.enter([death(1)])
    assert deliver(office) == 3
    receiver.status = 200
    office.enter([death(2)])
    deliver(office)
    assert office.figures().totals == {("death", "refused"): 1, ("death", "sent"): 1}
    assert office.rows(9)[-1].error == "HTTP 422"


def test_two_programs_never_deliver_the_same(receiver: Receiver, places: Places) -> None:
    receiver.delay = 0.05
    made = [PostOffice(config(f'webhook = "{receiver.url}"'), places) for _ in range(3)]
    made[0].enter([death(n) for n in range(12)])

    def work(office: PostOffice) -> None:
        while office.next_due() is not None:
            office.deliver_one()

    threads = [threading.Thread(target=work, args=(office,), daemon=True) for office in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert len(receiver.seen) == 12
    assert len({seen.headers["Idempotency-Key"] for seen in receiver.seen}) == 12


def test_killed_at_any_point_it_loses_none_and_repeats_only_what_was_not_acknowledged(
    receiver: Receiver, places: Places
) -> None:
    text = f'webhook = "{receiver.url}"\nrate-limit = 1000'
    script = textwrap.dedent(
        f"""
        import sys
        from tests.unit.test_alert_delivery import config, death
        from sparkd.adapters.alert_post import Places, PostOffice
        office = PostOffice(config({text!r}), Places(*{tuple(places)!r}))
        print("ready", flush=True)
        for n in range(60):
            office.enter([death(n)])
            office.deliver_one()
        while office.next_due() is not None:
            office.deliver_one()
        """
    )
    kills = 0
    for _ in range(40):
        process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        seen = len(receiver.seen)
        while process.poll() is None and len(receiver.seen) < seen + 7 and kills < 5:
            time.sleep(0.001)
        if kills < 5 and process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        code = process.wait(LIMIT)
        process.stdout.close()
        if code == 0:
            break
    assert code == 0, "not done after 40 attempts"
    ids = [seen.headers["Idempotency-Key"] for seen in receiver.seen]
    assert set(ids) == {death(n).id for n in range(60)}
    assert len(ids) - 60 <= kills, "at most the one in flight comes twice, with the same id"


def test_a_full_disk_is_told_and_alerts_go_out_all_the_same(
    receiver: Receiver, places: Places
) -> None:
    office = PostOffice(config(f'webhook = "{receiver.url}"'), places)
    disk = office._queues[places.disk]
    pages = disk._db.execute("PRAGMA page_count").fetchone()[0]
    disk._db.execute(f"PRAGMA max_page_count = {pages}")
    many = [death(n, evidence="e" * 400) for n in range(19)]
    office.enter(many)
    assert "full" in office.trouble
    deliver(office)
    assert len(receiver.seen) == 19
    # Room again: what was read while the disk was full comes again, and is known.
    disk._db.execute("PRAGMA max_page_count = 1000000")
    office.enter(many)
    assert office.trouble == ""
    deliver(office)
    assert len(receiver.seen) == 19


def test_what_was_taken_and_cannot_be_written_down_is_not_sent_again(
    receiver: Receiver, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = PostOffice(config(f'webhook = "{receiver.url}"'), places)
    office.enter([death(1)])

    def refuse(*_: Any) -> None:
        raise QueueError("disk full")

    with monkeypatch.context() as context:
        context.setattr(AlertQueue, "taken", refuse)
        for _ in range(3):
            with pytest.raises(QueueError):
                office.deliver_one()
    office.deliver_one()
    assert len(receiver.seen) == 1
    assert office.figures() == ({("death", "sent"): 1}, 0)


def test_repeats_are_suppressed_and_then_summed_up(
    receiver: Receiver, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = load(
        [Source("sparkd.toml", f'[alerts]\nwebhook = "{receiver.url}"')], None
    ).host.alerts
    office = PostOffice(configured, places)
    office.enter([death(n) for n in range(4)])
    deliver(office)
    assert len(receiver.seen) == 1
    later = time.time() + 601
    monkeypatch.setattr("sparkd.adapters.alert_post.time.time", lambda: later)
    office.enter([])
    deliver(office)
    told = json.loads(receiver.seen[-1].body)
    assert (told["kind"], told["title"]) == ("summary", "3 more alerts suppressed")
    office.enter([])
    assert deliver(office) == 0
    assert office.figures().totals[("death", "suppressed")] == 3


def test_a_new_queue_tells_news_only(receiver: Receiver, places: Places) -> None:
    office = PostOffice(config(f'webhook = "{receiver.url}"'), places)
    office.enter([death(1, time=time.time() - 86400), death(2)])
    deliver(office)
    assert len(receiver.seen) == 1


def test_the_queue_is_bounded_and_says_what_it_dropped(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_limits, "PENDING_MAX", 5)
    office = PostOffice(
        config(f'webhook = "http://127.0.0.1:{closed_port()}/"\nrate-limit = 1000'), places
    )
    for n in range(8):
        office.enter([death(n)])
    assert office.figures() == ({("death", "dropped"): 3}, 5)
    kept = [row.alert.id for row in office.rows(20) if row.state == "pending"]
    assert kept == [death(n).id for n in (7, 6, 5, 4, 3)]


def test_what_nobody_takes_for_a_week_is_dropped(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = PostOffice(config(f'webhook = "http://127.0.0.1:{closed_port()}/"'), places)
    office.enter([death(1)])
    later = time.time() + alert_limits.KEEP_S + 1
    monkeypatch.setattr("sparkd.adapters.alert_post.time.time", lambda: later)
    office.enter([])
    assert office.figures() == ({("death", "dropped"): 1}, 0)


def test_a_destination_that_is_gone_keeps_nothing_waiting(places: Places) -> None:
    office = PostOffice(config(f'webhook = "http://127.0.0.1:{closed_port()}/"'), places)
    office.enter([death(1)])
    other = PostOffice(config('command = ["/bin/true"]'), places)
    other.enter([])
    assert other.figures().queued == 0


def test_delivered_alerts_are_forgotten_and_never_come_again(
    receiver: Receiver, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_queue, "KEPT", 3)
    office = PostOffice(config(f'webhook = "{receiver.url}"'), places)
    old = [death(n, time=time.time() - 100 + n) for n in range(6)]
    for one in old:
        office.enter([one])
        deliver(office)
    office.enter(old)
    deliver(office)
    assert len(receiver.seen) == 6
    assert len(office.rows(100)) <= 4


def test_a_file_that_is_no_queue_is_put_aside(receiver: Receiver, places: Places) -> None:
    file = Path(places.disk)
    file.parent.mkdir(parents=True)
    file.write_bytes(b"this is no database" * 1000)
    office = PostOffice(config(f'webhook = "{receiver.url}"'), places)
    office.enter([death(1)])
    deliver(office)
    assert len(receiver.seen) == 1
    assert list(file.parent.glob("a.db.unreadable-*"))


def test_a_test_alert_tells_what_each_destination_did(
    receiver: Receiver, places: Places, tmp_path: Path
) -> None:
    receiver.status = 403
    command = json.dumps(program(tmp_path, "exit 0"))
    office = PostOffice(config(f'webhook = "{receiver.url}"\ncommand = {command}'), places)
    assert [tried.to_json() for tried in office.test()] == [
        {"destination": "webhook", "taken": False, "detail": "HTTP 403"},
        {"destination": "command", "taken": True, "detail": "exit status 0"},
    ]
    assert office.figures() == ({}, 0)
