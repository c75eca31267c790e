# SPDX-License-Identifier: Apache-2.0
"""What the caps' files reach under a real systemd, and what they do not."""

import json
from typing import Any

import pytest

from tests.system.lab import HOST, Lab

pytestmark = pytest.mark.system
CAP = "MAX_JOBS=4"


@pytest.fixture
def applied(lab: Lab) -> Lab:
    lab.machine.run(["useradd", "--create-home", "--shell", "/bin/bash", "ann"])
    lab.engine("one")
    lab.apply()
    return lab


def paths(lab: Lab) -> dict[str, dict[str, Any]]:
    rows = json.loads(lab.ctl("caps", "--json", check=False).stdout)
    return {row["name"]: row for row in rows}


def test_login_shells(applied: Lab) -> None:
    for argv in (["su", "-l", "ann", "-c", "env"], ["env", "-i", "bash", "-lc", "env"]):
        assert CAP in applied.machine.out(argv).split()


def test_system_services_of_anybody(applied: Lab) -> None:
    argv = ["systemd-run", "--pipe", "--wait", "--quiet", "env"]
    assert CAP in applied.machine.out(argv).split()


def test_user_services(applied: Lab) -> None:
    machine = applied.machine
    folder = "/home/ann/.config/systemd/user"
    machine.run(["install", "-d", "-o", "ann", "-g", "ann", folder])
    text = "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'env > /home/ann/environment'\n"
    applied.push(f"{folder}/probe.service", text)
    machine.run(["loginctl", "enable-linger", "ann"])
    runtime = f"XDG_RUNTIME_DIR=/run/user/{machine.out(['id', '-u', 'ann']).strip()}"
    argv = ["runuser", "-u", "ann", "--", "env", runtime, "systemctl", "--user", "start", "probe"]
    machine.wait_until(
        lambda: machine.run(argv, check=False).returncode == 0, "ann's manager starts a service"
    )
    assert CAP in machine.read("/home/ann/environment").split()


def test_the_engine_itself_has_them(applied: Lab) -> None:
    environment = applied.show("one", "Environment")["Environment"]
    assert CAP in environment.split()


def test_they_follow_the_configuration_and_go_when_they_are_not_wanted(applied: Lab) -> None:
    machine = applied.machine
    applied.push("/etc/sparkd/sparkd.toml", HOST + "[compile]\nmax_jobs = 7\n")
    assert "/etc/profile.d/sparkd-caps.sh: written" in applied.apply()
    assert "MAX_JOBS=7" in machine.out(["su", "-l", "ann", "-c", "env"]).split()
    applied.push("/etc/sparkd/sparkd.toml", HOST + "[compile]\neverywhere = false\n")
    assert "/etc/profile.d/sparkd-caps.sh: removed" in applied.apply()
    assert "MAX_JOBS" not in machine.out(["su", "-l", "ann", "-c", "env"])
    argv = ["systemd-run", "--pipe", "--wait", "--quiet", "env"]
    assert "MAX_JOBS" not in machine.out(argv)


def test_caps_says_which_path_lacks_them(applied: Lab) -> None:
    seen = paths(applied)
    assert seen["login shells"]["capped"] is True
    assert seen["engines' units"]["capped"] is True
    assert seen["cron, sudo, ssh commands"]["capped"] is False
    assert CAP in seen["cron, sudo, ssh commands"]["detail"]
    assert applied.ctl("caps").returncode == 0
    applied.push("/etc/profile.d/sparkd-caps.sh", "# mine\n")
    done = applied.ctl("caps", check=False)
    assert done.returncode == 1
    assert "/etc/profile.d/sparkd-caps.sh is foreign" in done.stdout
    refused = applied.ctl("apply", check=False)
    assert refused.returncode == 1
    assert applied.machine.read("/etc/profile.d/sparkd-caps.sh") == "# mine\n"


def test_a_drop_in_that_takes_them_away_is_seen(applied: Lab) -> None:
    folder = "/etc/systemd/system/vllm-one.service.d"
    applied.machine.run(["mkdir", "-p", folder])
    applied.push(f"{folder}/caps.conf", "[Service]\nUnsetEnvironment=X\nEnvironment=MAX_JOBS=20\n")
    applied.machine.run(["systemctl", "daemon-reload"])
    seen = paths(applied)["engines' units"]
    assert seen["capped"] is False
    assert "vllm-one.service" in seen["detail"]


def test_pam_carries_what_the_administrator_adds(applied: Lab) -> None:
    lacking = paths(applied)["cron, sudo, ssh commands"]["detail"].partition("add to it: ")[2]
    applied.push("/etc/environment", "\n".join(lacking.split()) + "\n")
    assert paths(applied)["cron, sudo, ssh commands"]["capped"] is True
    # `su` without a login shell: nothing but PAM reaches it.
    assert CAP in applied.machine.out(["env", "-i", "/bin/su", "ann", "-c", "env"]).split()
