# SPDX-License-Identifier: Apache-2.0
"""Which alerts a batch of events makes, given what is known of the engines before it."""

from collections.abc import Mapping, Sequence

from sparkd.core import alerts, darkness
from sparkd.core.alerts import Alert, Policy
from sparkd.core.darkness import Darkness, Stopped
from sparkd.core.end_of_life import Record
from sparkd.core.projection import Entry, Gap, Stall
from sparkd.core.status import Boot, Status
from sparkd.core.unit_state import State

START_FACTOR = 1.5
"""A start is slow when it takes this many times the slowest of the starts it is compared with."""
START_HISTORY = 10
"""How many earlier starts are looked at."""
START_HISTORY_MIN = 3
"""Fewer starts teach nothing."""
START_MARGIN_S = 60.0
"""A start of seconds varies by more than half without meaning anything."""


def from_events(
    entries: Sequence[Entry],
    dark: Mapping[str, Darkness],
    starts: Mapping[str, Sequence[tuple[float, str]]],
    policy: Policy,
) -> list[Alert]:
    """The alerts of these events, oldest first.

    Args:
        entries: in the order of the journal.
        dark: each engine's account before them.
        starts: earlier starts of each engine that has a `Boot` among the entries, newest first.
        policy: `[alerts]`.
    """
    accounts = dict(dark)
    found: list[Alert | None] = []
    for entry in entries:
        row = entry.row
        if isinstance(row, Record | Boot | Stopped):
            before = accounts.get(row.engine, Darkness())
            accounts[row.engine] = darkness.after(before, row)
            if isinstance(row, Record):
                found.append(alerts.of_death(row, policy))
            elif isinstance(row, Boot):
                found += _of_boot(row, before, starts.get(row.engine, ()))
        elif isinstance(row, Stall):
            found.append(
                alerts.of_stall(
                    row.engine, row.invocation_id, row.time, row.reason, is_over=row.is_over
                )
            )
        elif isinstance(row, Gap):
            found.append(alerts.of_journal_gap(row.time, row.reason))
    return [alert for alert in found if alert is not None]


def _of_boot(
    boot: Boot, before: Darkness, starts: Sequence[tuple[float, str]]
) -> list[Alert | None]:
    found: list[Alert | None] = []
    budget = start_budget(starts)
    if budget is not None and boot.seconds > budget:
        found.append(
            alerts.of_slow_start(boot.engine, boot.invocation_id, boot.time, boot.seconds, budget)
        )
    if before.since is not None:
        dark = boot.time - before.since
        found.append(alerts.of_recovery(boot.engine, boot.invocation_id, boot.time, dark))
    return found


def from_status(status: Status, starts: Mapping[str, Sequence[tuple[float, str]]]) -> list[Alert]:
    """Starts that take longer than they may, while they still do.

    They have the same `id` as the alert that their READY would make: only one of the two is sent.
    """
    found = []
    now = status.facts.now.wall
    for engine in status.engines:
        unit = engine.facts.unit
        if unit is None or engine.state is not State.LOADING or not unit.main_start:
            continue
        budget = start_budget(starts.get(engine.name, ()))
        seconds = now - unit.main_start
        if budget is not None and seconds > budget and not status.facts.blind:
            found.append(
                alerts.of_slow_start(engine.name, unit.invocation_id, now, seconds, budget)
            )
    return found


def start_budget(starts: Sequence[tuple[float, str]], kind: str = "") -> float | None:
    """How long a start may take, learned from earlier ones; None while there are too few.

    Args:
        starts: seconds and 'cold', 'warm' or '' of earlier starts that became ready, newest first.
        kind: the same of the start in question; '' compares with every start, so that a cold one
            that does not say so yet is not called slow for it.
    """
    alike = [seconds for seconds, its in starts if not kind or its in {kind, ""}][:START_HISTORY]
    if len(alike) < START_HISTORY_MIN:
        return None
    return max(max(alike) * START_FACTOR, max(alike) + START_MARGIN_S)
