# SPDX-License-Identifier: Apache-2.0
"""Who is an orphan, who is somebody's, and that only the very process that was seen is ended."""

import os
import subprocess
import sys
import time

import pytest

from sparkd.adapters import orphan_processes, proc
from sparkd.core import orphans
from sparkd.core.orphans import Orphan, Process
from sparkd.core.storm import Key

SESSION = "/user.slice/user-1000.slice/session-3.scope"
CORE = Process(Key(50, 9), "VLLM::EngineCor", ("VLLM::EngineCore",), SESSION, "ai", 7)


def find(*processes, parents, guests=(), holders=None):
    return orphans.find(processes, parents, {0, 1, 900}, guests, holders or {}, {8011: "q38"})


@pytest.mark.parametrize(
    ("cgroup", "is_in"),
    [
        ("/vllm.slice/vllm-q38.service", True),
        ("/system.slice/docker-0123.scope", True),
        ("/system.slice/cron.service", True),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/mine.service", True),
        ("/vllm.slice/vllm-guest-7.scope", True),
        ("/vllm.slice/vllm-guest-8.scope", False),
        (SESSION, False),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-term-1.scope", False),
        ("/user.slice/user-1000.slice/user@1000.service/init.scope", False),
        ("/init.scope", False),
        ("/", False),
        ("", False),
    ],
)
def test_what_is_in_a_unit(cgroup, is_in):
    assert orphans.in_unit(cgroup, {"vllm-guest-7.scope"}) is is_in


@pytest.mark.parametrize(
    ("name", "argv", "is_one"),
    [
        ("VLLM::EngineCor", (), True),
        ("vllm", ("/opt/v/bin/python3", "/opt/v/bin/vllm", "serve", "m"), True),
        ("python3", ("python3", "-m", "vllm.entrypoints.openai.api_server"), True),
        ("vim", ("vim", "vllm"), False),
        ("grep", ("grep", "-r", "serve", "vllm"), False),
        ("python3", ("python3", "train.py"), False),
    ],
)
def test_what_is_vllm(name, argv, is_one):
    assert orphans.is_vllm(name, argv) is is_one


@pytest.mark.parametrize("adopter", [1, 900])
def test_an_engine_core_whose_server_is_gone_is_left_behind(adopter):
    (seen,) = find(CORE, parents={50: adopter})
    assert seen.is_left_behind
    assert "whose parent is gone" in seen.reason


def test_one_that_runs_by_hand_is_shown_and_not_ended():
    server = Process(Key(40, 8), "vllm", ("python", "vllm", "serve", "m"), SESSION, "ai", 9)
    seen = find(CORE, server, parents={50: 40, 40: 30})
    assert [o.key.pid for o in seen] == [40, 50]
    assert not any(o.is_left_behind for o in seen)
    assert "login session 3" in seen[0].reason


def test_a_child_of_what_is_left_behind_is_left_behind_too():
    cicc = Process(Key(60, 9), "cicc", ("cicc",), SESSION, "ai", 3)
    seen = find(CORE, cicc, parents={60: 50, 50: 1})
    assert [o.is_left_behind for o in seen] == [True, True]


def test_compilers_of_somebody_who_builds_are_nobodys_business():
    cicc = Process(Key(60, 9), "cicc", ("cicc",), SESSION, "ai", 3)
    assert find(cicc, parents={60: 55}) == []


def test_nothing_in_a_unit_is_an_orphan_whatever_its_parent():
    inside = CORE._replace(cgroup="/vllm.slice/vllm-q38.service")
    assert find(inside, parents={50: 1}, holders={8011: {50}}) == []


def test_a_stranger_on_an_engines_port_is_named_and_not_ended():
    nc = Process(Key(70, 9), "nc", ("nc", "-l", "8011"), SESSION, "ai", 1)
    (seen,) = find(nc, parents={70: 1}, holders={8011: {70}})
    assert not seen.is_left_behind
    assert seen.port == 8011
    assert "port 8011 of q38" in seen.reason


@pytest.fixture
def sleeper():
    """A process outside of any unit, as far as this test can tell one."""
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
    argv = [sys.executable, "-c", f"{code}; time.sleep(60)"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


def orphan(pid, start):
    return Orphan(Key(pid, start), "x", "x", "root", 0, "", 0, is_left_behind=True, reason="")


def test_one_that_is_deaf_to_term_is_killed(sleeper, monkeypatch):
    monkeypatch.setattr(orphan_processes, "TERM_S", 0.2)
    monkeypatch.setattr(proc, "cgroup_of", lambda _: "/")
    assert orphan_processes.end([orphan(sleeper.pid, proc.start_time(sleeper.pid))]) == []
    assert sleeper.wait(10) == -9


def test_another_process_under_the_same_number_is_left_alone(sleeper, monkeypatch):
    monkeypatch.setattr(proc, "cgroup_of", lambda _: "/")
    assert orphan_processes.end([orphan(sleeper.pid, proc.start_time(sleeper.pid) + 1)]) == []
    time.sleep(0.1)
    assert sleeper.poll() is None


def test_one_that_came_into_a_unit_meanwhile_is_left_alone(sleeper, monkeypatch):
    monkeypatch.setattr(proc, "cgroup_of", lambda _: "/system.slice/x.service")
    assert orphan_processes.end([orphan(sleeper.pid, proc.start_time(sleeper.pid))]) == []
    assert sleeper.poll() is None


def test_a_look_costs_no_error_for_processes_that_come_and_go():
    assert isinstance(orphan_processes.look({1: ("a", "127.0.0.1")}), list)
    assert os.getpid() not in {o.key.pid for o in orphan_processes.look({})}
