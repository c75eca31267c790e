# SPDX-License-Identifier: Apache-2.0
"""The start slot's rules, one row each; their interplay is in tests/property/test_slot_property."""

import pytest

from sparkd.core import slot
from sparkd.core.slot import Claim, Phase, Waiter

ME = Waiter("vllm-b.service", "b1", 20, 100.0)
FIRST = Waiter("vllm-a.service", "a1", 10, 200.0)
LAST = Waiter("vllm-c.service", "c1", 30, 1.0)
ALIVE = Phase("a1", "start-pre")


@pytest.mark.parametrize("state", ["condition", "start-pre", "start", "start-post"])
def test_a_claim_counts_while_its_invocation_starts(state):
    assert slot.claim_counts(Claim("vllm-a.service", "a1"), Phase("a1", state))


@pytest.mark.parametrize(
    "phase",
    [
        Phase("a1", "running"),
        Phase("a1", "stop-sigterm"),
        Phase("a1", "stop-post"),
        Phase("a1", "final-sigkill"),
        Phase("a1", "auto-restart"),
        Phase("a1", "auto-restart-queued"),
        Phase("a1", "dead"),
        Phase("a1", "failed"),
        Phase("a2", "start-pre"),  # its next attempt has not taken the slot
        Phase("a2", "running"),
        Phase("", "dead"),  # systemd does not know the unit
    ],
)
def test_a_claim_of_a_start_that_is_over_is_nobodys(phase):
    claim = Claim("vllm-a.service", "a1")
    assert not slot.claim_counts(claim, phase)
    assert slot.decide(ME, claim, phase, []).take


def test_nobodys_claim_does_not_count():
    assert not slot.claim_counts(None, None)
    assert slot.decide(ME, None, None, []).take


def test_what_cannot_be_seen_counts_as_starting():
    decision = slot.decide(ME, Claim("vllm-a.service", "a1"), None, [])
    assert not decision.take
    assert "cannot be seen" in decision.reason
    decision = slot.decide(ME, None, None, [(FIRST, None)])
    assert not decision.take


def test_waits_for_the_holder_and_names_it():
    decision = slot.decide(ME, Claim("vllm-a.service", "a1"), Phase("a1", "start-post"), [])
    assert decision == slot.Decision(
        take=False, reason="waiting for vllm-a.service, which is starting"
    )


def test_waits_behind_a_lower_order_that_came_later():
    decision = slot.decide(ME, None, None, [(LAST, Phase("c1", "start-pre")), (FIRST, ALIVE)])
    assert not decision.take
    assert "behind vllm-a.service" in decision.reason


@pytest.mark.parametrize(
    ("other", "phase"),
    [
        (FIRST, Phase("a1", "start")),  # it has left start-pre: it waits for nothing
        (FIRST, Phase("a2", "start-pre")),  # another attempt; its entry is stale
        (FIRST, Phase("a1", "failed")),
        (FIRST, Phase("", "dead")),
        (FIRST._replace(blocked="waiting: port 8000 is still held"), ALIVE),
        (LAST, Phase("c1", "start-pre")),
        (FIRST._replace(unit=ME.unit, invocation_id="b0"), Phase("b0", "start-pre")),
    ],
)
def test_who_does_not_stand_before_me(other, phase):
    assert slot.decide(ME, None, None, [(other, phase)]).take


def test_equal_order_goes_by_arrival_then_by_name():
    early = ME._replace(unit="vllm-z.service", invocation_id="z1", since=99.0)
    twin = ME._replace(unit="vllm-a.service", invocation_id="a1")
    assert not slot.decide(ME, None, None, [(early, Phase("z1", "start-pre"))]).take
    assert not slot.decide(ME, None, None, [(twin, ALIVE)]).take
    assert slot.decide(twin, None, None, [(ME, Phase("b1", "start-pre"))]).take


def test_a_blocked_start_takes_nothing_and_says_what_blocks_it():
    blocked = ME._replace(blocked="waiting: port 8000 is still held by x (PID 7)")
    assert slot.decide(blocked, None, None, []) == slot.Decision(
        take=False, reason="waiting: port 8000 is still held by x (PID 7)"
    )


def test_my_own_claim_is_kept_whoever_comes():
    mine = Claim(ME.unit, ME.invocation_id)
    assert slot.decide(ME, mine, Phase("b1", "start-pre"), [(FIRST, ALIVE)]).take
    assert slot.decide(ME, mine, None, [(FIRST, None)]).take


def test_my_last_attempts_claim_is_not_mine():
    old = Claim(ME.unit, "b0")
    assert slot.decide(ME, old, Phase("b1", "start-pre"), []).take
    assert not slot.decide(ME, old, Phase("b1", "start-pre"), [(FIRST, ALIVE)]).take


def test_claim_text_round_trip():
    claim = Claim("vllm-a.service", "0123456789abcdef")
    assert slot.parse_claim(slot.claim_text(claim)) == claim


@pytest.mark.parametrize(
    "text", ["", "\n", "vllm-a.service", "a b c", "\x00", '{"unit": 7}', "../x y", "* y"]
)
def test_a_torn_claim_is_none(text):
    assert slot.parse_claim(text) is None
