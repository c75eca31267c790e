# SPDX-License-Identifier: Apache-2.0
"""The client side of the bus, against a private dbus-daemon: answers, errors, absence, loss."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkd.adapters import bus_client
from sparkd.adapters.bus_client import DaemonAbsentError, DaemonError, Kind
from sparkd.adapters.sd_bus import Bus, BusUnavailableError

pytestmark = pytest.mark.skipif(not shutil.which("dbus-daemon"), reason="dbus-daemon is missing")

REPOSITORY = Path(__file__).parents[2]
CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={path}/bus</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_type="method_call"/>
    <allow send_requested_reply="true"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


@pytest.fixture
def private_bus(tmp_path, monkeypatch):
    (tmp_path / "bus.conf").write_text(CONFIG.format(path=tmp_path))
    argv = ["dbus-daemon", f"--config-file={tmp_path}/bus.conf", "--nofork", "--print-address"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as daemon:
        address = daemon.stdout.readline().strip()
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        yield daemon
        daemon.kill()


@pytest.fixture
def peer(private_bus):
    assert private_bus.poll() is None
    argv = [sys.executable, str(Path(__file__).with_name("cli_bus_peer.py"))]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


@pytest.mark.usefixtures("peer")
def test_reads_answers():
    assert bus_client.status()["version"] == "9"
    assert bus_client.incidents(7, "nemotron") == [{"limit": 7, "engine": "nemotron"}]
    answer = bus_client.apply(dry_run=True, force=False, prune=True)
    assert answer == {"arguments": [True, False, True, ""]}


@pytest.mark.usefixtures("peer")
def test_names_the_error_and_keeps_every_line_of_it():
    with pytest.raises(DaemonError) as caught:
        bus_client.apply(dry_run=False, force=True, prune=False)
    assert caught.value.kind is Kind.CONFIG
    assert caught.value.message == "a.toml:1: port: must be\nb.toml:2: model: must be"


@pytest.mark.usefixtures("peer")
def test_an_answer_that_is_no_json_is_a_failure():
    with pytest.raises(DaemonError, match="no JSON"):
        bus_client.incidents(1, "no-json")


@pytest.mark.usefixtures("peer")
def test_answers_come_in_their_own_order():
    outcomes = list(bus_client.operate("Start", ["late", "busy", "quick"], wait=True))
    assert [outcome.engine for outcome in outcomes[:1]] == ["busy"]
    by_engine = {outcome.engine: outcome for outcome in outcomes}
    assert by_engine["busy"].error.kind is Kind.BUSY
    assert by_engine["quick"].reply == {"engine": "quick", "result": "done", "wait": True}
    assert by_engine["late"].reply["result"] == "failed"


@pytest.mark.usefixtures("peer")
def test_who_watches_a_wait_hears_how_it_goes(monkeypatch):
    monkeypatch.setattr(bus_client, "WATCH_S", 0.05)
    told = []

    def watch(texts):
        told.append(texts)
        if len(told) == 2:
            assert [one.engine for one in bus_client.operate("Start", ["quick"], wait=True)]

    (outcome,) = bus_client.operate("Start", ["late"], wait=True, watch=watch)
    assert outcome.reply["result"] == "failed"
    assert told[:2] == [{"late": "loads"}, {"late": "loads"}]


@pytest.mark.usefixtures("peer")
def test_a_daemon_that_dies_ends_every_wait():
    outcomes = list(bus_client.operate("Restart", ["late", "dies"], wait=True))
    assert sorted(outcome.engine for outcome in outcomes) == ["dies", "late"]
    assert all(outcome.absent.sent for outcome in outcomes)


def test_a_hung_daemon_is_absent_after_the_timeout(peer, monkeypatch):
    monkeypatch.setattr(bus_client, "READ_TIMEOUT_S", 0.2)
    peer.send_signal(signal.SIGSTOP)
    with pytest.raises(DaemonAbsentError, match="did not answer"):
        bus_client.status()


@pytest.mark.usefixtures("private_bus")
def test_without_a_daemon_nothing_was_sent():
    with pytest.raises(DaemonAbsentError, match="not running"):
        bus_client.status()
    (outcome,) = bus_client.operate("Stop", ["nemotron"], wait=True)
    assert outcome.absent is not None
    assert not outcome.absent.sent


def test_without_a_bus_nothing_was_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    with pytest.raises(DaemonAbsentError):
        bus_client.status()
    (outcome,) = bus_client.operate("Stop", ["nemotron"], wait=True)
    assert not outcome.absent.sent


@pytest.mark.usefixtures("peer")
def test_losing_the_bus_ends_a_wait(private_bus):
    outcomes = bus_client.operate("Start", ["busy", "late"], wait=True)
    assert next(outcomes).engine == "busy"
    private_bus.kill()
    (lost,) = outcomes
    assert lost.engine == "late"
    assert lost.absent.sent


def test_a_bus_that_accepts_and_says_nothing_is_given_up(tmp_path, monkeypatch):
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "mute"))
        listener.listen()
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/mute")
        monkeypatch.setattr("sparkd.adapters.sd_bus.CONNECT_TIMEOUT_S", 0.2)
        bus = Bus()
        try:
            ticket = bus.call(bus_client.TARGET, "Status", ())
            with pytest.raises(BusUnavailableError, match="does not let us in"):
                bus.wait([ticket], None)
        finally:
            bus.close()


@pytest.mark.usefixtures("peer")
def test_interrupting_a_wait_ends_sparkctl():
    code = (
        "from sparkd.adapters import bus_client\n"
        "print('asked', flush=True)\n"
        "list(bus_client.operate('Start', ['late'], wait=True))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    # Python leaves SIGINT alone where it was ignored, as it is below a script's `&`.
    argv = ["env", "--default-signal=INT", sys.executable, "-c", code]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "asked\n"
        time.sleep(0.3)  # into the wait; too early would interrupt as well
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
