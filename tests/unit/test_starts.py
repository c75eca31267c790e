# SPDX-License-Identifier: Apache-2.0
"""Versions, caches and weights are read from names and sizes of files."""

from sparkd.adapters import starts
from sparkd.core import admission
from sparkd.core.admission import Kind, Outlook


def venv(tmp_path, *names):
    site = tmp_path / "lib/python3.12/site-packages"
    for name in names:
        (site / name).mkdir(parents=True)
    return str(tmp_path / "bin/vllm")


def test_versions_are_those_of_the_environment(tmp_path):
    executable = venv(
        tmp_path, "vllm-0.27.1.dist-info", "torch-2.9.0+cu130.dist-info", "torchvision-1.dist-info",
        "flashinfer_python-0.4.1.dist-info", "vllm", "vllm-1.0.egg-info",
    )  # fmt: skip
    cuda = tmp_path / "cuda"
    cuda.mkdir()
    (cuda / "version.json").write_text('{"cuda": {"name": "CUDA SDK", "version": "13.0.1"}}')
    seen = starts.fingerprint(executable, str(cuda), "sha256:1")
    assert seen["vllm"] == "0.27.1"
    assert seen["torch"] == "2.9.0+cu130"
    assert seen["flashinfer-python"] == "0.4.1"
    assert seen["triton"] == ""
    assert seen["cuda"] == "13.0.1"
    assert seen[admission.LAUNCH] == "sha256:1"


def test_an_environment_that_is_not_there_has_no_versions(tmp_path):
    assert starts.fingerprint(str(tmp_path / "no/bin/vllm"), "", "x")["vllm"] == ""


def test_only_caches_with_something_in_them_count(tmp_path):
    (tmp_path / ".cache/flashinfer/0.4").mkdir(parents=True)
    (tmp_path / ".triton/cache").mkdir(parents=True)
    assert starts.caches(str(tmp_path)) == (f"{tmp_path}/.cache/flashinfer",)
    assert starts.caches("") == ()


def test_weights_of_a_folder_and_of_the_hub(tmp_path):
    (tmp_path / "m").mkdir()
    for name, size in (("a.safetensors", 30), ("b.safetensors", 12), ("c.bin", 41), ("d.py", 99)):
        (tmp_path / "m" / name).write_bytes(b"x" * size)
    assert starts.weights(str(tmp_path / "m"), "") == 42
    snapshot = tmp_path / ".cache/huggingface/hub/models--org--m/snapshots"
    snapshot.mkdir(parents=True)
    (snapshot / "abc").symlink_to(tmp_path / "m")
    assert starts.weights("org/m", str(tmp_path)) == 42
    assert starts.weights("org/other", str(tmp_path)) == 0


def test_what_was_admitted_is_told_to_this_invocation_only(tmp_path):
    outlook = Outlook(Kind.COLD, "first")
    starts.admit("vllm-m.service", "1" * 32, {"vllm": "1"}, outlook, 5, tmp_path)
    seen = starts.admitted("vllm-m.service", "1" * 32, tmp_path)
    assert seen == ({"vllm": "1"}, outlook, 5)
    assert starts.admitted("vllm-m.service", "2" * 32, tmp_path) is None


def test_what_is_learned_survives(tmp_path):
    memory = admission.learn(admission.Memory(), {"vllm": "1"}, Kind.WARM, 7, ())
    starts.remember("m", memory, tmp_path)
    assert starts.known("m", tmp_path) == memory
    (tmp_path / "m.json").write_text("{")
    assert starts.known("m", tmp_path) == admission.Memory()
