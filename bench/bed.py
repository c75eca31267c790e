# SPDX-License-Identifier: Apache-2.0
"""A guest to measure in: sparkd installed, simulated engines, and programs that watch from inside.

What is timed is timed in the guest, by the programs in `guest/`; entering it takes longer than most
of what is measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.system.lab import Lab

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path(__file__).resolve().parent
GUEST = "/run/bench"
SIM = "/usr/libexec/sparkd/sim/bin/vllm"
LOAD_SECONDS = 0.3


class Bed(Lab):
    """A lab whose engines load fast, with the guest programs in it."""

    def __init__(self, machine: Any, runs: int) -> None:  # noqa: ANN401  (as Lab)
        super().__init__(machine)
        self.runs = runs
        for program in sorted((HERE / "guest").glob("*.py")):
            machine.push_file(program, f"{GUEST}/{program.name}")

    def guest(self, program: str, *words: str, limit: float = 600.0) -> Any:  # noqa: ANN401  (JSON)
        """Run one of the guest programs and return the JSON that it prints."""
        done = self.machine.run(["python3", f"{GUEST}/{program}.py", *words], limit=limit)
        return json.loads(done.stdout)

    def cost(
        self, commands: Mapping[str, Sequence[str]], runs: int = 0, limit: float = 600.0
    ) -> dict[str, dict[str, list[float]]]:
        """CPU and wall time in ms and peak memory in MiB of commands, taken in turns.

        Returns:
            By command: `cpu`, `wall`, `peak`, each with one value for every run.
        """
        text = json.dumps({name: list(argv) for name, argv in commands.items()})
        found = self.guest("cost", str(runs or self.runs), text, limit=limit)
        assert isinstance(found, dict)
        return found

    def engines(self, *names: str) -> None:
        """Configure and start engines and wait until they are ready."""
        for order, name in enumerate(names):
            self.engine(name, order=order, life={"load_seconds": LOAD_SECONDS})
        self.apply()
        self.ctl("start", *names, "--wait")

    def bare_unit(self, name: str, port: int, delay: str = "1s") -> str:
        """Start the same simulated engine in a unit that sparkd has nothing to do with."""
        self.life(name, load_seconds=LOAD_SECONDS)
        self.push(
            f"/etc/systemd/system/{name}.service",
            f"""\
[Unit]
StartLimitIntervalSec=0
[Service]
Type=exec
ExecStart={SIM} serve /models/{name} --port {port} --served-model-name {name}
Environment=SPARKD_SIM_LIFE_FILE=/etc/sparkd-sim/{name}.json
Restart=always
RestartSec={delay}
KillMode=mixed
""",
        )
        self.machine.run("systemctl daemon-reload")
        self.machine.run(["systemctl", "start", f"{name}.service"])
        self.ports[name] = port
        self.machine.wait_until(lambda: self.serves(name), f"{name} serves")
        return f"{name}.service"
