# SPDX-License-Identifier: Apache-2.0
"""The bed keeps its word; every other test here rests on it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from beds.cache import BedError
from beds.container import Container

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def mounted(folder: str) -> bool:
    return folder in Path("/proc/self/mounts").read_text()


def test_it_is_the_systemd_that_the_suite_stands_for(bare_container, suite):
    version = bare_container.out(["systemctl", "--version"]).split()[1]
    assert int(version.split(".")[0]) == {"bookworm": 252, "trixie": 257}[suite]
    assert (
        bare_container.out(["systemctl", "is-system-running", "--wait"], check=False) == "running"
    )
    assert bare_container.out(["systemctl", "list-units", "--failed", "--quiet"]) == ""


def test_commands_files_and_users(bare_container):
    machine = bare_container
    machine.push("/srv/deep/file", "text\n", mode=0o640, owner="nobody")
    assert machine.read("/srv/deep/file") == "text\n"
    assert machine.out(["stat", "--format=%a %U", "/srv/deep/file"]) == "640 nobody"
    assert machine.out("whoami; echo $LC_ALL", user="nobody") == "nobody\nC.UTF-8"
    done = machine.run("echo out; echo err >&2; exit 7", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
    with pytest.raises(BedError, match="exit status 1"):
        machine.run(["false"])
    with pytest.raises(BedError, match="still running after"):
        machine.run(["sleep", "60"], limit=0.2)
    background = machine.start_background("echo first; sleep 60")
    machine.wait_until(lambda: background.output() == "first\n", "its output")
    assert background.running()
    background.kill()
    assert not background.running()


def test_a_reboot_keeps_files_and_the_journal(bare_container):
    machine = bare_container
    machine.push("/root/kept", "kept")
    machine.push("/run/lost", "lost")
    machine.run(["logger", "--tag=bed", "before the reboot"])
    machine.journal()
    before = machine.leader
    machine.reboot()
    assert machine.leader != before
    assert machine.read("/root/kept") == "kept"
    assert machine.run(["test", "-e", "/run/lost"], check=False).returncode == 1
    entries = machine.journal("--identifier=bed")
    assert [entry["MESSAGE"] for entry in entries] == ["before the reboot"]


def test_a_hard_reboot_stops_nothing_and_keeps_files(bare_container):
    machine = bare_container
    stop = "ExecStop=/usr/bin/touch /root/stopped"
    text = f"[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n{stop}\n"
    machine.push("/run/systemd/system/told.service", text)
    machine.run(["systemctl", "start", "told.service"])
    machine.push("/root/kept", "kept")
    boot = machine.read("/proc/sys/kernel/random/boot_id")
    machine.reboot(hard=True)
    assert machine.read("/proc/sys/kernel/random/boot_id") != boot
    assert machine.read("/root/kept") == "kept"
    assert machine.run(["test", "-e", "/root/stopped"], check=False).returncode == 1


def test_what_runs_in_it_can_be_moved_by_its_systemd(bare_container):
    # A process outside the guest's cgroups could not be: a scope would fail.
    out = bare_container.out("systemd-run --quiet --scope --unit=x cat /proc/self/cgroup")
    assert out.splitlines()[-1].endswith("/x.scope")


def test_it_has_no_network_but_its_own(bare_container):
    links = bare_container.out(["ip", "-brief", "link"]).splitlines()
    assert [line.split()[0] for line in links] == ["lo"]


def test_several_side_by_side_and_nothing_left(base_layers):
    with Container(base_layers) as one, Container(base_layers) as two:
        assert one.out(["hostname"]) != two.out(["hostname"])
        one.push("/root/only-here", "")
        assert two.run(["test", "-e", "/root/only-here"], check=False).returncode == 1
        folders = [str(one.folder), str(two.folder)]
        leaders = [one.leader, two.leader]
        assert all(map(mounted, folders))
    assert not any(map(mounted, folders))
    assert not any(Path(folder).exists() for folder in folders)
    assert not any(Path(f"/proc/{leader}").exists() for leader in leaders)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_owner_leaves_nothing_behind(base_layers, how):
    folders = ", ".join(f"Path({str(folder)!r})" for folder in base_layers.folders)
    script = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from pathlib import Path\n"
        "from beds.container import Container\n"
        "from beds.rootfs import Layers\n"
        f"machine = Container(Layers(({folders},)))\n"
        "print(machine.folder, machine.leader, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    ) as owner:
        folder, leader = owner.stdout.readline().split()
        assert mounted(folder)
        os.kill(owner.pid, how)
        owner.wait(30)
    deadline = time.monotonic() + 60
    while (
        Path(folder).exists() or Path(f"/proc/{leader}").exists()
    ) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not mounted(folder)
    assert not Path(folder).exists()
    assert not Path(f"/proc/{leader}").exists()


def test_its_time_limit_ends_it(base_layers):
    # Long enough to boot first, as far as is needed for a command.
    with Container(base_layers, limit=20, wait_for="sysinit.target") as machine:
        ended = machine.folder / "ended"
        deadline = time.monotonic() + 60
        while not ended.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "time limit" in ended.read_text()
        assert not Path(f"/proc/{machine.leader}").exists()
