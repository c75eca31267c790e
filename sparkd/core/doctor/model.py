# SPDX-License-Identifier: Apache-2.0
"""Findings, and the table of their codes: `--json`, docs/doctor.md and tests all come from it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Code(NamedTuple):
    """One kind of finding; a code never changes its meaning and is never used again."""

    code: str
    title: str
    why: str
    fix: str
    """What to do, unless a finding says it better."""


class Finding(NamedTuple):
    """One thing that is wrong here."""

    code: str
    subject: str
    """An engine, a unit, a file, or 'host'."""
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.code} {self.subject}: {self.reason} ({self.fix})"


GROUPS: Mapping[str, str] = {
    "0": "The look itself",
    "1": "The host",
    "2": "Launch paths",
    "3": "Engines, before they start",
    "4": "Units and who else owns them",
    "5": "The next boot",
}

CODES: Sequence[Code] = (
    Code("DOC001", "something could not be seen",
         "What cannot be seen is not judged, so this page says less than it could.",
         "run it as root, with systemd running"),
    Code("DOC101", "little memory is available",
         "On unified memory the driver fails and the host stops answering before the kernel kills"
         " anything.", "end what holds the memory before an engine is started"),
    Code("DOC102", "no NVIDIA driver is loaded",
         "Without the kernel module no engine starts.",
         "install the driver, or reboot after its upgrade"),
    Code("DOC103", "driver library and kernel module differ",
         "An upgrade replaced the libraries while the old module runs on: every new process fails"
         " with 'Driver/library version mismatch', a running engine does not.",
         "reboot before the next start of an engine"),
    Code("DOC104", "an unusual page size",
         "Kernels with pages of 64 KiB wedged while weights were loaded.",
         "boot a kernel with pages of 4 KiB"),
    Code("DOC105", "no pressure information",
         "Without /proc/pressure sparkd's memory guard sees a shortage later.",
         "boot with psi=1"),
    Code("DOC106", "another program kills when memory is short",
         "earlyoom ended an engine in the second in which it finished its start. Two judges with"
         " different thresholds kill what the other would have kept.",
         "disable it, or set its threshold below memory.floor"),
    Code("DOC107", "the clock is not synchronised",
         "Times in incidents and in the history are then wrong; intervals are not.",
         "timedatectl set-ntp true"),
    Code("DOC108", "a second program of this name",
         "Other projects ship a sparkctl or sparkd too; which one runs depends on PATH.",
         "remove it, or call /usr/bin/sparkctl"),
    Code("DOC109", "no memory limits",
         "Without the memory controller of cgroup v2 MemoryMax= of engines and compilers does"
         " nothing.", "boot with systemd.unified_cgroup_hierarchy=1"),
    Code("DOC110", "the daemon does not run",
         "Engines do without it; incidents, alerts, metrics and the guards do not.",
         "systemctl enable --now sparkd"),
    Code("DOC111", "the daemon is another version than this program",
         "The package was upgraded under a running daemon.", "systemctl restart sparkd"),
    Code("DOC201", "a launch path without the compile caps",
         "A cold start there runs one compiler per core at 3 to 8 GiB each, which takes the host"
         " down.", "sparkctl apply writes the caps; launch by hand with 'sparkctl run'"),
    Code("DOC301", "the configuration has an error",
         "Nothing can be applied until it is corrected; what was applied stays.",
         "correct it; 'sparkctl check' shows all of them"),
    Code("DOC302", "the engine's user does not exist", "systemd cannot start the unit.",
         "create the user, or set user"),
    Code("DOC303", "the executable cannot be run",
         "Asked of the kernel as the engine's user, so every folder on the way counts.",
         "set runtime.venv to an environment that the user can enter and run"),
    Code("DOC304", "the executable can be replaced by others",
         "Whoever can write it decides what runs with the engine's models and secrets.",
         "chown root and chmod go-w"),
    Code("DOC305", "the model cannot be read",
         "Asked of the kernel as the engine's user.", "correct the path or its permissions"),
    Code("DOC306", "the model is not complete",
         "A file that the index names is missing or shorter than its own header says, as after a"
         " download that broke off. vLLM finds that out after minutes.",
         "download the named files again"),
    Code("DOC307", "the model's folder lacks config.json or a tokenizer",
         "vLLM then asks the hub, or fails.", "download the model again"),
    Code("DOC308", "the cache cannot be written",
         "Every start would compile anew, or fail.", "chown the folder to the engine's user"),
    Code("DOC309", "no nvcc in the engine's PATH",
         "Kernels that must be compiled at start fail under systemd though it works by hand.",
         "set runtime.cuda_home to the toolkit's folder"),
    Code("DOC310", "the port is held by somebody else",
         "The start waits for it and then fails.", "stop the holder or choose another port"),
    Code("DOC311", "the driver changed since the engine was started",
         "What runs goes on with the old driver, and its next start, a restart after a crash"
         " included, meets the new one: it compiles anew, or fails while module and library"
         " differ.",
         "restart it when that suits, after a reboot where module and library differ"),
    Code("DOC401", "a unit was edited by hand",
         "The next apply refuses to touch it, and the configuration no longer says what runs.",
         "'sparkctl diff' shows the edit; move it to a drop-in, or 'sparkctl apply --force'"),
    Code("DOC402", "a unit of an engine's name that sparkd did not write",
         "sparkd never overwrites it, so the engine cannot be applied.",
         "rename the engine, or move the file away"),
    Code("DOC403", "a drop-in takes away what sparkd relies on",
         "The slot, the gate, the post-mortem, the restart or the caps then do not work for this"
         " engine.", "remove that line from the drop-in"),
    Code("DOC404", "a unit is masked", "It can be started by nobody; sparkd never unmasks.",
         "systemctl unmask it, if that is no longer meant"),
    Code("DOC405", "a drop-in of a unit that is gone",
         "It does nothing now, and takes effect when a unit of that name comes back.",
         "remove the folder"),
    Code("DOC406", "an After= that orders nothing",
         "The unit that it names is gone or is not started at boot, so both start at the same"
         " moment. Two engines did so after a reboot; the start slot now keeps engines apart.",
         "remove the line"),
    Code("DOC407", "systemd has an older text in memory",
         "The next start, Restart= included, uses the old one.", "systemctl daemon-reload"),
    Code("DOC408", "a unit of an engine that the configuration no longer has",
         "It is started at boot as before.", "'sparkctl apply --prune' removes it"),
    Code("DOC409", "the configuration is not applied", "The unit is another than it says.",
         "sparkctl apply"),
    Code("DOC410", "somebody else starts a server on this port",
         "Two supervisors of one port fight for it and for the memory, at the latest after a"
         " reboot.", "remove one of the two"),
    Code("DOC411", "a change that was cut short",
         "An apply or rollback has no end on record.",
         "systemctl restart sparkd, or sparkctl apply: either repairs it"),
    Code("DOC412", "a tenant's unit that does not exist",
         "Memory is kept for something that nobody starts any more, or under another name.",
         "correct tenants.NAME.unit, or remove the table"),
    Code("DOC501", "the engines' target is not started at boot",
         "No engine comes up after a reboot.", "systemctl enable vllm.target"),
    Code("DOC502", "an engine that does not start at boot although autostart is set",
         "It was disabled by hand, which sparkd respects.",
         "systemctl enable it, or set autostart = false"),
    Code("DOC503", "a held engine", "It is not started, at boot neither, until it is released.",
         "see 'sparkctl status ENGINE'; 'sparkctl release ENGINE'"),
    Code("DOC504", "the last boot had another order",
         "An engine whose start failed, was refused or had to wait gives the slot to the next, and"
         " vLLM sizes itself by what it finds; the units were not changed since.",
         "'sparkctl incidents' says what came in between"),
)  # fmt: skip

BY_CODE: Mapping[str, Code] = {code.code: code for code in CODES}


def finding(code: str, subject: str, reason: str, fix: str = "") -> Finding:
    """A finding with its code's own fix, unless there is a better one."""
    return Finding(code, subject, reason, fix or BY_CODE[code].fix)


def markdown() -> str:
    """The part of docs/doctor.md that describes the codes."""
    lines: list[str] = []
    group = ""
    for code in CODES:
        if code.code[3] != group:
            group = code.code[3]
            lines += [f"## {GROUPS[group]}", "", "| code | finding | why it matters | fix |",
                      "|---|---|---|---|"]  # fmt: skip
        lines.append(f"| `{code.code}` | {code.title} | {code.why} | {code.fix} |")
        if code is CODES[-1] or CODES[CODES.index(code) + 1].code[3] != group:
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"
