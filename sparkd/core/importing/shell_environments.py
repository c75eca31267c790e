# SPDX-License-Identifier: Apache-2.0
"""The Python environments that a script enters: `source …/bin/activate`, `conda activate`."""

import re
from collections.abc import Sequence

from sparkd.core.importing.model import Origin, Word
from sparkd.core.importing.shell_state import State

_CONDA_HOOK = re.compile(r"(/[^\s\"'$()]+)/bin/(?:conda|mamba|micromamba)\b")
_CONDA_PROFILE = "/etc/profile.d/conda.sh"


def enter_by_file(path: str, origin: Origin, state: State) -> bool:
    """Follow `source path`; return whether it is a file that makes an environment known."""
    if path.endswith("/bin/activate"):
        state.venv = Word(path.removesuffix("/bin/activate"), origin)
    elif path.endswith(_CONDA_PROFILE):
        state.conda = path.removesuffix(_CONDA_PROFILE)
    elif path.endswith("/bin/conda"):
        state.conda = path.removesuffix("/bin/conda")
    else:
        return False
    return True


def hook_conda(text: str, state: State) -> bool:
    """Follow `eval "$(…/bin/conda shell.bash hook)"`; return whether `text` is one of conda."""
    if match := _CONDA_HOOK.search(text):
        state.conda = match[1]
        return True
    return "conda" in text or "mamba" in text


def activate_conda(rest: Sequence[Word], line: int, state: State) -> None:
    """Follow `conda activate`."""
    origin = state.at(line)
    name = rest[0] if rest else Word("base", origin)
    if name.problem:
        return
    if name.text.startswith("/"):
        state.venv = Word(name.text, origin)
    elif state.conda:
        tail = "" if name.text == "base" else f"/envs/{name.text}"
        state.venv = Word(state.conda + tail, origin)
    else:
        reason = f"the prefix of conda's environment {name.text} is not in the script"
        state.venv = Word(name.text, origin, reason)
