# SPDX-License-Identifier: Apache-2.0
"""When memory runs out: who is ended, by whom, and what is on record about it."""

import json

import pytest

from tests.vm.field import FLOOR_MB, Field

pytestmark = pytest.mark.vm

LEFT_MB = FLOOR_MB * 2 // 3
EARLYOOM = """\
[Service]
ExecStart=/usr/bin/earlyoom -r 3600 -m 25
"""


def eat(field: Field, name: str, megabytes: int) -> None:
    """Have an engine's core take so much memory now."""
    body = json.dumps({"kind": "eat-memory", "memory_mib": megabytes})
    url = f"http://127.0.0.1:{field.ports[name]}/sim/die"
    field.machine.run(
        ["curl", "-sS", "-m", "60", "-H", "Content-Type: application/json", "-d", body, url],
        check=False,
    )


@pytest.mark.each_systemd
@pytest.mark.parametrize("field", ["bookworm", "trixie"], indirect=True)
def test_a_kill_by_the_kernel_is_told_as_one(field: Field) -> None:
    field.serve("big", extra='[memory]\nmax = "150M"\n')
    field.begin()
    eat(field, "big", 400)
    [death, *_] = field.until_dead("big")
    assert death["class"] == "kernel-oom-kill", death
    assert field.killed()


def test_a_kill_by_earlyoom_is_told_as_one(field: Field) -> None:
    field.serve("prey")
    field.push("/run/systemd/system/earlyoom.service", EARLYOOM)
    field.machine.run("systemctl daemon-reload; systemctl start earlyoom")
    try:
        eat(field, "prey", field.available_mb() - 2 * FLOOR_MB - 30)
        [death, *_] = field.until_dead("prey")
    finally:
        field.machine.run(["systemctl", "stop", "earlyoom"])
    assert death["class"] == "killed-by-earlyoom", death
    assert death["requested"] is False


def test_what_is_starting_goes_and_what_serves_stays(field: Field) -> None:
    life = field.serve("chat", order=10)
    field.engine("late", order=20, life={"load_seconds": 400.0})
    field.apply()
    field.machine.run(["systemctl", "start", "--no-block", "vllm-late.service"])
    field.until("late", "loading")
    field.begin()
    field.hog(LEFT_MB)
    [death, *_] = field.until_dead("late")
    assert death["class"] == "memory-guard", death
    assert "memory.floor" in death["reason"]
    assert field.memory_steps()[:3] == ["throttle-compilers", "hold-starts", "end-starting"]
    field.until("late", "waiting", says="starts are held")
    one = field.one("chat")
    assert (one["state"], one["invocation_id"]) == ("ready", life)
    assert not field.killed()
    field.machine.run(["systemctl", "stop", "hog"])
    field.until_relaxed()
    field.until("late", "loading")


def test_what_serves_goes_only_where_it_may(field: Field) -> None:
    field.configure(mode="act")
    life = field.serve("chat", order=10)
    # Its end must bring memory back: else the guard goes on, and rightly, with the next engine.
    field.serve("spare", order=20, life={"memory_mib": FLOOR_MB})
    field.begin()
    field.hog(LEFT_MB)
    [death, *_] = field.until_dead("spare")
    assert (death["class"], death["was_ready"]) == ("memory-guard", True)
    # What follows when it takes its memory again is another spell of shortage.
    assert field.until_relaxed().count("end-serving") == 1
    one = field.one("chat")
    assert (one["state"], one["invocation_id"]) == ("ready", life)


def test_the_drivers_word_holds_starts_at_once(field: Field) -> None:
    field.begin()
    line = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)"
    field.push("/bed/line", f"<3>{line}\n")
    field.machine.run("cat /bed/line >/dev/kmsg")
    steps = field.machine.wait_until(
        lambda: taken if len(taken := field.memory_steps()) >= 2 else [], "two steps"
    )
    assert steps == ["throttle-compilers", "hold-starts"]
    # Shown from the daemon's next look at its guard on, and for a minute after the driver's word.
    field.machine.wait_until(
        lambda: (
            field.guards()["memory"]["starts_held"] and field.metrics()["sparkd_starts_held"] == 1.0
        ),
        lambda: f"it is shown that starts are held: {field.memory_steps()}",
    )
