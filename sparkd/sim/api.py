# SPDX-License-Identifier: Apache-2.0
"""Bodies of vLLM's HTTP API: what is read from requests and what is answered."""

import json
import time
from typing import Any, NamedTuple

from sparkd.sim.options import Options

Body = dict[str, Any]

_WORD = " token"
_DEFAULT_COMPLETION_TOKENS = 16
_CHAT_ANSWER_TOKENS = 32
_EMBEDDING_SIZE = 8

# Path to task. As in vLLM, only the endpoints of the model's own task exist.
TASKS = {
    "/v1/completions": "generate",
    "/v1/chat/completions": "generate",
    "/v1/embeddings": "embed",
    "/v1/score": "score",
    "/score": "score",
    "/v1/rerank": "score",
    "/v2/rerank": "score",
    "/rerank": "score",
}


def encode(body: Body) -> bytes:
    """JSON in the compact form that vLLM's framework sends."""
    return json.dumps(body, separators=(",", ":")).encode()


class ApiError(ValueError):
    """An answer that is an error."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param


class Job(NamedTuple):
    """An accepted inference request."""

    path: str
    model: str
    prompt_tokens: int
    max_tokens: int  # 0 for pooling
    stream: bool
    include_usage: bool
    items: int  # inputs of an embedding, documents of a score


def error_body(status: int, kind: str, message: str, param: str | None = None) -> Body:
    """The error object of every endpoint but the authentication's."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def models(options: Options, started: float) -> Body:
    """The answer of /v1/models; `started` is the wall clock of the start."""
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": int(started),
                "owned_by": "vllm",
                "root": options.model,
                "parent": None,
                "max_model_len": options.max_model_len,
                "permission": [],
            }
            for name in options.served_model_names
        ],
    }


def read_job(path: str, raw: bytes, options: Options) -> Job:
    """The job that a request body asks for; raises ApiError."""
    body = _object(raw)
    model = body.get("model", options.served_model_names[0])
    if model not in options.served_model_names:
        raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    match TASKS[path]:
        case "generate":
            return _generation(path, body, model, options)
        case "embed":
            inputs = _required(body, "input")
            items = len(inputs) if isinstance(inputs, list) and _are_texts(inputs) else 1
            tokens = _count(inputs)
        case _:
            documents = body.get("documents", body.get("text_2"))
            if documents is None:
                raise ApiError(
                    400, "Bad Request", "1 validation error: field required", "documents"
                )
            items = len(documents) if isinstance(documents, list) else 1
            tokens = _count([documents, body.get("query", body.get("text_1", ""))])
    return Job(path, model, tokens, 0, stream=False, include_usage=False, items=items)


def _object(raw: bytes) -> Body:
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise ApiError(
            400, "Bad Request", f"1 validation error: JSON decode error: {error}"
        ) from None
    if not isinstance(body, dict):
        raise ApiError(400, "Bad Request", "1 validation error: Input should be a valid dictionary")
    return body


def _required(body: Body, key: str) -> Any:  # noqa: ANN401 - JSON from outside
    if key not in body:
        raise ApiError(400, "Bad Request", f"1 validation error: {key}: Field required", key)
    return body[key]


def _generation(path: str, body: Body, model: str, options: Options) -> Job:
    chat = path == "/v1/chat/completions"
    prompt_tokens = _count(_required(body, "messages" if chat else "prompt"))
    default = _CHAT_ANSWER_TOKENS if chat else _DEFAULT_COMPLETION_TOKENS
    room = options.max_model_len - prompt_tokens
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    tokens = min(default, max(1, room)) if wanted is None else wanted
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise ApiError(400, "BadRequestError", f"max_tokens must be at least 1, got {tokens}.")
    if tokens > room:
        raise ApiError(
            400,
            "BadRequestError",
            f"'max_tokens' or 'max_completion_tokens' is too large: {tokens}. This model's maximum "
            f"context length (max_model_len) is {options.max_model_len} tokens and your request "
            f"has {prompt_tokens} input tokens.",
            "max_tokens",
        )
    stream_options = body.get("stream_options")
    usage = isinstance(stream_options, dict) and bool(stream_options.get("include_usage"))
    stream = bool(body.get("stream", False))
    return Job(path, model, prompt_tokens, tokens, stream, include_usage=usage, items=1)


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str | list) for value in values)


def _count(value: object) -> int:
    """Roughly four characters to a token, as in English text; a list of numbers is tokens."""
    if isinstance(value, str):
        return max(1, len(value) // 4)
    if isinstance(value, list):
        return sum(1 if isinstance(item, int) else _count(item) for item in value)
    if isinstance(value, dict):
        return _count(value.get("content", value.get("text", "")))
    return 1


def _usage(job: Job, made: int) -> Body:
    return {
        "prompt_tokens": job.prompt_tokens,
        "total_tokens": job.prompt_tokens + made,
        "completion_tokens": made,
        "prompt_tokens_details": None,
    }


def request_id(job: Job, number: int) -> str:
    """The id in the answer and in the log."""
    prefix = {
        "/v1/completions": "cmpl",
        "/v1/chat/completions": "chatcmpl",
        "/v1/embeddings": "embd",
    }.get(job.path, "score")
    return f"{prefix}-{number:016x}"


def answer(job: Job, number: int, made: int) -> Body:
    """The whole answer to a finished job."""
    head: Body = {
        "id": request_id(job, number),
        "created": int(time.time()),
        "model": job.model,
        "usage": _usage(job, made),
    }
    match job.path:
        case "/v1/completions":
            choice = {"index": 0, "text": _WORD * made, "logprobs": None, "finish_reason": "length"}
            return head | {"object": "text_completion", "choices": [choice]}
        case "/v1/chat/completions":
            message = {"role": "assistant", "content": (_WORD * made).strip(), "tool_calls": []}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
            return head | {"object": "chat.completion", "choices": [choice]}
        case "/v1/embeddings":
            vector = [round(1 / (n + 1), 6) for n in range(_EMBEDDING_SIZE)]
            data = [
                {"index": n, "object": "embedding", "embedding": vector} for n in range(job.items)
            ]
            return head | {"object": "list", "data": data}
        case "/v1/score" | "/score":
            scores = [{"index": n, "object": "score", "score": _score(n)} for n in range(job.items)]
            return head | {"object": "list", "data": scores}
        case _:
            results = [{"index": n, "relevance_score": _score(n)} for n in range(job.items)]
            return head | {"results": results}


def _score(index: int) -> float:
    return round(1 / (index + 2), 6)


def _event(body: Body) -> str:
    return encode(body).decode()


def chunk(job: Job, number: int, *, last: bool) -> str:
    """One event of a streamed answer, carrying one token."""
    reason = "length" if last else None
    choice: Body = {"index": 0, "logprobs": None, "finish_reason": reason}
    if job.path == "/v1/chat/completions":
        kind = "chat.completion.chunk"
        choice["delta"] = {"content": _WORD}
    else:
        kind = "text_completion"
        choice["text"] = _WORD
    return _event(
        {
            "id": request_id(job, number),
            "object": kind,
            "created": int(time.time()),
            "model": job.model,
            "choices": [choice],
        }
    )


def usage_chunk(job: Job, number: int, made: int) -> str:
    """The last event of a stream whose client asked for the usage."""
    kind = "chat.completion.chunk" if "chat" in job.path else "text_completion"
    return _event(
        {
            "id": request_id(job, number),
            "object": kind,
            "created": int(time.time()),
            "model": job.model,
            "choices": [],
            "usage": _usage(job, made),
        }
    )
