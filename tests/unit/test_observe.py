# SPDX-License-Identifier: Apache-2.0
"""What the observer makes of systemd's answers, of no answer, and of files that change."""

from pathlib import Path
from typing import Any

import pytest

from sparkd.adapters.config_view import ConfigView, Paths, host_facts, load
from sparkd.adapters.host import pressure_full_avg10
from sparkd.adapters.observe import NO_HISTORY, Observer
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.state_files import StateFiles
from sparkd.core import status as core_status
from sparkd.core import units
from sparkd.core.slot import Claim
from sparkd.core.unit_state import UnitFacts
from tests.unit.status_facts import unit

ENGINE = """\
model = "/models/{name}"
port = {port}
[runtime]
venv = "/opt/vllm"
[serve]
gpu-memory-utilization = 0.01
"""


class Systemd:
    """Answers from a table, or not at all, and remembers what it was asked."""

    def __init__(self) -> None:
        self.units: dict[str, UnitFacts] = {}
        self.asked: list[str] = []
        self.silent = False

    def unit(self, name: str) -> UnitFacts:
        self._answer()
        self.asked.append(name)
        return self.units.get(name, UnitFacts(name, "not-found", "inactive", "dead"))

    def loaded_engine_units(self) -> list[str]:
        self._answer()
        return [name for name, facts in self.units.items() if facts.load_state == "loaded"]

    def _answer(self) -> None:
        if self.silent:
            raise BusError("no answer")


class Bed:
    """An observer over a folder and a table."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "etc"
        self.units = folder / "units"
        (self.config / "engines.d").mkdir(parents=True)
        self.units.mkdir()
        (self.config / "sparkd.toml").write_text('[host]\nreserve = "1G"\n')
        self.systemd = Systemd()
        self.files = StateFiles(str(folder / "run"), str(folder / "state"))
        view = ConfigView(Paths(self.config, self.units))
        self.observer = Observer(self.systemd, view, self.files, daemon="running")

    def configure(self, name: str, port: int = 8001, text: str = ENGINE) -> None:
        file = self.config / "engines.d" / f"{name}.toml"
        file.write_text(text.format(name=name, port=port))

    def apply(self) -> None:
        for name, text in units.render(load(self.config), host_facts()).items():
            (self.units / name).write_text(text)

    def see(self, name: str, **changes: Any) -> None:
        self.systemd.units[f"vllm-{name}.service"] = unit(name, **changes)

    def status(self) -> dict[str, dict[str, Any]]:
        self.observer.look()
        value = core_status.to_json(core_status.build(self.observer.facts(NO_HISTORY)))
        return {e["name"]: e for e in value["engines"]}  # type: ignore[attr-defined]


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_engines_come_in_the_order_of_starting_and_then_what_only_systemd_has(bed: Bed) -> None:
    bed.configure("beta", 8002, "order = 1\n" + ENGINE)
    bed.configure("alpha", 8001)
    bed.see("stranger")
    bed.see("alpha")
    shown = bed.status()
    assert list(shown) == ["beta", "alpha", "stranger"]
    assert shown["alpha"]["port"] == 8001
    assert shown["beta"]["state"] == "stopped"
    assert "sparkctl apply" in shown["beta"]["reason"]


def test_a_unit_that_could_not_be_an_engines_is_none(bed: Bed) -> None:
    bed.systemd.units["vllm-Bad_Name.service"] = unit("Bad_Name")
    bed.systemd.units["vllm-.service"] = unit("")
    assert bed.status() == {}


def test_only_what_was_marked_is_read_again(bed: Bed) -> None:
    bed.configure("a", 8001)
    bed.configure("b", 8002)
    bed.observer.look()
    bed.systemd.asked.clear()
    bed.observer.look()
    assert bed.systemd.asked == []
    bed.observer.mark("vllm-b.service")
    bed.observer.mark("ssh.service")
    bed.observer.look()
    assert bed.systemd.asked == ["vllm-b.service"]
    bed.observer.mark_everything()
    bed.observer.look()
    assert sorted(bed.systemd.asked[1:]) == ["vllm-a.service", "vllm-b.service"]


def test_what_was_marked_is_news_until_it_was_looked_at(bed: Bed) -> None:
    bed.configure("one")
    assert bed.observer.has_news, "nothing was looked at yet"
    bed.observer.look()
    assert not bed.observer.has_news
    bed.observer.mark("vllm-one.service")
    assert bed.observer.has_news
    bed.systemd.silent = True
    bed.observer.look()
    assert not bed.observer.has_news, "nobody has to wait for a systemd that does not answer"
    bed.systemd.silent = False
    bed.observer.look()
    assert not bed.observer.has_news


def test_without_an_answer_the_last_known_state_stays_and_is_marked(bed: Bed) -> None:
    bed.configure("a")
    bed.see("a")
    assert bed.status()["a"]["state"] == "ready"
    bed.systemd.silent = True
    bed.observer.mark("vllm-a.service")
    shown = bed.status()["a"]
    assert shown["state"] == "ready"
    assert "cannot see systemd: no answer" in shown["reason"]
    assert bed.observer.blind
    # When it answers again, everything is read again: signals may have been missed.
    bed.systemd.silent = False
    bed.see("a", active_state="failed", sub_state="failed")
    assert bed.status()["a"]["state"] == "held"
    assert not bed.observer.blind


def test_half_an_answer_changes_nothing(bed: Bed) -> None:
    bed.configure("a", 8001)
    bed.configure("b", 8002)
    bed.see("a")
    bed.see("b")
    bed.observer.look()
    bed.see("a", active_state="failed", sub_state="failed")
    bed.systemd.units["vllm-b.service"] = None  # type: ignore[assignment]
    original = bed.systemd.unit

    def fails_for_b(name: str) -> UnitFacts:
        if name == "vllm-b.service":
            raise BusError("no answer")
        return original(name)

    bed.systemd.unit = fails_for_b  # type: ignore[method-assign]
    bed.systemd.loaded_engine_units = list  # type: ignore[method-assign]
    bed.observer.mark_everything()
    shown = bed.status()
    assert shown["a"]["state"] == "ready", "one moment is shown, not two halves of two"


def test_config_states_follow_the_files(bed: Bed) -> None:
    bed.configure("a")
    bed.see("a", active_state="inactive", sub_state="dead")
    assert bed.status()["a"]["config"] == "pending"
    bed.apply()
    assert bed.status()["a"]["config"] == "current"
    bed.configure("a", 8005)
    assert bed.status()["a"]["config"] == "pending"
    bed.apply()
    file = bed.units / "vllm-a.service"
    file.write_text(file.read_text().replace("Restart=always", "Restart=no"))
    assert bed.status()["a"]["config"] == "drifted"
    file.write_text("[Service]\nExecStart=/bin/true\n")
    assert bed.status()["a"]["config"] == "unmanaged"


def test_an_engine_gone_from_the_configuration_is_shown_while_its_unit_is_there(bed: Bed) -> None:
    bed.configure("a")
    bed.apply()
    (bed.config / "engines.d" / "a.toml").unlink()
    shown = bed.status()["a"]
    assert shown["config"] == "pending"
    assert "--prune" in shown["config_reason"]
    (bed.units / "vllm-a.service").unlink()
    assert bed.status() == {}


def test_a_running_engine_with_an_older_launch_is_pending(bed: Bed) -> None:
    bed.configure("a")
    bed.apply()
    bed.see("a")
    bed.files.write_started("vllm-a.service", "1" * 32, "sha256:older")
    assert "sparkctl restart a" in bed.status()["a"]["config_reason"]
    # What an earlier invocation was started with says nothing about this one.
    bed.files.write_started("vllm-a.service", "2" * 32, "sha256:older")
    assert bed.status()["a"]["config"] == "current"


def test_a_broken_configuration_is_told_and_the_last_good_one_counts(bed: Bed) -> None:
    bed.configure("a")
    bed.see("a")
    assert bed.status()["a"]["port"] == 8001
    bed.configure("a", text="nonsense = 1\n")
    assert bed.status()["a"]["port"] == 8001
    facts = bed.observer.facts(NO_HISTORY)
    assert any("nonsense" in error for error in facts.config_errors)
    bed.configure("a", 8009)
    bed.observer.look()
    assert not bed.observer.facts(NO_HISTORY).config_errors


def test_a_claim_of_a_unit_that_is_no_engine_is_looked_up(bed: Bed) -> None:
    bed.systemd.units["run-1.scope"] = UnitFacts(
        "run-1.scope", "loaded", "activating", "start-pre", invocation_id="7" * 32
    )
    bed.files.write_claim(Claim("run-1.scope", "7" * 32))
    bed.observer.look()
    assert core_status.build(bed.observer.facts(NO_HISTORY)).holder == "run-1.scope"


def test_memory_and_pressure_are_this_machines(bed: Bed) -> None:
    host = bed.observer.facts(NO_HISTORY).host
    assert 0 < host.memory_available <= host.memory_total
    pressure = pressure_full_avg10()
    assert pressure is None or 0 <= pressure <= 100
