# SPDX-License-Identifier: Apache-2.0
"""The flags of a launch, refused where vLLM, sparkd or the one GPU of a Spark cannot take them."""

import posixpath
import re
from collections.abc import Callable

from sparkd.core import serve
from sparkd.core.importing import vllm_args
from sparkd.core.importing.address import ADDRESS_FLAGS
from sparkd.core.importing.container import on_host
from sparkd.core.importing.model import (
    Launch,
    Notebook,
    RefusalError,
    Share,
    TenantError,
    share,
)
from sparkd.core.importing.vllm_args import ServeTable
from sparkd.core.secrecy import contains_secret

_PARALLEL = (
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "nnodes",
    "decode-context-parallel-size", "prefill-context-parallel-size", "data-parallel-size-local",
)  # fmt: skip
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")


def read(launch: Launch, notebook: Notebook, read_file: Callable[[str], str | None]) -> ServeTable:
    """Return the flags of a launch.

    Raises:
        RefusalError: vLLM or sparkd would not take them, or they need more than one GPU.
    """

    def from_here(path: str) -> str | None:
        if not path.startswith("/") and launch.directory:
            path = posixpath.normpath(posixpath.join(launch.directory, path))
        if path in launch.written:
            reason = f"the script itself writes {path}: write its lines as flags"
            raise RefusalError(launch.origin, reason)
        return read_file(path)

    inside = launch.image is not None and not launch.mounts
    table = vllm_args.read(
        launch.arguments, launch.origin, notebook,
        (lambda _: None) if inside else (lambda path: from_here(on_host(path, launch.mounts))),
        exact=launch.exact,
    )  # fmt: skip
    _refuse_parallel(launch, table)
    if table.model is not None and contains_secret(table.model.text):
        raise RefusalError(table.model.origin, "the model's name looks like a secret")
    for name, entry in table.flags.items():
        if name in ADDRESS_FLAGS:
            continue
        try:
            serve.check_flag_name(name)
            serve.flag_arguments(name, entry.value)
        except serve.ServeError as error:
            raise RefusalError(entry.origin, f"--{name}: {error}") from None
    return table


def _refuse_parallel(launch: Launch, table: ServeTable) -> None:
    for name in _PARALLEL:
        entry = table.flags.get(name)
        if entry is None or entry.value in {1, "1"}:
            continue
        if isinstance(entry.value, int) and entry.value < 1:
            continue
        raise TenantError(
            entry.origin,
            f"--{name} {entry.value} needs more than the one GPU of a Spark: multi-GPU and"
            " multi-host engines are not supported",
            _share(table),
        )
    for variable in _GPU_VARIABLES:
        word = launch.environment.get(variable)
        if word is not None and re.match(r"\s*\d+\s*,\s*\d+", word.text):
            reason = f"{variable}={word.text} names several GPUs"
            raise TenantError(word.origin, reason, _share(table))


def _share(table: ServeTable) -> Share | None:
    entry = table.flags.get("gpu-memory-utilization")
    if entry is None:
        return share(str(serve.DEFAULT_MEMORY_UTILIZATION), "vLLM's default share")
    return share(str(entry.value), f"--gpu-memory-utilization of {entry.origin}")
