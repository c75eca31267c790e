# SPDX-License-Identifier: Apache-2.0
"""Unit files on a real file system: whole or not at all, no links followed, races noticed."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.adapters import unit_files
from sparkd.adapters.unit_files import ApplyBusyError, ApplyError, UnitDirectory, apply_lock
from sparkd.core.apply_plan import DiskUnit, Kind, Plan, Removal, Write, text_hash

NAME = "vllm-a.service"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "system"
    path.mkdir()
    return path


@pytest.fixture
def units(directory: Path, tmp_path: Path) -> UnitDirectory:
    return UnitDirectory(directory, others=(tmp_path / "vendor", tmp_path / "absent"))


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def write(text: str = "new\n", expected: str | None = None, name: str = NAME) -> Plan:
    return Plan(writes=(Write(name, text, expected),))


def remove(text: str) -> Plan:
    return Plan(removals=(Removal(NAME, text_hash(text)),))


def test_only_names_of_sparkds_units_are_read(directory: Path, units: UnitDirectory) -> None:
    for name in (NAME, "vllm.slice", "vllm.target", "ssh.service", "vllm-a.timer", "vllm.service"):
        (directory / name).write_text(name)
    assert units.read() == {name: DiskUnit(name) for name in (NAME, "vllm.slice", "vllm.target")}


def test_links_masks_and_oddities_are_told_apart(
    directory: Path, units: UnitDirectory, tmp_path: Path
) -> None:
    (directory / "vllm-masked.service").symlink_to("/dev/null")
    (directory / "vllm-empty.service").touch()
    (directory / "vllm-link.service").symlink_to("/opt/x.service")
    (directory / "vllm-dir.service").mkdir()
    os.mkfifo(directory / "vllm-fifo.service")
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    (vendor / "vllm-vendor.service").write_text("x")
    (vendor / "vllm-runtime-mask.service").symlink_to("/dev/null")
    found = units.read()
    assert {name: unit.kind for name, unit in found.items()} == {
        "vllm-masked.service": Kind.MASKED,
        "vllm-empty.service": Kind.MASKED,
        "vllm-link.service": Kind.SYMLINK,
        "vllm-dir.service": Kind.OTHER,
        "vllm-fifo.service": Kind.OTHER,
        "vllm-vendor.service": Kind.ELSEWHERE,
        "vllm-runtime-mask.service": Kind.MASKED,
    }
    assert found["vllm-link.service"].text == "/opt/x.service"
    assert found["vllm-vendor.service"].text == str(vendor / "vllm-vendor.service")


def test_bytes_that_are_no_utf8_survive_reading(directory: Path, units: UnitDirectory) -> None:
    (directory / NAME).write_bytes(b"\xff\xfe")
    text = units.read()[NAME].text
    units.apply(Plan(removals=(Removal(NAME, text_hash(text)),)))
    assert list(directory.iterdir()) == []


def test_a_new_file_is_written_for_all_to_read(directory: Path, units: UnitDirectory) -> None:
    old = os.umask(0o077)
    try:
        units.apply(write("é\n"))
    finally:
        os.umask(old)
    assert (directory / NAME).read_bytes() == "é\n".encode()
    assert (directory / NAME).stat().st_mode & 0o7777 == 0o644
    assert names_in(directory) == [NAME]


def test_a_file_is_replaced_and_removed(directory: Path, units: UnitDirectory) -> None:
    (directory / NAME).write_text("old\n")
    units.apply(write("new\n", text_hash("old\n")))
    assert (directory / NAME).read_text() == "new\n"
    units.apply(remove("new\n"))
    assert names_in(directory) == []


@pytest.mark.parametrize("plan", [write(expected=text_hash("old\n")), remove("old\n"), write()])
def test_a_file_that_changed_since_the_plan_stays(
    plan: Plan, directory: Path, units: UnitDirectory
) -> None:
    (directory / NAME).write_text("somebody else's\n")
    with pytest.raises(ApplyError, match=f"{directory}/{NAME} changed since"):
        units.apply(plan)
    assert (directory / NAME).read_text() == "somebody else's\n"
    assert names_in(directory) == [NAME]


@pytest.mark.parametrize("plan", [write(expected=text_hash("old\n")), remove("old\n")])
def test_a_file_that_vanished_since_the_plan_is_not_created(
    plan: Plan, directory: Path, units: UnitDirectory
) -> None:
    with pytest.raises(ApplyError, match="changed since"):
        units.apply(plan)
    assert names_in(directory) == []


def test_a_link_put_there_after_the_plan_is_not_followed(
    directory: Path, units: UnitDirectory, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("old\n")
    (directory / NAME).symlink_to(victim)
    with pytest.raises(ApplyError, match="changed since"):
        units.apply(write(expected=text_hash("old\n")))
    assert victim.read_text() == "old\n"


def test_leftovers_of_a_crash_are_swept_even_links(
    directory: Path, units: UnitDirectory, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (directory / f".sparkd-new-{NAME}").symlink_to(victim)
    (directory / ".sparkd-new-vllm-b.service").write_text("half")
    (directory / ".other").write_text("kept")
    units.apply(write())
    assert names_in(directory) == [".other", NAME]
    assert victim.read_text() == "mine\n"


def test_a_directory_that_is_a_link_is_refused(directory: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(ApplyError, match=f"cannot open {link}"):
        UnitDirectory(link).read()


def test_a_full_disk_leaves_the_old_file_and_no_temporary(
    directory: Path, units: UnitDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / NAME).write_text("old\n")
    real = os.fsync

    def full(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith(".service"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(unit_files.os, "fsync", full)
    with pytest.raises(ApplyError, match=f"cannot write {directory}/{NAME}: No space left"):
        units.apply(write("new\n", text_hash("old\n")))
    assert (directory / NAME).read_text() == "old\n"
    assert names_in(directory) == [NAME]


def test_a_read_only_directory_names_the_setting_that_helps(
    directory: Path, units: UnitDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def read_only(path: str, flags: int, *args: int, **kwargs: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(unit_files.os, "open", read_only)
    with pytest.raises(ApplyError, match=f"ReadWritePaths={directory}"):
        units.apply(write())


CRASHING_APPLY = """
import os, sys
from pathlib import Path
from sparkd.adapters.unit_files import UnitDirectory
from sparkd.core.apply_plan import Plan, Write, text_hash

calls = 0
def step(function):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls == int(sys.argv[2]):
            os._exit(9)
        return function(*args, **kwargs)
    return wrapped

for name in ("open", "fchmod", "fsync", "rename", "unlink"):
    setattr(os, name, step(getattr(os, name)))
old = text_hash("old\\n")
plan = Plan(writes=(Write("vllm-a.service", "new\\n", old), Write("vllm-b.service", "new\\n", old)))
UnitDirectory(Path(sys.argv[1]), others=()).apply(plan)
"""


def test_a_crash_at_any_step_leaves_whole_files_and_the_next_apply_finishes(
    tmp_path: Path,
) -> None:
    finished = False
    for step in range(1, 40):
        directory = tmp_path / str(step)
        directory.mkdir()
        names = ("vllm-a.service", "vllm-b.service")
        for name in names:
            (directory / name).write_text("old\n")
        argv = [sys.executable, "-c", CRASHING_APPLY, str(directory), str(step)]
        crashed = subprocess.run(argv, timeout=60, check=False).returncode
        assert crashed in {0, 9}
        contents = [(directory / name).read_text() for name in names]
        assert set(contents) <= {"old\n", "new\n"}
        plan = Plan(
            writes=tuple(
                Write(name, "new\n", text_hash(text))
                for name, text in zip(names, contents, strict=True)
            )
        )
        UnitDirectory(directory, others=()).apply(plan)
        assert names_in(directory) == list(names)
        assert {(directory / name).read_text() for name in names} == {"new\n"}
        if crashed == 0:
            finished = True
            break
    # Otherwise the loop would not have tried every step.
    assert finished
    assert step > 10


def test_two_applies_exclude_each_other(tmp_path: Path) -> None:
    lock = tmp_path / "apply.lock"
    with apply_lock(lock), pytest.raises(ApplyBusyError, match=str(lock)), apply_lock(lock):
        pytest.fail("two holders")
    with apply_lock(lock):
        pass


def test_the_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    lock = tmp_path / "apply.lock"
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ApplyError, match="cannot open"), apply_lock(lock):
        pytest.fail("followed a link")
    assert not (tmp_path / "elsewhere").exists()
