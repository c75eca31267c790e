# SPDX-License-Identifier: Apache-2.0
"""The shared files: whole or old, never torn; garbage is absent; locks die with their holder."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkd.adapters import state_files
from sparkd.adapters.state_files import StateFiles, write_atomic
from sparkd.core.burst import Death, HeldBy, Hold, Ledger, Moment
from sparkd.core.end_of_life import Finding
from sparkd.core.slot import Claim, Waiter

TIMEOUT_S = 20
ROOT = Path(__file__).parents[2]
A, B = "vllm-a.service", "vllm-b.service"
ONE = Ledger((Death("i1", Moment("boot", 1.0, 2.0), "oom"),), None)
HELD = ONE._replace(held=Hold(HeldBy.BURST, "oom", "three deaths", 3.0))


@pytest.fixture
def files(tmp_path):
    return StateFiles(str(tmp_path / "run"), str(tmp_path / "state"))


# what is written comes back


def test_claim(files):
    assert files.claim() is None
    files.write_claim(Claim(A, "i1"))
    files.write_claim(Claim(B, "i2"))
    assert files.claim() == Claim(B, "i2")


def test_waiters(files):
    assert files.waiters() == []
    late, early = Waiter(A, "i1", 10, 7.5, "waiting: x"), Waiter(B, "i2", 20, 1.0)
    files.write_waiter(early)
    files.write_waiter(late._replace(invocation_id="i0"))
    files.write_waiter(late)
    assert sorted(files.waiters()) == [late, early]
    files.drop_waiter(A)
    files.drop_waiter(A)
    assert files.waiters() == [early]


def test_findings_and_launch_hashes_belong_to_one_invocation(files):
    finding = Finding("await-ready", "wrong-model", "é", permanent=True)
    files.write_finding(A, "i1", finding)
    files.write_started(A, "i1", "sha256:ab")
    assert files.finding(A, "i1") == finding
    assert files.launch_hash(A, "i1") == "sha256:ab"
    for unit, invocation in ((A, "i2"), (B, "i1"), (A, "")):
        assert files.finding(unit, invocation) is None
        assert files.launch_hash(unit, invocation) is None


def test_ledger(files, tmp_path):
    assert files.ledger("a") == Ledger()
    assert files.write_ledger("a", HELD) == tmp_path / "state/ledger/a.json"
    assert files.ledger("a") == HELD
    assert files.ledger("b") == Ledger()


def test_nobody_else_can_write_there(files, tmp_path):
    previous = os.umask(0o022)  # systemd's default
    try:
        files.write_claim(Claim(A, "i1"))
        files.write_ledger("a", ONE)
        with files.locked("slot"):
            pass
    finally:
        os.umask(previous)
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o022 == 0, path
        assert path.is_dir() or path.stat().st_mode & 0o007 == 0, path


# the ledger when the disk is full


def full_disk(monkeypatch, files):
    real = state_files.write_atomic
    disk = files._ledgers[0]

    def write(path, text, mode=0o640):
        if path.is_relative_to(disk):
            raise OSError(28, "No space left on device")
        real(path, text, mode)

    monkeypatch.setattr(state_files, "write_atomic", write)


def test_a_full_disk_loses_no_death(files, tmp_path, monkeypatch):
    files.write_ledger("a", ONE)
    with monkeypatch.context() as patch:
        full_disk(patch, files)
        assert files.write_ledger("a", HELD) == tmp_path / "run/ledger/a.json"
        assert files.ledger("a") == HELD
    assert files.ledger("a") == HELD
    assert files.write_ledger("a", ONE) == tmp_path / "state/ledger/a.json"
    assert files.ledger("a") == ONE
    assert not (tmp_path / "run/ledger/a.json").exists()


def test_a_hold_released_while_the_disk_is_full_stays_released(files, monkeypatch):
    """The copy on the disk still says held."""
    files.write_ledger("a", HELD)
    full_disk(monkeypatch, files)
    files.write_ledger("a", Ledger())
    assert files.ledger("a") == Ledger()
    files.write_ledger("a", ONE)
    assert files.ledger("a") == ONE


def test_a_copy_left_behind_by_a_crash_is_the_older_one(files, tmp_path, monkeypatch):
    """Killed after the disk was written and before the copy in memory was removed."""
    files.write_ledger("a", ONE)
    with monkeypatch.context() as patch:
        full_disk(patch, files)
        files.write_ledger("a", HELD)
    left_behind = (tmp_path / "run/ledger/a.json").read_bytes()
    files.write_ledger("a", Ledger())
    (tmp_path / "run/ledger/a.json").write_bytes(left_behind)
    assert files.ledger("a") == Ledger()


def test_a_damaged_copy_leaves_the_other(files, tmp_path, monkeypatch):
    files.write_ledger("a", ONE)
    with monkeypatch.context() as patch:
        full_disk(patch, files)
        files.write_ledger("a", HELD)
    (tmp_path / "run/ledger/a.json").write_text('{"deaths": [')
    assert files.ledger("a") == ONE


@pytest.fixture
def tiny_disk(tmp_path):
    """A real file system of 64 KB, full."""
    if os.geteuid() != 0 and "CI" not in os.environ:
        pytest.skip("only root may mount; CI must be root")
    place = tmp_path / "tiny"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "sparkd-test", str(place)]
    subprocess.run(mount, check=True, timeout=TIMEOUT_S)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=TIMEOUT_S)


def fill(place):
    with (place / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def test_a_really_full_disk(tiny_disk, tmp_path):
    files = StateFiles(str(tmp_path / "run"), str(tiny_disk))
    files.write_ledger("a", ONE)
    before = (tiny_disk / "ledger/a.json").read_bytes()
    fill(tiny_disk)
    assert files.write_ledger("a", HELD) == tmp_path / "run/ledger/a.json"
    assert (tiny_disk / "ledger/a.json").read_bytes() == before
    assert [path.name for path in (tiny_disk / "ledger").iterdir()] == ["a.json"], "no rests"
    assert files.ledger("a") == HELD
    (tiny_disk / "ballast").unlink()
    assert files.write_ledger("a", HELD) == tiny_disk / "ledger/a.json"


def test_both_places_full_is_an_error_and_loses_nothing(tiny_disk):
    files = StateFiles(str(tiny_disk / "run"), str(tiny_disk / "state"))
    files.write_ledger("a", ONE)
    fill(tiny_disk)
    with pytest.raises(OSError, match="No space left"):
        files.write_ledger("a", HELD)
    assert files.ledger("a") == ONE


def test_a_state_folder_that_cannot_be_made(files, tmp_path):
    (tmp_path / "state").write_text("a file where the folder should be")
    assert files.write_ledger("a", ONE) == tmp_path / "run/ledger/a.json"
    assert files.ledger("a") == ONE


# garbage

GARBAGE = {
    "empty": b"",
    "torn": b'{"unit": "vllm-a.serv',
    "binary": b"\x00\xff\xfe\x80",
    "a list": b"[]",
    "null": b"null",
    "a number": b"1e999",
    "deep": b"[" * 200_000,
    "large": b'"' + b"x" * (2 << 20) + b'"',
    "too many digits": b'{"since": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_garbage_counts_as_absent(files, tmp_path, content):
    for name in ("slot", f"waiting/{A}.json", f"findings/{A}.json", f"started/{A}.json"):
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for folder in ("run/ledger", "state/ledger"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.json").write_bytes(content)
    assert files.claim() is None
    assert files.waiters() == []
    assert files.finding(A, "i1") is None
    assert files.launch_hash(A, "i1") is None
    assert files.ledger("a") == Ledger()
    files.write_ledger("a", ONE)
    assert files.ledger("a") == ONE


GOOD_WAITER = {"unit": A, "invocation_id": "i1", "order": 1, "since": 2, "blocked": ""}


@pytest.mark.parametrize(
    "change",
    [
        {"since": float("nan")},  # it would stand neither before nor behind anybody
        {"since": float("-inf")},
        {"since": 10**400},
        {"since": "2"},
        {"order": 1.5},
        {"order": None},
        {"unit": B},  # not what its file is called
        {"unit": "\ud800"},
        {"blocked": None},
    ],
)
def test_a_damaged_waiter_is_left_out(files, tmp_path, change):
    files.write_waiter(Waiter(B, "i2", 2, 3.0))
    path = tmp_path / "run/waiting" / f"{A}.json"
    path.write_text(json.dumps(GOOD_WAITER))
    assert len(files.waiters()) == 2
    path.write_text(json.dumps({**GOOD_WAITER, **change}))
    assert files.waiters() == [Waiter(B, "i2", 2, 3.0)]


@pytest.mark.parametrize("revision", [None, "7", 1.5, -3, [], 10**30])
def test_a_ledger_with_an_odd_revision_can_be_read_and_replaced(files, tmp_path, revision):
    files.write_ledger("a", ONE)
    path = tmp_path / "state/ledger/a.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "revision": revision}))
    files.write_ledger("a", HELD)
    assert files.ledger("a") == HELD


def a_symlink(path):
    target = path.with_name("target")
    target.write_text(json.dumps(GOOD_WAITER))
    path.symlink_to(target)


def a_fifo(path):
    os.mkfifo(path)


def a_folder(path):
    path.mkdir()


@pytest.mark.parametrize("make", [a_symlink, a_fifo, a_folder])
def test_only_a_regular_file_is_read(files, tmp_path, make):
    (tmp_path / "run/waiting").mkdir(parents=True)
    make(tmp_path / "run/waiting" / f"{A}.json")
    make(tmp_path / "run/slot")
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert files.waiters() == []
    assert files.claim() is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_writing_replaces_a_symlink_and_leaves_its_target(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "file").symlink_to(target)
    write_atomic(tmp_path / "file", "new")
    assert target.read_text() == "mine"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_temporary_name_made_before_us_is_not_written_through(tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / f".file.{os.getpid()}.tmp").symlink_to(target)
    write_atomic(tmp_path / "file", "new")
    assert target.read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new"


def test_a_lock_is_not_taken_through_a_symlink(files, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/slot.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), files.locked("slot"):
        pass
    assert not (tmp_path / "elsewhere").exists()


# kill -9


def run_python(code, *args):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )


KILLED_BEFORE = """
import os, pathlib, signal, sys
from sparkd.adapters import state_files

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

step, path = sys.argv[1], pathlib.Path(sys.argv[2])
if step == "rename":
    pathlib.Path.rename = die
elif step == "second fsync":
    real, calls = os.fsync, []
    os.fsync = lambda fd: die() if calls else calls.append(real(fd))
else:
    setattr(os, step, die)
state_files.write_atomic(path, "new")
print("survived")
"""


@pytest.mark.parametrize(
    ("step", "content"),
    [("open", "old"), ("fdopen", "old"), ("fsync", "old"), ("rename", "old"),
     ("second fsync", "new")],
)  # fmt: skip
def test_killed_at_any_step_leaves_the_old_or_the_new(tmp_path, step, content):
    path = tmp_path / "waiting.json"
    path.write_text("old")
    with run_python(KILLED_BEFORE, step, path) as process:
        assert process.wait(TIMEOUT_S) == -signal.SIGKILL
    assert path.read_text() == content
    write_atomic(path, "newer")
    assert path.read_text() == "newer"


WRITES_FOR_EVER = """
import pathlib, sys
from sparkd.adapters.state_files import write_atomic
print("go", flush=True)
n = 0
while True:
    n += 1
    write_atomic(pathlib.Path(sys.argv[1]), f"{n % 10}" * 9999)
"""


def test_a_reader_never_sees_a_torn_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("0" * 9999)
    with run_python(WRITES_FOR_EVER, path) as writer:
        try:
            assert writer.stdout.readline()
            seen = [state_files._read(path) for _ in range(300)]
        finally:
            writer.kill()
    assert {len(text) for text in seen} == {9999}
    assert all(len(set(text)) == 1 for text in seen)
    assert len(set(path.read_text())) == 1


HOLDS = """
import sys, time
from sparkd.adapters.state_files import StateFiles
with StateFiles(sys.argv[1], "/nonexistent").locked("slot"):
    print("locked", flush=True)
    time.sleep(60)
"""
ADDS = """
import pathlib, sys
from sparkd.adapters.state_files import StateFiles
counter = pathlib.Path(sys.argv[2])
for _ in range(50):
    with StateFiles(sys.argv[1], "/nonexistent").locked("slot"):
        counter.write_text(str(int(counter.read_text()) + 1))
"""


def test_the_lock_excludes(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(run_python(ADDS, tmp_path / "run", counter)) for _ in "abcd"]
        assert [process.wait(TIMEOUT_S) for process in running] == [0, 0, 0, 0]
    assert counter.read_text() == "200"


def test_kill_9_of_the_holder_frees_the_lock(tmp_path):
    with run_python(HOLDS, tmp_path / "run") as holder:
        assert holder.stdout.readline() == "locked\n"
        with run_python(HOLDS, tmp_path / "run") as waiter:
            try:
                time.sleep(0.3)  # it had every chance to get in
                os.set_blocking(waiter.stdout.fileno(), False)
                assert waiter.stdout.readline() == "", "two holders"
                os.set_blocking(waiter.stdout.fileno(), True)
                holder.kill()
                assert waiter.stdout.readline() == "locked\n"
            finally:
                holder.kill()
                waiter.kill()


def test_an_exception_frees_the_lock(files):
    with pytest.raises(ZeroDivisionError), files.locked("slot"):
        raise ZeroDivisionError
    with files.locked("slot"):
        pass


def test_different_locks_do_not_exclude_each_other(files):
    with files.locked("slot"), files.locked("ledger"):
        pass
