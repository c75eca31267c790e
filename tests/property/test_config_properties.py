# SPDX-License-Identifier: Apache-2.0
"""Whatever is in a configuration file, the answer is a configuration or errors: no third way."""

import contextlib
import tomllib

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from sparkd.core.config import Config, ConfigErrors, Source, load
from sparkd.core.marker import is_hand_edited, seal
from sparkd.core.quantities import parse_duration, parse_limit, parse_size
from sparkd.core.schema import SETTINGS
from sparkd.core.secrecy import contains_secret
from sparkd.core.toml_lines import key_lines
from sparkd.core.units import HostFacts, render

CANARY = "hf_" + "Canary" * 4

SCALARS = st.one_of(
    st.booleans().map(lambda b: str(b).lower()),
    st.integers().map(str),
    st.sampled_from(["nan", "-inf", "1.5", "2020-01-01", "07:00:00", "[]", "{}", "0x1F", "[[1]]"]),
    st.text(st.characters(blacklist_categories=["Cc", "Cs"]), max_size=20).map(
        lambda t: '"' + t.replace("\\", "\\\\").replace('"', '\\"') + '"'
    ),
    st.sampled_from(['"20G"', '"92%"', '"1h"', '"org/m"', '"/opt/v"', f'"{CANARY}"', "8001"]),
)
KEYS = st.one_of(
    st.sampled_from(sorted({setting.key for setting in SETTINGS})),
    st.sampled_from(["HF_TOKEN", "MAX_JOBS", "api-key", "x", "max_model_len", '""', '"a b"']),
)
SECTIONS = st.sampled_from(
    ["", "host", "compile", "memory", "restart", "metrics", "runtime", "ready", "hang", "serve",
     "env", "credentials", "nonsense"]
)  # fmt: skip


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines = []
    for section in draw(st.lists(SECTIONS, max_size=6, unique=True).map(sorted)):
        if section:
            lines.append(f"[{section}]")
        keys = draw(st.lists(KEYS, max_size=4, unique=True))
        lines += [f"{key} = {draw(SCALARS)}" for key in keys]
    return "\n".join(lines)


def check(sources: list[Source]) -> None:
    outcome = attempt(sources)
    if isinstance(outcome, ConfigErrors):
        assert outcome.errors
        assert list(outcome.errors) == sorted(outcome.errors)
        for error in outcome.errors:
            assert error.path in {source.path for source in sources}
            assert "\n" not in str(error)
            assert "Canary" not in error.value
            assert "Canary" not in error.rule
    else:
        for text in render(outcome, HostFacts(has_swap=True)).values():
            assert not contains_secret(text)
            assert not is_hand_edited(text)
            assert seal(text) == text


def attempt(sources: list[Source]) -> Config | ConfigErrors:
    try:
        return load(sources, 1 << 37)
    except ConfigErrors as refused:
        return refused


@settings(max_examples=400, deadline=None)
@given(host=documents(), engine=documents())
def test_plausible_documents(host: str, engine: str) -> None:
    check([Source("sparkd.toml", host), Source("m.toml", engine, "m")])


@settings(max_examples=300, deadline=None)
@given(host=st.binary(max_size=60), engine=st.binary(max_size=60), name=st.text(max_size=10))
def test_any_bytes(host: bytes, engine: bytes, name: str) -> None:
    check([Source("sparkd.toml", host), Source("m.toml", engine, name)])


@settings(max_examples=300, deadline=None)
@given(text=documents())
def test_every_key_of_a_document_has_its_line(text: str) -> None:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        # A key and a section of one name; rare enough for hypothesis to go on.
        reject()
    rows = text.split("\n")
    lines = key_lines(text)
    for key, value in document.items():
        for path in [
            (key,),
            *((key, inner) for inner in (value if isinstance(value, dict) else ())),
        ]:
            row = rows[lines[path] - 1]
            # A table's own line is its header; a key's line begins with the key.
            assert path[-1] in row.strip('["]').replace('"', "")


@given(text=st.text(max_size=200))
def test_the_scanner_survives_anything(text: str) -> None:
    lines = key_lines(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


@given(text=st.text(st.sampled_from("0123456789KMGT%smhdin .-+eé"), max_size=12))
def test_quantities_are_refused_or_not_negative(text: str) -> None:
    for parse in (parse_size, parse_duration):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0
    with contextlib.suppress(ValueError):
        limit = parse_limit(text)
        assert (limit.bytes is None) != (limit.percent is None)
        assert (limit.bytes or limit.percent or 0) > 0
