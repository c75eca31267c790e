# SPDX-License-Identifier: Apache-2.0
"""Each state of systemd's, on every version, has one public state and a reason."""

from typing import Any

import pytest

from sparkd.core.burst import HeldBy, Hold, Ledger
from sparkd.core.slot import Claim, Waiter
from sparkd.core.unit_state import Slot, State, judge
from tests.unit.status_facts import NOW, record, unit

HELD = Ledger(held=Hold(HeldBy.BURST, "engine-core-fatal", "3 deaths within 1 h", NOW.wall))
FREE = Slot()
NOTHING = Ledger()


def state(ledger: Ledger = NOTHING, last: Any = None, slot: Slot = FREE, **changes: Any) -> State:
    judgement = judge(unit(**changes), ledger, last, slot)
    assert judgement.reason, "every state has a reason"
    assert "\n" not in judgement.reason
    return judgement.state


@pytest.mark.parametrize(
    ("active", "sub", "expected"),
    [
        ("active", "running", State.READY),
        ("reloading", "reload", State.READY),
        ("activating", "condition", State.STARTING),
        ("activating", "start-pre", State.WAITING),
        ("activating", "start", State.STARTING),
        ("activating", "start-post", State.LOADING),
        ("activating", "auto-restart", State.RESTARTING),
        ("activating", "auto-restart-queued", State.RESTARTING),
        ("inactive", "dead-before-auto-restart", State.RESTARTING),
        ("failed", "failed-before-auto-restart", State.RESTARTING),
        ("deactivating", "stop-sigterm", State.RESTARTING),
        ("deactivating", "stop-post", State.RESTARTING),
        ("inactive", "dead", State.STOPPED),
        ("failed", "failed", State.HELD),
    ],
)
def test_every_state_of_systemd_has_a_public_one(active: str, sub: str, expected: State) -> None:
    assert state(active_state=active, sub_state=sub) is expected


def test_a_unit_on_its_way_down_is_stopping_only_when_somebody_asked() -> None:
    down = {"active_state": "deactivating", "sub_state": "stop-sigterm"}
    assert state(**down, job_type="stop") is State.STOPPING
    assert state(**down, job_type="restart") is State.STOPPING
    assert state(**down, job_type="") is State.RESTARTING


@pytest.mark.parametrize("active", ["inactive", "failed"])
def test_a_hold_counts_while_the_unit_is_down(active: str) -> None:
    judgement = judge(unit(active_state=active, sub_state="dead"), HELD, None, FREE)
    assert judgement.state is State.HELD
    assert "3 deaths within 1 h" in judgement.reason
    assert "sparkctl restart a" in judgement.reason


def test_a_hold_does_not_hide_a_running_engine() -> None:
    assert state(HELD) is State.READY
    assert state(HELD, active_state="activating", sub_state="start") is State.STARTING


def test_waiting_names_who_has_the_slot() -> None:
    me = Waiter("vllm-a.service", "1" * 32, 50, 1.0)
    slot = Slot(Claim("vllm-b.service", "2" * 32), (me,))
    judgement = judge(unit(active_state="activating", sub_state="start-pre"), Ledger(), None, slot)
    assert judgement == (State.WAITING, "waits for the start slot: b is starting")


def test_a_blocked_waiter_says_what_blocks_it() -> None:
    slot = Slot(None, (Waiter("vllm-a.service", "1" * 32, 50, 1.0, "port 8001 is taken by x"),))
    judgement = judge(unit(active_state="activating", sub_state="start-pre"), Ledger(), None, slot)
    assert judgement == (State.WAITING, "port 8001 is taken by x")


def test_an_earlier_invocations_waiter_is_not_this_one() -> None:
    slot = Slot(None, (Waiter("vllm-a.service", "9" * 32, 50, 1.0),))
    assert state(slot=slot, active_state="activating", sub_state="start-pre") is State.WAITING


def test_the_holder_of_the_slot_is_starting() -> None:
    slot = Slot(Claim("vllm-a.service", "1" * 32))
    assert state(slot=slot, active_state="activating", sub_state="start-pre") is State.STARTING


def test_a_queued_start_is_waiting() -> None:
    assert state(active_state="inactive", sub_state="dead", job_type="start") is State.WAITING


@pytest.mark.parametrize(
    ("load", "word"),
    [
        ("not-found", "sparkctl apply"),
        ("masked", "unmask"),
        ("bad-setting", "systemctl status"),
        ("error", "systemctl status"),
    ],
)
def test_a_unit_that_cannot_run_says_what_to_do(load: str, word: str) -> None:
    down = unit(active_state="inactive", sub_state="dead", load_state=load)
    judgement = judge(down, Ledger(), None, FREE)
    assert judgement.state is State.STOPPED
    assert word in judgement.reason


def test_a_requested_stop_that_ended_with_143_is_no_failure() -> None:
    last = record(requested=True, reason="stopped by an operator", action="none")
    down = unit(active_state="failed", sub_state="failed", result="exit-code")
    assert judge(down, Ledger(), last, FREE).state is State.STOPPED
    other_life = last._replace(invocation_id="9" * 32)
    assert judge(down, Ledger(), other_life, FREE).state is State.HELD


@pytest.mark.parametrize("result", ["start-limit-hit", "exit-code"])
def test_systemds_own_limit_is_called_by_its_name(result: str) -> None:
    down = unit(active_state="failed", sub_state="failed", result=result, n_restarts=5)
    judgement = judge(down, Ledger(), None, FREE)
    assert judgement.state is State.HELD
    assert "systemd gave up" in judgement.reason


def test_a_death_is_told_while_its_restart_is_awaited() -> None:
    waiting = unit(active_state="activating", sub_state="auto-restart")
    told = judge(waiting, Ledger(), record(), FREE).reason
    assert "the engine core died" in told
    # The status text is left from the life that has ended: it must not pass for the reason.
    silent = judge(waiting._replace(status_text="ready after 2 s"), Ledger(), None, FREE).reason
    assert "ready" not in silent


def test_a_disabled_engine_says_so() -> None:
    down = unit(active_state="inactive", sub_state="dead", unit_file_state="disabled")
    assert "disabled" in judge(down, Ledger(), None, FREE).reason
