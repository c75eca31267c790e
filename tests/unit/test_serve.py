# SPDX-License-Identifier: Apache-2.0
"""From `[serve]` to arguments, type by type."""

import datetime as dt
from typing import Any

import pytest

from sparkd.core import serve


@pytest.mark.parametrize(
    ("name", "value", "arguments"),
    [
        ("enforce-eager", True, ("--enforce-eager",)),
        ("enable-prefix-caching", False, ("--no-enable-prefix-caching",)),
        ("disable-log-stats", True, ("--disable-log-stats",)),
        ("disable-log-stats", False, ()),
        ("max-model-len", 262144, ("--max-model-len", "262144")),
        ("max-model-len", "256k", ("--max-model-len", "256k")),
        ("gpu-memory-utilization", 0.25, ("--gpu-memory-utilization", "0.25")),
        ("seed", -1, ("--seed=-1",)),
        ("rope-theta", -0.5, ("--rope-theta=-0.5",)),
        ("chat-template", "-{{ x }}", ("--chat-template=-{{ x }}",)),
        ("chat-template", "", ("--chat-template", "")),
        ("served-model-name", ["a", "b"], ("--served-model-name", "a", "b")),
        ("cudagraph-capture-sizes", [1, 2, 4], ("--cudagraph-capture-sizes", "1", "2", "4")),
        ("middleware", ["a.b", "c.d"], ("--middleware=a.b", "--middleware=c.d")),
        (
            "disable-access-log-for-endpoints",
            ["/health", "/metrics"],
            ("--disable-access-log-for-endpoints=/health,/metrics",),
        ),
        ("allowed-origins", ["*"], ("--allowed-origins", '["*"]')),
        ("allowed-methods", [], ("--allowed-methods", "[]")),
        (
            "speculative-config",
            {"method": "mtp", "n": 3, "x": {"é": [True, None, 0.5]}},
            ("--speculative-config", '{"method":"mtp","n":3,"x":{"é":[true,null,0.5]}}'),
        ),
        ("hf-overrides", {}, ("--hf-overrides", "{}")),
        (
            "lora-modules",
            [{"name": "a", "path": "/a"}, "b=/b"],
            ("--lora-modules", '{"name":"a","path":"/a"}', "b=/b"),
        ),
        (
            "hf-overrides",
            {"image_token": "<image>"},
            ("--hf-overrides", '{"image_token":"<image>"}'),
        ),
    ],
)
def test_arguments(name: str, value: Any, arguments: tuple[str, ...]) -> None:
    serve.check_flag_name(name)
    assert serve.flag_arguments(name, value) == arguments


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("x", float("nan"), "finite"),
        ("x", float("inf"), "finite"),
        ("x", dt.date(2026, 1, 1), "must be a string"),
        ("x", [[1]], "must be a string"),
        ("x", [True], "must be a string"),
        ("x", [], "empty list"),
        ("x", ["a", "-b"], "begins with '-'"),
        ("x", [1, -1], "begins with '-'"),
        ("tool-server", ["a,b"], "comma"),
        ("x", {"a": float("nan")}, "JSON"),
        ("x", {"a": dt.date(2026, 1, 1)}, "JSON"),
        ("x", "a\0b", "NUL"),
        ("x", "a" * (serve.MAX_VALUE_BYTES + 1), "longer"),
        ("x", "hf_" + "a" * 30, "credentials"),
        ("x", {"auth": {"password": "hunter2"}}, "credentials"),
        ("x", ["sk-" + "a" * 30], "credentials"),
    ],
)
def test_refused_values(name: str, value: Any, rule: str) -> None:
    with pytest.raises(serve.ServeError, match=rule):
        serve.flag_arguments(name, value)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("--max-model-len", "write max-model-len"),
        ("max_model_len", "write max-model-len"),
        ("Max-Model-Len", "write max-model-len"),
        ("", "flag name"),
        ("a b", "flag name"),
        ("x\n", "flag name"),
        ("a.b", "flag name"),
        ("é", "flag name"),
        ("model", "at the top"),
        ("port", "at the top"),
        ("host", "at the top"),
        ("uds", "TCP"),
        ("grpc", "HTTP"),
        ("config", "in \\[serve\\]"),
        ("ssl-keyfile", "TLS"),
        ("api-key", "VLLM_API_KEY"),
        ("hf-token", "HF_TOKEN"),
        ("some-password", "credentials"),
        # argparse accepts unambiguous prefixes, so these would set sparkd's own flags again.
        ("por", "abbreviates --port"),
        ("api-k", "abbreviates --api-key"),
    ],
)
def test_refused_names(name: str, rule: str) -> None:
    with pytest.raises(serve.ServeError, match=rule):
        serve.check_flag_name(name)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ({}, ("org/model",)),
        ({"served-model-name": "a"}, ("a",)),
        ({"served-model-name": ["a", "b c"]}, ("a", "b c")),
    ],
)
def test_served_names(flags: dict[str, Any], names: tuple[str, ...]) -> None:
    assert serve.served_names("org/model", flags) == names


@pytest.mark.parametrize(
    "value", ["", " ", [], [1], 5, ["a", "a"], ["-a"], "a\nb", ["\u202ea"], [["a"]]]
)
def test_refused_served_names(value: Any) -> None:
    with pytest.raises(serve.ServeError):
        serve.served_names("m", {"served-model-name": value})


@pytest.mark.parametrize("value", [0, -0.1, 1.01, 2, "0.5", True, float("nan"), float("inf")])
def test_refused_memory_utilization(value: Any) -> None:
    with pytest.raises(serve.ServeError):
        serve.memory_utilization({"gpu-memory-utilization": value})


@pytest.mark.parametrize("value", [0.01, 0.5, 1, 1.0])
def test_memory_utilization(value: float) -> None:
    assert serve.memory_utilization({"gpu-memory-utilization": value}) == value


def test_memory_utilization_defaults_to_the_larger_of_vllms_defaults() -> None:
    assert serve.memory_utilization({}) == 0.92
