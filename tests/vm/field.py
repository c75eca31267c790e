# SPDX-License-Identifier: Apache-2.0
"""A virtual machine with sparkd, simulated engines and storms of stand-in compilers."""

from typing import Any

from tests.system.lab import Lab

MEMORY_MB = 1600
"""Some 1100 MB of them are available when everything is up."""
RESERVE_MB = 300
FLOOR_MB = 150
JOBS = 20
JOB_MB = 100
"""All of them together would take twice what is available."""

HOST = """\
[host]
reserve = "{reserve}M"
[compile]
max_jobs = 4
[memory]
floor = "{floor}M"
mode = "{mode}"
[storm]
mode = "{storm}"
job-memory = "{job}M"
[restart]
delay = "1s"
"""
WATCH = """\
low=999999999
exec 9<> <(:)
while :; do
    while read -r key value _; do
        [[ $key == MemAvailable: ]] || continue
        ((value < low)) && low=$value && echo $low >/run/lowest
        break
    done </proc/meminfo
    read -r -t 0.1 _ <&9
done
"""
HOG = """\
#!/usr/bin/python3
import sys, time
leave, seconds = map(int, sys.argv[1:])
row = next(line for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
kept = [b"x" * (1 << 20) for _ in range(int(row.split()[1]) // 1024 - leave)]
open("/run/hog", "w").close()
time.sleep(seconds)
"""


class Field(Lab):
    """One machine; `clean` makes it fit for the next test."""

    def __init__(self, machine: Any) -> None:
        super().__init__(machine)
        self.configure()
        machine.run(["useradd", "--create-home", "dev"])
        machine.push("/bed/lowest", WATCH)
        self.begun = ""

    def configure(self, *, mode: str = "protect", storm: str = "throttle") -> None:
        self.changed = True
        self.push(
            "/etc/sparkd/sparkd.toml",
            HOST.format(reserve=RESERVE_MB, floor=FLOOR_MB, mode=mode, storm=storm, job=JOB_MB),
        )

    def engine(self, name: str, **more: Any) -> None:
        """As in a container, but everything takes its time here."""
        super().engine(name, **more)
        path = f"/etc/sparkd/engines.d/{name}.toml"
        self.push(path, self.machine.read(path).replace('"60s"', '"600s"'))

    def serve(self, name: str, **more: Any) -> str:
        """Have an engine that serves; returns its invocation. "chat" stays for later tests."""
        if name == "chat" and name in self.ports and not more:
            return str(self.until(name, "ready")["invocation_id"])
        self.engine(name, **more)
        self.apply()
        self.ctl("start", name)
        return str(self.until(name, "ready")["invocation_id"])

    def storm(self, folder: str, *, megabytes: int = JOB_MB, milliseconds: int = 4800) -> str:
        """A build of 20 files; returns the command that runs all of them at a time.

        Each grows within two seconds of CPU time and goes on with what it has, so that what a guard
        does about all of them can be seen before the first are done, however slow it is to look.
        """
        rule = f"rule cc\n  command = /opt/cuda/bin/cicc {megabytes} {milliseconds} $out\n"
        builds = "".join(f"build o{number}: cc\n" for number in range(JOBS))
        self.machine.run(["rm", "-rf", folder])
        self.push(f"{folder}/build.ninja", rule + builds)
        self.machine.run(["chown", "-R", "dev", folder])
        return f"cd {folder} && exec ninja -j{JOBS}"

    def by_hand(self, command: str) -> Any:
        """Run a command as a person does who has logged in."""
        return self.machine.start_background(["su", "--login", "dev", "--command", command])

    def compilers(self) -> str:
        """The states of all compilers, a letter each: R runs, T is stopped."""
        lines = self.machine.out(["ps", "-eo", "stat=,comm="]).splitlines()
        rows = [line.split() for line in lines]
        return "".join(row[0][0] for row in rows if row[1] == "cicc")

    def until_frozen(self, count: int) -> str:
        """Wait until so many compilers are stopped; the states of all of them then."""
        seen = [""]

        def frozen() -> str:
            seen[0] = self.compilers()
            return seen[0] if seen[0].count("T") >= count else ""

        what = f"{count} compilers are frozen"
        return str(self.machine.wait_until(frozen, lambda: f"{what}; at last: {seen[0]!r}"))

    def now(self) -> str:
        return str(self.machine.out(["date", "+%s.%N"]))

    def begin(self) -> None:
        """From here on count what the kernel kills and how little memory there was."""
        self.begun = self.now()
        self.machine.run(
            "rm -f /run/lowest; systemd-run --quiet --unit=lowest --nice=-10"
            " --property=OOMScoreAdjust=-1000 bash /bed/lowest"
        )
        self.machine.wait_until(
            lambda: self.machine.run(["test", "-s", "/run/lowest"], check=False).returncode == 0,
            "the watch over memory is up",
        )

    def lowest_mb(self) -> int:
        self.machine.run(["systemctl", "stop", "lowest"])
        return int(self.machine.read("/run/lowest")) // 1024

    def killed(self) -> list[str]:
        """What the kernel's OOM killer has killed since `begin`."""
        entries = self.machine.journal("--dmesg", f"--since=@{self.begun}")
        return [e["MESSAGE"] for e in entries if "Killed process" in e["MESSAGE"]]

    def said(self, event: str) -> list[str]:
        entries = self.machine.journal(f"MESSAGE_ID={event}", f"--since=@{self.begun}")
        return [entry["SPARKD_REASON"] for entry in entries]

    def hog(self, leave_mb: int, seconds: int = 3600) -> None:
        """Take memory until only so much is available, and keep it for so long."""
        self.push("/bed/memory-holder", HOG)
        self.machine.run(
            "chmod 755 /bed/memory-holder; rm -f /run/hog; systemd-run --quiet --unit=hog"
            f" --property=OOMScoreAdjust=-1000 /bed/memory-holder {leave_mb} {seconds}"
        )
        self.machine.wait_until(
            lambda: self.machine.run(["test", "-e", "/run/hog"], check=False).returncode == 0,
            "the memory is taken",
        )

    def available_mb(self) -> int:
        text = str(self.machine.read("/proc/meminfo"))
        row = next(line for line in text.splitlines() if line.startswith("MemAvailable"))
        return int(row.split()[1]) // 1024

    def answers(self, name: str) -> bool:
        url = f"http://127.0.0.1:{self.ports[name]}/health"
        asked = self.machine.run(["curl", "-fsS", "-m", "60", url], check=False)
        return bool(asked.returncode == 0)

    def memory_steps(self) -> list[str]:
        entries = self.machine.journal(
            "MESSAGE_ID=5b0f6a1c9d3e4c0b8a2f7e6d1c4b9a13", f"--since=@{self.begun}"
        )
        return [entry["SPARKD_STEP"] for entry in entries]

    def until_relaxed(self) -> list[str]:
        """Wait until the guard says that memory is back; its steps up to then."""
        steps: list[str] = []

        def relaxed() -> bool:
            steps[:] = self.memory_steps()
            return "relax" in steps

        self.machine.wait_until(relaxed, lambda: f"memory is back; the guard's steps: {steps}")
        return steps[: steps.index("relax")]

    def clean(self) -> None:
        """End what tests leave, and have sparkd run as configured at first."""
        others = [name for name in self.ports if name != "chat"]
        ours = ["'vllm-guest-*.scope'", *(f"vllm-{name}.service" for name in others)]
        # Killed while they are asked to stop: an engine that loads takes its time to obey.
        self.machine.run(
            f"systemctl stop --no-block hog lowest {' '.join(ours)};"
            f" systemctl kill --signal=KILL {' '.join(ours)};"
            f" systemctl stop hog lowest {' '.join(ours)};"
            " pkill -KILL -x ninja; pkill -KILL -x cicc;"
            " rm -rf /etc/systemd/system/vllm-*.service.d /run/systemd/system/sparkd.service.d",
            check=False,
            limit=600,
        )
        for name in others:
            del self.ports[name]
            self.machine.run(["rm", "-f", f"/etc/sparkd/engines.d/{name}.toml"])
        self.machine.run("systemctl daemon-reload; systemctl start sparkd")
        if others or self.changed:
            self.configure()
            self.apply()
            self.changed = False

    def metrics(self) -> dict[str, float]:
        text = self.machine.out(["curl", "-fsS", "http://127.0.0.1:9837/metrics"])
        rows = [row.rpartition(" ") for row in text.splitlines() if not row.startswith("#")]
        return {name: float(value) for name, _, value in rows}

    def guards(self) -> dict[str, Any]:
        return dict(self.status()["host"]["guards"])
