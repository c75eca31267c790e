# SPDX-License-Identifier: Apache-2.0
"""What an apply does, what it leaves alone, and why."""

import re

import pytest

from sparkd.core.apply_plan import DiskUnit, Kind, Plan, plan, text_hash
from sparkd.core.config import Source, load
from sparkd.core.units import HostFacts, render, units_enabled_when_new

FACTS = HostFacts(has_swap=False)
UNIT = "vllm-a.service"
FOREIGN = "[Service]\nExecStart=/bin/sleep 1\n"


def rendered(*names: str, extra: str = "") -> dict[str, str]:
    sources = [
        Source(
            name,
            f'model = "org/{name}"\nport = {8001 + index}\n[runtime]\nvenv = "/opt/vllm"\n{extra}',
            name,
        )
        for index, name in enumerate(names)
    ]
    config = load(sources, None)
    assert units_enabled_when_new(config) >= {"vllm.target"}
    return render(config, FACTS)


def disk(units: dict[str, str]) -> dict[str, DiskUnit]:
    return {name: DiskUnit(text) for name, text in units.items()}


def make(
    desired: dict[str, str],
    on_disk: dict[str, DiskUnit],
    running: frozenset[str] = frozenset(),
    *,
    force: bool = False,
    prune: bool = False,
) -> Plan:
    enabled = frozenset({"vllm.target", UNIT})
    return plan(desired, on_disk, running, enabled_when_new=enabled, force=force, prune=prune)


def test_a_first_apply_writes_everything_and_enables_what_is_new() -> None:
    result = make(rendered("a", "b"), {})
    names = [write.name for write in result.writes]
    assert names == ["vllm-a.service", "vllm-b.service", "vllm.slice", "vllm.target"]
    assert {write.expected for write in result.writes} == {None}
    assert result.enable == ("vllm-a.service", "vllm.target")
    assert "+++ b/vllm-a.service" in result.diff
    assert not result.refused


def test_a_second_apply_does_nothing() -> None:
    units = rendered("a")
    result = make(units, disk(units), frozenset({UNIT}))
    assert result.changes_nothing
    assert result.unchanged == (UNIT, "vllm.slice", "vllm.target")
    assert result.diff == ""
    assert result.enable == ()


def test_a_newer_sparkd_with_the_same_content_does_nothing() -> None:
    units = rendered("a")
    older = {
        name: re.sub("(?m)^Version=.*$", "Version=0.0.1", text) for name, text in units.items()
    }
    # An older version's hash is its own; seal it the way that version would have.
    from sparkd.core.marker import seal

    sealed = {name: seal(text) for name, text in older.items()}
    assert make(units, disk(sealed)).changes_nothing


def test_a_change_replaces_exactly_what_was_seen_and_enables_nothing() -> None:
    before, after = rendered("a"), rendered("a", extra="[serve]\nseed = 1\n")
    result = make(after, disk(before), frozenset({UNIT}))
    (write,) = result.writes
    assert (write.name, write.expected) == (UNIT, text_hash(before[UNIT]))
    assert result.enable == ()
    assert result.pending == (UNIT,)
    assert "+    --seed 1" in result.diff


def test_a_stopped_engine_is_not_pending() -> None:
    result = make(rendered("a", extra="[serve]\nseed = 1\n"), disk(rendered("a")))
    assert result.pending == ()
    assert len(result.writes) == 1


def test_a_change_that_needs_no_restart_is_not_pending() -> None:
    after = rendered("a", extra='[ready]\nbudget = "2h"\n')
    result = make(after, disk(rendered("a")), frozenset({UNIT}))
    assert len(result.writes) == 1
    assert result.pending == ()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (DiskUnit(FOREIGN), "not managed by sparkd"),
        (DiskUnit("/dev/null", Kind.MASKED), "masked by an administrator"),
        (DiskUnit("/opt/x.service", Kind.SYMLINK), "symbolic link to /opt/x.service"),
        (DiskUnit("/usr/lib/systemd/system/x", Kind.ELSEWHERE), "/usr/lib/systemd/system/x exists"),
        (DiskUnit("", Kind.OTHER), "neither a regular file"),
    ],
)
def test_what_is_never_overwritten(found: DiskUnit, reason: str, force: bool) -> None:  # noqa: FBT001
    result = make(rendered("a"), {UNIT: found}, force=force)
    assert UNIT not in [write.name for write in result.writes]
    assert UNIT not in result.enable
    (refusal,) = result.refused
    assert refusal.name == UNIT
    assert reason in refusal.reason


def test_a_foreign_unit_is_shown_as_a_diff() -> None:
    (refusal,) = make(rendered("a"), {UNIT: DiskUnit(FOREIGN)}).refused
    assert "-ExecStart=/bin/sleep 1" in refusal.diff


@pytest.mark.parametrize("changed", ["", "[serve]\nseed = 1\n"])
def test_a_hand_edited_unit_is_refused_with_its_diff_until_forced(changed: str) -> None:
    edited = rendered("a")[UNIT].replace("RestartSec=5", "RestartSec=500")
    desired = rendered("a", extra=changed)
    (refusal,) = make(desired, {UNIT: DiskUnit(edited)}).refused
    assert "edited by hand" in refusal.reason
    assert "-RestartSec=500\n+RestartSec=5" in refusal.diff
    forced = make(desired, {UNIT: DiskUnit(edited)}, force=True)
    assert not forced.refused
    assert (forced.writes[0].name, forced.writes[0].expected) == (UNIT, text_hash(edited))


def test_an_orphan_stays_until_pruned() -> None:
    both, one = rendered("a", "b"), rendered("a")
    result = make(one, disk(both))
    assert result.orphans == ("vllm-b.service",)
    assert result.removals == ()
    pruned = make(one, disk(both), prune=True)
    assert [removal.name for removal in pruned.removals] == ["vllm-b.service"]
    assert pruned.removals[0].expected == text_hash(both["vllm-b.service"])
    assert pruned.orphans == ()
    assert "--- a/vllm-b.service" in pruned.diff


@pytest.mark.parametrize("force", [False, True])
def test_a_running_engine_is_never_pruned(force: bool) -> None:  # noqa: FBT001
    running = frozenset({"vllm-b.service"})
    result = make(rendered("a"), disk(rendered("a", "b")), running, prune=True, force=force)
    assert result.removals == ()
    assert result.orphans == ("vllm-b.service",)
    assert "is running: stop it first" in result.refused[0].reason


def test_a_hand_edited_orphan_is_pruned_only_by_force() -> None:
    found = disk(rendered("a", "b"))
    edited = found["vllm-b.service"].text + "# mine\n"
    found["vllm-b.service"] = DiskUnit(edited)
    result = make(rendered("a"), found, prune=True)
    assert result.removals == ()
    assert "edited by hand" in result.refused[0].reason
    assert make(rendered("a"), found, prune=True, force=True).removals[0].expected == text_hash(
        edited
    )


@pytest.mark.parametrize(
    "found",
    [
        DiskUnit(FOREIGN),
        DiskUnit("/dev/null", Kind.MASKED),
        DiskUnit("x", Kind.SYMLINK),
        DiskUnit("/usr/lib/systemd/system/vllm-x.service", Kind.ELSEWHERE),
    ],
)
def test_units_that_are_not_sparkds_are_no_orphans(found: DiskUnit) -> None:
    result = make(
        rendered("a"), {**disk(rendered("a")), "vllm-x.service": found}, prune=True, force=True
    )
    assert result.changes_nothing
    assert result.orphans == ()
    assert result.refused == ()
