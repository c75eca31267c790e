# SPDX-License-Identifier: Apache-2.0
"""What /metrics says, read back with Prometheus' own parsers."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from sparkd.adapters import exposition
from sparkd.core import metrics
from sparkd.core.metrics import Family, Sample, Snapshot, Totals, Type
from sparkd.core.slot import Claim, Phase, Waiter
from sparkd.core.status import Boot, build
from tests.unit.status_facts import NOW, engine, facts, unit

CONTRACT = {
    "sparkd_build_info": {"version"},
    "sparkd_engine_info": {"engine", "unit", "port", "model"},
    "sparkd_engine_state": {"engine", "state"},
    "sparkd_engine_ready": {"engine"},
    "sparkd_engine_deaths_total": {"engine", "class"},
    "sparkd_engine_failures_total": {"engine"},
    "sparkd_engine_restarts_total": {"engine"},
    "sparkd_engine_restarts_remaining": {"engine"},
    "sparkd_engine_start_duration_seconds": {"engine"},
    "sparkd_start_slot_waiting": set(),
    "sparkd_host_memory_available_bytes": set(),
}
BOOT = Boot("a", "1" * 32, NOW.wall, 42.5)


OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"

Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def text(families: list[Family], accept: str = "") -> str:
    return exposition.page(families, accept).body.decode()


def scrape(
    snapshot: Snapshot,
    accept: str = "",
    parse: Callable[[str], Any] = text_string_to_metric_families,
) -> Scrape:
    found: Scrape = {}
    for family in parse(text(metrics.families(snapshot), accept)):
        assert family.documentation, family.name
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, "one series, one sample"
            found[key] = sample.value
    return found


def snapshot(*engines: Any, totals: tuple[Totals, ...] = (), **changes: Any) -> Snapshot:
    return Snapshot(build(facts(*engines, **changes)), totals)


def test_the_contract_for_scripts_is_there_with_its_labels() -> None:
    found = scrape(snapshot(engine(boot=BOOT), totals=(Totals("a", "engine-core-fatal", 3, 2),)))
    labels: dict[str, set[str]] = {}
    for name, pairs in found:
        labels.setdefault(name, set()).update(key for key, _ in pairs)
    assert {name: labels.get(name) for name in CONTRACT} == CONTRACT


def test_values_are_those_of_the_status() -> None:
    found = scrape(
        snapshot(
            engine(boot=BOOT),
            engine("b", unit=unit("b", active_state="inactive", sub_state="dead")),
            totals=(Totals("a", "x", 3, 2), Totals("a", "y", 1, 1)),
            waiters=[Waiter("vllm-c.service", "i", 1, 1.0)],
            claim=Claim("vllm-a.service", "1" * 32),
            claim_phase=Phase("1" * 32, "running"),
        )
    )
    a = ("engine", "a")
    assert found["sparkd_engine_ready", (a,)] == 1
    assert found["sparkd_engine_ready", (("engine", "b"),)] == 0
    assert found["sparkd_engine_state", (a, ("state", "ready"))] == 1
    assert found["sparkd_engine_state", (a, ("state", "held"))] == 0
    assert found["sparkd_engine_deaths_total", (("class", "x"), a)] == 3
    assert found["sparkd_engine_restarts_total", (a,)] == 3
    assert found["sparkd_engine_restarts_total", (("engine", "b"),)] == 0
    assert found["sparkd_engine_restarts_remaining", (a,)] == 3
    assert found["sparkd_engine_start_duration_seconds", (a,)] == 42.5
    assert found["sparkd_start_slot_waiting", ()] == 1
    assert found["sparkd_host_memory_available_bytes", ()] == 100 << 30
    assert found["sparkd_last_sample_time_seconds", ()] == NOW.wall - 1


def test_exactly_one_state_is_1() -> None:
    found = scrape(snapshot(engine()))
    states = [value for (name, _), value in found.items() if name == "sparkd_engine_state"]
    assert sum(states) == 1
    assert len(states) == 9


def test_increase_sees_the_first_death() -> None:
    """A series that appears with 1 has not increased, so what can be there before is there."""
    seen = (Totals("a", "x", 3, 2), Totals("b", "y", 1, 0), Totals("gone", "z", 1, 0))
    b = engine("b", unit=unit("b"))
    found = scrape(snapshot(engine(), b))
    failures = {pairs: value for (name, pairs), value in found.items() if "failures" in name}
    assert failures == {(("engine", "a"),): 0, (("engine", "b"),): 0}
    found = scrape(snapshot(engine(), b, totals=seen))
    deaths = {pairs: value for (name, pairs), value in found.items() if "deaths" in name}
    assert deaths == {
        (("class", cls), ("engine", name)): {"ax": 3, "by": 1}.get(name + cls, 0)
        for name in "ab"
        for cls in "xyz"
    }
    assert found["sparkd_engine_failures_total", (("engine", "a"),)] == 3


def test_openmetrics_says_the_same() -> None:
    shown = snapshot(engine(boot=BOOT), totals=(Totals("a", "engine-core-fatal", 3, 2),))
    page = exposition.page(metrics.families(shown), OPENMETRICS)
    assert page.content_type.startswith("application/openmetrics-text; version=")
    assert page.body.endswith(b"\n# EOF\n")
    assert b"\n# TYPE sparkd_engine_deaths counter\n" in page.body
    parse = openmetrics.text_string_to_metric_families
    assert scrape(shown, OPENMETRICS, parse) == scrape(shown)


def test_an_engine_that_is_gone_has_no_series() -> None:
    found = scrape(snapshot(engine(), totals=(Totals("gone", "x", 3, 2),)))
    assert not [pairs for _, pairs in found if ("engine", "gone") in pairs]


def test_blindness_shows() -> None:
    assert scrape(snapshot(engine()))["sparkd_systemd_visible", ()] == 1
    assert scrape(snapshot(engine(), blind="no answer"))["sparkd_systemd_visible", ()] == 0


@pytest.mark.parametrize("label", ['a"b', "a\nb", "a\\b", "a\\nb", "é", "\udcff", "", "a,b={}"])
def test_a_hostile_label_stays_a_label(label: str) -> None:
    family = Family("x", Type.GAUGE, "Help.", ("l",), (Sample((label,), 1.0),))
    for accept, parse in (
        ("", text_string_to_metric_families),
        (OPENMETRICS, openmetrics.text_string_to_metric_families),
    ):
        (read,) = parse(text([family], accept))
        (sample,) = read.samples
        assert sample.labels["l"] == label.encode("utf-8", "backslashreplace").decode()


def test_a_long_model_path_is_cut() -> None:
    found = scrape(snapshot(engine(model="/models/" + "x" * 5000)))
    ((_, pairs),) = [key for key in found if key[0] == "sparkd_engine_info"]
    assert len(dict(pairs)["model"]) == metrics.LABEL_MAX
