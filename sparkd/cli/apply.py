# SPDX-License-Identifier: Apache-2.0
"""`sparkctl apply`: have the daemon write units from the configuration, and show what changed."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from sparkd.adapters import bus_client
from sparkd.cli.answers import print_json, refusal
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import Paint, neutralise, paint_for
from sparkd.core.revisions import WHY_MAX

_DIFF_COLOURS = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


def run(args: Namespace) -> int:
    """Apply, or with --dry-run show what would be applied.

    Returns:
        FAILURE when a unit or another file was refused, else OK.

    Raises:
        CliError: it was refused; every configuration error is a line of it.
    """
    answer = _ask(args)
    if args.json:
        print_json(answer)
    else:
        shown = lines(answer, paint_for(sys.stdout, os.environ))
        print("\n".join(shown))
    refused = answer.get("refused") or (answer.get("caps") or {}).get("refused")
    return Exit.FAILURE if refused else Exit.OK


def _ask(args: Namespace) -> dict[str, Any]:
    try:
        return bus_client.apply(
            dry_run=args.dry_run, force=args.force, prune=args.prune, why=reason_of(args)
        )
    except bus_client.DaemonError as error:
        raise refusal(error) from None
    except bus_client.DaemonAbsentError as error:
        if error.sent:
            raise CliError(f"{error}; 'sparkctl apply' again: it finishes what was begun") from None
        from sparkd.cli import absent  # noqa: PLC0415  (the daemon is usually there)

        absent.say(str(error))
        return absent.apply(
            dry_run=args.dry_run, force=args.force, prune=args.prune, why=reason_of(args)
        )


def reason_of(args: Namespace) -> str:
    """What --why says; the history shows it beside the change.

    Raises:
        CliError: it is too long.
    """
    why = " ".join((args.why or "").split())
    if len(why) > WHY_MAX:
        raise CliError(f"--why: must not have more than {WHY_MAX} characters", Exit.USAGE)
    return why


def lines(answer: Mapping[str, Any], paint: Paint) -> list[str]:
    """The diff, then a sentence for each unit that something happened to, or did not."""
    shown = [neutralise(str(answer["repaired"]))] if answer.get("repaired") else []
    shown += diff_lines(str(answer.get("diff") or ""), paint)
    would = "would be " if answer.get("dry_run") else ""
    for key, what in (("written", "written"), ("removed", "removed"), ("enabled", "enabled")):
        shown += [f"{neutralise(str(unit))}: {would}{what}" for unit in answer.get(key) or []]
    for row in answer.get("refused") or []:
        unit, reason = neutralise(str(row["unit"])), neutralise(str(row["reason"]))
        shown.append(paint("red", f"{unit}: refused: {reason}"))
        shown += [f"    {line}" for line in diff_lines(str(row.get("diff") or ""), paint)]
    shown += _caps_lines(answer.get("caps") or {}, would, paint)
    shown += [
        f"{neutralise(str(unit))}: its engine is gone from the configuration; it stays until"
        " 'sparkctl apply --prune'"
        for unit in answer.get("orphans") or []
    ]
    shown += [
        f"{neutralise(str(engine))}: config pending: it runs with its old unit until"
        f" 'sparkctl restart {neutralise(str(engine))}'"
        for engine in answer.get("pending") or []
    ]
    if answer.get("revision"):
        shown.append(f"this is revision {answer['revision']}; 'sparkctl rollback' takes it back")
    return shown or ["nothing to do: the units are as the configuration says"]


def _caps_lines(caps: Mapping[str, Any], would: str, paint: Paint) -> list[str]:
    shown = [
        f"{neutralise(str(path))}: {would}{what}"
        for what in ("written", "removed")
        for path in caps.get(what) or []
    ]
    for row in caps.get("refused") or []:
        reason = neutralise(str(row["reason"]))
        shown.append(paint("red", f"{neutralise(str(row['path']))}: refused: {reason}"))
    return shown


def diff_lines(diff: str, paint: Paint) -> list[str]:
    """A unified diff, coloured by line and harmless to print."""
    return [paint(_colour(line), neutralise(line)) for line in diff.split("\n") if line]


def _colour(line: str) -> str:
    return next((colour for start, colour in _DIFF_COLOURS if line.startswith(start)), "")
