# SPDX-License-Identifier: Apache-2.0
"""A hand-over is refused where it would lose something, and undo gives back every byte."""

from pathlib import Path

import pytest

from sparkd.adapters import handover
from sparkd.adapters.handover import HandoverError, Places
from sparkd.adapters.unit_files import ApplyBusyError, apply_lock
from sparkd.core import handover as rules
from sparkd.core.handover import Wish
from sparkd.core.unit_state import UnitFacts
from tests.unit.test_observe_operations import Orders

TEXT = b"[Service]\nExecStart=/opt/vllm/bin/vllm serve /m\n# \xff odd\r\n"
OLD = UnitFacts(
    "old.service", "loaded", "active", unit_file_state="enabled",
    fragment_path="/etc/systemd/system/old.service",
)  # fmt: skip
SOURCE = OLD.fragment_path


@pytest.mark.parametrize(
    ("old", "wish", "engines", "reason"),
    [
        (OLD, Wish(), ["a"], "say --adopt-running"),
        (OLD, Wish(stop=True), ["a", "b"], "became 2 engines"),
        (OLD._replace(load_state="not-found"), Wish(stop=True), ["a"], "does not run"),
        (OLD._replace(fragment_path="/x"), Wish(stop=True), ["a"], "does not run"),
        (OLD, Wish(stop=True), ["a"], ""),
        (OLD, Wish(adopt_running=True), ["a"], ""),
        (OLD._replace(active_state="failed"), Wish(), ["a"], ""),
    ],
)
def test_what_cannot_be_handed_over(
    old: UnitFacts, wish: Wish, engines: list[str], reason: str
) -> None:
    found = rules.obstacle(old, SOURCE, wish, engines)
    assert reason in found
    assert bool(reason) == bool(found)


def test_a_unit_with_the_new_name_and_drop_ins_is_refused() -> None:
    path = "/etc/systemd/system/vllm-a.service"
    old = OLD._replace(unit="vllm-a.service", fragment_path=path, active_state="inactive")
    assert rules.obstacle(old, path, Wish(), ["a"]) == ""
    assert "drop-ins" in rules.obstacle(old._replace(drop_ins=("/x.conf",)), path, Wish(), ["a"])


class Manager(Orders):
    """Knows one old unit."""

    def __init__(self, old: UnitFacts) -> None:
        super().__init__()
        self.old = old
        self.enabled = {old.unit}

    def unit(self, name: str) -> UnitFacts:
        state = "enabled" if name in self.enabled else "disabled"
        if name == self.old.unit:
            return self.old._replace(unit_file_state=state)
        return UnitFacts(name, "loaded", "inactive", unit_file_state=state)

    def stop(self, unit: str) -> str:
        self.old = self.old._replace(active_state="inactive")
        return super().stop(unit)

    def enable(self, units: list[str]) -> None:
        self.enabled |= set(units)

    def disable(self, units: list[str]) -> None:
        self.enabled -= set(units)


class Bed:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units = folder / "system"
        self.units.mkdir()
        monkeypatch.setattr(rules, "_OWN_UNITS", f"{self.units}/")
        self.places = Places(folder / "imports", self.units, folder / "lock")
        self.toml = folder / "a.toml"
        self.toml.write_text("port = 1\n")
        self.file = self.units / "old.service"
        self.file.write_bytes(TEXT)
        self.file.chmod(0o640)
        self.manager = Manager(OLD._replace(fragment_path=str(self.file)))

    def take(self, wish: Wish) -> rules.Record:
        record = handover.begin(self.manager, "old.service", "a", "port = 1\n", "root", self.places)
        return handover.take(self.manager, record, wish, self.places)

    def undo(self) -> list[str]:
        (record,) = [one for one in handover.records(self.places) if not one.undone]
        return handover.undo(self.manager, record, self.toml, self.places)


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    return Bed(tmp_path, monkeypatch)


def test_a_running_unit_serves_on_and_cannot_start_beside_the_new_one(bed: Bed) -> None:
    record = bed.take(Wish(adopt_running=True))
    assert not record.moved
    assert bed.file.read_bytes() == TEXT
    assert bed.manager.enabled == set()
    assert ("stop", "old.service") not in bed.manager.orders
    drop_in = (bed.units / "vllm-a.service.d/60-sparkd-handover.conf").read_text()
    assert "Conflicts=old.service" in drop_in
    assert "After=old.service" in drop_in


def test_stopped_only_when_told_and_undo_gives_back_every_byte(bed: Bed) -> None:
    bed.manager.enabled.add("vllm-a.service")
    record = bed.take(Wish(stop=True))
    assert ("stop", "old.service") in bed.manager.orders
    assert record.moved
    assert not bed.file.exists()
    said = bed.undo()
    assert bed.file.read_bytes() == TEXT
    assert bed.file.stat().st_mode & 0o7777 == 0o640
    assert bed.manager.enabled == {"old.service"}
    assert not (bed.units / "vllm-a.service.d").exists()
    assert not bed.toml.exists()
    assert any("systemctl start old.service" in line for line in said)
    assert [record.undone for record in handover.records(bed.places)] == [True]


def test_undo_keeps_what_the_operator_has_changed(bed: Bed) -> None:
    bed.take(Wish(stop=True))
    bed.toml.write_text("port = 2\n")
    assert any("was changed since and stays" in line for line in bed.undo())
    assert bed.toml.read_text() == "port = 2\n"


def test_undo_does_not_overwrite_another_unit(bed: Bed) -> None:
    bed.take(Wish(stop=True))
    bed.file.write_text("[Service]\nExecStart=/bin/other\n")
    with pytest.raises(HandoverError, match="is another one"):
        bed.undo()
    assert "other" in bed.file.read_text()


def test_an_edit_made_while_the_old_unit_stops_is_not_lost(bed: Bed) -> None:
    edited = TEXT + b"Environment=A=1\n"

    class Edited(Manager):
        def stop(self, unit: str) -> str:
            bed.file.write_bytes(edited)
            return super().stop(unit)

    bed.manager = Edited(bed.manager.old)
    with pytest.raises(HandoverError, match="changed meanwhile and stays"):
        bed.take(Wish(stop=True))
    assert bed.file.read_bytes() == edited
    bed.undo()
    assert bed.file.read_bytes() == edited
    assert bed.manager.enabled == {"old.service"}


def test_it_waits_for_its_turn_with_an_apply(bed: Bed) -> None:
    """Each sweeps what the other has staged in systemd's folder, and the links that undo it."""
    record = bed.take(Wish(adopt_running=True))
    steps = (
        lambda: bed.take(Wish(stop=True)),
        lambda: handover.take(bed.manager, record, Wish(stop=True), bed.places),
        bed.undo,
    )
    with apply_lock(bed.places.lock):
        for step in steps:
            with pytest.raises(ApplyBusyError):
                step()
    assert bed.file.read_bytes() == TEXT
    assert len(handover.records(bed.places)) == 1
    bed.undo()


def test_a_link_is_refused_before_anything_is_changed(bed: Bed) -> None:
    target = bed.units.parent / "real.service"
    bed.file.rename(target)
    bed.file.symlink_to(target)
    with pytest.raises(HandoverError, match="is a link"):
        bed.take(Wish(stop=True))
    assert bed.file.is_symlink()
    assert bed.manager.orders == []
    assert not bed.places.records.exists()


@pytest.mark.parametrize("damage", ["{", '{"number": 1, "text": "of a later version"}'])
def test_a_record_that_cannot_be_read_is_kept_and_keeps_no_other_from_being_undone(
    bed: Bed, damage: str
) -> None:
    bed.places.records.mkdir()
    unreadable = bed.places.records / "000001.json"
    unreadable.write_text(damage)
    record = bed.take(Wish(stop=True))
    assert record.number == 2
    assert unreadable.read_text() == damage
    bed.undo()
    assert bed.file.read_bytes() == TEXT


def test_a_hand_over_cut_short_after_any_step_can_be_undone(bed: Bed) -> None:
    for fails_at in ("stop", "disable", "unlink"):
        bed.manager.enabled = {"old.service"}
        bed.manager.old = bed.manager.old._replace(active_state="active")
        record = handover.begin(bed.manager, "old.service", "a", "port = 1\n", "root", bed.places)

        class CutShortError(Exception):
            pass

        def cut(*_: object) -> str:
            raise CutShortError

        broken = Manager(bed.manager.old)
        if fails_at != "unlink":
            setattr(broken, fails_at, cut)
            with pytest.raises(CutShortError):
                handover.take(broken, record, Wish(stop=True), bed.places)
        else:
            handover.take(bed.manager, record, Wish(stop=True), bed.places)
        bed.toml.write_text("port = 1\n")
        bed.undo()
        assert bed.file.read_bytes() == TEXT
        assert bed.manager.enabled == {"old.service"}
