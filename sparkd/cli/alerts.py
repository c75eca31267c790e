# SPDX-License-Identifier: Apache-2.0
"""`sparkctl alerts` and `sparkctl alert test`: who was told what, and whether they can be told."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from sparkd.adapters import bus_client
from sparkd.cli.answers import print_json, refusal
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.incidents import limit_from
from sparkd.cli.terminal import Paint, columns, neutralise, paint_for
from sparkd.cli.times import stamp


def run(args: Namespace) -> int:
    """List the queue, or send a test alert."""
    if args.verb == "alerts":
        rows = _rows(limit_from(args.limit))
        if args.json:
            print_json(rows)
        else:
            paint = paint_for(sys.stdout, os.environ)
            print("\n".join(lines(rows, paint)) if rows else "no alerts")
        return Exit.OK
    if args.action != "test":
        raise CliError(f"alert {args.action!r} is no action; the only one is 'test'", Exit.USAGE)
    return _test(args)


def _rows(limit: int) -> list[dict[str, Any]]:
    try:
        return bus_client.alerts(limit)
    except bus_client.DaemonError as error:
        raise refusal(error) from None
    except bus_client.DaemonAbsentError as error:
        from sparkd.cli import absent_alerts  # noqa: PLC0415  (the daemon is usually there)

        return absent_alerts.rows(limit, str(error))


def _test(args: Namespace) -> int:
    try:
        tried = bus_client.test_alert()
    except bus_client.DaemonError as error:
        raise refusal(error) from None
    except bus_client.DaemonAbsentError as error:
        from sparkd.cli import absent_alerts  # noqa: PLC0415  (the daemon is usually there)

        tried = absent_alerts.test(str(error))
    if args.json:
        print_json(tried)
    else:
        for row in tried:
            how = "took it" if row["taken"] else "did not take it"
            print(f"{neutralise(row['destination'])}: {how}: {neutralise(row['detail'])}")
    return Exit.OK if all(row["taken"] for row in tried) else Exit.FAILURE


def lines(rows: Sequence[Mapping[str, Any]], paint: Paint) -> list[str]:
    """A row for each destination of each alert, newest first."""
    head = ("TIME", "KIND", "ALERT", "TO", "STATE")
    cells = [
        (
            stamp(float(row["time"])),
            neutralise(row["kind"]),
            neutralise(row["title"]),
            neutralise(row["destination"] or "-"),
            _state(row),
        )
        for row in rows
    ]
    table = columns([head, *cells])
    colours = {"pending": "yellow", "refused": "red", "dropped": "red"}
    return [
        paint("bold", table[0]),
        *(
            paint(colours.get(row["state"], ""), line)
            for row, line in zip(rows, table[1:], strict=True)
        ),
    ]


def _state(row: Mapping[str, Any]) -> str:
    text = str(row["state"])
    if row["error"] and row["state"] != "sent":
        text += f" after {row['attempts']} attempts: {neutralise(row['error'])}"
    if row["next_attempt"]:
        text += f"; next {stamp(float(row['next_attempt']))}"
    return text
