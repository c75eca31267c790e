# SPDX-License-Identifier: Apache-2.0
"""Which journal entries are believed: anybody may send any MESSAGE_ID and any SPARKD_ field."""

import re

import pytest

from sparkd.core import events
from sparkd.core.events import Event

UNIT = "vllm-nemotron.service"
OURS = {
    "_UID": "0",
    "_SYSTEMD_UNIT": UNIT,
    "SPARKD_UNIT": UNIT,
    "MESSAGE_ID": Event.END_OF_LIFE.value,
}
IN_UNIT = [Event.SLOT_WAIT, Event.SLOT_TAKEN, Event.READY, Event.END_OF_LIFE]


def without(name):
    return {key: value for key, value in OURS.items() if key != name}


@pytest.mark.parametrize("event", IN_UNIT)
def test_an_entry_of_a_helper_in_its_unit_is_believed(event):
    assert events.is_trusted({**OURS, "MESSAGE_ID": event.value})


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("uid", ["1000", "", "00", " 0", None])
def test_nobody_but_root_is_believed(event, uid):
    fields = {**without("_UID"), "MESSAGE_ID": event.value}
    if uid is not None:
        fields["_UID"] = uid
    assert not events.is_trusted(fields)


@pytest.mark.parametrize("event", IN_UNIT)
@pytest.mark.parametrize("where", ["vllm-q38.service", "session-3.scope", "sparkd.service"])
def test_a_helpers_entry_comes_from_its_own_unit(event, where):
    assert not events.is_trusted({**OURS, "MESSAGE_ID": event.value, "_SYSTEMD_UNIT": where})


@pytest.mark.parametrize("event", IN_UNIT)
def test_an_entry_of_a_helper_that_had_ended_when_journald_looked(event):
    assert events.is_trusted({**without("_SYSTEMD_UNIT"), "MESSAGE_ID": event.value})


def test_an_entry_that_names_no_unit_is_not_believed():
    assert not events.is_trusted(without("SPARKD_UNIT"))
    assert not events.is_trusted({**OURS, "SPARKD_UNIT": "", "_SYSTEMD_UNIT": ""})
    assert not events.is_trusted({"_UID": "0", "MESSAGE_ID": Event.END_OF_LIFE.value})


def test_message_ids_are_distinct_and_well_formed():
    assert len({event.value for event in Event}) == len(Event)
    assert all(re.fullmatch("[0-9a-f]{32}", event.value) for event in Event)
