# SPDX-License-Identifier: Apache-2.0
"""The .deb under a real dpkg and a real systemd: installed, upgraded, removed, purged."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]
REPO = Path(__file__).resolve().parents[2]
NO_NETWORK = ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", "Dir::Etc::sourceparts=/dev/null"]
APT = ["apt-get", "--quiet=2", "--yes", "--no-install-recommends", *NO_NETWORK]
AS_IF = {"DEBIAN_FRONTEND": "noninteractive"}


def install(machine, deb):
    machine.push_file(deb, "/root/sparkd.deb")
    return machine.run([*APT, "install", "/root/sparkd.deb"], env=AS_IF, limit=900)


def test_apt_install_gives_a_running_daemon(bare_container, deb):
    machine = bare_container
    install(machine, deb)
    shown = machine.show("sparkd.service", "ActiveState", "UnitFileState", "NRestarts")
    assert shown == {"ActiveState": "active", "UnitFileState": "enabled", "NRestarts": "0"}
    assert machine.out(["sparkctl", "--version"]).split()[0] == "sparkctl"
    assert machine.run(["sparkctl", "status"]).returncode == 0
    assert machine.run(["sparkctl", "check"]).returncode == 0
    machine.reboot()
    machine.wait_until(
        lambda: machine.show("sparkd.service", "ActiveState")["ActiveState"] == "active",
        "sparkd runs after a reboot",
    )


def test_what_it_puts_where_and_for_whom(container):
    def mode(path):
        return container.out(["stat", "--format=%a %U:%G", path])

    assert mode("/run/sparkd") == "750 root:sparkd"
    assert mode("/var/lib/sparkd") == "750 root:sparkd"
    assert mode("/etc/sparkd/secrets") == "700 root:root"
    assert mode("/var/lib/vllm") == "750 vllm:vllm"
    assert container.out(["getent", "passwd", "vllm"]).endswith(":/var/lib/vllm:/usr/sbin/nologin")
    for helper in ("await-slot", "await-ready", "post-mortem", "with-credentials"):
        assert mode(f"/usr/libexec/sparkd/{helper}") == "755 root:root"
    assert container.out(["/usr/libexec/sparkd/sim/bin/vllm", "--version"])
    compiled = "/usr/lib/python3/dist-packages/sparkd/core/__pycache__"
    assert "slot.cpython-" in container.out(["ls", compiled])
    listed = container.out(["journalctl", "--list-catalog"])
    assert "sparkd" in listed
    owned = container.out(["dpkg", "--listfiles", "sparkd"])
    assert "sparkctl.service" not in owned
    assert "/tests" not in owned


def test_the_unit_is_clean_and_closed_for_this_systemd(container):
    verified = container.run(
        ["systemd-analyze", "verify", "--man=no", "sparkd.service"], check=False
    )
    # Unknown keys are only text on stderr; the status stays 0.
    assert (verified.returncode, verified.stderr) == (0, "")
    argv = ["systemd-analyze", "security", "--no-pager", "--threshold=20", "sparkd.service"]
    assert container.run(argv, check=False).returncode == 0


def test_the_bus_lets_root_and_the_group_in_and_nobody_else(container):
    container.run("useradd --groups sparkd member; useradd stranger")
    call = ["busctl", "--timeout=60", "get-property", "io.github.sparkd.Manager1"]
    call += ["/io/github/sparkd/Manager1", "io.github.sparkd.Manager1", "Version"]
    assert container.run(call).stdout.startswith("s ")
    assert container.run(call, user="member").stdout.startswith("s ")
    refused = container.run(call, user="stranger", check=False)
    assert refused.returncode != 0
    assert "denied" in refused.stderr.lower()


def test_the_bus_starts_the_daemon(container):
    container.run(["systemctl", "stop", "sparkd.service"])
    container.run(["busctl", "--timeout=60", "introspect", "io.github.sparkd.Manager1",
                   "/io/github/sparkd/Manager1"])  # fmt: skip
    assert container.show("sparkd.service", "ActiveState")["ActiveState"] == "active"


def an_engine(lab):
    """One simulated engine that serves, and its main PID."""
    lab.engine("keeper", life={"load_seconds": 0.2})
    lab.apply()
    lab.ctl("start", "keeper", "--wait")
    assert lab.serves("keeper")
    return lab.show("keeper", "MainPID", "InvocationID")


def test_upgrade_remove_and_purge_leave_engines_alone(lab, deb):
    before = an_engine(lab)
    machine = lab.machine

    machine.push_file(deb, "/root/sparkd.deb")
    daemon = machine.show("sparkd.service", "MainPID")
    machine.run([*APT, "--reinstall", "install", "/root/sparkd.deb"], env=AS_IF, limit=900)
    assert machine.show("sparkd.service", "MainPID") != daemon
    assert lab.show("keeper", "MainPID", "InvocationID") == before

    removed = machine.run([*APT, "remove", "sparkd"], env=AS_IF, limit=900)
    assert "vllm-keeper.service" in removed.stderr + removed.stdout
    assert machine.show("sparkd.service", "LoadState", "ActiveState")["ActiveState"] == "inactive"
    assert lab.show("keeper", "MainPID", "InvocationID") == before
    assert lab.serves("keeper")
    assert machine.run(["test", "-e", "/etc/sparkd/sparkd.toml"], check=False).returncode == 0

    machine.run([*APT, "purge", "sparkd"], env=AS_IF, limit=900)
    assert lab.show("keeper", "MainPID", "InvocationID") == before
    assert lab.serves("keeper")
    gone = [
        "/var/lib/sparkd",
        "/etc/sparkd/sparkd.toml",
        "/usr/libexec/sparkd",
        "/usr/bin/sparkctl",
    ]
    kept = ["/etc/sparkd/engines.d/keeper.toml", "/etc/systemd/system/vllm-keeper.service",
            "/etc/systemd/system/vllm.target"]  # fmt: skip
    for path in gone:
        assert machine.run(["test", "-e", path], check=False).returncode == 1, path
    for path in kept:
        assert machine.run(["test", "-e", path], check=False).returncode == 0, path

    machine.run([*APT, "install", "/root/sparkd.deb"], env=AS_IF, limit=900)
    assert lab.show("keeper", "MainPID", "InvocationID") == before
    assert lab.until("keeper", "ready")["invocation_id"] == before["InvocationID"]


def test_lintian_has_nothing_to_say(deb):
    done = subprocess.run(
        ["lintian", "--allow-root", "--fail-on=error,warning", "--tag-display-limit=0", str(deb)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_same_tree_gives_the_same_package(tmp_path):
    built = []
    for name in ("one", "two"):
        copy = tmp_path / name / "tree"
        copy.parent.mkdir()
        source = REPO if name == "one" else tmp_path / "one" / "tree"
        shutil.copytree(
            source, copy, ignore=shutil.ignore_patterns("dist", "__pycache__", ".*_cache")
        )
        done = subprocess.run(
            [copy / "scripts/build-deb"], capture_output=True, check=True, text=True
        )
        built.append(Path(done.stdout.split()[-1]).read_bytes())
    assert built[0] == built[1]
