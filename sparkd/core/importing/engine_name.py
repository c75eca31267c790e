# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 - a table of words reads best as text
"""What a proposed engine is called."""

import re

from sparkd.core.importing import codes
from sparkd.core.importing.model import Launch, Notebook
from sparkd.core.importing.vllm_args import ServeTable
from sparkd.core.schema import ENGINE_NAME

# Names that say nothing about the engine.
_EMPTY_NAMES = frozenset(
    "vllm serve server start run launch main app api llm model inference openai engine vllm-server"
    " vllm-openai vllm-serve start-vllm run-vllm serve-vllm launch-vllm compose docker-compose"
    " llm-server vllm-service entrypoint stdin command-line".split()
)


def choose(launch: Launch, table: ServeTable, taken: set[str], notebook: Notebook) -> str:
    """Return a free engine name, from what the source calls it or from what it serves."""
    served = table.flags.get("served-model-name")
    served_names = (
        [str(item) for item in served.value] if served and isinstance(served.value, list) else []
    )
    model = table.model.text.rstrip("/").rpartition("/")[2] if table.model else ""
    candidates = [_slug(name) for name in (*launch.names, *served_names, model)]
    usable = [name for name in candidates if name and name not in _EMPTY_NAMES]
    name = usable[0] if usable else "engine"
    if name not in taken:
        return name
    number = 2
    while f"{name[:45]}-{number}" in taken:
        number += 1
    free = f"{name[:45]}-{number}"
    notebook.add(launch.origin, codes.RENAMED, f"the name {name} is taken: it becomes {free}")
    return free


def _slug(text: str) -> str:
    text = re.sub(r"[^a-z0-9-]+", "-", text.lower())
    text = re.sub(r"\A(?:vllm-+)+|\A[^a-z]+", "", text)
    text = re.sub(r"(?:-+(?:vllm|container|service))+\Z", "", text)
    text = re.sub(r"-{2,}", "-", text).strip("-")[:48].strip("-")
    return text if ENGINE_NAME.match(text) else ""
