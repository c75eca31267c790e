# SPDX-License-Identifier: Apache-2.0
"""configuration -> rendered unit -> import -> the same configuration."""

import dataclasses
import json

import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.cli.import_ import as_json
from sparkd.core.config import ConfigErrors, EngineConfig, Source, load
from sparkd.core.engine_environment import OWNED_VARIABLES, engine_environment
from sparkd.core.importing import plan as planning
from sparkd.core.units import HostFacts, render

HOST = HostFacts(has_swap=True)
# What a unit does not carry: it is the daemon's or the first apply's business.
NOT_IN_A_UNIT = {"autostart": True, "hang": None, "source": ""}

TEXT = st.text(
    st.one_of(
        st.sampled_from("\\\"'$%;#@:+!-=/{}[]()&|<>*?~`^., \t\n\x01é漢😀aZ09_"),
        st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"),
    ),
    max_size=12,
)
WORD = st.text("abcXYZ019._/-", min_size=1, max_size=10)
SCALAR = st.one_of(
    st.booleans(),
    st.integers(-(1 << 40), 1 << 40),
    st.floats(-1e6, 1e6, allow_nan=False),
    TEXT,
    st.sampled_from(["0.90", "1e5", "07", "-1", "--x", "{}", '{"a":1}', '{"a": 1}', "[1]", "true"]),
)
TABLE = st.recursive(
    st.dictionaries(TEXT.filter(bool), st.one_of(st.booleans(), st.integers(-9, 9), TEXT),
                    min_size=1, max_size=3),
    lambda inner: st.dictionaries(
        TEXT.filter(bool), st.one_of(inner, st.lists(st.one_of(inner, TEXT), max_size=2)),
        min_size=1, max_size=2,
    ),
    max_leaves=4,
)  # fmt: skip
FLAGS = st.dictionaries(
    st.sampled_from(
        ["max-model-len", "trust-remote-code", "no-enable-prefix-caching", "enable-chunked-prefill",
         "speculative-config", "hf-overrides", "dtype", "quantization", "allowed-origins",
         "middleware", "tool-server", "cudagraph-capture-sizes", "disable-log-stats", "seed",
         "served-model-name", "limit-mm-per-prompt", "x-unknown", "y-unknown-2",
         "lora-modules", "watermark"]
    ),
    st.one_of(SCALAR, TABLE, st.lists(st.one_of(SCALAR, TABLE), min_size=1, max_size=3)),
    max_size=6,
)  # fmt: skip
ENV = st.dictionaries(
    st.sampled_from(["HF_HOME", "VLLM_X", "LD_PRELOAD", "HOME", "TRITON_CACHE_DIR", "A", "LANG"]),
    TEXT, max_size=4,
)  # fmt: skip
ENGINE = st.fixed_dictionaries(
    {
        "model": st.one_of(WORD.map(lambda w: f"org/{w}"), TEXT.map(lambda t: f"m{t}")),
        "port": st.integers(1024, 65535),
        "runtime": st.fixed_dictionaries(
            {"venv": st.sampled_from(["/opt/vllm", "/home/a/v"])},
            optional={
                "cache": st.just("/srv/cache"),
                "cuda_home": st.just("/usr/local/cuda-13"),
                "path-extra": st.lists(st.sampled_from(["/a/bin", "/b", "/opt/x/bin"]),
                                       max_size=2, unique=True),
            },
        ),
    },
    optional={
        "host": st.sampled_from(["0.0.0.0", "127.0.0.1", "::", "192.0.2.7"]),
        "order": st.integers(0, 999),
        "user": st.sampled_from(["vllm", "root", "ada"]),
        "group": st.sampled_from(["gpu", "ada"]),
        "serve": FLAGS,
        "env": ENV,
        "credentials": st.dictionaries(
            st.sampled_from(["HF_TOKEN", "VLLM_API_KEY", "OTHER"]),
            st.sampled_from(["/etc/sparkd/secrets/a", "/etc/b"]), max_size=2),
        "ready": st.fixed_dictionaries({}, optional={
            "budget": st.sampled_from(["5s", "1080s", "2h"]),
            "warmup": st.sampled_from([True, False, "completion", "embedding", "score"]),
            "expect-version": st.just("0.27.1"),
        }),
        "memory": st.fixed_dictionaries({"max": st.sampled_from(["92%", "40G", "100%"])}),
    },
)  # fmt: skip


class NoHost:
    def read(self, path: str) -> None:
        del path

    def home(self, user: str) -> None:
        del user

    def is_executable(self, path: str) -> bool:
        return not path

    def matching(self, pattern: str) -> list[str]:
        return [] if pattern else [""]


def comparable(engine: EngineConfig) -> dict[str, object]:
    values = dataclasses.asdict(engine) | NOT_IN_A_UNIT
    # The unit lists variables that override sparkd's own where sparkd writes those.
    values["env"] = dict(engine.env)
    values["credentials"] = [(item.name, item.path) for item in engine.credentials]
    values["memory_max"] = str(engine.memory_max or "92%")
    return values


@settings(max_examples=600, deadline=None)
@given(document=ENGINE)
def test_a_rendered_unit_imports_to_the_same_configuration(document: dict[str, object]) -> None:
    text = tomli_w.dumps(document)
    try:
        config = load([Source("e1.toml", text, "e1")], None)
    except ConfigErrors:
        return
    (engine,) = config.engines
    unit = render(config, HOST)["vllm-e1.service"]
    source = planning.Document("/etc/systemd/system/vllm-e1.service", unit, "vllm-e1.service")
    plan = planning.make([source], NoHost())
    detail = json.dumps(as_json(plan), indent=1) + text
    (proposal,) = plan.engines
    assert not plan.refused, detail
    assert proposal.is_applicable, detail
    again = load([Source("e1.toml", proposal.config, "e1")], None)
    # A variable that the configuration sets to sparkd's own value is not there any more.
    assert engine_environment(again.engines[0], again.host.compile) == engine_environment(
        engine, config.host.compile
    ), detail
    mine, theirs = comparable(again.engines[0]), comparable(engine)
    assert {**mine, "env": None} == {**theirs, "env": None}, detail
    assert proposal.argv == [
        engine.executable, "serve", engine.model, "--host", engine.host, "--port",
        str(engine.port), *engine.serve,
    ]  # fmt: skip
    assert not set(dict(engine.env)) & set(OWNED_VARIABLES)


@settings(max_examples=200, deadline=None)
@given(document=ENGINE)
def test_the_unit_is_the_same_again(document: dict[str, object]) -> None:
    try:
        config = load([Source("e1.toml", tomli_w.dumps(document), "e1")], None)
    except ConfigErrors:
        return
    name = "vllm-e1.service"
    unit = render(config, HOST)[name]
    (proposal,) = planning.make(
        [planning.Document(f"/etc/systemd/system/{name}", unit, name)], NoHost()
    ).engines
    again = load([Source("e1.toml", proposal.config, "e1")], None)
    assert render(again, HOST)[name] == unit
