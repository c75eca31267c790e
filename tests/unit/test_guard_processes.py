# SPDX-License-Identifier: Apache-2.0
"""Real processes: found by name, stopped, and let go on by whoever finds the record."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from sparkd.adapters import proc, start_hold
from sparkd.adapters.compilers import Compilers
from sparkd.adapters.freezer import Freezer
from sparkd.core import memory_guard, storm
from sparkd.core.storm import Key
from sparkd.daemon.guard import Guard, Hands, Settings


@pytest.fixture
def cicc(tmp_path):
    program = tmp_path / "cicc"
    shutil.copy(shutil.which("sleep"), program)
    process = subprocess.Popen([program, "60"])
    yield process
    process.kill()
    process.wait()


def state(pid):
    return (proc.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


def key_of(process):
    return Key(process.pid, proc.start_time(process.pid))


def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_found_and_not_attributed(cicc):
    compilers = Compilers()
    until(lambda: cicc.pid in [c.key.pid for c in compilers.look()])
    [seen] = [c for c in compilers.look() if c.key.pid == cicc.pid]
    assert seen.key == key_of(cicc)
    assert not seen.attributed, "nothing says that this one compiles"
    assert compilers.building


def test_frozen_and_thawed_by_another(cicc, tmp_path):
    until(lambda: proc.process(cicc.pid).name == "cicc")
    key = key_of(cicc)
    assert Freezer(str(tmp_path)).freeze(key)
    until(lambda: state(cicc.pid) == "T")
    assert Freezer(str(tmp_path)).recorded() == [key]
    assert Freezer(str(tmp_path)).thaw_all() == 1
    until(lambda: state(cicc.pid) == "S")
    assert Freezer(str(tmp_path)).recorded() == []


def test_a_process_that_took_over_the_number_is_left_alone(cicc, tmp_path):
    key = key_of(cicc)
    other = Key(key.pid, key.start + 1)
    assert not Freezer(str(tmp_path)).freeze(other)
    assert state(cicc.pid) != "T"
    assert Freezer(str(tmp_path)).recorded() == []


def test_what_cannot_be_recorded_is_not_stopped(cicc, tmp_path):
    (tmp_path / "frozen").write_text("in the way")
    with pytest.raises(OSError, match="frozen"):
        Freezer(str(tmp_path)).freeze(key_of(cicc))
    assert state(cicc.pid) != "T"


def test_an_interrupted_one_is_seen_to_be_dying(cicc, tmp_path):
    compilers = Compilers()
    until(lambda: cicc.pid in [c.key.pid for c in compilers.look()])
    Freezer(str(tmp_path)).freeze(key_of(cicc))
    until(lambda: state(cicc.pid) == "T")
    os.kill(cicc.pid, 2)
    [seen] = [c for c in compilers.look() if c.key.pid == cicc.pid]
    assert seen.stopped
    assert seen.dying


def test_a_hold_of_starts_ends_by_itself(tmp_path, monkeypatch):
    run = str(tmp_path)
    assert not start_hold.reason(run)
    start_hold.write("memory is short", run)
    assert start_hold.reason(run) == "memory is short"
    later = time.clock_gettime(time.CLOCK_BOOTTIME) + start_hold.VALID_S + 1
    monkeypatch.setattr(time, "clock_gettime", lambda _clock: later)
    assert not start_hold.reason(run)


def test_the_helper_says_nothing_when_there_is_nothing(monkeypatch, capsys):
    from sparkd.helpers import thaw

    monkeypatch.setattr(thaw, "Freezer", lambda: Freezer("/nonexistent"))
    assert thaw.main([]) == 0
    assert not capsys.readouterr().out
    assert "sparkd.helpers.thaw" in sys.modules


def test_a_run_folder_that_cannot_be_written_costs_the_hold_and_nothing_else(tmp_path):
    """A full /run would end each look before compilers are looked at, and then the thread."""
    run = tmp_path / "run"
    run.write_text("a file, so that nothing can be written below it, not even by root")
    steps = []
    guard = Guard(Hands(lambda *_: None, lambda *entry: steps.append(entry[3])), str(run))
    floor = 2 * proc.memory().total
    policy = memory_guard.Policy(memory_guard.Mode.PROTECT, floor)
    guard.start()
    try:
        guard.configure(Settings(storm.Mode.OFF, policy, 4, 1 << 30))
        until(lambda: {"SPARKD_STEP": "nothing-left"} in steps)
        assert guard.facts.holding
        assert guard.is_well
    finally:
        guard.close(10.0)
    assert [step["SPARKD_STEP"] for step in steps] == [
        "throttle-compilers", "hold-starts", "nothing-left",
    ]  # fmt: skip
