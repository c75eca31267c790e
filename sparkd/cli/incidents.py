# SPDX-License-Identifier: Apache-2.0
"""`sparkctl incidents`: how engines ended, newest first."""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from sparkd.adapters import bus_client
from sparkd.cli import engines
from sparkd.cli.answers import print_json, refusal
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.status_view import end_text
from sparkd.cli.terminal import Paint, columns, neutralise, paint_for
from sparkd.cli.times import parse_since, span, stamp

LIMIT_DEFAULT = 20
LIMIT_MAX = 10_000


def run(args: Namespace) -> int:
    """Print the incidents that were asked for."""
    since = 0.0 if args.since is None else parse_since(args.since, time.time())
    limit = limit_from(args.limit)
    rows = [row for row in _fetch(limit, args.engine or "") if float(row["time"]) >= since]
    if args.json:
        print_json(rows)
    elif rows:
        print("\n".join(lines(rows, paint_for(sys.stdout, os.environ))))
    else:
        print("no incidents")
    return Exit.OK


def limit_from(text: str | None) -> int:
    """The value of --limit.

    Raises:
        CliError: it is no number from 1 to 10000.
    """
    if text is None:
        return LIMIT_DEFAULT
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LIMIT_MAX):
        raise CliError(f"--limit {text!r} is no number from 1 to {LIMIT_MAX}", Exit.USAGE)
    return int(text)


def _fetch(limit: int, engine: str) -> list[dict[str, Any]]:
    try:
        return bus_client.incidents(limit, engine)
    except bus_client.DaemonError as error:
        raise refusal(error) from None
    except bus_client.DaemonAbsentError as error:
        from sparkd.cli import absent  # noqa: PLC0415  (the daemon is usually there)

        if engine:
            engines.require([engine], engines.names())
        absent.say(str(error))
        return absent.incidents(limit, engine)


def lines(rows: Sequence[Mapping[str, Any]], paint: Paint) -> list[str]:
    """A row of facts for each incident, and below it why it ended and what followed."""
    head = ("TIME", "ID", "ENGINE", "CLASS", "END", "THEN")
    cells = [
        (
            stamp(float(row["time"])),
            neutralise(str(row["id"])),
            neutralise(str(row["engine"])),
            neutralise(str(row["class"])),
            end_text(row),
            _then(row),
        )
        for row in rows
    ]
    table = columns([head, *cells])
    shown = [paint("bold", table[0])]
    for row, line in zip(rows, table[1:], strict=True):
        shown.append(line if row["requested"] else paint("red", line))
        shown.extend(f"    {text}" for text in _below(row))
    return shown


def _then(row: Mapping[str, Any]) -> str:
    if row["requested"]:
        return "requested"
    return {"restart": "restarted", "hold": "held"}.get(str(row.get("action")), "-")


def _dark(row: Mapping[str, Any]) -> str:
    dark = row.get("dark_seconds")
    return "dark: not ready since" if dark is None else f"dark for {span(float(dark))}"


def _below(row: Mapping[str, Any]) -> list[str]:
    if row["requested"]:
        return []
    texts = [str(row.get("reason") or ""), str(row.get("evidence") or "")]
    if row.get("action") == "hold":
        texts += [str(row.get("action_reason") or ""), str(row.get("hint") or "")]
    texts.append(_dark(row))
    return [neutralise(text) for text in dict.fromkeys(texts) if text]
