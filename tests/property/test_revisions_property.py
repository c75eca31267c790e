# SPDX-License-Identifier: Apache-2.0
"""Revisions survive their file whatever bytes they hold, and each repair ends in a known state."""

import json
import math
import os
import subprocess
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.core.prediction import GIB, Launch, predict
from sparkd.core.revisions import (
    MEASURES,
    Kind,
    Repair,
    Revision,
    State,
    comparison,
    figures_of,
    from_json,
    repair,
    texts_diff,
    to_json,
)

TEXT = st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape"))
NAMES = st.sampled_from(["vllm-a.service", "vllm-b.service", "vllm-c.service", "vllm.slice"])
TEXTS = st.dictionaries(NAMES, TEXT)
FIGURE = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([1])
)


def revision(before: dict[str, str], after: dict[str, str]) -> Revision:
    return Revision(
        7, Kind.APPLY, State.BEGUN, 1.5, "root", "why", "1.0", before, after, {"sparkd.toml": "x"}
    )


@given(TEXTS, TEXTS)
def test_a_revision_comes_back_from_its_file(before: dict[str, str], after: dict[str, str]) -> None:
    made = revision(before, after)
    text = json.dumps(to_json(made))
    assert text.isascii()
    read = from_json(json.loads(text))
    assert read is not None
    assert (read.before, read.after, read.changed) == (before, after, made.changed)
    assert to_json(read) == to_json(made)


@given(
    st.dictionaries(
        st.sampled_from(list(to_json(revision({}, {})))),
        st.one_of(st.none(), st.integers(), st.text(), st.lists(st.integers()), st.floats()),
    )
)
def test_what_is_no_revision_is_none_and_never_an_error(odd: dict[str, object]) -> None:
    value = {**to_json(revision({"a": "b"}, {})), **odd}
    read = from_json(value)
    assert read is None or isinstance(read, Revision)


@given(TEXTS, TEXTS, st.data())
def test_a_repair_ends_in_the_old_or_the_new_state_and_touches_nothing_foreign(
    before: dict[str, str], after: dict[str, str], data: st.DataObject
) -> None:
    made = revision(before, after)
    found = dict(before)
    foreign = set()
    for name in made.changed:
        state = data.draw(st.sampled_from(["old", "new", "foreign"]))
        if state == "new":
            found.pop(name, None)
            if name in after:
                found[name] = after[name]
        elif state == "foreign":
            found[name] = "\0somebody's"
            foreign.add(name)
    decision, names, reason = repair(made, found)
    assert reason
    assert not foreign & set(names)
    if decision is Repair.ABANDON:
        assert found == before
        return
    for name in names:
        found.pop(name, None)
        if name in after:
            found[name] = after[name]
    assert {k: v for k, v in found.items() if k not in foreign} == {
        k: v for k, v in after.items() if k not in foreign
    }


@given(TEXTS, TEXTS)
@settings(max_examples=40, deadline=None)
def test_git_can_apply_the_diff(before: dict[str, str], after: dict[str, str]) -> None:
    # Plain words: git has rules of its own for other bytes, and no way to say "an empty file".
    old, new = ({k: plain(v) for k, v in texts.items() if v} for texts in (before, after))
    diff = texts_diff(old, new)
    assert bool(diff) == (old != new)
    if not diff:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, text in old.items():
            Path(folder, name).write_text(text)
        argv = ["git", "apply", "--whitespace=nowarn", "-"]
        environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(Path(folder).parent)}
        done = subprocess.run(
            argv, input=diff, cwd=folder, env=environment, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, (diff, done.stderr)
        assert {file.name: file.read_text() for file in Path(folder).iterdir()} == new


def plain(text: str) -> str:
    return "".join("\n" if ord(c) % 5 == 0 else "abcdefgh"[ord(c) % 8] for c in text)


@given(st.dictionaries(st.sampled_from([*MEASURES, "vllm_version", "other"]), FIGURE))
def test_figures_are_finite_and_never_an_error(boot: dict[str, object]) -> None:
    kept = figures_of(boot)
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept
    for _, measured, _, _ in comparison({}, kept):
        assert math.isfinite(measured)


LAUNCHES = st.builds(
    Launch,
    st.floats(0.01, 1.0),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 40),
    st.none(),
    st.booleans(),
)
NUMBERS = st.one_of(st.floats(0, 1e6), st.integers(0, 10**9))


@given(LAUNCHES, st.dictionaries(st.sampled_from([*MEASURES]), NUMBERS))
def test_a_prediction_is_a_number_with_its_origin(launch: Launch, last: dict[str, object]) -> None:
    expected = predict(launch, last)
    for name, value in expected.items():
        assert name in MEASURES
        assert value["from"] in {"estimate", "previous start"}
        assert isinstance(value["value"], int | float)


def test_the_kv_cache_is_the_share_without_weights_and_overhead() -> None:
    launch = Launch(0.5, 120 * GIB, 30 * GIB)
    assert predict(launch, {})["kv_cache_gib"] == {"value": 24.0, "from": "estimate"}
    last = {"kv_cache_gib": 12.0, "kv_cache_tokens": 1000, "max_concurrency": 3.0, "seconds": 90.0}
    changed = predict(launch, last)
    assert changed["kv_cache_tokens"] == {"value": 2000, "from": "estimate"}
    assert "max_concurrency" not in changed
    same = predict(launch._replace(is_same=True), last)
    assert same["max_concurrency"] == {"value": 3.0, "from": "previous start"}
