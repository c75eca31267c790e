# SPDX-License-Identifier: Apache-2.0
"""Alerts under a real systemd: a receiver that is away, a daemon that is killed, its own end."""

import json
import re
from pathlib import Path

import pytest

from tests.system.lab import HOST, Lab
from tests.system.receiver import URL, Receiver
from tests.system.test_watch import SHORT as HANG
from tests.system.test_watch import engine_core
from tests.unit.certificates import certificate_authority, signed_by

pytestmark = pytest.mark.system

CANARY = "canary-5d1f0c9be2"
METRICS = "http://127.0.0.1:9837/metrics"


@pytest.fixture
def receiver(lab: Lab) -> Receiver:
    return Receiver(lab)


def configure(lab: Lab, more: str = "", url: str | None = URL) -> None:
    hook = f'webhook = "{url}"\n' if url else ""
    lab.push("/etc/sparkd/sparkd.toml", f"{HOST}[alerts]\n{hook}dedup = '0s'\n{more}\n")


def one_ready(lab: Lab) -> None:
    lab.engine("one")
    lab.apply()
    lab.ctl("start", "one", "--wait")


def kill_daemon(lab: Lab) -> None:
    pid = lab.machine.show("sparkd.service", "MainPID")["MainPID"]
    lab.machine.run(["kill", "-9", pid])


def until_daemon(lab: Lab) -> None:
    lab.machine.wait_until(
        lambda: (
            lab.machine.show("sparkd.service", "ActiveState")["ActiveState"] == "active"
            and lab.status()["daemon"] == "running"
        ),
        "sparkd is up",
    )


def until_settled(lab: Lab) -> None:
    """Wait until every alert is marked as taken: a receiver has one before sparkd knows of it."""
    rows: list[dict[str, object]] = []

    def settled() -> bool:
        rows[:] = json.loads(lab.ctl("alerts", "--json", "--limit", "100").stdout)
        return {row["state"] for row in rows if row["kind"] != "sparkd"} == {"sent"}

    lab.machine.wait_until(settled, lambda: f"every alert is sent: {rows}", limit=240)


def until_shown(lab: Lab, *lines: str) -> str:
    """Wait until /metrics has these lines; returns the page."""
    pages = [""]

    def shown() -> bool:
        pages[0] = lab.machine.out(["curl", "-s", METRICS], check=False)
        return set(lines) <= set(pages[0].splitlines())

    lab.machine.wait_until(shown, lambda: f"{lines} are shown in {pages[0]}")
    return pages[0]


def test_a_death_its_recovery_and_a_hold_are_told(lab: Lab, receiver: Receiver) -> None:
    configure(lab)
    one_ready(lab)
    for count in (1, 2):
        lab.die("one", "core-killed")
        lab.until_dead("one", count)
        lab.until("one", "ready")
    lab.die("one", "core-killed")
    lab.until("one", "held")
    (held,) = receiver.until("held")
    recovered = receiver.until("recovered", 2)
    deaths = receiver.until("death", 2)
    # An alert is queued before its incident is on record.
    real = lab.until_dead("one", 3)
    assert {d["invocation_id"] for d in [*deaths, held]} == {r["invocation_id"] for r in real}
    assert held["evidence"] == real[0]["evidence"]
    assert "sparkctl start one" in held["text"]
    assert all(r["engine"] == "one" for r in recovered)
    sent = 'sparkd_alerts_total{kind="held",result="sent"} 1.0'
    text = until_shown(lab, sent, "sparkd_alerts_queued 0.0")
    dark = re.search(r'sparkd_engine_unavailable_seconds_total\{engine="one"\} (\S+)', text)
    assert dark is not None
    assert float(dark[1]) > 0
    rows = json.loads(lab.ctl("alerts", "--json").stdout)
    assert {row["state"] for row in rows} == {"sent"}, "none is queued, and none came to nothing"


def test_over_tls_a_bad_certificate_is_named_and_nothing_is_lost(
    lab: Lab, receiver: Receiver, tmp_path: Path
) -> None:
    """The alert waits, with the reason shown, until the host knows the receiver's authority."""
    authority = certificate_authority(tmp_path)
    pair = signed_by(authority, tmp_path, "IP:127.0.0.1")
    receiver.down()
    lab.push("/etc/receiver.crt", pair.certificate.read_text())
    lab.machine.push("/etc/receiver.key", pair.key.read_text(), mode=0o600)
    lab.machine.run(["systemctl", "start", "receiver"])
    secure = URL.replace("http:", "https:")
    lab.machine.wait_until(
        lambda: lab.machine.run(["curl", "-sk", "-m", "20", secure], check=False).returncode != 7,
        "the receiver listens",
    )
    configure(lab, url=secure)
    one_ready(lab)
    lab.die("one", "core-killed")
    lab.until_dead("one")
    (row,) = lab.machine.wait_until(
        lambda: [
            r for r in json.loads(lab.ctl("alerts", "--json").stdout)
            if r["kind"] == "death" and r["attempts"]
        ],
        "an attempt has failed",
    )  # fmt: skip
    assert (row["state"], "certificate is not trusted" in row["error"]) == ("pending", True), row
    assert receiver.requests() == []
    done = lab.ctl("alert", "test", check=False)
    assert (done.returncode == 0, "update-ca-certificates" in done.stdout + done.stderr) == (
        False,
        True,
    )
    lab.push("/usr/local/share/ca-certificates/ours.crt", authority.certificate.read_text())
    lab.machine.run(["update-ca-certificates"], limit=120)
    (death,) = receiver.until("death", limit=240)
    assert death["invocation_id"] == lab.until_dead("one")[0]["invocation_id"]
    lab.ctl("alert", "test")


def test_a_stall_and_its_end_are_told(lab: Lab, receiver: Receiver) -> None:
    configure(lab)
    lab.engine("one", extra=HANG)
    lab.apply()
    lab.ctl("start", "one", "--wait")
    life = lab.one("one")["invocation_id"]
    core = engine_core(lab, "one")
    lab.machine.run(["kill", "-STOP", core])
    (stalled,) = receiver.until("stalled")
    assert (stalled["engine"], stalled["invocation_id"]) == ("one", life)
    assert "no progress for" in stalled["reason"]
    assert lab.one("one")["state"] == "stalled"
    lab.machine.run(["kill", "-CONT", core])
    (recovered,) = receiver.until("recovered")
    assert (recovered["engine"], recovered["invocation_id"]) == ("one", life)
    assert receiver.seen("death") == []
    assert len(receiver.seen("stalled")) == 1


def test_a_start_over_its_learned_budget_is_told_once_while_it_lasts(
    lab: Lab, receiver: Receiver
) -> None:
    """A minute more than the slowest of three: the least that counts (`core.alert_events`)."""
    configure(lab)
    lab.engine("one", life={"load_seconds": 0.3})
    path = "/etc/sparkd/engines.d/one.toml"
    lab.push(path, lab.machine.read(path).replace('budget = "60s"', 'budget = "300s"'))
    lab.apply()
    lab.ctl("start", "one", "--wait")
    for _ in range(2):
        lab.ctl("restart", "one", "--wait")
    assert receiver.seen("slow-start") == [], "three starts teach, and were not slow"
    lab.life("one", load_seconds=160)
    lab.machine.run(["systemctl", "restart", "--no-block", "vllm-one.service"])
    (slow,) = receiver.until("slow-start")
    assert lab.one("one")["state"] == "loading", "told while it still loads"
    assert slow["engine"] == "one"
    assert slow["invocation_id"] == lab.one("one")["invocation_id"]
    lab.until("one", "ready", limit=300)
    lab.die("one", "core-killed")
    receiver.until("death")
    assert len(receiver.seen("slow-start")) == 1, "not again when it is ready"


def test_without_alerts_nothing_is_kept(lab: Lab) -> None:
    one_ready(lab)
    lab.die("one", "core-killed")
    lab.until_dead("one")
    lab.until("one", "ready")
    assert lab.machine.run("test -e /var/lib/sparkd/alerts.db", check=False).returncode != 0
    assert json.loads(lab.ctl("alerts", "--json").stdout) == []
    done = lab.ctl("alert", "test", check=False)
    assert (done.returncode, "alerts.webhook" in done.stderr) == (78, True)


def test_none_is_lost_while_receiver_and_daemon_come_and_go(lab: Lab, receiver: Receiver) -> None:
    configure(lab)
    lab.push(
        "/etc/sparkd/sparkd.toml",
        lab.machine.read("/etc/sparkd/sparkd.toml").replace("burst = 3", "burst = 20"),
    )
    one_ready(lab)
    receiver.down()
    lab.die("one", "core-killed")
    lab.until_dead("one", 1)
    kill_daemon(lab)
    lab.until("one", "ready")
    until_daemon(lab)
    receiver.behave("status 500")
    receiver.up()
    lab.die("one", "core-killed")
    lab.until_dead("one", 2)
    kill_daemon(lab)
    until_daemon(lab)
    lab.until("one", "ready")
    # The daemon is away for a whole death and recovery.
    lab.machine.run(["systemctl", "stop", "sparkd"])
    lab.die("one", "core-killed")
    lab.until_dead("one", 3)
    lab.until("one", "ready")  # there is a pause after deaths in quick succession
    receiver.behave("ok")
    lab.machine.run(["systemctl", "start", "sparkd"])
    deaths = receiver.until("death", 3)
    assert {d["invocation_id"] for d in deaths} == {
        row["invocation_id"] for row in lab.until_dead("one", 3)
    }
    receiver.until("recovered", 3)
    # Killed between a receiver's answer and its own note of it, sparkd would tell once more.
    until_settled(lab)
    for _ in range(2):
        kill_daemon(lab)
        until_daemon(lab)
    assert len(receiver.until("death", 3)) == 3
    until_settled(lab)


def test_alerts_outlive_a_reboot(lab: Lab, receiver: Receiver) -> None:
    configure(lab)
    one_ready(lab)
    receiver.down()
    lab.die("one", "core-killed")
    lab.until_dead("one")
    lab.machine.wait_until(
        lambda: json.loads(lab.ctl("alerts", "--json").stdout), "the alert is queued"
    )
    before = lab.incidents("one")[0]["invocation_id"]
    lab.machine.reboot()
    receiver.behave("ok")
    receiver.up()
    assert before in {alert["invocation_id"] for alert in receiver.until("death", limit=240)}


def test_a_stuck_receiver_delays_no_engine_and_no_answer(lab: Lab, receiver: Receiver) -> None:
    configure(lab)
    one_ready(lab)
    receiver.behave("slow 3600")
    lab.die("one", "core-killed")
    lab.until_dead("one")
    lab.machine.wait_until(
        lambda: json.loads(lab.ctl("alerts", "--json").stdout), "the alert is queued"
    )
    # While the receiver keeps the thread busy: the engine comes back, the daemon answers.
    lab.until("one", "ready")
    lab.machine.wait_until(
        lambda: [r for r in json.loads(lab.ctl("alerts", "--json").stdout) if r["attempts"]],
        "an attempt has failed",
    )
    assert lab.status()["daemon"] == "running"
    (row,) = [r for r in json.loads(lab.ctl("alerts", "--json").stdout) if r["kind"] == "death"]
    assert row["state"] == "pending"
    receiver.behave("ok")
    receiver.until("death", limit=240)


def test_a_full_disk_keeps_nobody_in_the_dark(lab: Lab, receiver: Receiver) -> None:
    configure(lab)
    lab.machine.run("systemctl stop sparkd; mount -t tmpfs -o size=600k none /var/lib/sparkd")
    lab.machine.run("mkdir /var/lib/sparkd/ledger; systemctl start sparkd")
    one_ready(lab)
    life = lab.one("one")["invocation_id"]
    lab.machine.run("dd if=/dev/zero of=/var/lib/sparkd/fill bs=4k 2>/dev/null || true")
    lab.die("one", "core-killed")
    lab.until("one", "ready", other_than=life)
    receiver.until("death")
    until_shown(lab, "sparkd_alerts_in_memory 1.0")
    lab.machine.run("rm /var/lib/sparkd/fill")
    lab.machine.wait_until(lambda: lab.incidents("one"), "the incident is written")
    assert len(receiver.until("death")) == 1


def test_the_daemons_own_end_is_told_by_others(lab: Lab, receiver: Receiver) -> None:
    configure(lab)
    lab.apply()
    until_daemon(lab)
    lab.machine.run("systemctl restart sparkd; systemctl stop sparkd; systemctl start sparkd")
    until_daemon(lab)
    kill_daemon(lab)
    (told,) = receiver.until("sparkd")
    assert told["title"] == "sparkd.service failed"
    assert "signal" in told["reason"]
    until_daemon(lab)
    # One that cannot be started at all has nobody but systemd to tell of it.
    lab.push(
        "/etc/systemd/system/sparkd.service.d/t.conf",
        "[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=3600\n",
    )
    lab.machine.run("systemctl daemon-reload; systemctl restart sparkd", check=False)
    assert "exit-code" in receiver.until("sparkd", 2)[1]["reason"]
    assert len(receiver.seen("sparkd")) == 2, "OnFailure= and ExecStopPost= make one alert"


def test_a_crash_loop_of_the_daemon_is_told_once_and_then_counted(
    lab: Lab, receiver: Receiver
) -> None:
    lab.push("/etc/sparkd/sparkd.toml", f'{HOST}[alerts]\nwebhook = "{URL}"\n')
    lab.push(
        "/etc/systemd/system/sparkd.service.d/t.conf",
        "[Service]\nExecStart=\nExecStart=/bin/false\nRestartSec=1\n",
    )
    lab.machine.run("systemctl daemon-reload; systemctl restart sparkd", check=False)

    def restarts() -> bool:
        return int(lab.machine.show("sparkd.service", "NRestarts")["NRestarts"]) >= 4

    lab.machine.wait_until(restarts, "it has crashed a few times")
    assert len(receiver.until("sparkd")) == 1
    lab.machine.run(["systemctl", "stop", "sparkd"])
    rows = json.loads(lab.ctl("alerts", "--json").stdout)
    assert [row["state"] for row in rows].count("suppressed") >= 3


def test_sparkctl_sends_a_test_with_and_without_the_daemon(lab: Lab, receiver: Receiver) -> None:
    lab.machine.push("/usr/local/bin/tell", "#!/bin/sh\ncat >>/run/sparkd/told\n", mode=0o755)
    configure(lab, 'command = ["/usr/local/bin/tell"]')
    lab.apply()
    for away in (False, True):
        if away:
            lab.machine.run(["systemctl", "stop", "sparkd"])
        rows = json.loads(lab.ctl("alert", "test", "--json").stdout)
        assert [(r["destination"], r["taken"]) for r in rows] == [
            ("webhook", True), ("command", True),
        ]  # fmt: skip
        receiver.behave("status 404")
        done = lab.ctl("alert", "test", check=False)
        assert done.returncode == 1
        assert "webhook: did not take it: HTTP 404" in done.stdout
        assert "command: took it: exit status 0" in done.stdout
        receiver.behave("ok")
    assert len(receiver.seen("test")) == 2
    assert len(lab.machine.read("/run/sparkd/told").splitlines()) == 4
    done = lab.machine.run(["sparkctl", "alert", "test"], user="nobody", check=False)
    assert done.returncode == 77


def test_no_output_ever_shows_a_secret(lab: Lab, receiver: Receiver) -> None:
    lab.machine.push("/etc/sparkd/secrets/hook", f"{URL}/{CANARY}\n", mode=0o600)
    lab.machine.push("/etc/sparkd/secrets/token", f"Bearer {CANARY}\n", mode=0o600)
    lab.machine.push("/etc/sparkd/secrets/broken", f"gopher://{CANARY}\n", mode=0o600)
    configure(
        lab,
        'credential = "/etc/sparkd/secrets/token"\n'
        'more-webhooks = [{ credential = "/etc/sparkd/secrets/hook" },'
        ' { credential = "/etc/sparkd/secrets/broken" }]',
    )
    one_ready(lab)
    lab.die("one", "core-killed")
    lab.until_dead("one")
    receiver.until("death", 1)
    receiver.down()
    lab.ctl("alert", "test", check=False)
    kill_daemon(lab)
    until_daemon(lab)
    lab.machine.wait_until(
        lambda: "refused" in lab.ctl("alerts", "--json").stdout.lower(),
        "an alert has met the receiver that is down",
    )
    shown = [
        lab.machine.out(["journalctl", "-o", "export", "--no-pager", "-a"]),
        lab.machine.out(["curl", "-s", "http://127.0.0.1:9837/metrics"]),
        lab.machine.out("cat /var/lib/sparkd/*.db* /run/sparkd/*.db* 2>/dev/null | tr -cd ' -~'"),
        lab.machine.out("systemctl show sparkd.service 'sparkd-alert@*' 'vllm-*'"),
        lab.machine.out("cat /proc/[0-9]*/cmdline | tr '\\0' ' '"),
    ]  # fmt: skip
    for verb in (["status", "--json"], ["alerts", "--json"], ["alerts"], ["incidents", "--json"],
                 ["alert", "test"], ["check"]):  # fmt: skip
        done = lab.ctl(*verb, check=False)
        shown.append(done.stdout + done.stderr)
    assert "HTTP" in shown[6] or "refused" in shown[6].lower()
    for text in shown:
        assert CANARY not in text


def test_an_incident_has_its_load_its_lines_and_what_followed(lab: Lab) -> None:
    lab.engine("one", life={"stats_seconds": 0.5})
    lab.apply()
    lab.ctl("start", "one", "--wait")
    lab.machine.wait_until(
        lambda: "Avg prompt throughput" in lab.machine.out(["sparkctl", "logs", "one"]),
        "vLLM has said how busy it is",
    )
    lab.die("one", "core-killed")
    lab.until_dead("one")
    lab.until("one", "ready")
    lab.machine.wait_until(
        lambda: lab.incidents("one")[0]["dark_seconds"] is not None, "it is not dark any more"
    )
    (row,) = lab.incidents("one")
    detail = json.loads(lab.ctl("incident", row["id"], "--json").stdout)
    assert detail["invocation_id"] == row["invocation_id"]
    assert detail["boot"]["invocation_id"] == row["invocation_id"]
    assert detail["next_ready"]["time"] == pytest.approx(row["time"] + row["dark_seconds"])
    assert detail["same_class_before"] == {"count": 0, "last": None}
    assert [line["is_evidence"] for line in detail["log"]["lines"]].count(True) == 1
    assert (detail["log"]["complete"], detail["notes"]) == (True, [])
    assert len(detail["load"]) >= 1
    told = [event["text"] for event in detail["events"]]
    assert any("died" in text for text in told)
    assert any("ready after" in text for text in told)
    shown = lab.ctl("incident", str(detail["number"])).stdout
    assert row["id"] in shown
    assert "dark" in shown
    lab.machine.run(["systemctl", "stop", "sparkd"])
    absent = json.loads(lab.ctl("incident", row["invocation_id"], "--json").stdout)
    assert {k: absent[k] for k in row} == {k: detail[k] for k in row}
    assert lab.ctl("incident", "ffffffff", check=False).returncode == 4
