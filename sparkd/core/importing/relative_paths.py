# SPDX-License-Identifier: Apache-2.0
"""Relative paths on a command line: sparkd's unit works in another directory than today's."""

import posixpath
import re
from collections.abc import Callable

from sparkd.core.importing import codes
from sparkd.core.importing.model import Launch, Notebook, Origin

# Flags of vLLM whose value is a path; a chat template may also be written out.
_PATHS = frozenset(
    {"download-dir", "chat-template", "tool-parser-plugin", "reasoning-parser-plugin",
     "allowed-local-media-path", "hf-config-path"}
)  # fmt: skip
_CERTAIN = re.compile(r"\.\.?(?:/|\Z)")
_NAMED = re.compile(r"([A-Za-z0-9_.-]+=)(.+)\Z", re.DOTALL)  # --lora-modules name=path

Matching = Callable[[str], object]


def anchored(
    name: str, text: str, origin: Origin, launch: Launch, notebook: Notebook, matching: Matching
) -> str:
    """Return a flag's value with an absolute path in the place of a relative one.

    `./x` and `../x` are paths; anything else is one when a flag takes nothing else, or when it
    stands in the working directory today, since vLLM looks there before it asks for a download.
    """
    head, tail = "", text
    if name == "lora-modules" and (match := _NAMED.match(text)):
        head, tail = match[1], match[2]
    is_text = "{" in tail or "\n" in tail or not tail
    if launch.image is not None or launch.exact or is_text or tail.startswith(("/", "~")):
        return text
    certain = bool(_CERTAIN.match(tail)) or name in _PATHS
    if not launch.directory:
        if certain:
            message = f"{tail} is a path from a working directory that is not known"
            notebook.add(origin, codes.UNKNOWN_VALUE, message)
        return text
    path = posixpath.normpath(posixpath.join(launch.directory, tail))
    if not certain and not (_may_be_path(name, tail) and _exists(path, matching)):
        return text
    message = f"{tail} is taken from the working directory: {path}"
    notebook.add(origin, codes.DERIVED, message)
    return head + path


def _may_be_path(name: str, text: str) -> bool:
    return name == "model" or "/" in text or "." in text


def _exists(path: str, matching: Matching) -> bool:
    pattern = re.sub(r"([*?[])", r"[\1]", path)
    return bool(matching(pattern) or matching(f"{pattern}/*"))
