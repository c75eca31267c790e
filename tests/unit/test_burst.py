# SPDX-License-Identifier: Apache-2.0
"""The sliding window: exact at its edges, indifferent to the wall clock, bounded at last."""

import json

import pytest

from sparkd.core import burst
from sparkd.core.burst import Death, HeldBy, Hold, Ledger, Moment, Policy

HOUR = Policy(burst=3, window=3600.0)
DAY = 86_400.0
WALL = 1_790_000_000.0


def moment(boottime: float, *, wall: float | None = None, boot: str = "boot-a") -> Moment:
    return Moment(boot, boottime, WALL + boottime if wall is None else wall)


def death(name: str, at: Moment, cls: str = "engine-dead") -> Death:
    return Death(name, at, cls)


def dies(ledger: Ledger, *times: float, policy: Policy = HOUR) -> list[burst.Outcome]:
    """Deaths of an engine that had served for long each time: only the window counts."""
    outcomes = []
    for number, time in enumerate(times):
        ledger = burst.after_ready(ledger, moment(time - burst.PROVEN_S))
        died = death(f"i{time}-{number}", moment(time))
        outcomes.append(burst.after_death(ledger, died, policy, was_ready=True))
        ledger = outcomes[-1].ledger
    return outcomes


def fails(ledger: Ledger, *times: float, policy: Policy = HOUR) -> list[burst.Outcome]:
    """Starts that never became ready."""
    outcomes = []
    for time in times:
        outcomes.append(burst.after_death(ledger, death(f"f{time}", moment(time)), policy))
        ledger = outcomes[-1].ledger
    return outcomes


@pytest.mark.parametrize(
    ("times", "held"),
    [
        ([0, 1, 2], True),  # a crash loop
        ([0, 1799, 3599.999], True),  # a slow loop: attempts longer than a third of the window
        ([0, 1800, 3600], False),  # the first has just left the window
        ([0, 3600, 7200, 10_800], False),
        ([0, 3599, 3600], False),  # 0 is out when 3600 comes in
        ([0, 3599, 3600, 3601], True),
        ([0, 0, 0], True),  # the same instant is still three deaths (below: other invocations)
    ],
)
def test_window_slides(times, held):
    outcome = dies(Ledger(), *times)[-1]
    assert outcome.hold is held
    assert (outcome.ledger.held is not None) is held


def test_only_the_burst_th_death_holds_and_says_why():
    first, second, third = dies(Ledger(), 10, 20, 30)
    assert (first.hold, second.hold, third.hold) == (False, False, True)
    assert first.reason == "death 1 of 3 within 1 h: systemd starts it again"
    assert third.ledger.held == Hold(HeldBy.BURST, "engine-dead", third.reason, WALL + 30)
    assert "3 unrequested ends of life within 1 h, the limit is 3" in third.reason


def test_a_burst_of_one_holds_at_the_first_death():
    (only,) = dies(Ledger(), 5, policy=Policy(1, 60.0))
    assert only.hold


@pytest.mark.parametrize("jump", [-9 * DAY, -3600, 3600, 9 * DAY])
def test_a_step_of_the_wall_clock_changes_nothing_within_a_boot(jump):
    deaths = tuple(death(f"i{t}", moment(t, wall=WALL + t + jump * t)) for t in (0, 100))
    now = moment(200, wall=WALL - jump)
    assert burst.budget(Ledger(deaths), now, HOUR) == burst.Budget(2, 3, 3600.0, 3400.0)
    later = moment(3600, wall=WALL + jump)
    assert burst.budget(Ledger(deaths), later, HOUR).used == 1


def test_across_a_reboot_the_wall_clock_counts():
    before = Ledger((death("old", moment(90_000)),))
    soon = moment(30, wall=WALL + 90_000 + 60, boot="boot-b")
    late = moment(30, wall=WALL + 90_000 + 3600, boot="boot-b")
    assert burst.budget(before, soon, HOUR).used == 1
    assert burst.budget(before, late, HOUR).used == 0


def test_across_a_reboot_a_clock_that_went_back_keeps_the_death():
    """No battery behind the clock: until NTP comes a death of the last boot lies in the future."""
    before = Ledger((death("old", moment(90_000)),))
    assert burst.budget(before, moment(5, wall=0.0, boot="boot-b"), HOUR).used == 1


def test_across_a_reboot_a_clock_that_was_ahead_keeps_no_death_for_ever():
    """It is older than this boot, whatever the clocks say."""
    ahead = moment(100.0, wall=WALL + 90 * DAY)
    before = Ledger((death("a", ahead), death("b", ahead)))
    assert burst.budget(before, moment(3599, boot="boot-b"), HOUR).used == 2
    assert burst.budget(before, moment(3600, boot="boot-b"), HOUR).used == 0
    fresh = death("c", moment(3600, boot="boot-b"))
    assert not burst.after_death(before, fresh, HOUR, was_ready=True).hold


def test_the_same_invocation_counts_once():
    twice = [burst.after_death(Ledger(), death("same", moment(1)), HOUR)]
    twice.append(burst.after_death(twice[0].ledger, death("same", moment(2)), HOUR))
    twice.append(burst.after_death(twice[1].ledger, death("same", moment(3)), HOUR))
    assert not twice[-1].hold
    assert len(twice[-1].ledger.deaths) == 1


def test_a_cleared_ledger_starts_anew():
    ledger = dies(Ledger(), 1, 2, 3)[-1].ledger
    assert ledger.held
    again = dies(Ledger(), 4, 5)[-1]
    assert not again.hold
    assert dies(again.ledger, 6)[-1].hold


def test_a_class_that_cannot_heal_holds_at_once():
    outcome = burst.after_death(
        Ledger(), death("i", moment(1), "bad-flag"), HOUR, hold_reason="no such flag --foo"
    )
    assert outcome.hold
    assert outcome.ledger.held == Hold(HeldBy.CLASS, "bad-flag", "no such flag --foo", WALL + 1)


def test_an_engine_held_while_it_runs_is_not_said_to_start_again():
    held = Hold(HeldBy.OPERATOR, "operator", "held by an operator: new kernel", WALL)
    outcome = burst.after_death(Ledger(held=held), death("i", moment(1)), HOUR)
    assert outcome.hold
    assert outcome.ledger.held == held
    assert outcome.reason == "held by an operator: new kernel"


def test_a_ledger_never_grows_without_bound():
    ledger = dies(Ledger(), *range(0, 1_000_000, 5000))[-1].ledger
    assert len(ledger.deaths) == burst.KEPT_DEATHS
    assert ledger.deaths[-1].invocation_id == "i995000-199"


def test_budget_says_when_it_frees_one():
    ledger = dies(Ledger(), 100, 400)[-1].ledger
    assert burst.budget(ledger, moment(500), HOUR) == burst.Budget(2, 3, 3600.0, 3200.0)
    assert burst.budget(Ledger(), moment(500), HOUR) == burst.Budget(0, 3, 3600.0, None)


@pytest.mark.parametrize("value", [None, [], "x", 3, True])
def test_what_is_no_object_is_no_ledger(value):
    with pytest.raises(ValueError, match="JSON object"):
        burst.from_json(value)


GOOD = {"invocation_id": "i", "class": "c", "boot_id": "b", "boottime": 1, "wall": 2.5}


@pytest.mark.parametrize(
    "bad",
    [
        {"boottime": float("nan")},
        {"wall": float("inf")},
        {"boottime": 10**400},  # no float holds it: float() raises OverflowError
        {"wall": True},
        {"wall": "2"},
        {"class": None},
        {"boot_id": 5},
    ],
)
def test_a_damaged_death_is_left_out_and_the_others_stay(bad):
    ledger = burst.from_json({"deaths": [{**GOOD, **bad}, GOOD, 5, None]})
    assert ledger == Ledger((Death("i", Moment("b", 1.0, 2.5), "c"),))


def test_a_hold_of_unknown_age_is_still_a_hold():
    row = {"by": "burst", "class": "c", "reason": "r", "since": float("nan")}
    assert burst.from_json({"held": row}).held == Hold(HeldBy.BURST, "c", "r", 0.0)
    newer = burst.from_json({"held": {**row, "by": "a newer sparkd"}}).held
    assert newer == Hold(HeldBy.OPERATOR, "c", "r", 0.0)


def test_json_survives_the_text_form():
    ledger = dies(Ledger(), 1, 2, 3)[-1].ledger
    assert burst.from_json(json.loads(json.dumps(burst.to_json(ledger)))) == ledger


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (119, "119 s"), (120, "2 min"), (1200, "20 min"), (3600, "1 h"),
        (5400, "90 min"), (7200, "2 h"), (9000, "2.5 h"), (86_400, "24 h"),
    ],
)  # fmt: skip
def test_durations_as_people_write_them(seconds, text):
    assert burst.seconds_text(seconds) == text


# failures in a row, however long each takes


@pytest.mark.parametrize("attempt", [60, 1200, 1861, 5400, DAY])
def test_failed_starts_in_a_row_are_bounded_however_slow(attempt):
    first, second, third = fails(Ledger(), attempt, 2 * attempt, 3 * attempt)
    assert (first.hold, second.hold, third.hold) == (False, False, True)
    assert "3" in third.reason
    assert "engine-dead" in third.reason


def test_ready_then_dead_at_the_first_request_is_a_failure_in_a_row_too():
    ledger = Ledger()
    for number in (1, 2, 3):
        at = number * 3700.0
        ledger = burst.after_ready(ledger, moment(at - 5))
        died = death(f"i{number}", moment(at))
        outcome = burst.after_death(ledger, died, HOUR, was_ready=True)
        ledger = outcome.ledger
    assert outcome.hold
    assert "3 ends of life in a row without 10 min of service in between" in outcome.reason


def test_ten_minutes_of_service_end_a_row():
    ledger = fails(Ledger(), 4000, 8000)[-1].ledger
    assert burst.budget(ledger, moment(20_000), HOUR) == burst.Budget(2, 3, 3600.0, None)
    served = dies(ledger, 20_000)[-1]
    assert not served.hold
    assert served.ledger.streak == 0
    assert not fails(served.ledger, 40_000, 60_000)[-1].hold


def test_service_whose_end_nobody_recorded_ends_a_row_at_the_next_start():
    """Power was lost, for one."""
    failed = fails(Ledger(), 4000, 8000)[-1].ledger
    ready = burst.after_ready(failed, moment(9000))
    assert burst.before_start(ready, moment(9000 + burst.PROVEN_S)).streak == 0
    assert burst.before_start(ready, moment(9000 + burst.PROVEN_S - 1)) == ready
    assert burst.before_start(failed, moment(99_000)) == failed, "it was never ready"
    died = fails(ready, 9010)[-1].ledger
    assert burst.before_start(died, moment(99_000)) == died, "readiness came before the death"
    after_boot = moment(30, wall=WALL + 50_000, boot="boot-b")
    assert burst.before_start(ready, after_boot).streak == 0


# the host goes down during a start


def test_a_start_that_takes_the_host_down_each_time_is_held():
    """However long each boot took: within the window, or in a row."""
    for apart in (600.0, 2 * 3600.0):
        ledger = Ledger()
        for number in range(1, 4):
            at = moment(60, wall=WALL + number * apart, boot=f"boot-{number}")
            begun = burst.cut_off(ledger, at.boot_id)
            assert (begun is None) == (number == 1)
            if begun is not None:
                ledger = burst.after_death(ledger, death(begun.invocation_id, at), HOUR).ledger
            ledger = burst.before_start(ledger, at)
            assert ledger.held is None
            ledger = burst.begin(ledger, f"i{number}", at)
        last = moment(60, wall=WALL + 4 * apart, boot="boot-4")
        begun = burst.cut_off(ledger, "boot-4")
        assert begun.invocation_id == "i3"
        assert burst.after_death(ledger, death("i3", last), HOUR).hold


def test_only_a_start_of_another_boot_was_cut_off():
    begun = burst.begin(Ledger(), "i1", moment(60))
    assert burst.cut_off(Ledger(), "boot-b") is None
    assert burst.cut_off(begun, "boot-a") is None
    assert burst.cut_off(begun, "boot-b") == burst.Begun("i1", moment(60))


def test_a_start_is_remembered_until_it_is_ready_or_its_own_end_is_on_record():
    begun = burst.begin(Ledger(streak=1), "i2", moment(60))
    assert burst.after_ready(begun, moment(90)) == Ledger(streak=1, ready_at=moment(90))
    assert burst.after_end(begun, "i2") == Ledger(streak=1)
    assert burst.after_end(begun, "i1") == begun, "an earlier one's end that came late"
    assert burst.after_death(begun, death("i2", moment(70)), HOUR).ledger.begun is None
    assert burst.after_death(begun, death("i1", moment(70)), HOUR).ledger.begun == begun.begun


def test_a_release_forgets_what_was_and_not_what_goes_on():
    begun = burst.begin(Ledger(), "i2", moment(60))
    held = fails(begun, 10, 20, 30)[-1].ledger
    assert held.held is not None
    assert burst.released(held) == begun


def test_a_start_that_goes_on_survives_its_file():
    begun = burst.begin(Ledger(), "i2", moment(60))
    assert burst.from_json(json.loads(json.dumps(burst.to_json(begun)))) == begun


@pytest.mark.parametrize(
    "change",
    [{"invocation_id": None}, {"boot_id": 7}, {"boottime": float("nan")}, {"wall": "late"}],
)
def test_a_damaged_start_counts_as_none(change):
    value = burst.to_json(burst.begin(Ledger(streak=1), "i2", moment(60)))
    assert burst.from_json({**value, "begun": {**value["begun"], **change}}) == Ledger(streak=1)
    for damaged in (None, [], "i2", {}):
        assert burst.from_json({**value, "begun": damaged}) == Ledger(streak=1)


@pytest.mark.parametrize("streak", [None, "2", 2.0, True, -1, 1 << 40])
def test_a_damaged_row_counts_as_none(streak):
    assert burst.from_json({"streak": streak, "ready_at": streak}) == Ledger()
