# SPDX-License-Identifier: Apache-2.0
"""Whether a start, stop or restart is over, judged from what systemd says of the unit: pure."""

from typing import NamedTuple

from sparkd.core.burst import Hold
from sparkd.core.unit_state import UnitFacts


class Verdict(NamedTuple):
    """How an order ended."""

    done: bool
    reason: str
    """Why it failed; may be empty when it did not."""
    state: str = ""
    """The engine's public state then, where it is certain."""


def judge(verb: str, unit: UnitFacts, held: Hold | None) -> Verdict | None:
    """The end of an order, or None while it goes on.

    A failed start shows as a restart that is pending, as a stopped or failed unit, and before that
    as a unit on its way down without a job: then the post-mortem is still finding out why.
    """
    if unit.load_state == "not-found":
        reason = "there is no such unit; 'sparkctl apply' writes it"
        return Verdict(done=False, reason=reason, state="stopped")
    if unit.job_type:
        return None
    down = unit.active_state in {"inactive", "failed"}
    if verb == "stop":
        return Verdict(done=True, reason="", state="stopped") if down else None
    if unit.active_state == "active":
        reason = unit.status_text if unit.status_text.startswith("ready") else ""
        return Verdict(done=True, reason=reason, state="ready")
    if down and held is not None:
        return Verdict(done=False, reason=f"held: {held.reason}", state="held")
    if down:
        return Verdict(done=False, reason=_why(unit), state="stopped")
    if unit.sub_state.startswith("auto-restart"):
        reason = f"{_why(unit)}; systemd starts it again"
        return Verdict(done=False, reason=reason, state="restarting")
    return None


def _why(unit: UnitFacts) -> str:
    # The post-mortem's last words; an earlier helper's text would be about something else.
    if unit.status_text.startswith(("dead: ", "held: ")):
        return unit.status_text
    return f"the unit ended as {unit.result or 'unknown'}; 'sparkctl incidents' may know why"
