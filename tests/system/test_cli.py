# SPDX-License-Identifier: Apache-2.0
"""sparkctl as an operator uses it: with the daemon, without it, and when it goes away meanwhile."""

import json

import pytest

from tests.system.lab import Lab

pytestmark = pytest.mark.system


@pytest.fixture
def one(lab: Lab) -> Lab:
    """A machine with one engine, applied and stopped."""
    lab.engine("solo")
    lab.apply()
    return lab


def run(lab: Lab, *words: str, user: str | None = None):
    return lab.machine.run(["sparkctl", *words], check=False, user=user)


def test_a_wait_ends_with_the_gate_or_with_the_reason(one: Lab) -> None:
    done = run(one, "start", "solo", "--wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("solo: ready")
    assert one.one("solo")["ready"] is True
    assert run(one, "status", "solo").returncode == 0

    one.life("solo", death="kv-cache-too-small")
    done = run(one, "restart", "solo", "--wait")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("sparkctl: solo: restart failed: ")
    assert "KV cache" in done.stderr
    held = run(one, "status", "solo")
    assert held.returncode == 3
    assert "State: held" in held.stdout
    assert "KV cache is needed" in held.stdout

    one.life("solo")
    assert run(one, "restart", "solo", "--wait").returncode == 0
    done = run(one, "stop", "solo")
    assert done.returncode == 0
    assert one.one("solo")["state"] == "stopped"


def test_every_refusal_has_its_status(one: Lab) -> None:
    assert run(one, "restart", "nobody").returncode == 4
    assert run(one, "status", "nobody").returncode == 4
    assert run(one, "status", "solo").returncode == 3
    assert run(one, "status").returncode == 0

    one.machine.run("useradd stranger && useradd --groups sparkd member")
    for user in ("stranger", "member"):
        done = run(one, "start", "solo", user=user)
        assert done.returncode == 77, done.stderr
        assert done.stderr.count("\n") == 1
        assert run(one, "apply", user=user).returncode == 77
        assert run(one, "hold", "solo", "--why", "x", user=user).returncode == 77
    assert run(one, "status", user="stranger").returncode == 77
    assert json.loads(run(one, "status", "--json", user="member").stdout)["daemon"] == "running"

    one.push("/etc/sparkd/engines.d/bad.toml", 'model = "/m"\nport = 1\nprot = 2\n')
    done = run(one, "apply")
    assert done.returncode == 78
    assert "bad.toml:2: port: 1: " in done.stderr
    assert "bad.toml:3: prot: " in done.stderr


def test_apply_leaves_foreign_and_edited_units_alone(one: Lab) -> None:
    one.push("/etc/systemd/system/vllm-mine.service", "[Service]\nExecStart=/bin/true\n")
    one.engine("mine")
    one.machine.run("sed -i s/Restart=always/Restart=no/ /etc/systemd/system/vllm-solo.service")
    done = run(one, "apply")
    assert done.returncode == 1
    assert "vllm-mine.service: refused: " in done.stdout
    assert "vllm-solo.service: refused: " in done.stdout
    assert "Restart=no" in done.stdout, "the difference is shown"
    assert one.machine.read("/etc/systemd/system/vllm-mine.service").endswith("/bin/true\n")

    forced = json.loads(run(one, "apply", "--force", "--json").stdout)
    assert forced["written"] == ["vllm-solo.service"]
    assert [row["unit"] for row in forced["refused"]] == ["vllm-mine.service"]


@pytest.mark.parametrize("loss", ["kill --signal=KILL", "stop"])
def test_a_wait_survives_the_loss_of_the_daemon(one: Lab, loss: str) -> None:
    one.life("solo", load_seconds=25)
    waiting = one.machine.start_background(["sparkctl", "start", "solo", "--wait"])
    one.until("solo", "loading")
    one.machine.run(f"systemctl {loss} sparkd.service")
    assert waiting.wait() == 0, waiting.output()
    assert "went away" in waiting.output()
    assert "solo: ready" in waiting.output()
    assert one.machine.show("vllm-solo.service", "SubState") == {"SubState": "running"}


def test_without_the_daemon(one: Lab) -> None:
    one.machine.run("systemctl stop sparkd.service")
    assert one.status()["daemon"] == "absent"
    one.machine.run("systemctl is-active sparkd.service | grep -qx inactive")

    done = run(one, "start", "solo", "--wait")
    assert done.returncode == 0, done.stderr
    assert "sparkd is not running" in done.stderr
    one.machine.run("systemctl kill --signal=KILL --kill-who=main vllm-solo.service")
    one.until_dead("solo")
    one.until("solo", "ready")
    without = one.incidents("solo")
    assert len(without) == 1

    one.machine.run("systemctl start sparkd.service")
    assert one.status()["daemon"] == "running"
    seen = one.machine.wait_until(lambda: one.incidents("solo"), "the incident is taken in")
    assert [row["invocation_id"] for row in seen] == [row["invocation_id"] for row in without]
    assert seen[0]["signal"] == "KILL"
    log = run(one, "logs", "solo", "--last-death", "--lines=all").stdout
    assert "code=killed, status=9/KILL" in log
    assert log.count("Starting to load model") == 1, "one life only"


def test_without_a_bus_root_still_sees_and_orders(one: Lab) -> None:
    one.machine.run("systemctl stop dbus.socket dbus.service sparkd.service")
    status = one.status()
    assert status["daemon"] == "absent"
    assert status["stale"] is False
    assert run(one, "start", "solo", "--wait").returncode == 0
    assert one.one("solo")["state"] == "ready"
    assert run(one, "stop", "solo").returncode == 0


def test_a_hung_daemon_hides_nothing(one: Lab) -> None:
    one.machine.run("systemctl kill --signal=STOP sparkd.service")
    status = one.status()
    assert status["daemon"] == "absent"
    assert "did not answer" in " ".join(status["notes"])


def test_hold_and_release(one: Lab) -> None:
    assert run(one, "hold", "solo").returncode == 2
    assert run(one, "hold", "solo", "--why", "new weights").returncode == 0
    held = one.until("solo", "held")
    assert "new weights" in held["reason"]
    started = one.machine.run("systemctl start vllm-solo.service", check=False)
    assert started.returncode != 0, "a hold is a hold for systemctl, too"
    one.until_down("solo")
    one.until("solo", "held")
    assert "left as it is: held" in run(one, "start", "--all").stderr
    assert run(one, "release", "solo").returncode == 0
    assert one.until("solo", "stopped")
    one.machine.run("systemctl start vllm-solo.service")
    assert one.one("solo")["state"] == "ready"


def test_completion_offers_the_engines(one: Lab) -> None:
    one.engine("second")
    assert run(one, "status", "--names").stdout.split() == ["second", "solo"]
    script = """
        source /usr/share/bash-completion/completions/sparkctl
        COMP_WORDS=(sparkctl restart s) COMP_CWORD=2
        _sparkctl
        echo "${COMPREPLY[@]}"
    """
    assert one.machine.out(script).split() == ["second", "solo"]
