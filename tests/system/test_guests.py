# SPDX-License-Identifier: Apache-2.0
"""`sparkctl run`: a launch by hand is one start among the others, and leaks nothing."""

import json
from typing import Any

import pytest

from tests.system.lab import Lab, unit

pytestmark = pytest.mark.system
VLLM = "/usr/libexec/sparkd/sim/bin/vllm"
PORT = 8300


class ByHand:
    """Somebody at a shell, with sudo."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        lab.machine.run(["useradd", "--create-home", "ann"])

    def argv(self, *options: str, port: int = PORT, share: str = "0.01") -> list[str]:
        return [
            "env", "SUDO_USER=ann", "SPARKD_SIM_LIFE_FILE=/etc/sparkd-sim/guest.json",
            "sparkctl", "run", *options, "--", VLLM, "serve", "/models/guest",
            "--port", str(port), "--gpu-memory-utilization", share,
        ]  # fmt: skip

    def launch(self, *options: str, load: float = 1.0, **more: Any) -> Any:
        self.lab.life("guest", load_seconds=load)
        return self.lab.machine.start_background(self.argv(*options, **more))

    def refused(self, *options: str, **more: Any) -> Any:
        done = self.lab.machine.run(self.argv(*options, **more), check=False)
        assert done.returncode != 0, done.stdout
        return done

    def guests(self) -> list[dict[str, Any]]:
        return list(self.lab.status()["guests"])

    def until(self, state: str) -> dict[str, Any]:
        seen: list[dict[str, Any]] = []

        def there() -> dict[str, Any] | None:
            seen[:] = self.guests()
            return next((g for g in seen if g["state"] == state), None)

        what = f"a guest is {state}"
        return dict(self.lab.machine.wait_until(there, lambda: f"{what}; at last: {seen}"))


@pytest.fixture
def by_hand(lab: Lab) -> ByHand:
    lab.machine.run(["mkdir", "-p", "/models/guest"])
    lab.engine("one", life={"load_seconds": 1.0})
    lab.apply()
    return ByHand(lab)


def test_a_guest_runs_as_who_called_sudo_in_a_scope_with_limits_and_caps(by_hand: ByHand) -> None:
    lab = by_hand.lab
    guest = by_hand.launch()
    seen = by_hand.until("ready")
    assert (seen["user"], seen["port"]) == ("ann", PORT)
    assert seen["unit"] == f"vllm-guest-{seen['pid']}.scope"
    assert lab.machine.out(["ps", "-o", "user=", "-p", str(seen["pid"])]).strip() == "ann"
    shown = lab.machine.show(seen["unit"], "Slice", "MemoryMax", "ActiveState")
    assert (shown["Slice"], shown["ActiveState"]) == ("vllm.slice", "active")
    assert shown["MemoryMax"].isdigit()
    environment = lab.machine.read(f"/proc/{seen['pid']}/environ").split("\0")
    assert {"MAX_JOBS=4", "NVCC_THREADS=1", "HOME=/home/ann", "USER=ann"} <= set(environment)
    assert "guest" in lab.ctl("status").stdout.lower()
    lab.machine.run(["kill", "-TERM", str(seen["pid"])])
    assert guest.wait() == 0, "vLLM ends with 0 on SIGTERM"
    lab.machine.wait_until(lambda: not by_hand.guests(), "the guest is gone")


def test_its_exit_status_is_the_programs(by_hand: ByHand) -> None:
    run = by_hand.lab.machine.run
    # --wait: the scope of the last one may take a moment to go.
    options = ["--wait", "--memory", "100M", "--user", "ann"]
    script = ["sparkctl", "run", *options, "--", "/bin/sh", "-c"]
    assert run([*script, "exit 42"], check=False).returncode == 42
    assert run([*script, "id -un; test -t 0 || echo no terminal"]).stdout.split()[0] == "ann"
    killed = run(["sh", "-c", f"{' '.join(script)} 'kill -KILL $$'; echo $?"], check=False)
    assert killed.stdout.strip() == "137"


def test_it_keeps_the_terminal_and_its_interrupt_key(by_hand: ByHand) -> None:
    """`script` is the terminal: what is typed comes in by its pipe, ^C among it."""
    run = by_hand.lab.machine.run
    launch = "sparkctl run --wait --memory 100M --user ann --"
    done = run(["script", "-qec", f"{launch} sh -c 'test -t 0 && echo terminal'", "/dev/null"])
    assert "terminal" in done.stdout
    # Typed when the guest is there, not before: it is the guest's own interrupt key.
    typed = r"(until test -e /tmp/there; do sleep 0.1; done; printf '\003'; sleep 5)"
    program = 'sh -c "touch /tmp/there; exec sleep 300"'
    done = run(["sh", "-c", f"{typed} | script -qec '{launch} {program}' /dev/null"], check=False)
    assert done.returncode == 130
    assert not by_hand.guests()


def test_no_engine_starts_beside_a_guest_that_starts(by_hand: ByHand) -> None:
    lab = by_hand.lab
    by_hand.launch(load=25.0)
    guest = by_hand.until("starting")
    assert lab.status()["slot"]["holder"] == guest["unit"]
    lab.machine.run(["systemctl", "start", "--no-block", unit("one")])
    lab.until("one", "waiting", says=guest["unit"])
    by_hand.until("ready")
    lab.until("one", "ready")


def test_no_guest_starts_beside_an_engine_that_starts(by_hand: ByHand) -> None:
    lab = by_hand.lab
    lab.life("one", load_seconds=30.0)
    lab.machine.run(["systemctl", "start", "--no-block", unit("one")])
    lab.until("one", "starting", "loading")
    done = by_hand.refused()
    assert done.returncode == 75
    assert unit("one") in done.stderr
    assert "--wait" in done.stderr
    by_hand.launch("--wait")
    assert by_hand.until("waiting")["reason"]
    lab.until("one", "ready")
    by_hand.until("ready")


@pytest.mark.parametrize("signal", ["KILL", "INT", "TERM"])
def test_a_guest_that_is_killed_leaks_nothing(by_hand: ByHand, signal: str) -> None:
    lab = by_hand.lab
    by_hand.launch(load=60.0)
    guest = by_hand.until("starting")
    lab.machine.run(["systemctl", "start", "--no-block", unit("one")])
    lab.until("one", "waiting")
    # Until it has ended: vLLM loses a first signal while its engine starts, and two that it has not
    # taken yet are one.
    lab.machine.run(f"while kill -{signal} {guest['pid']} 2>/dev/null; do sleep 1; done")
    lab.until("one", "ready")
    assert not by_hand.guests()
    state = lab.machine.show(guest["unit"], "LoadState", "ActiveState")
    assert state["ActiveState"] == "inactive"


def test_a_launch_that_is_killed_while_it_waits_blocks_nobody(by_hand: ByHand) -> None:
    lab = by_hand.lab
    lab.life("one", load_seconds=30.0)
    lab.machine.run(["systemctl", "start", "--no-block", unit("one")])
    lab.until("one", "starting", "loading")
    by_hand.launch("--wait")
    waiting = by_hand.until("waiting")
    lab.machine.run(["kill", "-KILL", str(waiting["pid"])])
    lab.engine("two", order=90)
    lab.apply()
    lab.machine.run(["systemctl", "start", "--no-block", unit("two")])
    lab.until("two", "ready")
    assert not by_hand.guests()


def test_a_killed_watcher_leaks_nothing(by_hand: ByHand) -> None:
    lab = by_hand.lab
    by_hand.launch(load=25.0)
    guest = by_hand.until("starting")
    noted = json.loads(lab.machine.read(f"/run/sparkd/guests/{guest['unit']}.json"))
    lab.machine.run(["kill", "-KILL", str(noted["watcher"])])
    lab.machine.run(["systemctl", "start", "--no-block", unit("one")])
    lab.until("one", "waiting", says=guest["unit"])
    lab.until("one", "ready")
    assert by_hand.until("ready")["unit"] == guest["unit"]


def test_what_does_not_fit_is_refused_with_the_arithmetic(by_hand: ByHand) -> None:
    never = by_hand.refused("--wait", share="0.99")
    assert never.returncode == 1
    assert "never fits" in never.stderr
    assert "host.reserve" in never.stderr
    assert not by_hand.guests()
    taken = by_hand.refused("--memory", "1T")
    assert "never fits: it keeps 1024.0 GiB (as --memory says)" in taken.stderr


def test_only_root_may(by_hand: ByHand) -> None:
    argv = ["runuser", "-u", "ann", "--", "sparkctl", "run", "--", VLLM, "serve", "m"]
    done = by_hand.lab.machine.run(argv, check=False)
    assert done.returncode == 77
    assert "sudo sparkctl run" in done.stderr


def test_a_taken_port_is_named(by_hand: ByHand) -> None:
    by_hand.lab.machine.run(["systemctl", "start", unit("one")])
    done = by_hand.refused(port=by_hand.lab.ports["one"])
    assert done.returncode == 75
    assert unit("one") in done.stderr
