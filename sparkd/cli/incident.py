# SPDX-License-Identifier: Apache-2.0
"""`sparkctl incident ID`: everything that is known of one end of life."""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from sparkd.adapters import bus_client, life_log
from sparkd.adapters.life_log import Deed, LifeLog
from sparkd.cli.answers import print_json, refusal
from sparkd.cli.exits import Exit
from sparkd.cli.status_view import end_text
from sparkd.cli.terminal import Paint, columns, neutralise, paint_for
from sparkd.cli.times import ago, span, stamp

Json = Mapping[str, Any]


def run(args: Namespace) -> int:
    """Print one incident."""
    detail = _fetch(args.identity)
    log, deeds, notes = _journal(detail)
    value = {
        **detail,
        "events": [deed._asdict() for deed in deeds],
        "load": [point._asdict() for point in log.load],
        "log": {
            "lines": [line._asdict() for line in log.lines],
            "complete": log.complete,
        },
        "notes": notes,
    }
    if args.json:
        print_json(value)
    else:
        print("\n".join(lines(value, time.time(), paint_for(sys.stdout, os.environ))))
    return Exit.OK


def _fetch(identity: str) -> dict[str, Any]:
    try:
        return bus_client.incident(identity)
    except bus_client.DaemonError as error:
        raise refusal(error) from None
    except bus_client.DaemonAbsentError as error:
        from sparkd.cli import absent  # noqa: PLC0415  (the daemon is usually there)

        absent.say(str(error))
        return absent.incident(identity)


def _journal(detail: Json) -> tuple[LifeLog, list[Deed], list[str]]:
    """The journal's part; a caller who may not read it is told so."""
    empty = LifeLog([], [], complete=False)
    ready = detail["next_ready"]
    try:
        log = life_log.read(detail["invocation_id"], detail["time"], detail["evidence"])
        deeds = life_log.deeds(detail["engine"], detail["time"], ready and ready["time"])
    except OSError as error:
        return empty, [], [f"cannot read the journal: {error}"]
    notes = []
    if not log.lines:
        notes.append(
            "the journal shows nothing of this life: it is older than the journal, or you may not"
            " read it (root and the group systemd-journal may)"
        )
    elif not log.complete:
        notes.append("the log of this life is too long: only its newest part was read")
    return log, deeds, notes


def lines(value: Json, now: float, paint: Paint) -> list[str]:
    """The incident for a person."""
    head = f"{value['id']}  {value['engine']}  {value['class'] or 'no class'}"
    shown = [paint("bold", neutralise(head))]
    facts = [(name, neutralise(text)) for name, text in _facts(value, now) if text]
    shown += [f"  {line}" for line in columns(facts)]
    for title, rows in (
        (
            "WHAT FOLLOWED",
            [f"{stamp(e['time'])}  {neutralise(e['text'])}" for e in value["events"]],
        ),
        ("LOAD BEFORE THE END", _load(value["load"])),
        ("LOG", list(_log(value["log"]["lines"], paint))),
        ("NOTES", [neutralise(note) for note in value["notes"]]),
    ):
        if rows:
            shown += ["", paint("bold", title), *(f"  {row}" for row in rows)]
    return shown


def _facts(value: Json, now: float) -> Iterator[tuple[str, str]]:
    ready = "was ready" if value["was_ready"] else "never was ready"
    at = float(value["time"])
    yield "ended", f"{stamp(at)} ({ago(at, now)} ago), {end_text(value)}; it {ready}"
    yield "asked for", "yes" if value["requested"] else "no"
    yield "reason", str(value["reason"] or "")
    yield "evidence", str(value["evidence"] or "")
    yield "signature", str(value["signature"] or "")
    yield "what to do", str(value["hint"] or "")
    yield "sparkd", f"{value['action']}: {value['action_reason']}"
    yield "dark", _dark(value, now)
    yield "before", _before(value["same_class_before"], now)
    yield "this life", _boot(value["boot"])
    yield "invocation", str(value["invocation_id"])


def _dark(value: Json, now: float) -> str:
    if value["requested"]:
        return ""
    if value["dark_seconds"] is None:
        return f"still, for {span(now - float(value['time']))}"
    back = value["next_ready"]
    again = "" if back is None else f", ready again {stamp(float(back['time']))}"
    return f"{span(float(value['dark_seconds']))}{again}"


def _before(same: Json, now: float) -> str:
    if not same["count"]:
        return "the first of its class on this engine"
    times = "once" if same["count"] == 1 else f"{same['count']} times"
    last = float(same["last"])
    return f"the same class {times}, last {stamp(last)} ({ago(last, now)} ago)"


def _boot(boot: Json | None) -> str:
    if boot is None:
        return ""
    parts = [f"ready {stamp(float(boot['time']))} after {span(float(boot['seconds']))}"]
    for key, label in (
        ("vllm_version", "vLLM {}"),
        ("compile", "{} compile cache"),
        ("kv_cache_gib", "KV cache {} GiB"),
        ("kv_cache_tokens", "{} tokens"),
        ("max_concurrency", "concurrency {}"),
        ("moe_backend", "MoE {}"),
        ("attention_backend", "attention {}"),
    ):
        if boot.get(key) is not None:
            parts.append(label.format(boot[key]))
    return ", ".join(parts)


def _load(points: list[Json]) -> list[str]:
    if not points:
        return []
    head = ("TIME", "RUNNING", "WAITING", "PROMPT TOK/S", "GENERATED TOK/S")
    rows = [
        (
            stamp(point["time"]),
            str(point["running"]),
            str(point["waiting"]),
            f"{point['prompt_tps']:.1f}",
            f"{point['generation_tps']:.1f}",
        )
        for point in points
    ]
    return columns([head, *rows], right=frozenset({1, 2, 3, 4}))


def _log(rows: list[Json], paint: Paint) -> Iterator[str]:
    for row in rows:
        text = f"{stamp(row['time'])}  {neutralise(row['text'])}"
        yield paint("red", text) if row["is_evidence"] else text
