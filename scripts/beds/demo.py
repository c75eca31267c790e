# SPDX-License-Identifier: Apache-2.0
"""The demo: an engine dies with exit status 0 under a real systemd, and comes back.

Everything shown is checked; the exit status is 1 when something did not happen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from beds import rootfs
from beds.cache import BedError
from beds.container import Container

if TYPE_CHECKING:
    from collections.abc import Iterable

REPO = Path(__file__).resolve().parents[2]
PORTS = {"chat": 8001, "embed": 8002}
LOAD_SECONDS = 4
HOST = '[restart]\nburst = 3\nwindow = "1h"\ndelay = "1s"\n'
ENGINE = """\
model = "/models/{name}"
port = {port}
order = {order}

[runtime]
venv = "/usr/libexec/sparkd/sim"

[serve]
gpu-memory-utilization = 0.01
served-model-name = ["{name}"]

[env]
SPARKD_SIM_LOAD_SECONDS = "{load}"

[ready]
budget = "60s"
"""


class Failed(Exception):  # noqa: N818  (what the demo says, not an error of the program)
    """Something that the demo promises did not happen."""


class Demo:
    """One machine, and what is told about it."""

    def __init__(self, machine: Container) -> None:
        self.machine = machine
        self.begin = time.monotonic()
        self.seen: dict[str, str] = {}

    def tell(self, text: str) -> None:
        """Say what is going to be seen."""
        bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() else ("", "")
        print(f"\n{bold}[{time.monotonic() - self.begin:5.1f} s] {text}{plain}", flush=True)

    def note(self, text: str) -> None:
        """Print one thing as it is seen."""
        print(f"[{time.monotonic() - self.begin:5.1f} s]   {text}", flush=True)

    def show(self, *argv: str, check: bool = True) -> str:
        """Run a command in the machine and print it with what it prints."""
        print(f"  # {' '.join(argv)}", flush=True)
        done = self.machine.run(argv, check=check)
        text = done.stdout + done.stderr
        print("".join(f"  {line}\n" for line in text.splitlines()), end="", flush=True)
        return done.stdout

    def engines(self) -> dict[str, dict[str, Any]]:
        """`sparkctl status --json`, by the engine's name."""
        status = json.loads(self.machine.out(["sparkctl", "status", "--json"]))
        return {engine["name"]: engine for engine in status["engines"]}

    def incidents(self) -> list[dict[str, Any]]:
        """`sparkctl incidents --json`, newest first."""
        found = json.loads(self.machine.out(["sparkctl", "incidents", "--json"]))
        return [incident for incident in found if not incident["requested"]]

    def watch(self, name: str, states: Iterable[str], limit: float = 180) -> None:
        """Follow the states of all engines until that one is in one of these."""
        wanted = set(states)
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            engines = self.engines()
            for engine in engines.values():
                if self.seen.get(engine["name"]) != engine["state"]:
                    self.seen[engine["name"]] = engine["state"]
                    self.note(f"{engine['name']:6} {engine['state']:10} {engine['reason']}")
            loading = [e["name"] for e in engines.values() if e["state"] == "loading"]
            require(len(loading) < 2, f"only one engine loads at a time, not {loading}")
            if engines[name]["state"] in wanted:
                return
            time.sleep(0.2)
        raise Failed(f"{name} is {self.seen.get(name)} and not {' or '.join(wanted)}")

    def kill(self, name: str) -> None:
        """Let the engine's core die of a CUDA error: the API server then exits 0."""
        body = json.dumps({"kind": "cuda-illegal-instruction"})
        script = (
            "import sys, urllib.request as r; r.urlopen(r.Request(sys.argv[1],"
            " sys.argv[2].encode(), {'Content-Type': 'application/json'}), timeout=30)"
        )
        url = f"http://127.0.0.1:{PORTS[name]}/sim/die"
        # It may die before it has answered.
        self.machine.run(["python3", "-c", script, url, body], check=False)

    def die(self, name: str, count: int) -> dict[str, Any]:
        """Kill it and wait for the count-th incident."""
        self.kill(name)
        self.machine.wait_until(lambda: len(self.incidents()) >= count, f"{count} incidents")
        return self.incidents()[0]


def require(condition: object, sentence: str) -> None:
    """Check one promise."""
    if not condition:
        raise Failed(sentence)


def install(demo: Demo, deb: Path) -> None:
    """Install the package as an operator does, from the file."""
    demo.machine.push_file(deb, f"/root/{deb.name}")
    demo.tell(f"A machine with {demo.machine.out(['systemctl', '--version']).splitlines()[0]}.")
    # Its dependencies are in the bed already, and the bed has no network: no indexes.
    demo.machine.run(
        ["apt-get", "--quiet=2", "--yes", "-o", "Dir::Etc::sourcelist=/dev/null",
         "-o", "Dir::Etc::sourceparts=/dev/null", "install", f"/root/{deb.name}"],
        env={"DEBIAN_FRONTEND": "noninteractive"}, limit=300,
    )  # fmt: skip
    demo.note(f"apt install ./{deb.name}: sparkd.service is active")
    require(demo.machine.show("sparkd.service", "ActiveState")["ActiveState"] == "active",
            "sparkd.service runs after its installation")  # fmt: skip


def configure(demo: Demo) -> None:
    """Two engines, a file each."""
    demo.tell("Two engines, simulated: the processes, log lines and endpoints of vLLM, no GPU.")
    demo.machine.push("/etc/sparkd/sparkd.toml", HOST)
    for order, (name, port) in enumerate(PORTS.items(), 1):
        demo.machine.run(["mkdir", "-p", f"/models/{name}"])
        text = ENGINE.format(name=name, port=port, order=order * 10, load=LOAD_SECONDS)
        demo.machine.push(f"/etc/sparkd/engines.d/{name}.toml", text)
    demo.show("sparkctl", "check")
    written = demo.machine.out(["sparkctl", "apply"])
    changes = [line for line in written.splitlines() if line.startswith("vllm")]
    print("  # sparkctl apply\n" + "".join(f"  {line}\n" for line in changes), end="")
    require(len(changes) >= 4, "apply writes the units")


def start(demo: Demo) -> None:
    """Both in the same moment, one at a time."""
    demo.tell("Both are started in the same moment; the start slot lets one through at a time.")
    for name in reversed(PORTS):
        demo.machine.run(["systemctl", "start", "--no-block", f"vllm-{name}.service"])
    demo.watch("chat", ["ready"])
    demo.watch("embed", ["ready"])
    demo.show("sparkctl", "status")


def lose_one(demo: Demo) -> None:
    """The founding incident, and its end."""
    other = demo.engines()["embed"]["invocation_id"]
    demo.tell("A request makes chat's engine core die. vLLM's API server shuts down and exits 0.")
    incident = demo.die("chat", 1)
    log = demo.machine.out(
        ["journalctl", "--unit=vllm-chat.service", "--output=cat", "--no-pager", "--lines=400"]
    )
    fatal = [line for line in log.splitlines() if "CUDA error" in line]
    require(fatal, "the engine's own log has the fatal line")
    demo.note(f"its log: {fatal[0].partition('] ')[2] or fatal[0]}")
    demo.note("systemd: exit status 0, Result=success; Restart=on-failure would leave it dead")
    require(incident["engine"] == "chat", "the incident is chat's")
    require(incident["exit_code"] == 0, "the exit status was 0")
    require(incident["result"] == "success", "systemd calls it a success")
    demo.watch("chat", ["ready"])
    require(demo.engines()["embed"]["invocation_id"] == other, "embed was not touched")
    demo.show("sparkctl", "incidents")
    demo.show("sparkctl", "status")


def hold(demo: Demo) -> None:
    """The limit, and the way out of it."""
    demo.tell("It dies again and again. The third time within the hour it is held, not restarted.")
    demo.die("chat", 2)
    demo.watch("chat", ["ready"])
    demo.die("chat", 3)
    demo.watch("chat", ["held"])
    require(demo.engines()["embed"]["state"] == "ready", "embed still serves")
    demo.show("sparkctl", "status", "chat", check=False)

    demo.tell("The operator has mended the cause: restart releases it.")
    demo.show("sparkctl", "restart", "chat", "--wait")
    require(demo.engines()["chat"]["state"] == "ready", "chat serves again")

    demo.tell("A stop also ends with exit status 0, but somebody asked for it: it stays stopped.")
    demo.show("systemctl", "stop", "vllm-chat.service")
    demo.watch("chat", ["stopped"])
    require(len(demo.incidents()) == 3, "a stop is no incident")


def main() -> int:
    """Build what is missing, boot, and go through the story."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("suite", nargs="?", default="bookworm", choices=list(rootfs.SUITES))
    suite = parser.parse_args().suite
    try:
        layers = rootfs.base(suite)
        built = subprocess.run(
            [REPO / "scripts/build-deb"], stdout=subprocess.PIPE, text=True, check=True
        )
        with Container(layers, limit=1800) as machine:
            demo = Demo(machine)
            install(demo, Path(built.stdout.split()[-1]))
            configure(demo)
            start(demo)
            lose_one(demo)
            hold(demo)
            demo.tell("Done: everything above was seen and checked. The machine is removed.")
    except Failed as failed:
        print(f"\nscripts/demo: did not happen: {failed}", file=sys.stderr)
        return 1
    except (BedError, subprocess.CalledProcessError) as error:
        print(f"\nscripts/demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
