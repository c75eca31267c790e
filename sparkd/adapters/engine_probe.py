# SPDX-License-Identifier: Apache-2.0
"""The questions that a serving engine is asked: its counters, its health, one token.

A probe that could not be made is not a probe that failed: the caller is told which it was.
"""

import json
import time
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import probe, proc
from sparkd.core import gate, launch, progress, ranks, storm
from sparkd.core.gate import Ask, Reply, ReplyKind
from sparkd.core.hang import Canary
from sparkd.core.lingering import Health
from sparkd.core.progress import Counters

QUESTION_S = 5.0
"""Wall deadline of a small question; a busy server answers late, but within a second or two."""
METRICS_MAX = 4 << 20
"""A page of vLLM's has about 100 KB."""
METRICS_TYPE = "text/plain;version=0.0.4"
CMDLINE_MAX = 64 * 1024


class Engine(NamedTuple):
    """Whom to ask, and how."""

    host: str
    port: int
    key_file: str = ""
    """File with the API key; '' for none."""
    warmup: str = "auto"
    """The kind of request that it answers, see `gate.WARMUPS`."""


class Sight(NamedTuple):
    """What one reading of /metrics showed."""

    counters: Counters | None = None
    silent: bool = False
    compilers: int = 0


def address_of(pid: int) -> tuple[str, int] | None:
    """Where a running engine listens, by its command line; None when that cannot be told."""
    try:
        with (proc.PROC / str(pid) / "cmdline").open("rb") as file:
            words = file.read(CMDLINE_MAX).decode("utf-8", "replace").split("\0")
    except OSError:
        return None
    return launch.address(words)


def look(engine: Engine, cgroup_of: int, *, for_compilers: bool) -> Sight:
    """Read the counters, and with `for_compilers` also whose compilers run.

    Args:
        engine: Whom to ask.
        cgroup_of: A process of the unit, whose control group is looked through.
        for_compilers: Looking at every process costs some milliseconds.

    Raises:
        OSError: no socket could be made; nothing is known.
    """
    reply = _ask(engine, "/metrics", accept=METRICS_TYPE, reply_max=METRICS_MAX)
    compilers = compilers_in(proc.cgroup_of(cgroup_of)) if for_compilers else 0
    match reply.kind:
        case ReplyKind.ANSWERED:
            page = reply.body if reply.status == 200 else b""
            return Sight(progress.parse(page), compilers=compilers)
        case ReplyKind.TIMEOUT | ReplyKind.REFUSED:
            return Sight(silent=True, compilers=compilers)
        case _:
            return Sight(compilers=compilers)


def health(engine: Engine) -> Health:
    """Ask /health, which says only whether the server knows that its engine is dead.

    Raises:
        OSError: no socket could be made; nothing is known.
    """
    reply = _ask(engine, "/health")
    match reply.kind:
        case ReplyKind.ANSWERED:
            return Health.FAILING if reply.status >= 500 else Health.HEALTHY
        case ReplyKind.TIMEOUT | ReplyKind.REFUSED:
            return Health.FAILING
        case _:
            return Health.UNKNOWN


def one_token(engine: Engine, *, limit_s: float, abort_fd: int, rank: str = "") -> Canary:
    """Have the engine work: the only question that reaches it.

    Args:
        engine: Whom to ask.
        limit_s: How long it may take, seconds.
        abort_fd: Ends it when this becomes readable.
        rank: The data-parallel rank that has to answer; '' for any.

    Raises:
        OSError: no socket could be made; nothing is known.
    """
    models = _ask(engine, "/v1/models", key=_key(engine))
    if models.kind is not ReplyKind.ANSWERED:
        return _unanswered(models)
    names = gate.served_names(models.body) if models.status == 200 else None
    if not names:
        return Canary.INCONCLUSIVE
    deadline = time.monotonic() + limit_s
    for ask in gate.WARMUPS.get(engine.warmup) or gate.WARMUPS["auto"]:
        request = _request(ask, names[0])
        reply = probe.ask(
            (engine.host, engine.port), request,
            deadline=deadline, key=_key(engine), abort_fd=abort_fd,
            headers=((ranks.HEADER, rank),) if rank else (),
        )  # fmt: skip
        if reply.kind is not ReplyKind.ANSWERED:
            return _unanswered(reply)
        if reply.status == 200:
            return Canary.ANSWERED
        if not gate.not_supported(reply):
            return _refused(engine, reply)
    return Canary.INCONCLUSIVE


def compilers_in(cgroup: str) -> int:
    """How many compilers run in a control group or below it."""
    if cgroup in {"", "/"}:
        return 0
    below = cgroup.rstrip("/") + "/"
    names = storm.COMPILERS | storm.DRIVERS | storm.BUILDERS
    found = [pid for pid in proc.pids() if proc.process(pid).name in names]
    return sum((proc.cgroup_of(pid) + "/").startswith(below) for pid in found)


def _request(ask: Ask, model: str) -> tuple[str, str, bytes]:
    method, path, body = gate.request_for(ask, model)
    if ask is Ask.WARMUP_COMPLETION:
        body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 1}).encode()
    return method, path, body


def _unanswered(reply: Reply) -> Canary:
    is_failure = reply.kind in {ReplyKind.TIMEOUT, ReplyKind.REFUSED}
    return Canary.FAILED if is_failure else Canary.INCONCLUSIVE


def _refused(engine: Engine, reply: Reply) -> Canary:
    """503 is the server's word for a dead engine, unless it was put to sleep."""
    if reply.status != 503:
        return Canary.INCONCLUSIVE
    sleeping = _ask(engine, "/is_sleeping", key=_key(engine))
    asleep = sleeping.status == 200 and b"true" in sleeping.body
    return Canary.INCONCLUSIVE if asleep else Canary.FAILED


def _ask(
    engine: Engine,
    path: str,
    *,
    key: str = "",
    accept: str = "application/json",
    reply_max: int = probe.REPLY_MAX,
) -> Reply:
    deadline = time.monotonic() + QUESTION_S
    return probe.ask(
        (engine.host, engine.port), ("GET", path, b""),
        deadline=deadline, key=key, accept=accept, reply_max=reply_max,
    )  # fmt: skip


def _key(engine: Engine) -> str:
    if not engine.key_file:
        return ""
    try:
        return Path(engine.key_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
