# SPDX-License-Identifier: Apache-2.0
"""Starts that fit one at a time and not together, and memory that comes back late or never."""

import pytest

from tests.system.lab import overlaps
from tests.vm.field import FLOOR_MB, MEMORY_MB, Field

pytestmark = pytest.mark.vm

PEAK_MB = 400
SHARE = 0.26
"""What such an engine claims, as --gpu-memory-utilization: a little more than its peak."""


def guest(megabytes: int) -> list[str]:
    """The command line of a launch by hand that needs so much."""
    return [
        "env", "SUDO_USER=dev", "SPARKD_SIM_LIFE_FILE=/etc/sparkd-sim/guest.json", "sparkctl",
        "run", "--wait", "--memory", f"{megabytes}M", "--", "/usr/libexec/sparkd/sim/bin/vllm",
        "serve", "/models/guest", "--port", "8300", "--gpu-memory-utilization", str(SHARE),
    ]  # fmt: skip


def test_two_starts_and_a_guest_that_fit_one_at_a_time_but_not_together(field: Field) -> None:
    life = {"load_seconds": 5.0, "peak_mib": PEAK_MB}
    for name in ("one", "two"):
        field.engine(name, life=life, share=SHARE)
    field.apply()
    field.life("guest", **life)
    field.machine.run(["mkdir", "-p", "/models/guest"])
    assert 3 * PEAK_MB > field.available_mb() > PEAK_MB
    field.begin()
    field.start_all("one", "two")
    field.machine.start_background(guest(PEAK_MB + 20))
    for name in ("one", "two"):
        field.until(name, "ready", limit=900)
    field.machine.wait_until(
        lambda: [g["state"] for g in field.status()["guests"]] == ["ready"],
        "the guest is ready",
        limit=600,
    )
    assert not overlaps(field.intervals())
    assert not field.killed()
    assert not field.incidents("one") + field.incidents("two")
    assert field.lowest_mb() > FLOOR_MB


def test_memory_that_comes_back_late_is_waited_for(field: Field) -> None:
    field.engine("slow", share=SHARE)
    field.apply()
    field.ctl("start", "slow", "--wait")
    field.begin()
    field.hog(PEAK_MB)
    field.machine.run(["kill", "-KILL", field.show("slow", "MainPID")["MainPID"]])
    field.until("slow", "waiting", says="memory-holder")
    field.machine.run(["systemctl", "stop", "hog"])
    field.until("slow", "ready")
    assert len([row for row in field.incidents("slow") if not row["requested"]]) == 1
    assert not field.killed()


def test_memory_that_never_comes_back_holds_the_engine_and_names_who_has_it(field: Field) -> None:
    field.engine("one", share=SHARE)
    field.apply()
    field.limit_patience("one", 5)
    field.hog(PEAK_MB)
    field.ctl("start", "one", "--wait", check=False)
    seen = field.until("one", "held")
    assert "memory-holder" in seen["reason"]
    assert "GiB" in seen["reason"]


def test_a_start_that_never_fits_is_refused_with_the_arithmetic(field: Field) -> None:
    ended = field.machine.run(guest(MEMORY_MB), check=False)
    assert ended.returncode != 0
    assert "never fits" in ended.stderr
    assert "host.reserve" in ended.stderr
