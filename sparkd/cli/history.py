# SPDX-License-Identifier: Apache-2.0
"""`sparkctl history`, `diff` and `note`: what was changed, by whom, why, and what came of it."""

import argparse
import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from sparkd.adapters import config_restore
from sparkd.adapters.config_view import Paths
from sparkd.adapters.revision_files import Revisions
from sparkd.adapters.unit_files import ApplyError, UnitDirectory
from sparkd.cli.answers import print_json
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import Paint, neutralise, paint_for
from sparkd.cli.times import stamp
from sparkd.core import marker, revisions
from sparkd.core.apply_plan import DiskUnit, Kind
from sparkd.core.config import ConfigErrors
from sparkd.core.revisions import Revision, State

LIMIT = 20


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb `note`, which has two positional arguments."""
    summary = "add a dated note to a revision, such as what it really did; earlier ones stay"
    parser = subparsers.add_parser("note", help=summary, description=f"{summary}.")
    parser.add_argument("revision", metavar="REV", help="the number of a revision")
    parser.add_argument("text", metavar="TEXT", help="what to note")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")


def run(args: Namespace) -> int:
    """Show or note.

    Raises:
        CliError: there is no such revision, or the caller may not read or write them.
    """
    try:
        return {"history": _history, "diff": _diff, "note": _note}[args.verb](args, Revisions())
    except PermissionError as error:
        raise CliError(
            f"{error.filename}: only root and the group sparkd may read it, and only root may"
            " write to it",
            Exit.NOT_PERMITTED,
        ) from None


def number_of(text: str | None) -> int | None:
    """The number that an operator wrote; None for none.

    Raises:
        CliError: it is no number.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise CliError(f"{text!r} is no number of a revision; see 'sparkctl history'", Exit.USAGE)
    return int(text)


def _history(args: Namespace, store: Revisions) -> int:
    limit = LIMIT if args.limit is None else number_of(args.limit)
    numbers = store.numbers()[::-1][:limit]
    found = [revision for number in numbers if (revision := store.read(number)) is not None]
    rows = [_row(revision, store) for revision in found]
    if args.json:
        print_json(rows)
        return Exit.OK
    paint = paint_for(sys.stdout, os.environ)
    for row in rows:
        print("\n".join(_shown(row, paint)))
    if not rows:
        print("no revision yet: the first 'sparkctl apply' that changes something makes one")
    return Exit.OK


def _row(revision: Revision, store: Revisions) -> dict[str, Any]:
    """A revision for scripts, without the texts; `sparkctl diff REV --json` has those."""
    texts = ("units_before", "units_after", "sources", "sources_before")
    row = {key: value for key, value in revisions.to_json(revision).items() if key not in texts}
    outcomes = store.outcomes(revision.number)
    return {**row, "outcomes": outcomes, "notes": store.notes(revision.number)}


def _shown(row: Mapping[str, Any], paint: Paint) -> Iterator[str]:
    names = ", ".join(row["changed"]) or "only TOML"
    state = "" if row["state"] == State.APPLIED else f" [{row['state']}]"
    head = f"{row['number']:>4}  {stamp(row['time'])}  {row['kind']} by {row['author']}{state}"
    yield paint("bold", neutralise(f"{head}: {names}"))
    if row["restores"]:
        yield neutralise(f"      brought back {row['restores']}")
    if row["why"]:
        yield neutralise(f"      why: {row['why']}")
    if row["remark"]:
        yield neutralise(f"      {row['remark']}")
    seen = {str(outcome.get("engine")): outcome for outcome in row["outcomes"]}
    for engine, prediction in sorted(row["predictions"].items()):
        if engine not in seen and prediction:
            yield neutralise(f"      {engine}: expected: {_expected(prediction)}; not started yet")
    for engine, outcome in sorted(seen.items()):
        figures = outcome.get("figures") or {}
        compared = revisions.comparison(row["predictions"].get(engine, {}), figures)
        text = "; ".join(_measured(*one) for one in compared) or "started"
        yield neutralise(f"      {engine}: measured {stamp(float(outcome['time']))}: {text}")
    for note in row["notes"]:
        when, who = stamp(float(note["time"])), note["author"]
        yield neutralise(f"      note of {when} by {who}: {note['text']}")


def _expected(prediction: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{_figure(value['value'])} {revisions.MEASURES[name]} ({value['from']})"
        for name, value in prediction.items()
        if name in revisions.MEASURES
    )


def _measured(name: str, measured: float, predicted: float | None, origin: str) -> str:
    text = f"{_figure(measured)} {revisions.MEASURES[name]}"
    if predicted is None:
        return text
    return f"{text} (expected {_figure(predicted)}: {origin})"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


# diff


def _diff(args: Namespace, store: Revisions) -> int:
    from sparkd.cli.apply import diff_lines  # noqa: PLC0415  (it brings the bus along)

    number = number_of(args.revision)
    if number is None:
        answer = since_newest(store, Paths())
    else:
        revision = _read(store, number)
        answer = {
            **revisions.to_json(revision),
            "diff": revision.diff,
            "config_diff": _config_diff(store, revision),
        }
    if args.json:
        print_json(answer)
        return Exit.OK
    paint = paint_for(sys.stdout, os.environ)
    for line in answer.get("drift", []):
        print(neutralise(line))
    shown = diff_lines(answer["config_diff"], paint) + diff_lines(answer["diff"], paint)
    print("\n".join(shown) if shown else "no difference")
    return Exit.OK


def _config_diff(store: Revisions, revision: Revision) -> str:
    """The TOML against that of the revision before, or against what a rollback replaced."""
    before = revision.sources_before
    if not before:
        earlier = [store.read(number) for number in store.numbers() if number < revision.number]
        applied = [one for one in earlier if one is not None and one.state is State.APPLIED]
        before = applied[-1].sources if applied else {}
    return revisions.texts_diff(before, revision.sources) if revision.sources else ""


def since_newest(store: Revisions, paths: Paths) -> dict[str, Any]:
    """What differs between the newest applied revision and what is on disk now.

    Raises:
        CliError: there is no revision, or the files cannot be read.
    """
    applied = [one for one in store.all() if one.state is State.APPLIED]
    if not applied:
        raise CliError("there is no revision yet to compare with")
    newest = applied[-1]
    try:
        on_disk = UnitDirectory(paths.units).read()
        now = config_restore.plan(paths.config, newest.sources).before
    except (ApplyError, ConfigErrors) as error:
        raise CliError(str(error)) from None
    texts = {name: unit.text for name, unit in on_disk.items() if _counts(name, unit, newest)}
    return {
        "revision": newest.number,
        "drift": [
            _touched(paths, name)
            for name in sorted(newest.after.keys() | texts.keys())
            if newest.after.get(name) != texts.get(name)
        ],
        "diff": revisions.texts_diff(newest.after, texts),
        "config_diff": revisions.texts_diff(newest.sources, now) if newest.sources else "",
    }


def _counts(name: str, unit: DiskUnit, newest: Revision) -> bool:
    if unit.kind is not Kind.REGULAR:
        return False
    return name in newest.after or marker.marker_of(unit.text) is not None


def _touched(paths: Paths, name: str) -> str:
    """Who and when, as far as a file tells: its owner, and its last change."""
    from pwd import getpwuid  # noqa: PLC0415

    try:
        status = (paths.units / name).lstat()
    except OSError:
        return f"{name} is not there"
    try:
        owner = getpwuid(status.st_uid).pw_name
    except KeyError:
        owner = f"uid {status.st_uid}"
    return (
        f"{name} was changed {stamp(status.st_mtime)}; it belongs to {owner}. Who edited it is not"
        " recorded by Linux unless auditd watches the folder"
    )


# note


def _note(args: Namespace, store: Revisions) -> int:
    from sparkd.cli.absent import author  # noqa: PLC0415

    number = number_of(args.revision) or 0
    text = " ".join(args.text.split())
    if not text or len(text) > revisions.WHY_MAX:
        raise CliError(f"a note has 1 to {revisions.WHY_MAX} characters", Exit.USAGE)
    _read(store, number)
    note = {"time": time.time(), "author": author(), "text": text}
    try:
        store.add_note(number, note)
    except PermissionError:
        raise
    except OSError as error:
        raise CliError(f"cannot write the note: {error.strerror}") from None
    if args.json:
        print_json(store.notes(number))
    else:
        print(f"noted; revision {number} has {len(store.notes(number))} notes")
    return Exit.OK


def _read(store: Revisions, number: int) -> Revision:
    revision = store.read(number)
    if revision is None:
        raise CliError(f"there is no revision {number}; see 'sparkctl history'")
    return revision
