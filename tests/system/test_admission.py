# SPDX-License-Identifier: Apache-2.0
"""Starts are admitted on their peak: what does not fit waits, a learned peak only for a while."""

import json
from typing import Any

import pytest

from tests.system.lab import HOST, Lab, overlaps, unit

pytestmark = pytest.mark.system
shares_memory = pytest.mark.xdist_group("vllm")
"""A container sees the host's memory, and what a real vLLM beside it takes and gives back."""
HOG = """\
import sys, time
size = int(sys.argv[1])
block = bytearray(size)
block[::4096] = b"x" * len(block[::4096])
print("holding", flush=True)
time.sleep(float(sys.argv[2]))
"""


def memory(lab: Lab) -> tuple[int, int]:
    rows = dict(
        line.split(":", 1) for line in lab.machine.read("/proc/meminfo").splitlines() if ":" in line
    )
    total, available = (int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, available


def reserve_all_but(lab: Lab, size: int) -> None:
    """Leave so many bytes of what is available now for starts."""
    _, available = memory(lab)
    mebi = (available - size) >> 20
    text = HOST.replace('reserve = "1G"', f'reserve = "{mebi}M"')
    lab.push("/etc/sparkd/sparkd.toml", text)


def learned(lab: Lab, name: str) -> dict[str, Any]:
    value = json.loads(lab.machine.read(f"/var/lib/sparkd/starts/{name}.json"))
    assert isinstance(value, dict)
    return value


def hog(lab: Lab, size: int, seconds: float) -> Any:
    lab.push("/usr/local/bin/memory-holder", f"#!/usr/bin/python3\n{HOG}")
    lab.machine.run(["chmod", "755", "/usr/local/bin/memory-holder"])
    held = lab.machine.start_background(["/usr/local/bin/memory-holder", str(size), str(seconds)])
    lab.machine.wait_until(lambda: "holding" in held.output(), "the holder has its memory")
    return held


def test_a_first_start_is_cold_the_next_is_warm_and_an_upgrade_makes_it_cold(lab: Lab) -> None:
    lab.engine("one", life={"load_seconds": 1.0})
    lab.apply()
    lab.ctl("start", "one", "--wait")
    boot = lab.boot("one")
    assert (boot["kind"], "no start" in boot["kind_reason"]) == ("cold", True)
    assert len(learned(lab, "one")["starts"][0]["cold_peak_bytes"]) == 1
    lab.ctl("restart", "one", "--wait")
    assert lab.boot("one")["kind"] == "warm"
    lab.engine("one", serve="max-num-seqs = 7", life={"load_seconds": 1.0})
    lab.apply()
    lab.ctl("restart", "one", "--wait")
    boot = lab.boot("one")
    assert boot["kind"] == "cold"
    assert "flags or environment" in boot["kind_reason"]
    assert "cold" in lab.ctl("status", "one").stdout


def test_a_learned_peak_that_does_not_fit_is_waited_for_and_then_passed_by(lab: Lab) -> None:
    """What neighbours took meanwhile is in it: the whole machine, and it keeps nobody down."""
    lab.engine("one", life={"load_seconds": 1.0})
    lab.apply()
    total, _ = memory(lab)
    lab.ctl("start", "one", "--wait")
    lab.ctl("stop", "one")
    known = learned(lab, "one")
    known["starts"][0]["warm_peak_bytes"] = [total]
    known["starts"][0]["cold_peak_bytes"] = [total]
    lab.push("/var/lib/sparkd/starts/one.json", json.dumps(known))
    lab.limit_patience("one", 20)
    lab.start_all("one")
    seen = lab.until("one", "waiting", says="it takes at its peak")
    assert "memory.floor" in seen["reason"]
    lab.until("one", "ready")
    lines = lab.machine.run(["journalctl", "--no-pager", "-o", "cat", "-u", unit("one")]).stdout
    assert "does not fit; going ahead on the estimate: " in lines
    assert "which vLLM claims" in lines
    assert all(row["requested"] for row in lab.incidents("one"))


def large_engine(lab: Lab, total: int) -> int:
    """An engine that wants a twentieth of the machine; returns what is left for it and a holder.

    The host's memory is shared with whatever else runs on it: both are large beside that.
    """
    lab.engine("one", life={"load_seconds": 1.0}, share=0.05)
    return total // 8


@shares_memory
def test_memory_that_comes_back_late_is_waited_for(lab: Lab) -> None:
    """A holder keeps the memory of the dead for a while: the restart waits for it, then goes."""
    size = large_engine(lab, memory(lab)[0])
    lab.apply()
    lab.ctl("start", "one", "--wait")
    reserve_all_but(lab, size)
    lab.apply()
    holder = hog(lab, size, 600)
    lab.machine.run(["kill", "-KILL", lab.show("one", "MainPID")["MainPID"]])
    lab.until_dead("one")
    lab.until("one", "waiting", says="memory-holder")
    holder.kill()
    lab.until("one", "ready")
    assert len([row for row in lab.incidents("one") if not row["requested"]]) == 1


@shares_memory
def test_memory_that_never_comes_back_holds_the_engine_with_the_holders_name(lab: Lab) -> None:
    size = large_engine(lab, memory(lab)[0])
    reserve_all_but(lab, size)
    lab.apply()
    lab.limit_patience("one", 5)
    holder = hog(lab, size, 600)
    lab.ctl("start", "one", "--wait", check=False)
    seen = lab.until("one", "held")
    assert "memory-holder" in seen["reason"]
    assert "GiB" in seen["reason"]
    assert holder.running()


def test_two_starts_and_a_guest_go_one_after_the_other(lab: Lab) -> None:
    machine = lab.machine
    machine.run(["mkdir", "-p", "/models/guest"])
    machine.run(["useradd", "--create-home", "ann"])
    lab.life("guest", load_seconds=2.0)
    for name in ("one", "two"):
        lab.engine(name, life={"load_seconds": 2.0})
    lab.apply()
    lab.start_all("one", "two")
    argv = [
        "env", "SUDO_USER=ann", "SPARKD_SIM_LIFE_FILE=/etc/sparkd-sim/guest.json", "sparkctl",
        "run", "--wait", "--memory", "100M", "--", "/usr/libexec/sparkd/sim/bin/vllm", "serve",
        "/models/guest", "--port", "8300", "--gpu-memory-utilization", "0.01",
    ]  # fmt: skip
    machine.start_background(argv)
    for name in ("one", "two"):
        lab.until(name, "ready")
    machine.wait_until(
        lambda: any(g["state"] == "ready" for g in lab.status()["guests"]), "the guest is ready"
    )
    assert not overlaps(lab.intervals())
    assert not lab.incidents()
