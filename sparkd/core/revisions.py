# SPDX-License-Identifier: Apache-2.0
"""What one apply or rollback did, whole enough to take it back: the units' texts before and after.

A revision is written before the first unit file is touched and marked applied after the last step.
So after a crash it tells what was under way, and what every file was and was to be.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from sparkd.core.marker import launch_hash

WHY_MAX = 2000
"""Characters of a reason or a note; more is a document, which belongs elsewhere."""
# Only \n ends a line of a unit or of TOML; splitlines() would also cut at U+2028 or a form feed.
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class Kind(StrEnum):
    """What made the revision."""

    APPLY = "apply"
    ROLLBACK = "rollback"


class State(StrEnum):
    """How far it came."""

    BEGUN = "begun"
    APPLIED = "applied"
    ABANDONED = "abandoned"
    """Every file is as it was before."""


Texts = Mapping[str, str]
Figures = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Revision:
    """One change of the units.

    `before` and `after` hold every unit file of sparkd's, not only those that changed, with odd
    bytes as surrogate escapes. `sources` is the TOML it was made from, by path below the
    configuration folder; `sources_before` (rollback only) is what stood there and was replaced.
    `disabled` names units that were removed and had been enabled. `figures` are the facts of each
    engine's last start before it; `predictions` what the next start should show.
    """

    number: int
    kind: Kind
    state: State
    time: float
    author: str
    why: str
    version: str
    before: Texts
    after: Texts
    sources: Texts
    sources_before: Texts = field(default_factory=dict)
    enable: Sequence[str] = ()
    disabled: Sequence[str] = ()
    figures: Figures = field(default_factory=dict)
    predictions: Figures = field(default_factory=dict)
    restores: str = ""
    remark: str = ""

    @property
    def changed(self) -> list[str]:
        """Names of the unit files that it writes or removes, sorted."""
        names = self.before.keys() | self.after.keys()
        return sorted(name for name in names if self.before.get(name) != self.after.get(name))

    @property
    def diff(self) -> str:
        """What it changes in the unit files, as a unified diff."""
        return texts_diff(self.before, self.after)

    def ended(self, state: State, remark: str = "") -> "Revision":
        """The same revision at its end."""
        return replace(self, state=state, remark=remark or self.remark)


class Repair(StrEnum):
    """What to do about a revision that was begun and not ended."""

    COMPLETE = "complete"
    ABANDON = "abandon"


def repair(revision: Revision, found: Texts) -> tuple[Repair, list[str], str]:
    """Decide by what stands on disk: each file of the change is old, new, or somebody else's.

    Nothing was written yet: it is abandoned, for whoever ordered it was never told that it was
    done. Some of it was: it is completed, since systemd may have seen and started the new part.
    A file that is neither was changed by somebody in between, and theirs stands.

    Args:
        revision: as it was begun.
        found: the present text of each file; a name that is missing has no file.

    Returns:
        The decision, the names of the files to bring to their new text, and the sentence that
        says why.
    """
    changed = revision.changed
    old = [name for name in changed if found.get(name) == revision.before.get(name)]
    new = [name for name in changed if found.get(name) == revision.after.get(name)]
    if changed and len(old) == len(changed):
        return Repair.ABANDON, [], "no unit file had been written: every file is as it was"
    reason = f"{len(new)} of {len(changed)} unit files had been written"
    if foreign := [name for name in changed if name not in {*old, *new}]:
        reason += f"; {', '.join(foreign)} changed in between and stays as it is"
    return Repair.COMPLETE, old, reason


def target_of(revisions: Sequence[Revision], number: int | None) -> tuple[Texts, Texts, str]:
    """What a rollback brings back: unit texts, TOML texts and the words for it.

    With a number, the state that this revision made. Without, the state before the newest applied
    revision, and the TOML of the one before it. There is no TOML where there was no revision yet.

    Args:
        revisions: all that are kept, oldest first.
        number: which one, or None.

    Raises:
        ValueError: there is none such, with the sentence for the operator.
    """
    applied = [revision for revision in revisions if revision.state is State.APPLIED]
    if number is None:
        if not applied:
            raise ValueError("there is no applied revision to take back")
        last = applied[-1]
        sources = applied[-2].sources if len(applied) > 1 else {}
        return last.before, sources, f"the state before revision {last.number}"
    chosen = next((one for one in applied if one.number == number), None)
    if chosen is None:
        raise ValueError(f"there is no applied revision {number}; see 'sparkctl history'")
    return chosen.after, chosen.sources, f"the state of revision {number}"


def enabled_later(revisions: Iterable[Revision], names: Iterable[str]) -> frozenset[str]:
    """Which of these units were enabled when some revision removed them."""
    removed = {name for revision in revisions for name in revision.disabled}
    return frozenset(removed & set(names))


def awaits_outcome(
    revisions: Sequence[Revision], known: Iterable[int], unit: str, started: float
) -> list[int]:
    """Which revisions a start of this unit is the first measurement of.

    The newest revision that was applied before the start, and the ones before it that gave the
    engine the same launch; each only once.

    Args:
        revisions: all that are kept, oldest first.
        known: numbers of those that have an outcome of this unit already.
        unit: the unit that was started.
        started: when its process began, seconds since the epoch.
    """
    done = set(known)
    earlier = [
        revision
        for revision in revisions
        if revision.state is State.APPLIED and revision.time <= started
    ]
    found: list[int] = []
    if not earlier or unit not in earlier[-1].after:
        return found
    launch = launch_hash(earlier[-1].after[unit])
    for revision in reversed(earlier):
        if launch_hash(revision.after.get(unit, "")) != launch:
            break
        if revision.number not in done:
            found.append(revision.number)
    return found


MEASURES: Mapping[str, str] = {
    "kv_cache_gib": "GiB of KV cache",
    "kv_cache_tokens": "tokens of KV cache",
    "max_concurrency": "requests of full length at once",
    "seconds": "s to be ready",
    "memory_peak_gib": "GiB at the peak of the start",
}
"""What is predicted and measured, with its unit for people."""
FACTS = (
    *MEASURES, "weights_gib", "graph_gib", "max_model_len", "vllm_version", "compile",
    "compile_seconds", "engine_init_seconds", "moe_backend", "linear_backend", "attention_backend",
)  # fmt: skip


def figures_of(boot: Mapping[str, object]) -> dict[str, object]:
    """The figures to keep of a start, from the record that the readiness gate wrote."""
    kept = {name: boot.get(name) for name in FACTS}
    peak = boot.get("memory_peak_bytes")
    if isinstance(peak, int | float):
        kept["memory_peak_gib"] = round(peak / (1 << 30), 2)
    return {
        name: value
        for name, value in kept.items()
        if isinstance(value, str | int | float) and value != "" and not _is_odd(value)
    }


def comparison(
    prediction: Mapping[str, object], outcome: Mapping[str, object]
) -> list[tuple[str, float, float | None, str]]:
    """What was measured beside what was predicted: measure, measured, predicted, its origin."""
    rows: list[tuple[str, float, float | None, str]] = []
    for name in MEASURES:
        measured = outcome.get(name)
        if not isinstance(measured, int | float) or _is_odd(measured):
            continue
        match prediction.get(name):
            case {"value": int() | float() as value, "from": str(origin)}:
                rows.append((name, float(measured), float(value), origin))
            case _:
                rows.append((name, float(measured), None, ""))
    return rows


def _is_odd(value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value))


def texts_diff(before: Texts, after: Texts) -> str:
    """A unified diff of two sets of files; lines keep odd bytes, a missing newline is told."""
    parts: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old != new:
            parts += _file_diff(name, old, new)
    return "".join(parts)


def _file_diff(name: str, old: str | None, new: str | None) -> Iterable[str]:
    lines = difflib.unified_diff(
        _lines(old), _lines(new),
        "/dev/null" if old is None else f"a/{name}",
        "/dev/null" if new is None else f"b/{name}",
    )  # fmt: skip
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str | None) -> list[str]:
    return _LINE.findall(text or "")


# files


def to_json(revision: Revision) -> dict[str, object]:
    """The revision as the JSON value of its file, which is also the contract for scripts."""
    return {
        "number": revision.number,
        "kind": revision.kind,
        "state": revision.state,
        "time": revision.time,
        "author": revision.author,
        "why": revision.why,
        "sparkd_version": revision.version,
        "restores": revision.restores or None,
        "remark": revision.remark or None,
        "changed": revision.changed,
        "units_before": dict(revision.before),
        "units_after": dict(revision.after),
        "sources": dict(revision.sources),
        "sources_before": dict(revision.sources_before),
        "enable": list(revision.enable),
        "disabled": list(revision.disabled),
        "figures_before": {name: dict(value) for name, value in revision.figures.items()},
        "predictions": {name: dict(value) for name, value in revision.predictions.items()},
    }


def from_json(value: Mapping[str, object]) -> Revision | None:
    """A revision from its file; None when it is not one that this version understands."""
    match value:
        case {
            "number": int(number),
            "kind": str(kind),
            "state": str(state),
            "time": int() | float() as time,
            "author": str(author),
            "why": str(why),
        } if kind in set(Kind) and state in set(State):
            pass
        case _:
            return None
    texts = [_texts(value.get(key)) for key in ("units_before", "units_after", "sources")]
    before, after, sources = texts
    if before is None or after is None or sources is None:
        return None
    return Revision(
        number=number,
        kind=Kind(kind),
        state=State(state),
        time=float(time),
        author=author,
        why=why,
        version=str(value.get("sparkd_version") or ""),
        before=before,
        after=after,
        sources=sources,
        sources_before=_texts(value.get("sources_before")) or {},
        enable=_names(value.get("enable")),
        disabled=_names(value.get("disabled")),
        figures=_figures(value.get("figures_before")),
        predictions=_figures(value.get("predictions")),
        restores=str(value.get("restores") or ""),
        remark=str(value.get("remark") or ""),
    )


def _texts(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        return None
    return dict(value)


def _names(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))


def _figures(value: object) -> dict[str, dict[str, object]]:
    items = value if isinstance(value, dict) else {}
    return {name: dict(row) for name, row in items.items() if isinstance(row, dict)}
