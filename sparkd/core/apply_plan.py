# SPDX-License-Identifier: Apache-2.0
"""What an apply will do to the unit files, and what it refuses to do. Nothing here restarts.

The plan is made from what was read; each of its steps carries the hash of that, so that whoever
carries it out can tell when the world has changed in between.
"""

import difflib
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sparkd.core.marker import is_hand_edited, launch_hash, marker_of, same_content


class Kind(StrEnum):
    """What stands under a unit's name."""

    REGULAR = "regular"
    SYMLINK = "symlink"
    MASKED = "masked"
    ELSEWHERE = "elsewhere"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class DiskUnit:
    """A unit file as found.

    `text` is a regular file's content, a link's target, or the path of a file that stands in
    another unit directory (ELSEWHERE).
    """

    text: str
    kind: Kind = Kind.REGULAR


@dataclass(frozen=True, slots=True)
class Write:
    """A file to write; `expected` is the hash of the text that it replaces, None for no file."""

    name: str
    text: str
    expected: str | None


@dataclass(frozen=True, slots=True)
class Removal:
    """A file to remove, if its text still has the hash `expected`."""

    name: str
    expected: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A unit that is left alone, why, and what would have changed (empty: nothing to show)."""

    name: str
    reason: str
    diff: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one apply, each list sorted by name.

    `enable` names units that are created now. `orphans` are sparkd's units of engines that the
    configuration no longer has and that stay. `pending` are running engines whose new file starts
    them differently: only a restart brings that into effect, and an apply never restarts.
    """

    writes: tuple[Write, ...] = ()
    removals: tuple[Removal, ...] = ()
    enable: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    orphans: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    diff: str = ""

    @property
    def changes_nothing(self) -> bool:
        """Whether carrying it out would touch no file."""
        return not self.writes and not self.removals


def text_hash(text: str) -> str:
    """Return the hash by which a step recognises the text that the plan saw."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def plan(
    desired: Mapping[str, str],
    on_disk: Mapping[str, DiskUnit],
    running: Collection[str],
    *,
    enabled_when_new: Collection[str],
    force: bool = False,
    prune: bool = False,
    exact: bool = False,
) -> Plan:
    """Compare what the configuration renders with what is on disk.

    Args:
        desired: unit file name to text, as rendered.
        on_disk: every file of those names, and every other file with a name of sparkd's units.
        running: names of units that are not stopped.
        enabled_when_new: names to enable when they are created.
        force: overwrite (or prune) units of sparkd that were edited by hand.
        prune: remove sparkd's units of engines that are not in `desired`, unless they run.
        exact: every byte counts, also that of the version that wrote it: a rollback.
    """
    writes, unchanged, refused = _compare(desired, on_disk, force=force, exact=exact)
    removals, orphans, refused_removals = _prune(
        desired, on_disk, running, force=force, prune=prune
    )
    before = {name: unit.text for name, unit in on_disk.items()}
    diffs = [_diff(write.name, before.get(write.name, ""), write.text) for write in writes]
    diffs += [_diff(removal.name, before[removal.name], "") for removal in removals]
    return Plan(
        writes=tuple(writes),
        removals=tuple(removals),
        enable=tuple(
            write.name
            for write in writes
            if write.expected is None and write.name in enabled_when_new
        ),
        refused=tuple(sorted([*refused, *refused_removals], key=lambda item: item.name)),
        orphans=tuple(orphans),
        unchanged=tuple(unchanged),
        pending=tuple(_pending(writes, before, running)),
        diff="".join(diffs),
    )


def _compare(
    desired: Mapping[str, str], on_disk: Mapping[str, DiskUnit], *, force: bool, exact: bool
) -> tuple[list[Write], list[str], list[Refusal]]:
    """Return what is to be written, what stays as it is, and refusals to write."""
    writes: list[Write] = []
    unchanged: list[str] = []
    refused: list[Refusal] = []
    for name, text in sorted(desired.items()):
        found = on_disk.get(name)
        if found is None:
            writes.append(Write(name, text, None))
        elif exact and found == DiskUnit(text):
            unchanged.append(name)
        elif reason := _obstacle(name, found, force=force):
            shown = _diff(name, found.text, text) if found.kind is Kind.REGULAR else ""
            refused.append(Refusal(name, reason, shown))
        elif not exact and same_content(found.text, text) and not is_hand_edited(found.text):
            unchanged.append(name)
        else:
            writes.append(Write(name, text, text_hash(found.text)))
    return writes, unchanged, refused


def _obstacle(name: str, found: DiskUnit, *, force: bool) -> str | None:
    """Say why a file must not be replaced; None if it may be."""
    match found.kind:
        case Kind.MASKED:
            return f"{name} is masked by an administrator: sparkd never unmasks it"
        case Kind.SYMLINK:
            return f"{name} is a symbolic link to {found.text}: sparkd replaces only its own files"
        case Kind.ELSEWHERE:
            return f"{found.text} exists and is not managed by sparkd: rename the engine"
        case Kind.OTHER:
            return f"{name} is neither a regular file nor a link: remove it first"
        case Kind.REGULAR:
            pass
    if marker_of(found.text) is None:
        return f"{name} exists and is not managed by sparkd: rename the engine or move the file"
    if is_hand_edited(found.text) and not force:
        return (
            f"{name} was edited by hand: move the changes to a drop-in (systemctl edit {name}),"
            " or overwrite them with --force"
        )
    return None


def _prune(
    desired: Mapping[str, str],
    on_disk: Mapping[str, DiskUnit],
    running: Collection[str],
    *,
    force: bool,
    prune: bool,
) -> tuple[list[Removal], list[str], list[Refusal]]:
    """Return removals, orphans that stay, and refusals for orphans that were to go."""
    removals: list[Removal] = []
    orphans: list[str] = []
    refused: list[Refusal] = []
    for name, found in sorted(on_disk.items()):
        ours = found.kind is Kind.REGULAR and marker_of(found.text) is not None
        if name in desired or not ours:
            continue
        if not prune:
            orphans.append(name)
            continue
        reason = _obstacle(name, found, force=force)
        if name in running:
            reason = f"{name} is running: stop it first (systemctl stop {name})"
        if reason is None:
            removals.append(Removal(name, text_hash(found.text)))
        else:
            orphans.append(name)
            refused.append(Refusal(name, reason))
    return removals, orphans, refused


def _pending(
    writes: Iterable[Write], before: Mapping[str, str], running: Collection[str]
) -> Iterator[str]:
    """Yield the running units that a restart would start differently."""
    for write in writes:
        was = before.get(write.name, "")
        if write.name in running and launch_hash(was) != launch_hash(write.text):
            yield write.name


def _diff(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", lineterm=""
    )
    return "".join(f"{line}\n" for line in lines)
