# SPDX-License-Identifier: Apache-2.0
"""Proposals fit, load, and never replace anything; what is no language model gets none."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.adapters import inventory
from sparkd.cli import init
from sparkd.cli.main import main
from sparkd.core.config import Source, load
from sparkd.core.lint.checkpoint import Checkpoint
from sparkd.core.scaffold import (
    GIB,
    OVERHEAD,
    Environment,
    Machine,
    Model,
    kv_bytes_per_token,
    propose,
)

SPARK = Machine(total=120 * GIB, reserve=20 * GIB)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
}
VENV = Environment("/opt/vllm", "0.32.0")


def model(name: str, weights: int, **config: object) -> Model:
    checkpoint = Checkpoint(model_type="llama", max_positions=131072, weights=weights, shards=3)
    return Model(f"/models/{name}", name, {**LLAMA, **config}, checkpoint, ())


def test_a_share_is_weights_kv_cache_and_overhead() -> None:
    (one,), refused = propose([model("Llama-8B", 16 * GIB)], [VENV], SPARK)
    assert refused == []
    # 2 (K, V) x 32 layers x 8 heads x 128 values x 2 bytes = 128 KiB for each token.
    assert one.kv_cache == 128 * 1024 * 32768 * 4
    need = (16 * GIB + one.kv_cache + OVERHEAD) / SPARK.total
    assert need <= one.utilization < need + 0.01
    assert (one.name, one.port, one.context, one.autostart) == ("llama-8b", 8001, 32768, True)


def test_what_does_not_fit_beside_the_others_does_not_start_at_boot() -> None:
    found, refused = propose(
        [model("small", 10 * GIB), model("middle", 40 * GIB), model("large", 60 * GIB),
         model("huge", 200 * GIB)], [VENV], SPARK,
    )  # fmt: skip
    assert [(one.name, one.autostart) for one in found] == [
        ("small", True), ("middle", True), ("large", False),
    ]  # fmt: skip
    assert [one.path for one in refused] == ["/models/huge"]
    assert "do not fit into 120.0 GiB" in refused[0].reason


def test_a_model_that_barely_fits_gets_fewer_and_shorter_requests() -> None:
    (one,), _ = propose([model("big", 91 * GIB)], [VENV], SPARK)
    assert one.context == 8192
    assert one.utilization <= 100 / 120


def test_engines_that_are_configured_take_their_room_names_and_ports() -> None:
    claimed = SPARK._replace(claimed=80 * GIB)
    (one,), _ = propose([model("a", 10 * GIB)], [VENV], claimed, names={"a"}, ports={8001, 8002})
    assert (one.name, one.port, one.autostart) == ("a-2", 8003, False)


def test_what_tenants_take_is_no_room_even_for_an_engine_by_itself() -> None:
    shared = SPARK._replace(tenants=30 * GIB)
    found, refused = propose([model("a", 50 * GIB), model("b", 65 * GIB)], [VENV], shared)
    assert [(one.name, one.autostart) for one in found] == [("a", True)]
    assert [one.path for one in refused] == ["/models/b"]
    assert "and tenants (30.0 GiB)" in refused[0].reason


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (model("x", 0), "no safetensors"),
        (model("x", GIB, architectures=["BertModel"]), "no language model"),
        (model("x", GIB, architectures=None), "no language model"),
        (model("x", GIB)._replace(missing=("a.safetensors",)), "not complete"),
        (model("x", GIB)._replace(path="/models/a b"), "characters"),
    ],
)
def test_what_cannot_be_an_engine_is_named_with_its_reason(found: Model, reason: str) -> None:
    proposals, (refused,) = propose([found], [VENV], SPARK)
    assert proposals == []
    assert reason in refused.reason


def test_the_kv_cache_of_other_attention_is_not_guessed() -> None:
    plain = Checkpoint()
    assert kv_bytes_per_token(LLAMA, plain) == 131072
    assert kv_bytes_per_token(LLAMA, Checkpoint(kv_quantization="FP8")) == 65536
    assert kv_bytes_per_token({**LLAMA, "kv_lora_rank": 512}, plain) is None
    assert kv_bytes_per_token(LLAMA, Checkpoint(is_hybrid=True)) is None
    assert kv_bytes_per_token({"text_config": LLAMA}, plain) == 131072
    assert kv_bytes_per_token({}, plain) is None


@given(
    names=st.lists(st.text(min_size=1, max_size=60), min_size=1, max_size=8),
    sizes=st.lists(st.integers(1, 150 * GIB), min_size=8, max_size=8),
)
def test_every_proposal_is_accepted_together_with_the_others(
    names: list[str], sizes: list[int]
) -> None:
    models = [
        model(str(number), size)._replace(name=name, path=f"/models/{number}")
        for number, (name, size) in enumerate(zip(names, sizes, strict=False))
    ]
    found, refused = propose(models, [VENV], SPARK)
    assert len(found) + len(refused) == len(models)
    host = Source("sparkd.toml", '[host]\nreserve = "20G"\n')
    config = load([host, *(Source(f"{p.name}.toml", p.text, p.name) for p in found)], SPARK.total)
    assert {engine.model for engine in config.engines} == {p.model.path for p in found}


def plant(folder: Path, name: str, architecture: str = "LlamaForCausalLM") -> Path:
    place = folder / name
    place.mkdir(parents=True)
    (place / "config.json").write_text(
        json.dumps({**LLAMA, "architectures": [architecture], "num_hidden_layers": 2})
    )
    header = b'{"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}'
    data = len(header).to_bytes(8, "little") + header + bytes(64)
    (place / "model.safetensors").write_bytes(data)
    return place


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(inventory, "MODEL_ROOTS", ())
    monkeypatch.setattr(inventory, "ENVIRONMENT_ROOTS", ())
    monkeypatch.setattr(inventory, "_homes", list)
    monkeypatch.delenv("HF_HOME", raising=False)
    monkeypatch.setattr(init, "CONFIG_DIRECTORY", tmp_path / "etc")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/sparkd.toml").write_text('[host]\nreserve = "1G"\n')
    things = tmp_path / "things"
    plant(things, "Tiny-1B")
    plant(things, "models--org--Hub-Model/snapshots/abc")
    plant(things, "Embed", "BertModel")
    for name, version in (("old", "0.11.0"), ("new", "0.32.0")):
        package = things / name / "lib/python3.12/site-packages" / f"vllm-{version}.dist-info"
        package.mkdir(parents=True)
        (package / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n")
        (things / name / "bin").mkdir()
        (things / name / "bin/vllm").write_text("#!/bin/sh\nexit 1\n")
        (things / name / "bin/vllm").chmod(0o755)
    return things


def test_it_prints_first_and_writes_only_when_told_and_never_over_a_file(
    box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = tmp_path / "etc/engines.d"
    assert main(["init", str(box), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {engine["name"] for engine in answer["engines"]} == {"tiny-1b", "hub-model"}
    assert [one["version"] for one in answer["environments"]] == ["0.32.0", "0.11.0"]
    assert [Path(one["path"]).name for one in answer["refused"]] == ["Embed"]
    assert not engines.exists()
    assert main(["init", str(box), "--write"]) == 0
    first = (engines / "tiny-1b.toml").read_text()
    assert f'venv = "{box}/new"  # has vLLM 0.32.0' in first
    assert f'#venv = "{box}/old"  # has vLLM 0.11.0' in first
    # What is configured already is not proposed again.
    assert main(["init", str(box), "--write"]) == 1
    assert (engines / "tiny-1b.toml").read_text() == first


def test_without_an_environment_nothing_is_written(
    box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(box / "Tiny-1B"), "--write"]) == 1
    assert "no environment with vLLM was found" in capsys.readouterr().out
    assert not (tmp_path / "etc/engines.d").exists()
    assert main(["init", str(box / "Tiny-1B"), "--venv", str(box / "old"), "--write"]) == 0
    assert main(["init", "--venv", str(box)]) == 2


def test_a_broken_configuration_is_not_added_to(box: Path, tmp_path: Path) -> None:
    (tmp_path / "etc/sparkd.toml").write_text("nonsense = 1\n")
    assert main(["init", str(box), "--write"]) == 78
