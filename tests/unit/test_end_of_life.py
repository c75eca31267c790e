# SPDX-License-Identifier: Apache-2.0
"""Was this end asked for? A truth table over the job and the timestamps that systemd keeps.

The sets of timestamps are what systemd 252 and 257 show while ExecStopPost= runs; that they do is
for the tests on a real systemd to prove.
"""

import json

import pytest

from sparkd.core import end_of_life
from sparkd.core.classify import ExitState, Verdict
from sparkd.core.end_of_life import Finding, Record, UnitAtEnd
from sparkd.core.signatures import Answer

S = 1_000_000  # µs


def at_end(job="", began=100, active=0, left=0, died=0):
    """Seconds in, microseconds out; 0 stays 0: it never happened."""
    return UnitAtEnd(job, *(round(seconds * S) for seconds in (died, active, left, began)))


REQUESTED = {
    "stop of a serving engine: it leaves active, then ends": at_end(
        "stop", active=150, left=900, died=905
    ),
    "the same for a restart by hand": at_end("restart", active=150, left=900, died=905),
    "reboot and shutdown stop every unit": at_end("stop", active=150, left=900, died=901),
    "stop of an engine that has to be killed": at_end("stop", active=150, left=900, died=990),
    "stop raced with a death that systemd had not seen yet": at_end(
        "stop", active=150, left=900, died=900.000001
    ),
    "stop in start-pre of the first start ever": at_end("stop"),
    "stop in start-pre, all times from the life before": at_end(
        "stop", began=1000, active=150, left=900, died=890
    ),
    "stop in start-post of the first start ever": at_end("stop", died=130),
    "stop in start-post, active times from the life before": at_end(
        "stop", began=1000, active=150, left=900, died=1030
    ),
    # Nothing that systemd keeps tells this from a stop during the start; it is an operator's word.
    "stop while the post-mortem of a failed start was running": at_end("stop", died=130),
    "restart by hand in start-post": at_end("restart", began=1000, active=150, left=900, died=1030),
}
NOT_REQUESTED = {
    "exit 0 out of nowhere": at_end("", active=150, left=900.00002, died=900),
    "killed by a stranger's signal": at_end("", active=150, left=900.00002, died=900),
    "the second life dies as well": at_end("", began=1000, active=1100, left=1200.1, died=1200),
    "the stop came while the post-mortem of a death was running": at_end(
        "stop", active=150, left=900.00002, died=900
    ),
    "so did the restart": at_end("restart", active=150, left=900.00002, died=900),
    "the same microsecond": at_end("stop", active=150, left=900, died=900),
    "the gate failed under a start job": at_end("start", died=130),
    "the gate failed and the start job is gone": at_end("", died=130),
    "start-pre refused": at_end("start"),
    "start-pre refused, times from the life before": at_end(
        "", began=1000, active=150, left=900, died=890
    ),
    "an automatic restart's job has become a start": at_end("start", began=1000, died=1001),
    "nothing could be seen": UnitAtEnd("", 0, 0, 0, 0),
}


@pytest.mark.parametrize("unit", REQUESTED.values(), ids=REQUESTED)
def test_requested(unit):
    assert end_of_life.was_requested(unit)


@pytest.mark.parametrize("unit", NOT_REQUESTED.values(), ids=NOT_REQUESTED)
def test_not_requested(unit):
    assert not end_of_life.was_requested(unit)


@pytest.mark.parametrize(
    ("unit", "ready"),
    [
        (at_end(active=150, left=900, died=899), True),
        (at_end("stop", active=150, left=900, died=901), True),
        (at_end(began=1000, active=150, left=900, died=1001), False),  # ready was the life before
        (at_end(died=130), False),
        (UnitAtEnd("", 0, 0, 0, 0), False),
    ],
)
def test_was_ready_means_in_this_life(unit, ready):
    assert end_of_life.was_ready(unit) is ready


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "signal"),
    [
        ("exited", "0", 0, None),
        ("exited", "1", 1, None),
        ("exited", "203", 203, None),
        ("killed", "KILL", None, "KILL"),
        ("killed", "TERM", None, "TERM"),
        ("dumped", "ABRT", None, "ABRT"),
        ("killed", "9", None, "KILL"),
        ("killed", "RTMIN+1", None, "RTMIN+1"),
        ("killed", "99", None, "99"),
        ("killed", "", None, None),
        ("", "", None, None),  # ExecStartPre= failed: no main process
        ("exited", "", None, None),
    ],
)
def test_exit_code_and_signal(code, status, exit_code, signal):
    state = ExitState("exit-code", code, status)
    assert end_of_life.exit_code_of(state) == exit_code
    assert end_of_life.signal_of(state) == signal


RETRY = Answer.RETRY
HOLD = Answer.HOLD_NEEDS_A_HUMAN
GATE = Finding("await-ready", "not-ready-in-time", "not ready after 1080 s", permanent=False)
BAD_MODEL = Finding("await-ready", "wrong-model", "serves a, not b", permanent=True)


SUMMARY = "the start failed: cls"  # a line decided: the label and the class, in words


def verdict(signature="", answer=RETRY):
    return Verdict("fatal-init", "cls", signature, "line", answer, "hint", "the log's reason")


@pytest.mark.parametrize(
    ("log", "finding", "requested", "expected"),
    [
        # the log names the cause, the helper only the symptom
        (verdict("sig"), GATE, False, ("cls", SUMMARY, False)),
        (verdict("sig", HOLD), GATE, False, ("cls", SUMMARY, True)),
        # no line said anything: the helper knows best
        (verdict(), GATE, False, ("not-ready-in-time", "not ready after 1080 s", False)),
        (verdict(), BAD_MODEL, False, ("wrong-model", "serves a, not b", True)),
        # what only the helper knows will fail again beats a line that heals
        (verdict("sig"), BAD_MODEL, False, ("wrong-model", "serves a, not b", True)),
        (verdict("sig", HOLD), BAD_MODEL, False, ("cls", SUMMARY, True)),
        # nobody looked
        (verdict("sig", HOLD), None, False, ("cls", SUMMARY, True)),
        (verdict(), None, False, ("cls", "the log's reason", False)),
        # an operator's stop holds nothing, whatever was found
        (verdict("sig", HOLD), BAD_MODEL, True, ("cls", SUMMARY, False)),
    ],
)
def test_explain(log, finding, requested, expected):
    seen = end_of_life.explain(log, finding, requested=requested)
    assert (seen.cls, seen.reason, seen.permanent) == expected
    assert (seen.signature, seen.evidence, seen.hint) == (log.signature, "line", "hint")


def test_a_sigterm_that_systemd_sent_because_the_gate_failed_is_no_strangers():
    told = verdict("shutdown-triggered")._replace(cls="external-sigterm", hint="find who did it")
    seen = end_of_life.explain(told, GATE, requested=False)
    assert (seen.cls, seen.reason) == (GATE.cls, GATE.reason)
    assert (seen.signature, seen.hint) == ("", "")
    alone = end_of_life.explain(told, None, requested=False)
    assert (alone.cls, alone.hint) == ("external-sigterm", "find who did it")


def test_what_sparkd_ended_itself_is_explained_by_sparkd_and_not_by_the_signal_it_sent():
    told_to_stop = verdict("api-shutdown")._replace(cls="external-sigterm")
    hung = Finding("sparkd", "frozen-engine-health-200", "no progress for 50 min", permanent=False)
    seen = end_of_life.explain(told_to_stop, hung, requested=False)
    assert seen == ("frozen-engine-health-200", "no progress for 50 min", False, "", "", "")
    # The log declares the same death by itself: its line is the evidence, and its answer counts.
    dead = verdict("core-fatal", HOLD)._replace(cls="no-kernel-image")
    found = Finding("sparkd", "no-kernel-image", "died, but its process does not end", False)
    seen = end_of_life.explain(dead, found, requested=False)
    assert seen[:5] == ("no-kernel-image", found.reason, True, "core-fatal", "line")
    # An operator was faster: then it is a requested stop.
    assert end_of_life.explain(told_to_stop, hung, requested=True).cls == "external-sigterm"


RECORD = Record(
    engine="nemotron",
    unit="vllm-nemotron.service",
    invocation_id="ab" * 16,
    time=1.5,
    requested=False,
    result="success",
    exit_code=0,
    signal=None,
    cls="illegal-instruction",
    signature="cuda-illegal-instruction",
    evidence="CUDA error: é \x1b",
    reason="r",
    action="restart",
    action_reason="a",
    hint="",
    was_ready=True,
)


def test_record_survives_json_under_the_contracts_names():
    value = end_of_life.to_json(RECORD)
    assert value["class"] == "illegal-instruction"
    assert "cls" not in value
    assert end_of_life.from_json(json.loads(json.dumps(value))) == RECORD


@pytest.mark.parametrize("change", [{"extra": 1}, {"engine": ...}])
def test_a_record_with_wrong_members_is_refused(change):
    value = {**end_of_life.to_json(RECORD), **change}
    with pytest.raises(TypeError):
        end_of_life.from_json({k: v for k, v in value.items() if v is not ...})


def test_a_failed_start_is_not_requested_though_a_stop_came_during_its_post_mortem():
    stopped_late = UnitAtEnd(
        "stop", main_exit=500, active_enter=0, active_exit=0, inactive_exit=100
    )
    gone = Finding("await-ready", "", "the main process is gone", permanent=False)
    assert end_of_life.was_requested(stopped_late)
    assert not end_of_life.was_requested(stopped_late, gone)


def test_a_finding_without_a_class_leaves_the_explanation_to_the_log():
    gone = Finding("await-ready", "", "the main process is gone", permanent=False)
    said = end_of_life.explain(verdict("sig"), gone, requested=False)
    assert (said.cls, said.reason) == ("cls", SUMMARY)
    assert end_of_life.explain(verdict(), gone, requested=False).cls == "cls"
