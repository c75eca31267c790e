# SPDX-License-Identifier: Apache-2.0
import json
import os
import re
import signal
import socket

import pytest
from conftest import SAFETY_SECONDS, wait_until

MESSAGES = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


def test_what_a_ready_engine_answers(start):
    engine = start("--served-model-name", "big", "small", "--max-model-len", "4096").ready()
    health = engine.get("/health")
    assert (health.status, health.text) == (200, "")
    assert engine.post("/ping").status == 200
    assert engine.get("/version").text == '{"version":"0.32.0"}'
    models = engine.get("/v1/models").json()["data"]
    assert [(m["id"], m["root"], m["max_model_len"]) for m in models] == [
        ("big", "/models/tiny", 4096),
        ("small", "/models/tiny", 4096),
    ]
    for path in ("/is_sleeping", "/server_info", "/v1/nothing", "/v1/embeddings"):
        assert engine.get(path).status == 404
    assert engine.get("/v1/completions").status == 405


def test_completions_and_chat(start):
    engine = start().ready()
    completion = engine.complete(3).json()
    assert completion["choices"][0]["finish_reason"] == "length"
    assert completion["usage"]["completion_tokens"] == 3
    chat = engine.post("/v1/chat/completions", MESSAGES).json()
    assert chat["choices"][0]["message"]["role"] == "assistant"


def test_a_stream_ends_with_done(start):
    engine = start().ready()
    body = MESSAGES | {"stream": True, "stream_options": {"include_usage": True}}
    events = engine.post("/v1/chat/completions", body).text.strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None, None, "length"]
    assert chunks[-1]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"prompt": "x", "model": "other"}, 404, "The model `other` does not exist."),
        ({"prompt": "x", "max_tokens": 900}, 400, "max_model_len"),
        ({"prompt": "x", "max_tokens": 0.5}, 400, "max_tokens"),
        ({}, 400, "prompt"),
        (["prompt"], 400, "dictionary"),
    ],
)
def test_requests_that_vllm_refuses(start, body, status, part):
    engine = start("--max-model-len", "512").ready()
    answer = engine.post("/v1/completions", body)
    assert answer.status == status
    assert part in answer.json()["error"]["message"]


def test_an_embedding_engine_has_no_completions(start):
    engine = start("--runner", "pooling").ready()
    answer = engine.post("/v1/embeddings", {"input": ["a", "b"]}).json()
    assert [item["object"] for item in answer["data"]] == ["embedding", "embedding"]
    assert engine.complete().status == 404
    assert engine.metric("vllm:generation_tokens_total") == 0
    assert engine.metric("vllm:prompt_tokens_total") > 0


def test_a_reranking_engine(start):
    engine = start("--task", "score").ready()
    scores = engine.post("/v1/score", {"text_1": "q", "text_2": ["a", "b"]}).json()["data"]
    assert len(scores) == 2
    results = engine.post("/rerank", {"query": "q", "documents": ["a", "b", "c"]}).json()["results"]
    assert [result["index"] for result in results] == [0, 1, 2]
    assert engine.complete().status == 404


@pytest.mark.parametrize("how", ["flag", "environment"])
def test_an_api_key_guards_v1_and_nothing_else(start, how):
    key = "k-123"
    engine = start("--api-key", key) if how == "flag" else start(VLLM_API_KEY=key)
    engine.ready()
    for path in ("/health", "/metrics", "/version", "/ping"):
        assert engine.get(path).status == 200
    refused = engine.get("/v1/models")
    assert (refused.status, refused.json()) == (401, {"error": "Unauthorized"})
    assert engine.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status == 401
    assert engine.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status == 200


def test_metrics_move_with_requests(start):
    engine = start("--served-model-name", "tiny").ready()
    labels = '{engine="0",model_name="tiny"'
    assert engine.metric(f"vllm:num_requests_running{labels}") == 0
    engine.complete(5)
    assert engine.metric(f"vllm:generation_tokens_total{labels}") == 5
    assert engine.metric(f"vllm:prompt_tokens_total{labels}") == 1
    assert engine.metric(f"vllm:iteration_tokens_total_count{labels}") == 5
    success = f'vllm:request_success_total{labels},finished_reason="length"'
    assert engine.metric(success) == 1
    for line in engine.get("/metrics").text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \S+ .+|[a-z0-9_:]+(\{.*\})? [0-9.e+-]+", line), line


def test_requests_above_max_num_seqs_wait(start):
    engine = start("--max-num-seqs", "1", tokens_per_second=20).ready()
    clients = [post_without_waiting(engine, tokens=2000) for _ in range(3)]
    wait_until(lambda: engine.metric("vllm:num_requests_running") == 1, "a running request")
    wait_until(lambda: engine.metric("vllm:num_requests_waiting") == 2, "waiting requests")
    for client in clients:
        client.close()
    aborted = (
        'vllm:request_success_total{engine="0",model_name="/models/tiny",finished_reason="abort"'
    )
    wait_until(lambda: engine.metric(aborted) == 3, "the aborted requests")


def test_statistics_line_falls_silent_when_idle(start):
    # Both tokens come within one interval, whenever the request is taken in it.
    engine = start(stats_seconds=2).ready()
    engine.complete(2)
    idle = "Avg generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs"
    engine.has_said(idle)
    # A request makes the line come back: until then the second idle interval printed nothing.
    engine.complete(1)
    wait_until(lambda: engine.output.count("Avg prompt throughput: 0.5 tokens/s") == 2, "a line")
    lines = [line for line in engine.output.splitlines() if "Avg prompt throughput" in line]
    assert "Avg generation throughput: 1.0 tokens/s" in lines[0]
    assert [idle in line for line in lines[:3]] == [False, True, False]


def test_connections_are_kept_and_garbage_is_refused(start):
    engine = start().ready()
    with socket.create_connection(("127.0.0.1", engine.port), 10) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 2:
            received += sock.recv(4096)
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
        while b"400 Bad Request" not in received:
            received += sock.recv(4096)
    engine.has_said("WARNING:  Invalid HTTP request received.")
    assert engine.get("/health").status == 200


def test_a_stopped_core_is_a_real_hang(start):
    engine = start(tokens_per_second=20).ready()
    client = post_without_waiting(engine, tokens=500)
    wait_until(lambda: engine.metric("vllm:num_requests_running") == 1, "a running request")
    os.kill(engine.core(), signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        engine.complete(1, timeout=0.5)
    # What the core had made before is counted by now.
    before = engine.metric("vllm:generation_tokens_total")
    with pytest.raises(TimeoutError):
        engine.complete(1, timeout=0.5)
    assert engine.get("/health").status == 200
    assert engine.metric("vllm:num_requests_running") == 1
    assert engine.metric("vllm:generation_tokens_total") == before
    client.close()


def post_without_waiting(engine, tokens: int) -> socket.socket:
    body = json.dumps({"prompt": "x", "max_tokens": tokens}).encode()
    sock = socket.create_connection(("127.0.0.1", engine.port), SAFETY_SECONDS)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock
