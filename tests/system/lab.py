# SPDX-License-Identifier: Apache-2.0
"""A guest with sparkd installed and simulated engines in it, for the tests of behaviour.

Everything is done as an operator would: files under /etc/sparkd, sparkctl, systemctl.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparkd.core.bus_contract import INTERFACE, NAME, PATH
from sparkd.core.events import Event

STARTED = "39f53479d3a045ac8e11786248231fbf"
"""systemd's message: a unit's start job is done."""
START_FAILED = "be02cf6855d2428ba40df7e9d022f03d"
PROCESS_EXITED = "98e322203f7a4ed290d09fe03c09fe15"
"""Of a unit's main process, or of its gate when that fails."""
HELPERS = ("await-slot", "await-ready", "post-mortem", "thaw")
TRACEBACK_LINES = 40
HOST = """\
[host]
reserve = "1G"
[restart]
burst = 3
window = "1h"
delay = "1s"
"""


class Interval(NamedTuple):
    """The time in which a start was past ExecStartPre=, lived and was not ready.

    Seconds since the epoch.
    """

    engine: str
    begin: float
    end: float


class Lab:
    """One guest and its engines."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.ports: dict[str, int] = {}
        self.push("/etc/sparkd/sparkd.toml", HOST)

    def push(self, path: str, text: str) -> None:
        self.machine.push(path, text)

    def engine(
        self,
        name: str,
        *,
        order: int = 50,
        life: dict[str, object] | None = None,
        extra: str = "",
        serve: str = "",
        share: float = 0.01,
    ) -> None:
        """Configure one simulated engine; `life` goes to a file that each start reads anew.

        `share` is what it claims of the machine's memory, without really taking it.
        """
        port = self.ports.setdefault(name, 8100 + len(self.ports))
        self.machine.run(["mkdir", "-p", f"/models/{name}"])
        self.life(name, **(life or {}))
        self.push(
            f"/etc/sparkd/engines.d/{name}.toml",
            f"""\
model = "/models/{name}"
port = {port}
order = {order}
{extra}
[runtime]
venv = "/usr/libexec/sparkd/sim"
[serve]
gpu-memory-utilization = {share}
served-model-name = ["{name}"]
{serve}
[env]
SPARKD_SIM_LIFE_FILE = "/etc/sparkd-sim/{name}.json"
[ready]
budget = "60s"
""",
        )

    def life(self, name: str, **life: object) -> None:
        """Write what happens to the engine from its next start on."""
        self.push(f"/etc/sparkd-sim/{name}.json", json.dumps({"load_seconds": 1.0, **life}))

    def ctl(self, *words: str, check: bool = True, limit: float = 300.0) -> Any:
        return self.machine.run(["sparkctl", *words], check=check, limit=limit)

    def apply(self, *words: str) -> str:
        return str(self.ctl("apply", *words).stdout)

    def check_tracebacks(self) -> None:
        """Fail with what the daemon and the helpers said of errors that nobody had thought of."""
        helpers = [f"SYSLOG_IDENTIFIER={name}" for name in HELPERS]
        entries = self.machine.journal("_SYSTEMD_UNIT=sparkd.service", "+", *helpers)
        lines = [str(entry.get("MESSAGE", "")) for entry in entries]
        starts = [at for at, line in enumerate(lines) if line.startswith("Traceback")]
        assert not starts, "\n".join(lines[starts[0] : starts[0] + TRACEBACK_LINES])

    def limit_patience(self, name: str, seconds: int) -> None:
        """How long an obstacle is waited for: minutes are too long for a test."""
        text = self.machine.read(f"/etc/systemd/system/{unit(name)}")
        command = text[text.index("ExecStartPre=") : text.index("\nExecStart=")]
        self.push(
            f"/etc/systemd/system/{unit(name)}.d/patience.conf",
            f"[Service]\nExecStartPre=\n{command} --obstacle-limit={seconds}\n",
        )
        self.machine.run(["systemctl", "daemon-reload"])

    def start_all(self, *names: str) -> None:
        """Start several engines at the same moment, by hand."""
        self.machine.run(["systemctl", "start", "--no-block", *(unit(name) for name in names)])

    def status(self) -> dict[str, Any]:
        return dict(self._answer("Status", [], "status"))

    def one(self, name: str) -> dict[str, Any]:
        """The engine's part of the status."""
        return next(e for e in self.status()["engines"] if e["name"] == name)

    def incidents(self, name: str = "") -> list[dict[str, Any]]:
        rows = self._answer("Incidents", ["us", "100", ""], "incidents", "--limit=100")
        return [row for row in rows if name in ("", row["engine"])]

    def _answer(self, method: str, arguments: list[str], *words: str) -> Any:
        """What sparkctl prints with --json and these words.

        It prints what the daemon answers, and works that out itself where the daemon is absent. So
        the daemon is asked first: waiting asks hundreds of times, each time sparkctl is a Python.
        """
        call = bus_call(method, *arguments, options=["--timeout=5", "--auto-start=no"])
        asked = self.machine.run(call, check=False)
        if asked.returncode == 0:
            return bus_answer(asked.stdout)
        return json.loads(self.ctl(*words, "--json").stdout)

    def until(
        self,
        name: str,
        *states: str,
        says: str = "",
        other_than: str = "",
        limit: float | None = None,
    ) -> dict[str, Any]:
        """Wait until sparkctl says that the engine is in one of these states.

        `says` has to be part of its reason then, and `other_than` is a life that must be over.
        """
        seen: dict[str, Any] = {}

        def there() -> bool:
            seen.update(self.one(name))
            is_other = seen["invocation_id"] != other_than
            return seen["state"] in states and says in seen["reason"] and is_other

        def what() -> str:
            wanted = f"{' or '.join(states)}{says and f' and says {says!r}'}"
            life = other_than and f" in another life than {other_than}"
            last = f"{seen['state']}: {seen['reason']} ({seen['invocation_id']})"
            return f"{name} is {wanted}{life}; at last it was {last}"

        self.machine.wait_until(there, what, limit=limit)
        assert seen["reason"], "every state carries its reason"
        return seen

    def until_dead(
        self, name: str, count: int = 1, limit: float | None = None
    ) -> list[dict[str, Any]]:
        """Wait until so many unrequested ends of life of the engine are recorded; newest first.

        What the status says of the last death is one of these, or a newer one, from then on.
        """
        rows: list[dict[str, Any]] = []

        def there() -> bool:
            rows[:] = [row for row in self.incidents(name) if not row["requested"]]
            return len(rows) >= count

        def what() -> str:
            return f"{count} deaths of {name}; at last there were {[row['class'] for row in rows]}"

        self.machine.wait_until(there, what, limit=limit)
        return rows

    def end_of(self, name: str, invocation: str) -> dict[str, Any]:
        """Wait until the end of this life is on record, whoever asked for it.

        A stop is over when systemd says so; the record comes by the journal, a moment later.
        """

        def there() -> dict[str, Any] | None:
            rows = [row for row in self.incidents(name) if row["invocation_id"] == invocation]
            return rows[0] if rows else None

        return dict(self.machine.wait_until(there, f"the end of {name} {invocation} is on record"))

    def until_down(self, name: str) -> None:
        """Wait until systemd has nothing more to do with the unit: its post-mortem is over, too."""
        shown: dict[str, str] = {}

        def there() -> bool:
            shown.clear()
            shown.update(self.show(name, "ActiveState", "SubState", "Job"))
            # The job's number: systemctl shows nothing of a unit that has none.
            return shown["ActiveState"] in {"inactive", "failed"} and not shown.get("Job", "")

        self.machine.wait_until(there, lambda: f"{unit(name)} is down; at last it was {shown}")

    def boot(self, name: str) -> dict[str, Any]:
        """What is on record of the start of the life that goes on; it comes by the journal, too."""

        def there() -> dict[str, Any] | None:
            seen = self.one(name)
            boot = seen["boot"]
            return boot if boot and boot["invocation_id"] == seen["invocation_id"] else None

        return dict(self.machine.wait_until(there, f"the start of {name} is on record"))

    def die(self, name: str, kind: str) -> None:
        """Make a serving engine die now."""
        body = json.dumps({"kind": kind})
        url = f"http://127.0.0.1:{self.ports[name]}/sim/die"
        self.machine.run(["curl", "-sS", "-m", "30", "-d", body, url], check=False)

    def serves(self, name: str) -> bool:
        url = f"http://127.0.0.1:{self.ports[name]}/v1/models"
        done = self.machine.run(["curl", "-sf", "-m", "20", url], check=False)
        return done.returncode == 0 and name in done.stdout

    def show(self, name: str, *properties: str) -> dict[str, str]:
        return dict(self.machine.show(unit(name), *properties))

    def intervals(self) -> list[Interval]:
        """Every start's time between taking the slot and systemd calling it started or ended.

        A start that fails is over when systemd has seen its process end: the slot is free from then
        on, while its end of life is still being read and recorded.
        """
        ended = (Event.END_OF_LIFE, Event.START_REFUSED)
        ids = [Event.SLOT_TAKEN, *ended, STARTED, START_FAILED, PROCESS_EXITED]
        entries = self.machine.journal(*(f"MESSAGE_ID={one}" for one in ids))
        open_starts: dict[str, float] = {}
        found = []
        for entry in entries:
            at = int(entry["__REALTIME_TIMESTAMP"]) / 1e6
            name = entry.get("SPARKD_UNIT") or entry.get("UNIT", "")
            if entry["MESSAGE_ID"] == Event.SLOT_TAKEN:
                assert name not in open_starts, f"{name} took the slot twice without an end"
                open_starts[name] = at
            elif name in open_starts:
                found.append(Interval(name, open_starts.pop(name), at))
        assert not open_starts, f"starts without an end: {open_starts}"
        return found


def bus_call(*words: str, options: Sequence[str] = ("--timeout=60",)) -> list[str]:
    """The command that calls a method of the daemon's: its name, its signature, its arguments."""
    return ["busctl", "--json=short", *options, "call", NAME, PATH, INTERFACE, *words]


def bus_answer(stdout: str) -> Any:
    """What the daemon has said to a `bus_call`."""
    return json.loads(json.loads(stdout)["data"][0])


def unit(name: str) -> str:
    return f"vllm-{name}.service"


def overlaps(intervals: list[Interval]) -> list[tuple[Interval, Interval]]:
    """Pairs of starts that were under way at the same moment."""
    ordered = sorted(intervals, key=lambda i: i.begin)
    return [(a, b) for i, a in enumerate(ordered) for b in ordered[i + 1 :] if b.begin < a.end]
