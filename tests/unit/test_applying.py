# SPDX-License-Identifier: Apache-2.0
"""Applies and rollbacks leave a revision, and a crash or a full disk at any step leaves old or new.

A crash is a forked child that ends at the n-th call that changes something on disk, or at an order
to systemd. No systemd is involved here; what it does with the files is tested under a real one.
"""

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sparkd.adapters import applying
from sparkd.adapters.applying import NothingToRollBackError, Places
from sparkd.adapters.config_view import Paths
from sparkd.adapters.revision_files import Revisions
from sparkd.adapters.unit_files import ApplyError
from sparkd.core.apply_plan import Plan
from sparkd.core.marker import is_hand_edited
from sparkd.core.revisions import State
from tests.unit.test_observe import ENGINE
from tests.unit.test_observe_operations import Orders

CRASHED = 9
STEPS = ("open", "fchmod", "fsync", "rename", "replace", "link", "unlink")


class Bed:
    """Places below one folder, with helpers to read all of it at once."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "etc"
        self.units = folder / "units"
        self.places = Places(
            Paths(self.config, self.units), folder / "revisions", folder / "lock",
            str(folder / "sparkd.db"),
        )  # fmt: skip
        self.revisions = Revisions(folder / "revisions")
        self.manager = Orders()
        if not self.units.exists():
            (self.config / "engines.d").mkdir(parents=True)
            self.units.mkdir()
            (self.config / "sparkd.toml").write_text('[host]\nreserve = "1G"\n')

    def configure(self, name: str, port: int) -> None:
        file = self.config / "engines.d" / f"{name}.toml"
        file.write_text(ENGINE.format(name=name, port=port))

    def apply(self, **flags: object) -> dict[str, object]:
        return applying.apply(
            self.manager,
            applying.Flags(**flags),
            "tester",
            self.places,  # type: ignore[arg-type]
        )

    def rollback(self, number: int | None = None, **flags: object) -> dict[str, object]:
        flags = {"prune": True, **flags}
        return applying.rollback(
            self.manager,
            number,
            applying.Flags(**flags),
            "tester",
            self.places,  # type: ignore[arg-type]
        )

    def repair(self) -> str:
        return applying.repair(self.manager, self.places)

    def unit_texts(self) -> dict[str, bytes]:
        return contents(self.units)

    def toml(self) -> dict[str, bytes]:
        return contents(self.config) | contents(self.config / "engines.d")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    made = Bed(tmp_path)
    made.configure("a", 8001)
    made.configure("b", 8002)
    made.apply(why="first")
    return made


def test_an_apply_is_a_revision_with_everything_in_it(bed: Bed) -> None:
    old = bed.unit_texts()
    bed.configure("a", 8011)
    report = bed.apply(why="another port")
    revision = bed.revisions.read(2)
    assert revision is not None
    assert report["revision"] == 2
    assert (revision.author, revision.why, revision.state) == (
        "tester", "another port", State.APPLIED,
    )  # fmt: skip
    assert revision.changed == ["vllm-a.service"]
    assert "-    --port=8001" in revision.diff
    assert {name: text.encode() for name, text in revision.before.items()} == old
    assert {name: text.encode() for name, text in revision.after.items()} == bed.unit_texts()
    assert revision.sources.keys() == {"sparkd.toml", "engines.d/a.toml", "engines.d/b.toml"}
    file = bed.places.revisions / "000002.json"
    assert file.stat().st_mode & 0o7777 == 0o640


def test_an_apply_that_changes_nothing_is_no_revision(bed: Bed) -> None:
    assert bed.apply()["revision"] is None
    assert bed.revisions.numbers() == [1]


def test_a_rollback_brings_units_and_toml_back_byte_for_byte(bed: Bed) -> None:
    units, toml = bed.unit_texts(), bed.toml()
    bed.configure("a", 8011)
    bed.configure("c", 8003)
    bed.apply(why="bad idea")
    report = bed.rollback(why="it was bad")
    assert bed.unit_texts() == units
    assert bed.toml() == toml
    assert report["removed"] == ["vllm-c.service"]
    assert report["config_changed"] == ["engines.d/a.toml", "engines.d/c.toml"]
    # An apply afterwards has nothing to undo.
    assert bed.apply()["written"] == []
    # What it replaced is not lost: rolling the rollback back brings it again.
    bed.rollback()
    assert b"8011" in bed.unit_texts()["vllm-a.service"]
    assert b"8003" in bed.toml()["c.toml"]
    assert bed.revisions.numbers() == [1, 2, 3, 4]


def test_edits_that_were_never_applied_are_kept_in_the_rollback(bed: Bed) -> None:
    bed.configure("a", 8011)
    bed.apply()
    bed.configure("a", 8055)
    bed.rollback()
    revision = bed.revisions.read(3)
    assert revision is not None
    assert "8055" in revision.sources_before["engines.d/a.toml"]
    assert "8001" in revision.sources["engines.d/a.toml"]


def test_a_rollback_to_a_revision_goes_past_the_ones_between(bed: Bed) -> None:
    units = bed.unit_texts()
    for port in (8011, 8012, 8013):
        bed.configure("a", port)
        bed.apply()
    report = bed.rollback(1)
    assert bed.unit_texts() == units
    assert report["restores"] == "the state of revision 1"
    with pytest.raises(NothingToRollBackError, match="no applied revision 77"):
        bed.rollback(77)


def test_the_first_revision_rolled_back_leaves_no_unit_and_the_toml(bed: Bed) -> None:
    toml = bed.toml()
    report = bed.rollback()
    assert bed.unit_texts() == {}
    assert bed.toml() == toml
    assert report["config_known"] is False


def test_a_hand_edit_comes_back_as_it_was_even_odd_bytes(bed: Bed) -> None:
    unit = bed.units / "vllm-a.service"
    edited = unit.read_bytes().replace(b"Restart=always", b"Restart=no\r\n# \xff\xfe \x0c")
    unit.write_bytes(edited)
    bed.configure("a", 8011)
    assert bed.apply()["refused"]
    assert bed.apply(force=True)["written"] == ["vllm-a.service"]
    bed.rollback()
    assert unit.read_bytes() == edited


def test_a_rollback_does_not_overwrite_a_hand_edit_unasked(bed: Bed) -> None:
    bed.configure("a", 8011)
    bed.apply()
    unit = bed.units / "vllm-a.service"
    unit.write_text(unit.read_text().replace("Restart=always", "Restart=no"))
    edited = unit.read_bytes()
    refused = bed.rollback()["refused"]
    assert isinstance(refused, list)
    assert refused[0]["unit"] == "vllm-a.service"
    assert unit.read_bytes() == edited
    assert is_hand_edited(edited.decode())


def test_a_masked_unit_stays_masked(bed: Bed) -> None:
    bed.configure("a", 8011)
    bed.apply()
    unit = bed.units / "vllm-a.service"
    unit.unlink()
    unit.symlink_to("/dev/null")
    assert bed.rollback()["refused"]
    assert unit.is_symlink()


def test_a_running_engine_that_the_old_state_had_not_stays(bed: Bed) -> None:
    bed.configure("c", 8003)
    bed.apply()
    bed.manager.running = {"vllm-c.service"}
    report = bed.rollback()
    assert report["orphans"] == ["vllm-c.service"]
    assert (bed.units / "vllm-c.service").exists()


def test_a_revision_that_cannot_be_recorded_changes_nothing(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = bed.unit_texts()
    bed.configure("a", 8011)
    monkeypatch.setattr(Revisions, "write", _raise(errno.ENOSPC))
    with pytest.raises(ApplyError, match="No space left on device; nothing was changed"):
        bed.apply()
    assert bed.unit_texts() == before


def _raise(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


# a full disk, a read-only one, and kill -9, at every step


def changing(bed: Bed) -> None:
    bed.configure("a", 8011)
    bed.configure("c", 8003)
    (bed.config / "engines.d" / "b.toml").unlink()


def apply_all(bed: Bed) -> None:
    bed.apply(prune=True)


def roll_back(bed: Bed) -> None:
    bed.rollback(1)


Deed = Callable[[Bed], None]


def prepared(folder: Path, deed: Deed) -> tuple[Bed, Mapping[str, bytes], Mapping[str, bytes]]:
    """A bed, and its unit files before and after the deed."""
    folder.mkdir()
    bed = Bed(folder)
    bed.configure("a", 8001)
    bed.configure("b", 8002)
    bed.apply()
    first = bed.unit_texts()
    changing(bed)
    if deed is apply_all:
        rehearsal = Bed(folder)
        plan = applying._planned(rehearsal.manager, applying.Flags(prune=True), bed.places)[2]
        return bed, first, expected(first, plan)
    bed.apply(prune=True)
    return bed, bed.unit_texts(), first


def expected(before: Mapping[str, bytes], plan: Plan) -> dict[str, bytes]:
    gone = {removal.name for removal in plan.removals}
    after = {name: text for name, text in before.items() if name not in gone}
    return after | {write.name: write.text.encode() for write in plan.writes}


class Steps:
    """Counts calls that change the disk and orders to systemd; acts at one of them."""

    def __init__(self, at: int, act: Callable[[str], None]) -> None:
        self.count = 0
        self._at = at
        self._act = act

    def step(self, name: str) -> None:
        self.count += 1
        if self.count == self._at:
            self._act(name)

    def wrap(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **kwargs: object) -> object:
            # Only what changes something: an open file that is read cannot fill a disk.
            if name != "open" or int(args[1]) & os.O_CREAT:  # type: ignore[call-overload]
                self.step(name)
            return function(*args, **kwargs)

        return wrapped


def crash_at(folder: Path, at: int, deed: Deed) -> int:
    """Carry the deed out in a child that dies at a step; returns its status."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            steps = Steps(at, lambda _: os._exit(CRASHED))
            bed = Bed(folder)
            for name in STEPS:
                setattr(os, name, steps.wrap(name, getattr(os, name)))
            for name in ("enable", "disable", "reload", "start"):
                setattr(bed.manager, name, steps.wrap(name, getattr(bed.manager, name)))
            deed(bed)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("deed", [apply_all, roll_back])
def test_kill_9_at_every_step_leaves_old_or_new_and_the_next_start_repairs(
    deed: Deed, tmp_path: Path
) -> None:
    made, old, new = prepared(tmp_path / "made", deed)
    toml = made.toml()
    outcomes = set()
    for at in range(1, 400):
        shutil.copytree(tmp_path / "made", tmp_path / str(at))
        bed = Bed(tmp_path / str(at))
        status = crash_at(tmp_path / str(at), at, deed)
        assert status in {0, CRASHED}
        for name, text in bed.unit_texts().items():
            assert name.startswith(".sparkd-") or text in {old.get(name), new.get(name)}, (at, name)
        begun = bed.revisions.begun()
        said = bed.repair()
        assert bool(said) == (begun is not None), at
        state = bed.unit_texts()
        assert state in (old, new), at
        assert bed.revisions.begun() is None
        assert bed.repair() == ""
        if deed is roll_back:
            first = bed.revisions.read(1)
            assert first is not None
            wanted = {Path(name).name: text.encode() for name, text in first.sources.items()}
            assert bed.toml() == (toml if state == old else wanted), at
        if begun is not None and state == new:
            assert ("reload",) in bed.manager.orders, at
        last = bed.revisions.all()[-1]
        assert last.state is not State.BEGUN
        outcomes.add((state == new, begun is not None))
        if status == 0:
            break
    else:
        pytest.fail("the loop did not reach the last step")
    # Crashed before and after the first rename, with and without a revision on record.
    assert outcomes == {(False, False), (False, True), (True, True), (True, False)}


def caught(deed: Deed, bed: Bed) -> Exception | None:
    try:
        deed(bed)
    except (ApplyError, OSError) as error:
        return error
    return None


@pytest.mark.parametrize("deed", [apply_all, roll_back])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_an_error_at_every_step_leaves_the_old_state_or_says_what_is_left(
    deed: Deed, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, old, new = prepared(tmp_path / "made", deed)
    toml = made.toml()
    failures = 0
    for at in range(1, 400):
        shutil.copytree(tmp_path / "made", tmp_path / str(at))
        bed = Bed(tmp_path / str(at))

        def fail(_: str) -> None:
            raise OSError(number, os.strerror(number))

        steps = Steps(at, fail)
        with monkeypatch.context() as patch:
            for name in STEPS:
                patch.setattr(os, name, steps.wrap(name, getattr(os, name)))
            error = caught(deed, bed)
        if error is not None:
            failures += 1
            assert os.strerror(number) in str(error)
        state = bed.unit_texts()
        begun = bed.revisions.begun()
        if begun is None:
            visible = {k: v for k, v in state.items() if not k.startswith(".sparkd-")}
            assert visible in (old, new), at
        bed.repair()
        assert {k: v for k, v in bed.unit_texts().items() if k[0] != "."} in (old, new), at
        if deed is roll_back and {**bed.unit_texts()} == old:
            assert bed.toml() == toml, at
        if steps.count < at:
            break
    else:
        pytest.fail("the loop did not reach the last step")
    assert failures > 10


@pytest.fixture
def measured(bed: Bed) -> dict[str, object]:
    revision = bed.revisions.read(1)
    assert revision is not None
    return {
        "engine": "a", "invocation_id": "i1", "time": revision.time + 100, "seconds": 60.0,
        "kv_cache_tokens": 5000, "max_concurrency": 2.5, "kv_cache_gib": 3.25,
    }  # fmt: skip


def test_the_first_start_after_a_revision_is_written_beside_it_once(
    bed: Bed, measured: dict[str, object]
) -> None:
    folder = bed.places.revisions
    assert applying.record_boot(measured, folder) == [1]
    assert applying.record_boot(measured, folder) == []
    assert applying.record_boot({**measured, "invocation_id": "i2"}, folder) == []
    rows = bed.revisions.outcomes(1)
    assert [row["engine"] for row in rows] == ["a"]
    assert rows[0]["figures"] == {
        "kv_cache_gib": 3.25, "kv_cache_tokens": 5000, "max_concurrency": 2.5, "seconds": 60.0,
    }  # fmt: skip


def test_a_start_that_began_before_the_apply_measures_nothing_of_it(
    bed: Bed, measured: dict[str, object]
) -> None:
    assert applying.record_boot({**measured, "seconds": 200.0}, bed.places.revisions) == []


def test_a_wrong_note_stays_beside_its_correction(bed: Bed) -> None:
    for text in ("20 % faster", "no: the cache was warm"):
        bed.revisions.add_note(1, {"time": 1.0, "author": "root", "text": text})
    assert [note["text"] for note in bed.revisions.notes(1)] == [
        "20 % faster", "no: the cache was warm",
    ]  # fmt: skip


def test_a_unit_that_systemd_has_not_loaded_is_reloaded_and_nothing_restarted(bed: Bed) -> None:
    bed.manager.given.clear()
    seen = bed.manager.unit

    def stale(name: str):
        return seen(name)._replace(need_daemon_reload=name == "vllm-a.service")

    bed.manager.unit = stale  # type: ignore[method-assign]
    assert "vllm-a.service: reloaded, nothing was restarted" in bed.repair()
    assert bed.manager.orders == [("reload",)]
