# SPDX-License-Identifier: Apache-2.0
"""What each reply means to the readiness gate, one row each."""

import json

import pytest

from sparkd.core import gate
from sparkd.core.gate import Ask, Expectation, Listener, Reply, ReplyKind, Status

WANT = Expectation(8000, ("nemotron", "alias"), warmup="auto", version="0.27.1")
OPEN = Expectation(8000, ("nemotron",), warmup="none")


def answered(status=200, body=b""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(ReplyKind.ANSWERED, status, data)


def models(*names):
    return answered(200, {"object": "list", "data": [{"id": name} for name in names]})


def waits(verdict):
    return verdict.status is None and verdict.next is None and bool(verdict.reason)


def leads_to(verdict, ask):
    return verdict.status is None and verdict.next is ask


def never(verdict, cls):
    return verdict.status is Status.WILL_FAIL_AGAIN and verdict.cls == cls and verdict.reason


QUESTIONS = [ask for ask in Ask if ask is not Ask.LISTENER]


@pytest.mark.parametrize("ask", QUESTIONS)
@pytest.mark.parametrize("kind", [ReplyKind.REFUSED, ReplyKind.TIMEOUT, ReplyKind.BROKEN])
def test_no_answer_is_waited_for(ask, kind):
    assert waits(gate.after(WANT, ask, Reply(kind, detail="why")))


@pytest.mark.parametrize("ask", QUESTIONS)
def test_a_death_ends_the_wait(ask):
    verdict = gate.after(WANT, ask, Reply(ReplyKind.ABORTED))
    assert verdict.status is Status.NOT_READY
    assert verdict.reason == "the main process is gone"


@pytest.mark.parametrize("status", [404, 500, 503, 302, 204, 401])
def test_health_that_is_not_200_is_waited_for(status):
    assert waits(gate.after(WANT, Ask.HEALTH, answered(status)))


def test_health_alone_proves_nothing():
    assert leads_to(gate.after(WANT, Ask.HEALTH, answered()), Ask.LISTENER)


@pytest.mark.parametrize(
    ("listener", "cls"),
    [
        (Listener.FOREIGN, "port-conflict"),
        (Listener.NONE, "not-ready-in-time"),
        (Listener.UNKNOWN, "not-ready-in-time"),
    ],
)
def test_only_our_own_listener_goes_on(listener, cls):
    verdict = gate.after_listener(WANT, listener, "nc (PID 7)")
    assert waits(verdict)
    assert verdict.cls == cls
    assert leads_to(gate.after_listener(WANT, Listener.OURS, ""), Ask.MODELS)


def test_a_foreign_listener_is_named():
    assert "nc (PID 7)" in gate.after_listener(WANT, Listener.FOREIGN, "nc (PID 7)").reason


def test_all_served_names_must_be_there():
    assert leads_to(gate.after(WANT, Ask.MODELS, models("alias", "nemotron")), Ask.VERSION)
    assert leads_to(gate.after(WANT, Ask.MODELS, models("x", "alias", "nemotron")), Ask.VERSION)
    for served in (["nemotron"], ["other"], [], ["nemotron-2", "alias"]):
        verdict = gate.after(WANT, Ask.MODELS, models(*served))
        assert never(verdict, "wrong-model")
        assert "nemotron, alias" in verdict.reason


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>ok</html>",
        b'{"error": "x"}',
        b'{"data": null}',
        b'{"data": "nemotron"}',
        b'["nemotron"]',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"data": [{"id": ' + b"9" * 5000 + b"}]}",
    ],
)
def test_a_200_that_is_no_list_of_models_is_waited_for(body):
    assert waits(gate.after(WANT, Ask.MODELS, answered(200, body)))


@pytest.mark.parametrize("row", [None, 5, {}, {"id": None}, {"id": ["nemotron"]}, "nemotron"])
def test_rows_that_are_no_models_do_not_count(row):
    assert gate.served_names(json.dumps({"data": [row, {"id": "a"}]}).encode()) == ["a"]


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("has_key", [True, False])
def test_a_refused_key_is_a_configuration_error(status, has_key):
    verdict = gate.after(WANT._replace(has_key=has_key), Ask.MODELS, answered(status))
    assert never(verdict, "api-key-refused")
    assert ("check the credential" in verdict.reason) is has_key
    assert ("[credentials]" in verdict.reason) is not has_key


@pytest.mark.parametrize("status", [404, 500, 503])
def test_models_not_there_yet(status):
    assert waits(gate.after(WANT, Ask.MODELS, answered(status)))


def test_the_version_must_agree():
    good = gate.after(WANT, Ask.VERSION, answered(200, {"version": "0.27.1"}))
    assert leads_to(good, Ask.WARMUP_COMPLETION)
    assert good.version == "0.27.1"
    bad = gate.after(WANT, Ask.VERSION, answered(200, {"version": "0.27.0"}))
    assert never(bad, "wrong-version")
    assert "0.27.0" in bad.reason
    assert "0.27.1" in bad.reason


@pytest.mark.parametrize("reply", [answered(404), answered(200, b"x"), answered(200, [1])])
def test_no_version_matters_only_where_one_is_expected(reply):
    assert waits(gate.after(WANT, Ask.VERSION, reply))
    assert gate.after(OPEN, Ask.VERSION, reply).status is Status.READY


def test_any_version_is_reported():
    verdict = gate.after(OPEN, Ask.VERSION, answered(200, {"version": "0.11.0"}))
    assert verdict.status is Status.READY
    assert verdict.version == "0.11.0"


@pytest.mark.parametrize(
    ("ask", "body"),
    [
        (Ask.WARMUP_COMPLETION, {"choices": [{"text": "x"}]}),
        (Ask.WARMUP_EMBEDDING, {"data": [{"embedding": [0.1]}]}),
        (Ask.WARMUP_SCORE, {"data": [{"score": 0.1}]}),
    ],
)
def test_an_answered_warmup_is_ready(ask, body):
    assert gate.after(WANT, ask, answered(200, body)).status is Status.READY


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error": {}}', b"[]", b'{"choices": []}'])
def test_a_200_without_a_result_is_not(body):
    assert waits(gate.after(WANT, Ask.WARMUP_COMPLETION, answered(200, body)))


NO_SUCH_TASK = [
    answered(404, {"detail": "Not Found"}),
    answered(405),
    answered(501),
    answered(400, {"message": "The model does not support Completions API"}),
]


@pytest.mark.parametrize("reply", NO_SUCH_TASK)
def test_auto_asks_what_the_engine_can_do(reply):
    assert leads_to(gate.after(WANT, Ask.WARMUP_COMPLETION, reply), Ask.WARMUP_EMBEDDING)
    assert leads_to(gate.after(WANT, Ask.WARMUP_EMBEDDING, reply), Ask.WARMUP_SCORE)
    assert never(gate.after(WANT, Ask.WARMUP_SCORE, reply), "no-such-task")


@pytest.mark.parametrize("reply", NO_SUCH_TASK)
def test_a_named_warmup_has_no_second_guess(reply):
    want = WANT._replace(warmup="completion")
    assert never(gate.after(want, Ask.WARMUP_COMPLETION, reply), "no-such-task")


@pytest.mark.parametrize("status", [400, 422, 429, 500, 503])
def test_a_warmup_that_fails_is_tried_again(status):
    assert waits(gate.after(WANT, Ask.WARMUP_COMPLETION, answered(status, {"message": "busy"})))


def test_a_key_refused_at_the_warmup():
    assert never(gate.after(WANT, Ask.WARMUP_COMPLETION, answered(401)), "api-key-refused")


def test_every_warmup_asks_for_the_served_name():
    for steps in gate.WARMUPS.values():
        for ask in steps:
            method, path, body = gate.request_for(ask, 'a "b"')
            assert method == "POST"
            assert path.startswith("/")
            assert json.loads(body)["model"] == 'a "b"'
    assert json.loads(gate.request_for(Ask.WARMUP_COMPLETION, "m")[2])["max_tokens"] == 3


def test_the_listener_is_no_http_question():
    with pytest.raises(ValueError, match="listener"):
        gate.after(WANT, Ask.LISTENER, answered())
    with pytest.raises(ValueError, match="kernel"):
        gate.request_for(Ask.LISTENER, "m")


def test_a_long_name_does_not_flood_the_log():
    verdict = gate.after(WANT, Ask.MODELS, models(*(["x" * 100_000] * 50)))
    assert len(verdict.reason) < 600
