#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the guards cost while nothing happens, beside earlyoom and systemd-oomd in the same minutes.

Boots one virtual machine with all of them and measures CPU time and wake-ups of each. sparkd is
measured as a whole and once more with its guards off, so the difference is what they cost. Each
counts in runs of its own, as figures; the ratios are of the same run.

    bench/guard_at_rest.py [--seconds 600] [--runs 3] [--suite bookworm]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "scripts"), str(HERE.parent)]

from beds import rootfs  # noqa: E402
from beds.vm import Machine  # noqa: E402
from figures import Figure, Report, as_table  # noqa: E402

PEERS = {"earlyoom": "earlyoom.service", "systemd-oomd": "systemd-oomd.service"}
EARLYOOM = """\
[Service]
ExecStart=/usr/bin/earlyoom -r 3600
"""
OFF = '[storm]\nmode = "off"\n[memory]\nmode = "off"\n'
COUNT = """\
import json, os, sys, time

def read(pid):
    cpu = wakes = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        base = f"/proc/{pid}/task/{task}"
        cpu += int(open(f"{base}/schedstat").read().split()[0])
        rows = dict(line.split(":", 1) for line in open(f"{base}/status") if ":" in line)
        wakes += int(rows["voluntary_ctxt_switches"])
    return cpu / 1e6, wakes

pids = json.loads(sys.argv[2])
before = {who: read(pid) for who, pid in pids.items()}
begin = time.monotonic()
time.sleep(float(sys.argv[1]))
took = time.monotonic() - begin
after = {who: read(pid) for who, pid in pids.items()}
print(json.dumps({
    who: [(after[who][0] - before[who][0]) * 60 / took, (after[who][1] - before[who][1]) / took]
    for who in pids
}))
"""


def package() -> Path:
    """The package that SPARKD_DEB names, else one built from this tree."""
    given = os.environ.get("SPARKD_DEB")
    if given:
        return Path(given)
    argv = [HERE.parent / "scripts/build-deb"]
    built = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    return Path(built.stdout.split()[-1])


def peer_files() -> dict[str, str | Path]:
    """Earlyoom and systemd-oomd as their packages have them, where a merged /usr wants them."""
    oomd = rootfs.tool_from_package("systemd-oomd", "lib/systemd/systemd-oomd").parents[2]
    files: dict[str, str | Path] = {
        "/usr/bin/earlyoom": rootfs.tool_from_package("earlyoom", "usr/bin/earlyoom"),
        "/etc/systemd/system/earlyoom.service": EARLYOOM,
    }
    for path in oomd.rglob("*"):
        if path.is_file() and "share/doc" not in str(path):
            inside = str(path.relative_to(oomd))
            files[f"/usr/{inside}" if inside.startswith("lib/") else f"/{inside}"] = path
    return files


def measure(machine: Machine, seconds: int) -> dict[str, list[float]]:
    """CPU milliseconds a minute and wake-ups a second, of each."""
    units = {"sparkd": "sparkd.service", **PEERS}
    pids = {who: int(machine.show(unit, "MainPID")["MainPID"]) for who, unit in units.items()}
    argv = ["python3", "-c", COUNT, str(seconds), json.dumps(pids)]
    found = json.loads(machine.out(argv, limit=seconds + 120))
    return {str(who): values for who, values in found.items()}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--suite", choices=["bookworm"], default="bookworm")
    options = parser.parse_args()
    layers = rootfs.with_package(options.suite, package())
    limit = 2.0 * options.runs * options.seconds + 900
    runs: list[dict[str, list[float]]] = []
    with Machine(layers, memory_mb=1600, files=peer_files(), limit=limit) as machine:
        version = machine.out(["systemctl", "--version"]).splitlines()[0]
        machine.run(
            "useradd --system systemd-oom; "
            "systemctl unmask systemd-oomd.service systemd-oomd.socket; "
            "systemctl daemon-reload; systemctl reload dbus; "
            "systemctl start earlyoom systemd-oomd"
        )
        machine.run(["sleep", "30"])
        for _ in range(options.runs):
            machine.push("/etc/sparkd/sparkd.toml", "")
            machine.run(["sparkctl", "apply"])
            machine.run(["sleep", "15"])
            one = measure(machine, options.seconds)
            machine.push("/etc/sparkd/sparkd.toml", OFF)
            machine.run(["sparkctl", "apply"])
            machine.run(["sleep", "15"])
            bare = measure(machine, options.seconds)["sparkd"]
            one["the guards alone"] = [a - b for a, b in zip(one["sparkd"], bare, strict=True)]
            runs.append(one)
    figures = []
    for index, (what, unit) in enumerate((("CPU", "ms per minute"), ("wake-ups", "per second"))):
        figures += [
            Figure(f"{what}: {who}", unit, [run[who][index] for run in runs]) for who in PEERS
        ]
        for who in ("the guards alone", "sparkd"):
            values = [run[who][index] for run in runs]
            figures.append(Figure(f"{what}: {who}", unit, values, f"{what}: earlyoom"))
            figures.append(Figure(f"{what}: {who} (oomd)", unit, values, f"{what}: systemd-oomd"))
    remark = f"{options.seconds} s a run, in qemu without KVM: compare the ratios, not the figures"
    print(as_table(Report("guard at rest", f"{options.suite}, {version}", figures, [remark])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
