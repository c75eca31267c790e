# SPDX-License-Identifier: Apache-2.0
"""The page, the help and the code name the same settings and kinds."""

import re
from pathlib import Path

import pytest

from sparkd.sim.life import KINDS, SETTINGS, Actor, Kind, Life, LifeError, from_environment

PAGE = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


def first_cells(heading: str) -> set[str]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_page_names_every_setting_and_no_other():
    assert first_cells("Set its life") == set(SETTINGS) == set(Life._fields)


def test_the_page_names_every_kind_and_no_other():
    assert first_cells("Kinds of death") == {str(kind) for kind in Kind} - {"none"}
    assert set(KINDS) == set(Kind)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("moment", ["death_at_load", "death_at_request", "death_after_seconds"])
def test_a_moment_is_refused_where_the_kind_cannot_happen(kind, moment):
    trait = KINDS[kind]
    possible = trait.in_load if moment == "death_at_load" else trait.in_service
    environment = {"SPARKD_SIM_DEATH": kind, f"SPARKD_SIM_{moment.upper()}": "1"}
    if possible:
        assert from_environment(environment, None).death is kind
    else:
        with pytest.raises(LifeError, match="happens only"):
            from_environment(environment, None)


@pytest.mark.parametrize("kind", Kind)
def test_a_kind_without_a_moment_has_one(kind):
    life = from_environment({"SPARKD_SIM_DEATH": kind}, None)
    trait = KINDS[kind]
    if trait.actor in {Actor.NOBODY, Actor.COMMAND_LINE}:
        assert life.load_fraction() is None
    elif trait.in_service:
        assert (life.death_after_seconds, life.load_fraction()) == (5.0, None)
    else:
        assert life.load_fraction() == trait.load_fraction


def test_two_moments_are_refused():
    environment = {
        "SPARKD_SIM_DEATH": "cuda-oom",
        "SPARKD_SIM_DEATH_AT_REQUEST": "1",
        "SPARKD_SIM_DEATH_AFTER_SECONDS": "1",
    }
    with pytest.raises(LifeError, match="a life ends once"):
        from_environment(environment, None)
