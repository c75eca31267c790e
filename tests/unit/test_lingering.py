# SPDX-License-Identifier: Apache-2.0
"""A fatal line and a failing server together end an engine; neither does alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.core import lingering
from sparkd.core.lingering import Health, Suspicion

FATAL = "the engine died: engine core fatal"


def watch(health: list[Health | None], fatal: list[str] | None = None) -> list[str]:
    """One look a second, each question answered at once; what was decided, by second."""
    state: Suspicion | None = None
    told = []
    for at, answer in enumerate(health):
        now = 1000.0 + at
        text = FATAL if fatal is None else fatal[at]
        decision = lingering.look(state, now, text)
        state = decision.state
        told.append("end" if decision.end else "ask" if decision.ask else "")
        if decision.ask and answer is not None and state is not None:
            state = lingering.answered(state, now, answer)
    return told


def test_it_ends_after_the_grace_period_and_several_failures() -> None:
    told = watch([Health.FAILING] * 60)
    assert told.index("end") == lingering.GRACE_S
    assert told[: told.index("end")].count("ask") >= lingering.FAILURES


def test_an_engine_that_answers_is_left_alone_and_asked_rarely() -> None:
    told = watch([Health.HEALTHY] * 3600)
    assert "end" not in told
    assert told.count("ask") <= 3600 / lingering.REST_S + 1


def test_it_ends_when_the_server_fails_later() -> None:
    told = watch([Health.HEALTHY] * 300 + [Health.FAILING] * 120)
    assert "end" not in told[:300]
    assert "end" in told[300:]


def test_a_failure_that_passes_counts_for_nothing() -> None:
    told = watch(([Health.FAILING] * 4 + [Health.HEALTHY] * 8) * 40)
    assert "end" not in told


@pytest.mark.parametrize("answer", [None, Health.UNKNOWN])
def test_what_could_not_be_asked_is_no_failure(answer: Health | None) -> None:
    assert "end" not in watch([answer] * 600)


def test_without_a_fatal_line_nothing_is_even_asked() -> None:
    assert set(watch([Health.FAILING] * 600, [""] * 600)) == {""}


def test_the_reason_says_both() -> None:
    state = Suspicion(1000.0, failures=3, first_failure=1002.0)
    decision = lingering.look(state, 1020.0, FATAL)
    assert decision.end
    assert decision.reason == (
        f"{FATAL}, but its process has not ended for 20 s and its server failed 3 probes in a row"
    )


@given(st.lists(st.sampled_from([*Health, None]), max_size=200))
def test_never_within_the_grace_period_and_never_on_fewer_failures(
    answers: list[Health | None],
) -> None:
    told = watch(answers)
    if "end" in told:
        at = told.index("end")
        assert at >= lingering.GRACE_S
        answered = [a for a, said in zip(answers[:at], told[:at], strict=True) if said == "ask"]
        known = [a for a in answered if a not in {None, Health.UNKNOWN}]
        assert known[-lingering.FAILURES :] == [Health.FAILING] * lingering.FAILURES
