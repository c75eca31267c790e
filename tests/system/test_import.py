# SPDX-License-Identifier: Apache-2.0
"""What `sparkctl import NAME` makes of a unit is what systemd starts, looked at in /proc.

Each unit is started by systemd, and its process compared with the proposal; then the proposal is
applied and the process of sparkd's own unit compared with the same.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.system.lab import Lab

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]

VLLM = "/opt/rec/bin/vllm"
COMMON = "--gpu-memory-utilization 0.01 --max-model-len 4096"
# What systemd gives to every service, and what sparkd's unit has of its own.
BASE = {
    "HOME", "INVOCATION_ID", "JOURNAL_STREAM", "LANG", "LOGNAME", "MANAGERPID", "PATH", "SHELL",
    "SYSTEMD_EXEC_PID", "USER", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE",
}  # fmt: skip


class Process(NamedTuple):
    """One process as the kernel has it."""

    argv: list[str]
    environment: dict[str, str]


UNITS: dict[str, dict[str, str]] = {
    # Drop-ins of four kinds and places: by name over all folders, /etc before /run and /usr/lib,
    # of the type, and of a prefix; a reset, a file of variables, a joined line, a quotation.
    "mine-one.service": {
        "/usr/lib/systemd/system/mine-one.service": f"""\
[Unit]
Description=one
[Service]
User=vllm
Environment=A=base B=base "SPACED=two  words" 'QUOTED=it''s'
Environment=MODEL=/models/wrong
ExecStart={VLLM} serve /models/wrong --host 127.0.0.1 --port 8300
""",
        "/usr/lib/systemd/system/mine-one.service.d/10-a.conf": "[Service]\nEnvironment=A=ten\n",
        "/run/systemd/system/mine-one.service.d/20-b.conf": "[Service]\nEnvironment=B=masked\n",
        "/etc/systemd/system/mine-one.service.d/20-b.conf": "[Service]\nEnvironment=B=twenty\n",
        "/etc/systemd/system/service.d/05-all.conf": "[Service]\nEnvironment=ALL=of-the-type\n",
        "/etc/systemd/system/mine-.service.d/07-p.conf": "[Service]\nEnvironment=P=of-a-prefix\n",
        "/etc/mine.env": '# a comment\nMODEL=/models/one\nFILED="x  y"\nA=of-the-file\n',
        "/etc/systemd/system/mine-one.service.d/30-exec.conf": f"""\
[Service]
EnvironmentFile=/etc/mine.env
EnvironmentFile=-/etc/not-there.env
UnsetEnvironment=QUOTED
ExecStart=
ExecStart={VLLM} serve ${{MODEL}} --host 127.0.0.1 --port 8300 \\
    --served-model-name "a b" $A {COMMON}
""",
    },
    "llm@qwen.service": {
        "/etc/systemd/system/llm@.service": f"""\
[Service]
User=vllm
Environment=INSTANCE=%i PREFIX=%p UNIT=%n
EnvironmentFile=/etc/llm/%i.env
ExecStart={VLLM} serve /models/%i --host 127.0.0.1 --port ${{PORT}} \\
    --served-model-name %p-%i {COMMON}
[Install]
WantedBy=multi-user.target
""",
        "/etc/systemd/system/llm@.service.d/10-all.conf": "[Service]\nEnvironment=W=all V=all\n",
        "/etc/systemd/system/llm@qwen.service.d/20-q.conf": "[Service]\nEnvironment=W=qwen-only\n",
        "/etc/llm/qwen.env": "PORT=8301\n",
    },
    "esc@q\\x2d3.service": {
        "/etc/systemd/system/esc@.service": f"""\
[Service]
User=vllm
ExecStart={VLLM} serve /models/%I --host 127.0.0.1 --port 8302 --served-model-name %I {COMMON}
""",
    },
    "pkg.service": {
        "/usr/lib/systemd/system/pkg.service": f"[Service]\nExecStart={VLLM} serve /models/no\n",
        "/etc/systemd/system/pkg.service": f"""\
[Service]
User=vllm
Environment=PERCENT=100%% DOLLAR=a$b
ExecStart={VLLM} serve /models/pkg --host 127.0.0.1 --port 8303 --served-model-name 'x$$y%%' \\
    {COMMON}
""",
    },
}
# What systemd makes of it, as systemd.exec(5) and systemd.unit(5) have it; None: not set.
SAID: dict[str, dict[str, str | None]] = {
    "mine-one.service": {
        "A": "of-the-file", "B": "twenty", "ALL": "of-the-type", "P": "of-a-prefix",
        "SPACED": "two  words", "FILED": "x  y", "QUOTED": None,
    },
    "llm@qwen.service": {"INSTANCE": "qwen", "PREFIX": "llm", "W": "qwen-only", "V": "all"},
    "pkg.service": {"PERCENT": "100%", "DOLLAR": "a$b"},
}  # fmt: skip
MODELS = ("one", "qwen", "q-3", "pkg", "ada")


@pytest.fixture
def units(lab: Lab) -> Lab:
    """A machine with every unit of the table, loaded, and a vllm that only waits."""
    lab.machine.run("mkdir -p /opt/rec/bin " + " ".join(f"/models/{name}" for name in MODELS))
    lab.push(VLLM, "#!/bin/sh\nsleep infinity &\nwait\n")
    lab.machine.run(f"chmod 755 {VLLM}")
    for texts in UNITS.values():
        for path, text in texts.items():
            lab.push(path, text)
    lab.machine.run("systemctl daemon-reload")
    return lab


def process(lab: Lab, unit: str) -> Process:
    """The main process of a unit that is being started or runs."""
    return process_of(lab, unit, lambda: lab.machine.show(unit, "MainPID")["MainPID"])


def process_of(lab: Lab, unit: str, main_pid: Callable[[], str]) -> Process:
    """The process that is the unit's main one, as soon as it is the program."""

    def there() -> str | None:
        pid = main_pid()
        if pid == "0":
            return None
        # Between fork and exec it is systemd's own.
        told = lab.machine.run(["cat", f"/proc/{pid}/cmdline"], check=False).stdout
        return pid if VLLM in told else None

    pid = lab.machine.wait_until(there, f"{unit} has a process")
    argv = lab.machine.out(["cat", f"/proc/{pid}/cmdline"]).rstrip("\0").split("\0")
    rows = lab.machine.out(["cat", f"/proc/{pid}/environ"]).rstrip("\0\n").split("\0")
    assert argv[0] == "/bin/sh", "the stand-in is a script"
    return Process(argv[1:], dict(row.split("=", 1) for row in rows))


def imported(lab: Lab, source: str, *words: str) -> dict[str, Any]:
    done = lab.machine.run(["sparkctl", "import", source, "--json", *words], check=False)
    plan = json.loads(done.stdout)
    assert plan["refused"] == [], plan
    (engine,) = plan["engines"]
    return dict(engine)


def test_a_named_unit_is_imported_as_systemd_starts_it(units: Lab) -> None:
    machine = units.machine
    for unit in UNITS:
        machine.run(["systemctl", "start", unit])
        seen = process(units, unit)
        machine.run(["systemctl", "stop", unit])
        engine = imported(units, unit, "--write")
        assert engine["argv"] == seen.argv, unit
        for name, value in SAID.get(unit, {}).items():
            assert seen.environment.get(name) == value, "systemd itself: the table is wrong"
        own = {name: value for name, value in seen.environment.items() if name not in BASE}
        kept = {name: value for name, value in engine["environment"].items() if name in own}
        assert kept == own, unit

        # And what sparkd's unit then really starts.
        machine.run(["sparkctl", "apply"])
        new = f"vllm-{engine['name']}.service"
        machine.run(["systemctl", "start", "--no-block", new])
        again = process(units, new)
        machine.run(["systemctl", "stop", new])
        assert again.argv == seen.argv, unit
        kept = {name: value for name, value in again.environment.items() if name in own}
        assert kept == own, unit
        assert again.environment["USER"] == seen.environment["USER"] == "vllm"


def test_what_is_said_of_names_that_are_no_such_unit(units: Lab) -> None:
    machine = units.machine
    machine.run("ln -s pkg.service /etc/systemd/system/alias.service; systemctl daemon-reload")
    assert imported(units, "alias.service")["argv"] == imported(units, "pkg")["argv"]
    # A text that systemd has not loaded yet is the one that the next start will use.
    units.machine.run(["sed", "-i", "s/8303/8304/", "/etc/systemd/system/pkg.service"])
    assert "8304" in imported(units, "pkg.service")["argv"]
    machine.run(["systemctl", "mask", "esc@q\\x2d3.service"])
    for name in ("nowhere.service", "esc@q\\x2d3.service"):
        done = units.ctl("import", name, check=False)
        assert done.returncode == 1
        assert f"refused: {name}" in done.stdout
        assert "neither a file nor a unit that systemd knows" in done.stdout


def test_a_template_by_its_file_yields_its_instances(units: Lab) -> None:
    units.machine.run(["systemctl", "enable", "llm@qwen.service"])
    by_file = imported(units, "/etc/systemd/system/llm@.service")
    assert by_file == imported(units, "llm@qwen.service")
    assert by_file["environment"]["ALL"] == "of-the-type", "drop-ins from elsewhere count too"


def test_a_user_unit_is_imported_as_the_users_manager_starts_it(units: Lab) -> None:
    machine = units.machine
    machine.run("useradd --create-home ada; loginctl enable-linger ada")
    number = machine.out(["id", "-u", "ada"]).strip()
    folder = "/home/ada/.config/systemd/user"
    machine.run(["mkdir", "-p", f"{folder}/llm.service.d"])
    units.push(
        f"{folder}/llm.service",
        f"""\
[Service]
Environment=MODEL=/models/ada CACHE=%h/cache
ExecStart={VLLM} serve ${{MODEL}} --host 127.0.0.1 --port 8305 --served-model-name ada {COMMON}
""",
    )
    units.push(f"{folder}/llm.service.d/10-x.conf", "[Service]\nEnvironment=X=drop-in\n")
    machine.run(f"chown -R ada: /home/ada; systemctl start user@{number}.service")
    ask = f"XDG_RUNTIME_DIR=/run/user/{number} systemctl --user"
    machine.run(f"{ask} daemon-reload; {ask} start llm.service", user="ada")
    main_pid = f"{ask} show --property=MainPID --value llm.service"
    seen = process_of(units, "llm.service", lambda: machine.out(main_pid, user="ada").strip())
    engine = imported(units, f"{folder}/llm.service")
    assert engine["argv"] == seen.argv
    has = seen.environment
    names = ("MODEL", "CACHE", "X")
    assert [engine["environment"][name] for name in names] == [has[name] for name in names]
    assert has["CACHE"] == "/home/ada/cache"
    assert 'user = "ada"' in engine["config"]
