# SPDX-License-Identifier: Apache-2.0
"""Whatever answers on the port: never an exception, and never ready without the whole proof."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.core import gate
from sparkd.core.gate import Ask, Expectation, Listener, Reply, ReplyKind, Status

names = st.sampled_from(["a", "b", "c"])
wants = st.builds(
    Expectation,
    st.just(8000),
    st.lists(names, min_size=1, max_size=2).map(tuple),
    st.sampled_from(sorted(gate.WARMUPS)),
    st.sampled_from(["", "1.0"]),
    st.booleans(),
)
known_bodies = st.sampled_from(
    [
        json.dumps(value).encode()
        for value in (
            {"data": [{"id": "a"}]},
            {"data": [{"id": "a"}, {"id": "b"}, {"id": "c"}]},
            {"data": [{"id": "b"}, {"id": "x"}]},
            {"version": "1.0"},
            {"version": "2.0"},
            {"choices": [{"text": "x"}]},
            {"message": "The model does not support it"},
            {"error": "x"},
        )
    ]
)
bodies = st.binary(max_size=30) | known_bodies
statuses = st.sampled_from([200, 200, 200, 400, 401, 404, 405, 500, 503]) | st.integers(0, 9999)
replies = st.builds(Reply, st.just(ReplyKind.ANSWERED), statuses, bodies) | st.builds(
    Reply, st.sampled_from(ReplyKind), statuses, bodies, st.text(max_size=5)
)
questions = st.sampled_from([ask for ask in Ask if ask is not Ask.LISTENER])


@given(wants, questions, replies)
def test_any_reply_to_any_question_has_one_meaning(want, ask, reply):
    if ask in gate.WARMUPS["auto"] and ask not in gate.WARMUPS[want.warmup]:
        return  # never asked
    verdict = gate.after(want, ask, reply)
    assert verdict.reason
    assert verdict.status is None or verdict.next is None
    if verdict.status is Status.WILL_FAIL_AGAIN:
        assert verdict.cls
        assert reply.kind is ReplyKind.ANSWERED


GOOD = {
    Ask.HEALTH: b"",
    Ask.MODELS: b'{"data": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}',
    Ask.VERSION: b'{"version": "1.0"}',
    Ask.WARMUP_COMPLETION: b'{"choices": [{"text": "x"}]}',
    Ask.WARMUP_EMBEDDING: b'{"data": [{"embedding": []}]}',
    Ask.WARMUP_SCORE: b'{"data": [{"score": 1}]}',
}
GOOD_REPLIES = {ask: Reply(ReplyKind.ANSWERED, 200, body) for ask, body in GOOD.items()}
plausible = st.builds(Reply, st.just(ReplyKind.ANSWERED), st.just(200), known_bodies)
# At most two answers are bad: else hardly any round gets to its end.
rounds = st.dictionaries(st.sampled_from(list(GOOD)), plausible | replies, max_size=2).map(
    lambda bad: {**GOOD_REPLIES, **bad}
)
listeners = st.just(Listener.OURS) | st.sampled_from(Listener)


@settings(max_examples=300)
@given(wants, rounds, listeners)
def test_ready_only_with_the_whole_proof(want, answers, listener):
    """One round as the helper asks it; whenever it ends ready, each step is checked again here."""
    verdict = gate.Verdict(None, Ask.HEALTH, "")
    seen = {}
    while verdict.next is not None:
        ask = verdict.next
        assert ask not in seen, "no question twice in a round"
        if ask is Ask.LISTENER:
            seen[ask] = listener
            verdict = gate.after_listener(want, listener, "x")
        else:
            seen[ask] = answers[ask]
            verdict = gate.after(want, ask, answers[ask])
    if verdict.status is not Status.READY:
        return
    assert seen[Ask.HEALTH].status == 200
    assert seen[Ask.LISTENER] is Listener.OURS
    served = {row["id"] for row in json.loads(seen[Ask.MODELS].body)["data"]}
    assert set(want.served_names) <= served
    if want.version:
        assert json.loads(seen[Ask.VERSION].body)["version"] == want.version
    warmups = [seen[ask] for ask in gate.WARMUPS[want.warmup] if ask in seen]
    assert bool(warmups) == (want.warmup != "none")
    assert all(reply.kind is ReplyKind.ANSWERED for reply in warmups)
    if warmups:
        result = json.loads(warmups[-1].body)
        assert warmups[-1].status == 200
        assert result.get("choices") or result.get("data")
