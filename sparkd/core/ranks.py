# SPDX-License-Identifier: Apache-2.0
"""Hangs of an engine with data parallelism: each rank is watched as an engine of its own.

vLLM labels its counters by rank (`engine="0"`, `engine="1"`, ...). Their sum moves as long as one
rank works, and so hides one that is stuck beside a busy one. So does vLLM's statistics line, and a
request that the server hands to a rank of its own choice: with several ranks only a rank's own
counters tell of its progress, and the canary names the rank that it is for.

With one rank, or when the counters name none, this is `core.hang` and nothing else.
"""

from typing import NamedTuple

from sparkd.core import hang
from sparkd.core.hang import Canary, Event, Look, Policy, Progress, Step

HEADER = "X-data-parallel-rank"
"""Names the rank that has to answer a request; vLLM 0.11.1 and later heed it (#24945)."""


class Ranks(NamedTuple):
    """What is remembered of one invocation."""

    states: dict[str, Progress]
    """By the label `engine`; '' when there is only one."""
    asked: str = ""
    """Whom the last canary was for."""

    @property
    def shown(self) -> Progress:
        """The rank that is worst off, as the engine's state."""
        name, worst = max(self.states.items(), key=lambda item: _badness(item[1]))
        return worst._replace(
            stalled_seconds=max(state.stalled_seconds for state in self.states.values()),
            longest=max(state.longest for state in self.states.values()),
            reason=f"data-parallel rank {name}: {worst.reason}"
            if name and worst.reason
            else worst.reason,
        )


class RanksStep(NamedTuple):
    """The state after a look, and what is to be done."""

    state: Ranks
    step: Step
    """As of one engine, whose state is `state.shown`."""


def begin(look: Look, *, longest: float = 0.0) -> Ranks:
    """The state when an engine has become ready or is first seen."""
    views = _views(look, Ranks({}))
    return Ranks({name: hang.begin(view, longest=longest) for name, view in views.items()})


def step(before: Ranks, look: Look, policy: Policy) -> RanksStep:
    """Take one look into account."""
    states: dict[str, Progress] = {}
    asked, ask, end, lasted = before.asked, False, False, 0.0
    for name, view in _views(look, before).items():
        known = before.states.get(name)
        if known is None:
            states[name] = hang.begin(view, longest=before.shown.longest)
            continue
        one = hang.step(known, view, policy)
        state = one.state
        if one.ask and (ask or look.canary is Canary.OPEN):
            state = state._replace(asked_at=known.asked_at)  # one at a time: its turn comes
        elif one.ask:
            asked, ask = name, True
        states[name] = state
        end = end or one.end
        lasted = max(lasted, one.lasted)
    after = Ranks(states, asked)
    event = _event(before.shown, after.shown)
    lasted = lasted if event is Event.RECOVERED else 0.0
    return RanksStep(after, Step(after.shown, event, ask=ask, end=end, lasted=lasted))


def _badness(state: Progress) -> tuple[bool, float, float]:
    return state.stalled_wall is not None, state.worked, state.still


def _event(before: Progress, after: Progress) -> Event | None:
    was, is_now = before.stalled_wall is not None, after.stalled_wall is not None
    if was == is_now:
        return None
    return Event.STALLED if is_now else Event.RECOVERED


def _views(look: Look, before: Ranks) -> dict[str, Look]:
    """What the look says about each rank."""
    counters = look.counters
    if counters is not None and not counters.ranks:
        return {"": look}
    several = dict(counters.ranks) if counters is not None else dict.fromkeys(before.states)
    if len(several) < 2:
        return dict.fromkeys(several or {"": None}, look)
    return {
        name: look._replace(
            counters=one,
            log_moved=False,
            log_requests=0,
            canary=_canary(look.canary) if name == before.asked else Canary.NONE,
        )
        for name, one in several.items()
    }


def _canary(canary: Canary) -> Canary:
    """An answer proves nothing about a rank: an older vLLM lets any of them answer.

    When this one did, its counters have moved.
    """
    return Canary.INCONCLUSIVE if canary is Canary.ANSWERED else canary
