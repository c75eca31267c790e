# SPDX-License-Identifier: Apache-2.0
"""The daemon under a real systemd: it may die, be doubled, lose the bus; engines and facts stay."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sparkd.core.events import Event
from tests.system.lab import Lab, bus_answer, bus_call

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]

RSS_MAX_KB = 60_000
"""47 MB on Debian 12, a little more on 13 (measured)."""


def main_pid(lab: Lab) -> str:
    return str(lab.machine.show("sparkd.service", "MainPID")["MainPID"])


def call(lab: Lab, *words: str, check: bool = True, user: str | None = None) -> Any:
    done = lab.machine.run(bus_call(*words), check=check, user=user)
    if done.returncode:
        return done.stderr
    return bus_answer(done.stdout)


def until_up(lab: Lab, other_than: str = "0") -> str:
    """Wait until another main process of the daemon is ready; returns its PID."""

    def there() -> str:
        seen = lab.machine.show("sparkd.service", "MainPID", "ActiveState")
        up = seen["ActiveState"] == "active" and seen["MainPID"] not in {"0", other_than}
        return seen["MainPID"] if up else ""

    return str(lab.machine.wait_until(there, "sparkd is up again"))


def two_ready(lab: Lab) -> dict[str, str]:
    """Two ready engines and their invocations."""
    lab.engine("one", order=1)
    lab.engine("two", order=2)
    lab.apply()
    lab.ctl("start", "one", "two", "--wait")
    return {name: lab.one(name)["invocation_id"] for name in ("one", "two")}


def test_it_says_ready_with_a_status_line_and_little_memory(lab: Lab) -> None:
    two_ready(lab)
    shown = lab.machine.show("sparkd.service", "StatusText", "Result", "NRestarts")
    assert shown == {"StatusText": "2/2 ready", "Result": "success", "NRestarts": "0"}
    status = lab.machine.read(f"/proc/{main_pid(lab)}/status")
    rss = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS:"))
    assert rss <= RSS_MAX_KB


def test_killed_it_comes_back_and_touches_no_engine(lab: Lab) -> None:
    before = two_ready(lab)
    pid = main_pid(lab)
    lab.machine.run(["kill", "-9", pid])
    until_up(lab, pid)
    for name, invocation in before.items():
        shown = lab.one(name)
        assert (shown["state"], shown["invocation_id"]) == ("ready", invocation)
    assert lab.incidents() == []


def test_a_death_while_it_is_away_is_recorded_exactly_once(lab: Lab) -> None:
    two_ready(lab)
    lab.die("one", "core-killed")
    lab.until_dead("one")
    lab.until("one", "ready")
    lab.machine.run(["systemctl", "stop", "sparkd"])
    lab.die("one", "core-killed")
    lab.until_dead("one", 2)
    lab.machine.run(["systemctl", "start", "sparkd"])
    for _ in range(3):
        pid = main_pid(lab)
        lab.machine.run(["kill", "-9", pid])
        until_up(lab, pid)
        deaths = [row for row in call(lab, "Incidents", "us", "100", "one") if not row["requested"]]
        assert len(deaths) == 2
        assert len({row["invocation_id"] for row in deaths}) == 2


def test_what_died_before_it_ever_ran_is_recorded(lab: Lab) -> None:
    two_ready(lab)
    lab.die("two", "core-killed")
    lab.until_dead("two")
    lab.machine.run(["systemctl", "stop", "sparkd"])
    lab.machine.run("rm /var/lib/sparkd/sparkd.db*")
    lab.machine.run(["systemctl", "start", "sparkd"])
    assert len([r for r in call(lab, "Incidents", "us", "9", "") if not r["requested"]]) == 1
    counted = 'sparkd_engine_restarts_total{engine="two"} 1.0'
    page = ["curl", "-s", "http://127.0.0.1:9837/metrics"]
    lab.machine.wait_until(
        lambda: counted in lab.machine.out(page, check=False).splitlines(), "the restart is counted"
    )


def test_a_second_one_is_refused_and_harms_nothing(lab: Lab) -> None:
    before = two_ready(lab)
    pid = main_pid(lab)
    second = lab.machine.run(["sparkd"], check=False, limit=60)
    assert second.returncode == 1
    assert f"another sparkd is running (PID {pid})" in second.stderr
    # A run folder of its own does not help: the bus name is taken as well.
    second = lab.machine.run(
        "unshare --mount sh -c 'mount -t tmpfs none /run/sparkd && exec sparkd'",
        check=False,
        limit=60,
    )
    assert second.returncode == 1
    assert "another process owns io.github.sparkd.Manager1" in second.stderr
    assert main_pid(lab) == pid
    assert lab.one("one")["invocation_id"] == before["one"]


def test_a_stuck_one_is_killed_by_its_watchdog(lab: Lab) -> None:
    lab.push("/etc/systemd/system/sparkd.service.d/t.conf", "[Service]\nWatchdogSec=8\n")
    lab.machine.run("systemctl daemon-reload; systemctl restart sparkd")
    pid = main_pid(lab)
    lab.machine.run(["sleep", "20"])
    assert main_pid(lab) == pid, "a healthy one pings in time"
    lab.machine.run(["kill", "-STOP", pid])
    until_up(lab, pid)


def test_systemd_replacing_itself_is_no_event(lab: Lab) -> None:
    before = two_ready(lab)
    pid = main_pid(lab)
    for verb in ("daemon-reexec", "daemon-reload"):
        lab.machine.run(["systemctl", verb])
    lab.die("one", "core-killed")
    lab.until_dead("one")
    lab.until("one", "ready", other_than=before["one"])
    assert lab.one("two")["invocation_id"] == before["two"]
    assert main_pid(lab) == pid


def test_reload_applies_and_restarts_nothing(lab: Lab) -> None:
    before = two_ready(lab)
    lab.engine("one", order=1, serve="max-num-seqs = 7")
    lab.engine("three", order=3)
    lab.machine.run(["systemctl", "reload", "sparkd"])
    lab.machine.wait_until(
        lambda: (
            "three" in [e["name"] for e in lab.status()["engines"]]
            and lab.one("three")["enabled"] == "enabled"
        ),
        "the new engine is there",
    )
    shown = lab.until("one", "ready")
    assert (shown["config"], shown["invocation_id"]) == ("pending", before["one"])
    # What an apply has brought about shows before it is over.
    until_up(lab)
    lab.ctl("restart", "one", "--wait")
    assert lab.one("one")["config"] == "current"


def test_a_broken_configuration_is_told_by_reload_and_changes_nothing(lab: Lab) -> None:
    before = two_ready(lab)
    lab.push("/etc/sparkd/engines.d/one.toml", "nonsense = 1\n")
    lab.machine.run(["systemctl", "reload", "sparkd"])
    lab.machine.wait_until(lambda: lab.status()["config_errors"], "the error is shown")
    assert any("nonsense" in error for error in lab.status()["config_errors"])
    assert lab.one("one")["invocation_id"] == before["one"]
    assert lab.one("one")["port"], "the last good configuration counts"


def test_an_apply_killed_half_way_is_finished_by_the_next_daemon(lab: Lab) -> None:
    before = two_ready(lab)
    lab.machine.run("systemctl stop sparkd")
    lab.engine("one", order=7)
    lab.engine("three", order=3)
    # Killed when the files are there and systemd knows nothing of them.
    killed = """
import os, signal
from sparkd.adapters import applying
from sparkd.adapters.systemctl_manager import Systemctl
class Killed(Systemctl):
    def enable(self, units):
        os.kill(os.getpid(), signal.SIGKILL)
applying.apply(Killed(), applying.Flags(), "root")
"""
    done = lab.machine.run(["/usr/bin/python3", "-c", killed], check=False)
    assert done.returncode in {-9, 137}
    shown = lab.machine.show("vllm-one.service", "NeedDaemonReload")
    assert shown == {"NeedDaemonReload": "yes"}
    lab.machine.run("systemctl start sparkd")
    shown = lab.machine.show("vllm-one.service", "NeedDaemonReload", "ActiveState", "InvocationID")
    assert shown == {
        "NeedDaemonReload": "no", "ActiveState": "active", "InvocationID": before["one"],
    }  # fmt: skip
    assert lab.machine.show("vllm-three.service", "UnitFileState") == {"UnitFileState": "enabled"}
    entries = lab.machine.journal(f"MESSAGE_ID={Event.APPLIED}")
    assert "was cut short and is now complete" in entries[-1]["MESSAGE"]


def test_the_bus_answers_root_and_refuses_strangers(lab: Lab) -> None:
    two_ready(lab)
    assert {e["name"] for e in call(lab, "Status")["engines"]} == {"one", "two"}
    for user in ("nobody",):
        assert "denied" in call(lab, "Status", user=user, check=False).lower()
        assert "denied" in call(lab, "Stop", "sb", "one", "false", user=user, check=False).lower()
    lab.machine.run("useradd --groups sparkd watcher")
    assert len(call(lab, "Status", user="watcher")["engines"]) == 2
    refused = call(lab, "Stop", "sb", "one", "false", user="watcher", check=False)
    assert "not permitted" in refused
    assert lab.one("one")["state"] == "ready"
    for name in ("none", "../x", "One", ""):
        for verb in ("Start", "Stop", "Restart"):
            assert "no" in call(lab, verb, "sb", name, "false", check=False), (verb, name)


def test_orders_wait_for_the_gate_or_for_the_reason(lab: Lab) -> None:
    lab.engine("one", life={"load_seconds": 2.0})
    lab.apply()
    told = call(lab, "Start", "sb", "one", "true")
    assert (told["result"], told["state"]) == ("done", "ready")
    told = call(lab, "Stop", "sb", "one", "true")
    assert (told["result"], told["state"]) == ("done", "stopped")
    assert lab.show("one", "ActiveState")["ActiveState"] == "inactive"
    told = call(lab, "Restart", "sb", "one", "false")
    assert told["result"] == "queued"
    lab.until("one", "ready")
    assert all(row["requested"] for row in lab.incidents("one"))


def test_status_is_answered_while_an_order_waits(lab: Lab) -> None:
    lab.engine("slow", life={"load_seconds": 25.0})
    lab.apply()
    waiting = lab.machine.start_background(
        bus_call("Start", "sb", "slow", "true", options=["--timeout=100"])
    )
    lab.until("slow", "loading", "starting")
    assert waiting.running(), "the order is still open while the status is answered"
    assert waiting.wait() == 0
    assert "ready" in waiting.output()


def test_metrics_pass_prometheus_own_check(lab: Lab, promtool: Path) -> None:
    two_ready(lab)
    lab.die("one", "core-killed")
    lab.until_dead("one")
    text = lab.machine.out(["curl", "-sf", "http://127.0.0.1:9837/metrics"]) + "\n"
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=text, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_forged_journal_entries_count_for_nothing(lab: Lab) -> None:
    two_ready(lab)
    lab.die("one", "core-killed")
    real = lab.until_dead("one")[0]
    lab.until("one", "ready")
    forged = {**real, "invocation_id": "f" * 32, "time": real["time"] + 1}
    forged |= {"engine": "one", "unit": "vllm-one.service"}
    forged.pop("dark_seconds")
    script = (
        "from systemd import journal\n"
        f"journal.send('forged', MESSAGE_ID='{Event.END_OF_LIFE}', SPARKD_ENGINE='one',\n"
        f"  SPARKD_UNIT='vllm-one.service', SPARKD_RECORD={json.dumps(forged)!r})\n"
    )
    lab.push("/tmp/forge.py", script)
    lab.machine.run(["python3", "/tmp/forge.py"], user="nobody")
    # Root, but in another unit than the engine's.
    lab.machine.run(["systemd-run", "--wait", "--quiet", "python3", "/tmp/forge.py"])
    sent = lab.machine.journal(f"MESSAGE_ID={Event.END_OF_LIFE}")
    assert len([entry for entry in sent if entry.get("MESSAGE") == "forged"]) == 2
    # Entries are read in order: when a later one shows, the forged ones have been passed over.
    lab.die("one", "core-killed")
    newest = lab.until_dead("one", 2)[0]["invocation_id"]
    deaths = [row["invocation_id"] for row in lab.incidents("one")]
    assert deaths == [newest, real["invocation_id"]]
