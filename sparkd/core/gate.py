# SPDX-License-Identifier: Apache-2.0
"""The readiness gate's judgement: ready only when this very process serves this very model.

The gate asks questions in a fixed order (`Ask`) and judges each reply with `after`, a pure
function. `/health` alone proves nothing: vLLM's handler never reaches the engine, and whoever holds
the port answers it.
"""

import json
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple


class Status(IntEnum):
    """Exit status of `await-ready`."""

    READY = 0
    NOT_READY = 1
    """The process is dead, or the deadline passed: another start may help."""
    USAGE = 2
    WILL_FAIL_AGAIN = 78
    """Another start fails in the same way until somebody changes something."""


class Ask(StrEnum):
    """The questions, in the order in which they are asked."""

    HEALTH = "health"
    LISTENER = "listener"
    MODELS = "models"
    VERSION = "version"
    WARMUP_COMPLETION = "warmup-completion"
    WARMUP_EMBEDDING = "warmup-embedding"
    WARMUP_SCORE = "warmup-score"


WARMUPS: dict[str, tuple[Ask, ...]] = {
    "none": (),
    "completion": (Ask.WARMUP_COMPLETION,),
    "embedding": (Ask.WARMUP_EMBEDDING,),
    "score": (Ask.WARMUP_SCORE,),
    # vLLM finds out by the checkpoint's architecture what an engine can do: ask it in turn.
    "auto": (Ask.WARMUP_COMPLETION, Ask.WARMUP_EMBEDDING, Ask.WARMUP_SCORE),
}
"""`--warmup` values and the requests that are tried, first that the engine supports wins."""


class ReplyKind(StrEnum):
    """How a question ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    BROKEN = "broken"
    """Something answered that does not speak HTTP, or too much of it."""
    ABORTED = "aborted"
    """The main process died while the question was open."""


class Reply(NamedTuple):
    """The answer to an HTTP question."""

    kind: ReplyKind
    status: int = 0
    body: bytes = b""
    detail: str = ""


class Listener(StrEnum):
    """Who listens on the engine's port."""

    OURS = "ours"
    FOREIGN = "foreign"
    NONE = "none"
    UNKNOWN = "unknown"


class Expectation(NamedTuple):
    """What "ready" means for this engine."""

    port: int
    served_names: tuple[str, ...]
    warmup: str = "auto"
    version: str = ""
    """Empty: any version."""
    has_key: bool = False


class Verdict(NamedTuple):
    """What a reply means: a final status, or the next question, or to ask again from the start."""

    status: Status | None
    next: Ask | None
    reason: str
    cls: str = ""
    """Class of the failure when `status` is one, or of the wait when it lasts to the deadline."""
    version: str = ""


def _wait(reason: str, cls: str = "not-ready-in-time") -> Verdict:
    return Verdict(None, None, reason, cls)


def _go(ask: Ask, reason: str) -> Verdict:
    return Verdict(None, ask, reason)


def _never(cls: str, reason: str) -> Verdict:
    return Verdict(Status.WILL_FAIL_AGAIN, None, reason, cls)


def after(want: Expectation, ask: Ask, reply: Reply) -> Verdict:
    """Judge the reply to one HTTP question."""
    if reply.kind is ReplyKind.ABORTED:
        return Verdict(Status.NOT_READY, None, "the main process is gone")
    if reply.kind is ReplyKind.REFUSED and ask is Ask.HEALTH:
        return _wait(f"nothing listens on port {want.port} yet")
    if reply.kind is not ReplyKind.ANSWERED:
        return _wait(f"{ask}: {reply.detail or reply.kind}")
    match ask:
        case Ask.HEALTH:
            return _after_health(reply)
        case Ask.MODELS:
            return _after_models(want, reply)
        case Ask.VERSION:
            return _after_version(want, reply)
        case Ask.LISTENER:
            raise ValueError("the listener is judged by after_listener")
        case _:
            return _after_warmup(want, ask, reply)


def after_listener(want: Expectation, listener: Listener, holder: str) -> Verdict:
    """Judge who listens. An unknown listener is not ours: the gate acts on what it sees."""
    match listener:
        case Listener.OURS:
            return _go(Ask.MODELS, "the listener belongs to this unit")
        case Listener.FOREIGN:
            return _wait(
                f"port {want.port} is held by {holder}, which is not this engine", "port-conflict"
            )
        case Listener.NONE:
            return _wait(f"nothing listens on port {want.port} any more")
        case Listener.UNKNOWN:
            return _wait(f"cannot see who listens on port {want.port}: {holder}")


def _after_health(reply: Reply) -> Verdict:
    if reply.status == 200:
        return _go(Ask.LISTENER, "/health answers")
    return _wait(f"/health answers {reply.status}")


def _after_models(want: Expectation, reply: Reply) -> Verdict:
    if reply.status in {401, 403}:
        said = "refuses the configured API key" if want.has_key else "asks for an API key"
        fix = (
            "check the credential VLLM_API_KEY"
            if want.has_key
            else ("put the key under [credentials] as VLLM_API_KEY")
        )
        return _never("api-key-refused", f"/v1/models {said} ({reply.status}): {fix}")
    if reply.status != 200:
        return _wait(f"/v1/models answers {reply.status}")
    served = served_names(reply.body)
    if served is None:
        return _wait("/v1/models does not answer with a list of models")
    missing = [name for name in want.served_names if name not in served]
    if missing:
        return _never(
            "wrong-model",
            f"serves {_names(served)}, but the configuration says {_names(want.served_names)}",
        )
    return _go(Ask.VERSION, f"serves {_names(want.served_names)}")


def _after_version(want: Expectation, reply: Reply) -> Verdict:
    version = json_text(reply.body, "version") if reply.status == 200 else None
    if version is None:
        if want.version:
            return _wait(f"/version answers {reply.status} without a version")
        return _first_warmup(want, "")
    if want.version and version != want.version:
        return _never(
            "wrong-version", f"/version says {version}, but expect-version is {want.version}"
        )
    return _first_warmup(want, version)


def _first_warmup(want: Expectation, version: str) -> Verdict:
    steps = WARMUPS[want.warmup]
    if not steps:
        return Verdict(Status.READY, None, f"serves {_names(want.served_names)}", "", version)
    return Verdict(None, steps[0], "warming up with one request", "", version)


def _after_warmup(want: Expectation, ask: Ask, reply: Reply) -> Verdict:
    if reply.status == 200:
        if not _is_result(reply.body):
            return _wait("the warm-up request is answered with something that is no result")
        return Verdict(
            Status.READY, None, f"serves {_names(want.served_names)} and answered a request"
        )
    if reply.status in {401, 403}:
        return _never(
            "api-key-refused",
            f"the warm-up request was refused with {reply.status}: check the API key",
        )
    steps = WARMUPS[want.warmup]
    if not_supported(reply):
        rest = steps[steps.index(ask) + 1 :]
        if rest:
            return _go(rest[0], f"does not support {ask}")
        tried = ", ".join(step.removeprefix("warmup-") for step in steps)
        return _never("no-such-task", f"supports none of the warm-up requests tried ({tried})")
    return _wait(f"the warm-up request answers {reply.status}")


def not_supported(reply: Reply) -> bool:
    """Whether vLLM says that this engine has no such task.

    Since about 0.12 the route is absent (404, or 405 for a path that exists for GET); older ones
    answer 400 with "does not support".
    """
    return reply.status in {404, 405, 501} or (
        reply.status == 400 and b"does not support" in reply.body
    )


def _is_result(body: bytes) -> bool:
    """Whether a body is a JSON object with a member that vLLM's results have.

    Completions carry `choices`, embeddings and scores `data`.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value.get("choices") or value.get("data"))


def request_for(ask: Ask, model: str) -> tuple[str, str, bytes]:
    """Method, path and body of a question."""
    match ask:
        case Ask.HEALTH:
            return "GET", "/health", b""
        case Ask.MODELS:
            return "GET", "/v1/models", b""
        case Ask.VERSION:
            return "GET", "/version", b""
        case Ask.WARMUP_COMPLETION:
            body: dict[str, object] = {"model": model, "prompt": "Hello", "max_tokens": 3}
            return "POST", "/v1/completions", json.dumps(body).encode()
        case Ask.WARMUP_EMBEDDING:
            body = {"model": model, "input": "Hello"}
            return "POST", "/v1/embeddings", json.dumps(body).encode()
        case Ask.WARMUP_SCORE:
            body = {"model": model, "text_1": "Hello", "text_2": "Hello"}
            return "POST", "/score", json.dumps(body).encode()
        case Ask.LISTENER:
            raise ValueError("who listens is asked of the kernel, not over HTTP")


def served_names(body: bytes) -> list[str] | None:
    """The model ids that `/v1/models` lists; None when the body is no such list."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    match value:
        case {"data": [*rows]}:
            return [row["id"] for row in rows if isinstance(row, dict) and _is_text(row.get("id"))]
    return None


def json_text(body: bytes, key: str) -> str | None:
    """A text member of a JSON object, at most 80 characters; None when there is none."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    text = value.get(key) if isinstance(value, dict) else None
    return text[:80] if isinstance(text, str) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _names(names: Sequence[str]) -> str:
    return ", ".join(name[:80] for name in names[:4]) or "nothing"
