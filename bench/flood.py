# SPDX-License-Identifier: Apache-2.0
"""A log of 200,000 lines with the fatal one in the middle: how fast is it read and judged?

Against journalctl over the same entries (the ceiling of any reader), and against established
matchers with the same patterns: grep with the literals, fail2ban-regex with the expressions
(on a tenth of the lines: it is that slow). Then a simulated engine that dies in such a flood:
how long systemd waits for post-mortem, and the memory that this takes.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from beds.rootfs import tool_from_package
from figures import Figure

if TYPE_CHECKING:
    from bed import Bed

SUITES = ("bookworm",)
LINES = 200_000
FEWER = LINES // 10
FAIL2BAN = "/opt/fail2ban"
READ = "journalctl, read only"
CLASSIFY = "python3 -IS /run/bench/classify.py"


def binds() -> dict[str, str]:
    """fail2ban, unpacked on the host: the guest has no network."""
    program = tool_from_package("fail2ban", "usr/bin/fail2ban-regex")
    return {str(program.parents[2]): FAIL2BAN}


def run(bed: Bed) -> list[Figure]:
    """Measure."""
    invocation = _flood(bed)
    text = f"journalctl --output=cat _SYSTEMD_INVOCATION_ID={invocation}"
    bed.machine.run(f"{text} > /run/flood.log; head -n {FEWER} /run/flood.log > /run/fewer.log")
    bed.machine.run(["python3", "/run/bench/literals.py", "/run/literals", "/run/peer.conf"])
    commands = {
        READ: text,
        "sparkd, read and framed": f"{CLASSIFY} frame {invocation}",
        "sparkd, read, framed and matched": f"{CLASSIFY} match {invocation}",
        "journalctl | grep -F -f (literals)": f"{text} | grep -F -f /run/literals",
        "fail2ban-regex, a file": _fail2ban(),
    }
    shell = {name: ["sh", "-c", command] for name, command in commands.items()}
    found = bed.cost(shell, runs=bed.runs, limit=1200)
    figures = []
    for name, kinds in found.items():
        lines = FEWER if name.startswith("fail2ban") else LINES
        speeds = [lines / ms for ms in kinds["cpu"]]
        peer = "" if name == READ else f"speed: {READ}"
        figures.append(Figure(f"speed: {name}", "lines per ms of CPU", speeds, peer))
    return figures + _death_in_a_flood(bed)


def _flood(bed: Bed) -> str:
    """Have a unit print the flood; its invocation."""
    unit = "flood.service"
    bed.push(
        f"/run/systemd/system/{unit}",
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nLogRateLimitBurst=10000000\n"
        f"LogRateLimitIntervalSec=1s\nExecStart=/usr/bin/python3 /run/bench/flood.py {LINES}\n",
    )
    bed.machine.run("systemctl daemon-reload")
    bed.machine.run(["systemctl", "start", unit])
    bed.machine.run(["journalctl", "--sync"])
    invocation = str(bed.machine.show(unit, "InvocationID")["InvocationID"])
    count = bed.machine.out(f"journalctl --output=cat _SYSTEMD_INVOCATION_ID={invocation} | wc -l")
    assert int(count) == LINES, f"the journal has {count} of {LINES} lines"
    return invocation


def _fail2ban() -> str:
    environment = f"PYTHONPATH={FAIL2BAN}/usr/lib/python3/dist-packages"
    program = shlex.quote(f"{FAIL2BAN}/usr/bin/fail2ban-regex")
    options = f"--config {FAIL2BAN}/etc/fail2ban --datepattern '{{NONE}}' --print-no-missed"
    return f"{environment} python3 {program} {options} /run/fewer.log /run/peer.conf"


def _death_in_a_flood(bed: Bed) -> list[Figure]:
    """The delay between the death and RestartSec=, with few lines and with the flood."""
    bed.engines("quiet", "loud")
    spans: dict[str, list[float]] = {"quiet": [], "loud": []}
    peaks: list[float] = []
    named: list[float] = []
    for _ in range(bed.runs):
        for name, before in (("quiet", 0), ("loud", LINES // 2)):
            life = f"cuda-illegal-instruction,{before}"
            unit = f"vllm-{name}.service"
            seen = bed.guest("restart", unit, str(bed.ports[name]), life, limit=300)
            spans[name].append(seen["end"])
            bed.until_dead(name, len(spans[name]))
            if name == "loud":
                peaks.append(seen["peak"])
                # post-mortem reads for so long at most; on a busy machine that may not be enough
                named.append(float(bool(bed.incidents(name)[0]["signature"])))
            bed.until(name, "ready", limit=120)
            bed.ctl("release", name)
    figures = [
        Figure(f"death to pause, {LINES} lines", "ms", spans["loud"], "death to pause, few lines"),
        Figure("death to pause, few lines", "ms", spans["quiet"]),
    ]
    figures.append(Figure("the fatal line was found (1) or not (0)", "", named))
    return [*figures, Figure("post-mortem's anonymous memory at its peak", "MiB", peaks)]
