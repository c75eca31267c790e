# SPDX-License-Identifier: Apache-2.0
"""A kill is put down to who says so of this very engine."""

from sparkd.core import killers

EARLYOOM = 'sending SIGTERM to process 812 uid 995 "VLLM::EngineCor": badness 930, VmRSS 99 MiB'
OOMD = (
    "Killed /vllm.slice/vllm-a.service due to memory pressure for /vllm.slice being 63.16% > 50.00%"
    " for > 20s with reclaim activity"
)
GROUP = "/vllm.slice/vllm-a.service"


def find(unit, message, pid=812, cgroup=GROUP):
    return killers.find([("cron.service", "x"), (unit, message)], {pid}.__contains__, cgroup)


def test_earlyoom_names_the_process():
    finding = find("earlyoom.service", EARLYOOM)
    assert finding is not None
    assert (finding.helper, finding.cls) == ("earlyoom", "killed-by-earlyoom")
    assert "memory was short" in finding.reason
    assert not finding.permanent
    assert find("earlyoom.service", EARLYOOM, pid=813) is None


def test_systemd_oomd_names_the_control_group():
    finding = find("systemd-oomd.service", OOMD)
    assert finding is not None
    assert finding.cls == "killed-by-systemd-oomd"
    assert find("systemd-oomd.service", OOMD, cgroup="/vllm.slice/vllm-b.service") is None
    assert find("systemd-oomd.service", OOMD, cgroup="") is None


def test_nobody_else_is_believed():
    assert find("vllm-a.service", EARLYOOM) is None
    assert find("vllm-a.service", OOMD) is None
    assert find("earlyoom.service", OOMD) is None
