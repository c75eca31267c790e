# SPDX-License-Identifier: Apache-2.0
"""CPU and memory while nothing happens: sparkd and supervisord with the same number of children.

The children are simulated engines, each side its own. Who really watches sparkd's is systemd, so
the CPU time of PID 1 in the same minute stands beside it; it also serves the rest of the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bed import LOAD_SECONDS, SIM
from figures import Figure

if TYPE_CHECKING:
    from bed import Bed

SUITES = ("bookworm", "trixie")
ENGINES = ("first", "second")
SECONDS = 60
RUNS_MAX = 3
SUPERVISOR = """\
[supervisord]
nodaemon=true
user=root
logfile=/var/log/supervisord.log
pidfile=/run/supervisord.pid
[unix_http_server]
file=/run/supervisor.sock
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""
PROGRAM = """\
[program:{name}]
command={sim} serve /models/{name} --port {port} --served-model-name {name}
environment=SPARKD_SIM_LOAD_SECONDS="{load}"
autorestart=true
"""


def run(bed: Bed) -> list[Figure]:
    """Measure both over the same minutes."""
    bed.engines(*ENGINES)
    _supervisord(bed)
    pids = {
        who: bed.machine.show(unit, "MainPID")["MainPID"]
        for who, unit in (("sparkd", "sparkd.service"), ("supervisord", "peer.service"))
    }
    text = "{" + ", ".join(f'"{who}": {pid}' for who, pid in (*pids.items(), ("PID 1", 1))) + "}"
    bed.machine.run(["sleep", "5"])
    runs = [
        bed.guest("idle", str(SECONDS), text, limit=SECONDS + 30)
        for _ in range(min(bed.runs, RUNS_MAX))
    ]

    def figure(what: str, unit: str, key: str, who: str, peer: str = "") -> Figure:
        return Figure(f"{what}: {who}", unit, [one[who][key] for one in runs], peer)

    figures = []
    for what, unit, key in (
        (f"CPU in {SECONDS} s", "ms", "cpu"), ("RSS", "MiB", "rss"), ("PSS", "MiB", "pss"),
    ):  # fmt: skip
        figures.append(figure(what, unit, key, "sparkd", f"{what}: supervisord"))
        figures.append(figure(what, unit, key, "supervisord"))
    figures.append(figure(f"CPU in {SECONDS} s", "ms", "cpu", "PID 1"))
    return figures


def _supervisord(bed: Bed) -> None:
    ports = {f"peer-{name}": 8310 + i for i, name in enumerate(ENGINES)}
    programs = [
        PROGRAM.format(name=name, sim=SIM, port=port, load=LOAD_SECONDS)
        for name, port in ports.items()
    ]
    bed.push("/etc/peer.conf", SUPERVISOR + "".join(programs))
    command = ["supervisord", "-c", "/etc/peer.conf"]
    bed.machine.run(["systemd-run", "--quiet", "--unit=peer.service", *command])
    bed.ports.update(ports)
    for name in ports:
        bed.machine.wait_until(lambda name=name: bed.serves(name), f"{name} serves")
