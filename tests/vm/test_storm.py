# SPDX-License-Identifier: Apache-2.0
"""Twenty compilers at once where memory holds half of them: with and without sparkd."""

import pytest

from sparkd.core.events import Event
from tests.vm.field import JOBS, RESERVE_MB, Field

pytestmark = pytest.mark.vm

LASTING_MS = 600_000
"""A storm that does not end while it is looked at."""
STORM_IN_UNIT = """\
[Service]
UnsetEnvironment=MAX_JOBS NVCC_THREADS FLASHINFER_NVCC_THREADS
ExecStartPre=/bin/sh -c 'test -z "$MAX_JOBS" && cd /home/dev/unit && exec ninja -j20'
"""


def test_without_sparkd_the_kernel_kills(field: Field) -> None:
    command = field.storm("/home/dev/bare")
    field.machine.run(["systemctl", "stop", "sparkd"])
    field.begin()
    ended = field.by_hand(command).wait(900)
    assert field.killed(), f"the storm must be one: {ended.stdout[-500:]}"
    assert ended.returncode != 0, "a compilation was killed, so the build has failed"


@pytest.mark.parametrize("field", ["bookworm", "trixie"], indirect=True)
def test_by_hand(field: Field) -> None:
    life = field.serve("chat")
    command = field.storm("/home/dev/hand")
    field.begin()
    build = field.by_hand(command)
    seen = field.until_frozen(JOBS - 5)
    assert field.answers("chat"), "the engine goes on serving in the storm"
    assert len(seen) - seen.count("T") <= 5, "at most 4 run, and one that has just begun"
    ended = build.wait(900)
    assert ended.returncode == 0, ended.stdout[-1000:]
    assert f"[{JOBS}/{JOBS}]" in ended.stdout
    assert not field.killed()
    assert field.lowest_mb() > RESERVE_MB
    one = field.one("chat")
    assert (one["state"], one["invocation_id"]) == ("ready", life)
    assert not field.machine.out("ls /run/sparkd/frozen")
    field.machine.wait_until(lambda: field.said(Event.STORM_OVER), "the storm is over")
    [begun] = field.said(Event.STORM)
    assert "compile.max_jobs is 4" in begun
    assert "login session" in begun, begun
    assert f"{JOBS} compilations" in field.said(Event.STORM_OVER)[0]
    assert field.metrics()["sparkd_compilers_frozen_total"] >= JOBS - 5


def test_in_a_unit_without_its_caps(field: Field) -> None:
    life = field.serve("chat")
    field.storm("/home/dev/unit")
    field.machine.run(["chown", "-R", "vllm", "/home/dev/unit"])
    field.machine.run(["chmod", "755", "/home/dev"])
    field.engine("cold")
    field.apply()
    field.push("/etc/systemd/system/vllm-cold.service.d/no-caps.conf", STORM_IN_UNIT)
    field.machine.run(["systemctl", "daemon-reload"])
    field.begin()
    field.ctl("start", "cold")
    field.until("cold", "ready", limit=900)
    assert not field.killed()
    assert field.lowest_mb() > RESERVE_MB
    [begun] = field.said(Event.STORM)
    assert "vllm-cold.service" in begun
    one = field.one("chat")
    assert (one["state"], one["invocation_id"]) == ("ready", life)


@pytest.mark.parametrize("field", ["bookworm", "trixie"], indirect=True)
def test_killed_with_compilers_frozen(field: Field) -> None:
    field.push("/run/systemd/system/sparkd.service.d/once.conf", "[Service]\nRestart=no\n")
    field.machine.run("systemctl daemon-reload")
    field.by_hand(field.storm("/home/dev/kill", megabytes=20, milliseconds=LASTING_MS))
    field.until_frozen(JOBS - 5)
    field.machine.run("kill -KILL $(systemctl show --value --property=MainPID sparkd)")
    field.machine.wait_until(lambda: "T" not in field.compilers(), "all run again")
    assert len(field.compilers()) == JOBS
    field.machine.wait_until(
        lambda: field.machine.show("sparkd", "ActiveState")["ActiveState"] == "failed",
        "sparkd is gone, and stays so",
    )
    assert "T" not in field.compilers()
    assert not field.machine.out("ls /run/sparkd/frozen")


def test_stopped_and_started_with_compilers_frozen(field: Field) -> None:
    field.by_hand(field.storm("/home/dev/upgrade", megabytes=20, milliseconds=LASTING_MS))
    field.until_frozen(JOBS - 5)
    field.machine.run(["systemctl", "stop", "sparkd"])
    assert "T" not in field.compilers(), "none is frozen when the stop is over"
    field.machine.run(["systemctl", "start", "sparkd"])
    field.until_frozen(JOBS - 5)
    # Ctrl-C: a stopped process would not see it, and ninja would wait for ever.
    field.machine.run(["pkill", "-INT", "-x", "cicc|ninja"])
    field.machine.wait_until(lambda: not field.compilers(), "an interrupted build ends")


def test_observe_freezes_nothing(field: Field) -> None:
    field.configure(storm="observe")
    field.apply()
    field.begin()
    field.by_hand(field.storm("/home/dev/observe", megabytes=10, milliseconds=LASTING_MS))
    field.machine.wait_until(lambda: field.said(Event.STORM), "it is said")
    assert "would be frozen" in field.said(Event.STORM)[0]
    assert "T" not in field.compilers()
