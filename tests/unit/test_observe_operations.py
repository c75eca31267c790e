# SPDX-License-Identifier: Apache-2.0
"""Orders and applies against a folder and a systemd that writes down what it is told."""

from pathlib import Path

import pytest

from sparkd.adapters import operations
from sparkd.adapters.applying import Flags, Places, apply, repair
from sparkd.adapters.config_view import Paths
from sparkd.adapters.operations import operate
from sparkd.adapters.revision_files import Revisions
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.state_files import StateFiles
from sparkd.adapters.unit_files import ApplyBusyError, apply_lock
from sparkd.core.burst import Death, HeldBy, Hold, Ledger
from sparkd.core.config import ConfigErrors
from sparkd.core.unit_state import UnitFacts
from tests.unit.status_facts import NOW
from tests.unit.test_observe import ENGINE

JOB = "/org/freedesktop/systemd1/job/7"


class Orders:
    """A service manager that notes its orders and can fail at one of them."""

    def __init__(self) -> None:
        self.given: list[tuple[object, ...]] = []
        self.running: set[str] = set()
        self.fails_at = ""

    def _note(self, *order: object) -> None:
        if order[0] == self.fails_at:
            raise BusError("no answer")
        self.given.append(order)

    def unit(self, name: str) -> UnitFacts:
        self._note("unit", name)
        state = "active" if name in self.running else "inactive"
        return UnitFacts(name, "loaded", state)

    def loaded_engine_units(self) -> list[str]:
        return []

    def start(self, unit: str, mode: str = "replace") -> str:
        self._note("start", unit, mode)
        return JOB

    def stop(self, unit: str) -> str:
        self._note("stop", unit)
        return JOB

    def restart(self, unit: str) -> str:
        self._note("restart", unit)
        return JOB

    def reset_failed(self, unit: str) -> None:
        self._note("reset_failed", unit)

    def reload(self) -> None:
        self._note("reload")

    def enable(self, units: list[str]) -> None:
        self._note("enable", *units)

    def disable(self, units: list[str]) -> None:
        self._note("disable", *units)

    @property
    def orders(self) -> list[tuple[object, ...]]:
        return [order for order in self.given if order[0] != "unit"]


class Bed:
    """A configuration, a unit directory and a manager."""

    def __init__(self, folder: Path) -> None:
        self.paths = Paths(folder / "etc", folder / "units")
        (self.paths.config / "engines.d").mkdir(parents=True)
        self.paths.units.mkdir()
        (self.paths.config / "sparkd.toml").write_text('[host]\nreserve = "1G"\n')
        self.revisions = Revisions(folder / "revisions")
        self.lock = folder / "lock"
        self.places = Places(self.paths, folder / "revisions", self.lock, str(folder / "sparkd.db"))
        self.manager = Orders()

    def configure(self, name: str = "a", port: int = 8001) -> None:
        file = self.paths.config / "engines.d" / f"{name}.toml"
        file.write_text(ENGINE.format(name=name, port=port))

    def apply(self, **flags: bool) -> dict[str, object]:
        return apply(self.manager, Flags(**flags), "tester", self.places)

    def repair(self) -> str:
        return repair(self.manager, self.places)


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    return StateFiles(str(tmp_path / "run"), str(tmp_path / "state"))


@pytest.mark.parametrize("verb", [operations.START, operations.RESTART])
def test_an_order_to_run_forgets_deaths_and_hold_first(
    files: StateFiles, verb: operations.Verb
) -> None:
    hold = Hold(HeldBy.BURST, "x", "3 deaths", NOW.wall)
    files.write_ledger("a", Ledger((Death("i", NOW, "x"),), hold))
    manager = Orders()
    assert operate(manager, files, verb, "a", "root") == JOB
    assert files.ledger("a") == Ledger()
    assert [order[0] for order in manager.orders] == ["reset_failed", verb.name]
    assert {order[1] for order in manager.orders} == {"vllm-a.service"}


def test_a_stop_forgets_nothing(files: StateFiles) -> None:
    ledger = Ledger((Death("i", NOW, "x"),))
    files.write_ledger("a", ledger)
    manager = Orders()
    operate(manager, files, operations.STOP, "a", "root")
    assert files.ledger("a") == ledger
    assert manager.orders == [("stop", "vllm-a.service")]


def test_apply_writes_enables_reloads_once_and_starts_no_engine(bed: Bed) -> None:
    bed.configure()
    report = bed.apply()
    assert report["written"] == ["vllm-a.service", "vllm.slice", "vllm.target"]
    assert report["enabled"] == ["vllm-a.service", "vllm.target"]
    assert bed.manager.orders == [
        ("enable", "vllm-a.service", "vllm.target"),
        ("reload",),
        ("start", "vllm.target", "ignore-dependencies"),
    ]
    assert bed.revisions.begun() is None


def test_applying_again_does_nothing(bed: Bed) -> None:
    bed.configure()
    bed.apply()
    bed.manager.given.clear()
    report = bed.apply()
    assert (report["written"], report["diff"]) == ([], "")
    assert bed.manager.orders == []


def test_a_changed_unit_is_not_enabled_again_and_a_running_one_is_pending(bed: Bed) -> None:
    bed.configure()
    bed.apply()
    bed.manager.given.clear()
    bed.manager.running = {"vllm-a.service"}
    bed.configure(port=8002)
    report = bed.apply()
    assert report["written"] == ["vllm-a.service"]
    assert report["pending"] == ["vllm-a.service"]
    assert [order[0] for order in bed.manager.orders] == ["reload", "start"]


def test_a_dry_run_shows_and_touches_nothing(bed: Bed) -> None:
    bed.configure()
    report = bed.apply(dry_run=True)
    assert "+ExecStart=" in str(report["diff"])
    assert report["dry_run"] is True
    assert bed.manager.orders == []
    assert list(bed.paths.units.iterdir()) == []
    assert not bed.lock.exists()


def test_prune_disables_before_it_removes(bed: Bed) -> None:
    bed.configure()
    bed.apply()
    (bed.paths.config / "engines.d" / "a.toml").unlink()
    assert bed.apply()["orphans"] == ["vllm-a.service"]
    bed.manager.given.clear()
    assert bed.apply(prune=True)["removed"] == ["vllm-a.service"]
    assert bed.manager.orders[:2] == [("disable", "vllm-a.service"), ("reload",)]
    assert not (bed.paths.units / "vllm-a.service").exists()


def test_a_broken_configuration_changes_nothing(bed: Bed) -> None:
    bed.configure()
    (bed.paths.config / "engines.d" / "b.toml").write_text("port = 1\n")
    with pytest.raises(ConfigErrors):
        bed.apply()
    assert bed.manager.orders == []
    assert list(bed.paths.units.iterdir()) == []


def test_two_applies_at_once_are_refused(bed: Bed) -> None:
    bed.configure()
    with apply_lock(bed.lock), pytest.raises(ApplyBusyError):
        bed.apply()


@pytest.mark.parametrize("step", ["enable", "reload", "start"])
def test_an_apply_that_was_cut_short_is_finished_by_the_next_start(bed: Bed, step: str) -> None:
    bed.configure()
    bed.manager.fails_at = step
    with pytest.raises(BusError):
        bed.apply()
    assert bed.revisions.begun() is not None
    bed.manager = Orders()
    assert "revision 1 (apply by tester) was cut short and is now complete" in bed.repair()
    assert bed.manager.orders == [
        ("enable", "vllm-a.service", "vllm.target"),
        ("reload",),
        ("start", "vllm.target", "ignore-dependencies"),
    ]
    assert bed.revisions.begun() is None
    assert bed.repair() == ""


def test_or_by_the_next_apply(bed: Bed) -> None:
    bed.configure()
    bed.manager.fails_at = "reload"
    with pytest.raises(BusError):
        bed.apply()
    bed.manager = Orders()
    assert bed.apply()["written"] == []
    assert ("enable", "vllm-a.service", "vllm.target") in bed.manager.orders
    assert ("reload",) in bed.manager.orders
