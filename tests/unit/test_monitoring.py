# SPDX-License-Identifier: Apache-2.0
"""The Prometheus rules and the Grafana dashboard ask for metrics and labels that sparkd has."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from beds.fixtures import promtool  # noqa: F401

from sparkd.core.metrics import Alerts, Snapshot, Totals, families
from sparkd.core.status import Boot, build
from sparkd.core.unit_state import State
from tests.unit.status_facts import engine, facts

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
RULES = PACKAGING / "prometheus/sparkd.rules.yml"
TEST = PACKAGING / "prometheus/sparkd.rules.test.yml"
DASHBOARD = PACKAGING / "grafana/sparkd.json"
_USE = re.compile(r"\b(sparkd_[a-z0-9_]+)(?:\{([^}]*)\})?")


def exported() -> dict[str, set[str]]:
    """Every metric that sparkd can show, with its labels; a scrape adds `instance` and `job`."""
    boot = Boot("a", "1" * 32, 1.0, 30.0)
    status = build(facts(engine("a", boot=boot)))
    snapshot = Snapshot(
        status,
        [Totals("a", "oom", 1, 1)],
        dark={"a": 1.0},
        alerts=Alerts({("death", "sent"): 1}, 1),
    )
    return {family.name: {*family.label_names, "instance", "job"} for family in families(snapshot)}


def expressions(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value[key] for key in ("expr", "query") if isinstance(value.get(key), str)]
        return own + [text for item in value.values() for text in expressions(item)]
    if isinstance(value, list):
        return [text for item in value for text in expressions(item)]
    return []


def check(text: str) -> int:
    known = exported()
    uses = _USE.findall(text)
    for name, labels in uses:
        assert name in known, f"{name} is not exported"
        for label in re.findall(r"([a-z_]+)\s*(?:=~|!~|!=|=)", labels):
            assert label in known[name], f"{name} has no label {label}"
    return len(uses)


def test_the_rules_ask_for_what_there_is() -> None:
    import yaml

    rules = yaml.safe_load(RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert check(rule["expr"]) >= 1
            assert set(rule["annotations"]) == {"summary", "next"}
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}
            for state in re.findall(r'state="([a-z]+)"', rule["expr"]):
                assert state in set(State)


def test_every_rule_about_an_engine_keeps_its_label() -> None:
    assert "sum(" not in RULES.read_text(), "a sum without `by` would lose the engine"


def test_promtool_accepts_the_rules_and_they_fire_when_they_should(promtool: Path) -> None:  # noqa: F811
    for argv in (["check", "rules", RULES.name], ["test", "rules", TEST.name]):
        done = subprocess.run(
            [promtool, *argv], cwd=RULES.parent, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_asks_for_what_there_is() -> None:
    board = json.loads(DASHBOARD.read_text())
    texts = expressions(board)
    assert sum(check(text) for text in texts) > 20
    for panel in board["panels"]:
        assert panel["targets"], panel["title"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_dashboard_knows_every_state_and_no_other() -> None:
    board = json.loads(DASHBOARD.read_text())
    timeline = next(p for p in board["panels"] if p["type"] == "state-timeline")
    (mapping,) = timeline["fieldConfig"]["defaults"]["mappings"]
    shown = {int(number): entry["text"] for number, entry in mapping["options"].items()}
    assert sorted(shown.values()) == sorted(State)
    (target,) = timeline["targets"]
    found = re.findall(
        r'(\d+) \* sum by \(engine\) \(sparkd_engine_state\{[^}]*state="(\w+)"', target["expr"]
    )
    assert {int(number): state for number, state in found} == shown


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda path: path.name)
def test_it_is_shipped(file: Path) -> None:
    shipped = (PACKAGING / "debian/sparkd.install").read_text()
    assert str(file.relative_to(PACKAGING.parent)) in shipped


def test_the_rules_know_a_metric_that_does_not_exist() -> None:
    with pytest.raises(AssertionError, match="is not exported"):
        check("sparkd_engine_happiness > 1")
    with pytest.raises(AssertionError, match="has no label"):
        check('sparkd_engine_ready{color="red"} == 1')
