# SPDX-License-Identifier: Apache-2.0
"""Importing over a running unit: it serves on, nothing restarts, and it can be given back."""

import pytest

from tests.system.lab import Lab

pytestmark = pytest.mark.system

PORT = 8150
UNIT = f"""\
[Unit]
Description=somebody's own

[Service]
ExecStart=/usr/libexec/sparkd/sim/bin/vllm serve /models/mine --host 127.0.0.1 --port {PORT} \
 --served-model-name mine --gpu-memory-utilization 0.01
Environment=SPARKD_SIM_LIFE_FILE=/etc/sparkd-sim/mine.json
User=vllm
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""


def running(lab: Lab, name: str = "mine.service") -> str:
    """A unit of somebody's that serves; returns its main process."""
    lab.machine.run("mkdir -p /models/mine")
    lab.life("mine")
    lab.ports["mine"] = PORT
    lab.push(f"/etc/systemd/system/{name}", UNIT)
    lab.machine.run(f"systemctl daemon-reload && systemctl enable --now {name}")
    lab.machine.wait_until(lambda: lab.serves("mine"), "the old unit serves")
    return str(lab.machine.show(name, "MainPID")["MainPID"])


def test_adopting_lets_it_serve_until_the_engine_is_started(lab: Lab) -> None:
    pid = running(lab)
    refused = lab.ctl("import", "--replace", "mine.service", check=False)
    assert refused.returncode == 1
    assert "--adopt-running" in refused.stderr
    assert lab.machine.show("mine.service", "MainPID", "UnitFileState") == {
        "MainPID": pid, "UnitFileState": "enabled",
    }  # fmt: skip

    lab.ctl("import", "--replace", "--adopt-running", "mine.service")
    assert lab.machine.show("mine.service", "MainPID", "NRestarts", "UnitFileState") == {
        "MainPID": pid, "NRestarts": "0", "UnitFileState": "disabled",
    }  # fmt: skip
    assert lab.serves("mine")
    assert lab.show("mine", "ActiveState", "UnitFileState") == {
        "ActiveState": "inactive", "UnitFileState": "enabled",
    }  # fmt: skip

    lab.ctl("restart", "mine", "--wait")
    assert lab.one("mine")["state"] == "ready"
    assert lab.machine.show("mine.service", "ActiveState") == {"ActiveState": "inactive"}
    assert lab.serves("mine")


def test_a_unit_of_the_same_name_becomes_sparkds_while_it_runs(lab: Lab) -> None:
    pid = running(lab, "vllm-mine.service")
    lab.ctl("import", "--replace", "--adopt-running", "vllm-mine.service")
    shown = lab.show("mine", "MainPID", "ActiveState", "Restart", "NeedDaemonReload")
    assert shown == {
        "MainPID": pid, "ActiveState": "active", "Restart": "always", "NeedDaemonReload": "no",
    }  # fmt: skip
    assert lab.serves("mine")
    lab.ctl("import", "--undo")
    assert lab.machine.read("/etc/systemd/system/vllm-mine.service") == UNIT
    assert lab.show("mine", "MainPID", "Restart") == {"MainPID": pid, "Restart": "on-failure"}


def test_stopping_is_told_and_undone(lab: Lab) -> None:
    running(lab)
    lab.ctl("import", "--replace", "--stop", "mine.service")
    assert lab.machine.show("mine.service", "ActiveState", "LoadState")["ActiveState"] == "inactive"
    lab.ctl("start", "mine", "--wait")
    refused = lab.ctl("import", "--undo", check=False)
    assert "sparkctl stop mine" in refused.stderr
    lab.ctl("stop", "mine")
    lab.ctl("import", "--undo", "mine.service")
    assert lab.machine.read("/etc/systemd/system/mine.service") == UNIT
    assert lab.machine.show("mine.service", "UnitFileState") == {"UnitFileState": "enabled"}
    lab.machine.run("systemctl start mine.service")
    lab.machine.wait_until(lambda: lab.serves("mine"), "the old unit serves again")
