# SPDX-License-Identifier: Apache-2.0
"""`sparkctl start`, `stop` and `restart`: through the daemon, or as root without it."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

from sparkd.adapters import bus_client
from sparkd.adapters.bus_client import DaemonAbsentError, Outcome
from sparkd.cli import engines
from sparkd.cli.answers import code_of, print_json
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.progress import Progress
from sparkd.cli.status import fetch
from sparkd.cli.terminal import neutralise

Reply = dict[str, Any]
"""{engine, result, reason, state}, as the daemon answers; and `code`, the exit status it means."""

_PASSED_OVER = {
    # A sweep must not undo what somebody decided for one engine.
    "start": {"held", "ready", "starting", "loading", "waiting"},
    "stop": {"stopped", "held"},
    "restart": {"held", "stopped"},
}
_DONE = {"start": "ready", "stop": "stopped", "restart": "ready"}


def run(args: Namespace) -> int:
    """Do it for every named engine at once, and say how each went.

    Returns:
        OK when all went well, else the exit status of the first that did not.
    """
    names = _selected(args)
    wait = not args.no_block if args.verb == "stop" else bool(args.wait)
    progress = Progress(sys.stderr, os.environ)
    replies = []
    try:
        for reply in _replies(args.verb, names, progress, wait=wait):
            replies.append(reply)
            progress.clear()
            if not args.json:
                _say(args.verb, reply)
    except KeyboardInterrupt:
        progress.clear()
        print("sparkctl: no longer waiting; what was ordered goes on", file=sys.stderr)
        raise
    if args.json:
        print_json([{key: reply[key] for key in reply if key != "code"} for reply in replies])
    return next((reply["code"] for reply in replies if reply["code"] != Exit.OK), Exit.OK)


def _selected(args: Namespace) -> list[str]:
    if args.all == bool(args.engines):
        raise CliError(f"name the engines to {args.verb}, or say --all", Exit.USAGE)
    if not args.all:
        names = list(dict.fromkeys(args.engines))
        engines.require(names, engines.names())
        return names
    chosen = []
    for engine in fetch()["engines"]:
        if engine["state"] in _PASSED_OVER[args.verb]:
            sentence = f"{engine['name']}: left as it is: {engine['state']}"
            print(neutralise(sentence), file=sys.stderr)
        else:
            chosen.append(str(engine["name"]))
    return chosen


def _replies(verb: str, names: list[str], progress: Progress, *, wait: bool) -> Iterator[Reply]:
    absent: list[str] = []
    lost: list[str] = []
    watch = progress.show if progress.enabled else None
    for outcome in bus_client.operate(verb.capitalize(), names, wait=wait, watch=watch):
        if outcome.absent is None:
            yield _reply(outcome)
        else:
            (lost if outcome.absent.sent else absent).append(outcome.engine)
            why = outcome.absent
    if absent or lost:
        progress.clear()
        yield from _without_daemon(verb, absent, lost, why, progress, wait=wait)


def _without_daemon(
    verb: str,
    absent: list[str],
    lost: list[str],
    why: DaemonAbsentError,
    progress: Progress,
    *,
    wait: bool,
) -> Iterable[Reply]:
    from sparkd.cli import absent as direct  # noqa: PLC0415  (the daemon is usually there)

    direct.say(str(why))
    yield from direct.operate(verb, absent, progress.show, wait=wait)
    for engine in lost:
        yield direct.follow(verb, engine, progress.show, wait=wait)


def _reply(outcome: Outcome) -> Reply:
    if outcome.error is not None:
        return {
            "engine": outcome.engine,
            "result": "failed",
            "reason": outcome.error.message,
            "state": None,
            "code": code_of(outcome.error),
        }
    reply: Reply = {"engine": outcome.engine, "result": "done", "reason": "", "state": None}
    reply |= outcome.reply or {}
    reply["code"] = Exit.OK if reply["result"] in {"done", "queued"} else Exit.FAILURE
    return reply


def _say(verb: str, reply: Reply) -> None:
    text, failed = sentence(verb, reply)
    if failed:
        print(f"sparkctl: {text}", file=sys.stderr, flush=True)
    else:
        print(text, flush=True)


def sentence(verb: str, reply: Reply) -> tuple[str, bool]:
    """What to tell a person about one engine, and whether it is a failure."""
    name, reason = neutralise(str(reply["engine"])), neutralise(str(reply["reason"] or ""))
    if reply["code"] != Exit.OK:
        return f"{name}: {verb} failed: {reason or reply['result']}", True
    if reply["result"] == "queued":
        return f"{name}: {verb} queued; 'sparkctl status {name}' shows how it goes", False
    return f"{name}: {reason or _DONE[verb]}", False
