# SPDX-License-Identifier: Apache-2.0
"""Which journal entries count: root's, from the right unit, with a record of the right shape."""

import json
from typing import Any

import pytest

from sparkd.core import end_of_life, events
from sparkd.core.events import Event
from sparkd.core.projection import RECORD_MAX, Applied, project
from sparkd.core.status import Boot
from tests.unit.status_facts import record

DEATH = end_of_life.to_json(record())
BOOT = {"engine": "a", "unit": "vllm-a.service", "invocation_id": "1", "time": 5, "seconds": 2.5}


def entry(event: Event, value: Any, **changes: str) -> dict[str, str]:
    fields = {
        "MESSAGE_ID": str(event),
        "_UID": "0",
        "_SYSTEMD_UNIT": "vllm-a.service",
        events.UNIT: "vllm-a.service",
        events.RECORD: value if isinstance(value, str) else json.dumps(value),
    }
    return {**fields, **changes}


def test_an_end_of_life_becomes_the_record_that_was_written() -> None:
    found = project(entry(Event.END_OF_LIFE, DEATH))
    assert found is not None
    assert found.row == record()
    assert json.loads(found.text) == DEATH


def test_ready_becomes_a_boot() -> None:
    found = project(entry(Event.READY, BOOT))
    assert found is not None
    assert found.row == Boot("a", "1", 5.0, 2.5)


def test_applied_is_kept() -> None:
    value = {"time": 1.5, "author": "root", "summary": "wrote x"}
    found = project(entry(Event.APPLIED, value, _SYSTEMD_UNIT="sparkd.service"))
    assert found is not None
    assert found.row == Applied(1.5, "root", "wrote x")


@pytest.mark.parametrize(
    "changes",
    [
        {"_UID": "1000"},
        {"_UID": ""},
        {"_SYSTEMD_UNIT": "vllm-b.service"},
        {"_SYSTEMD_UNIT": "user@1000.service"},
        # The engine's own unit vouches for that engine only.
        {"_SYSTEMD_UNIT": "vllm-b.service", events.UNIT: "vllm-b.service"},
        {"MESSAGE_ID": "0" * 32},
    ],
)
def test_a_forged_entry_counts_for_nothing(changes: dict[str, str]) -> None:
    assert project(entry(Event.END_OF_LIFE, DEATH, **changes)) is None


@pytest.mark.parametrize("key", sorted(DEATH))
def test_a_member_of_another_type_is_not_guessed_at(key: str) -> None:
    assert project(entry(Event.END_OF_LIFE, {**DEATH, key: ["x"]})) is None
    assert project(entry(Event.END_OF_LIFE, {**DEATH, "later-version": 1})) is not None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '"x"', "[" * 100_000, "{}", " " * (RECORD_MAX + 1)]
)
def test_what_is_no_record_is_left_out(text: str) -> None:
    for event in (Event.END_OF_LIFE, Event.READY, Event.APPLIED):
        assert project(entry(event, text)) is None
