# SPDX-License-Identifier: Apache-2.0
"""vLLM's version numbers, as far as rules compare them."""

import re
from typing import NamedTuple

_RELEASE = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(.*)\Z")
_IN_PATH = re.compile(r"(?<![\d.])v?(\d+\.\d+\.\d+)(?![\d.]*\d)")


class Release(NamedTuple):
    """The number of a release; a pre-release counts as what it leads to."""

    major: int
    minor: int
    patch: int


def release_of(version: str) -> Release | None:
    """Return the release a version belongs to.

    None for a development build such as 0.1.dev18498, whose number says nothing of its age.
    """
    match = _RELEASE.match(version)
    if match is None or match[4].startswith(".dev"):
        return None
    return Release(int(match[1]), int(match[2]), int(match[3] or 0))


def same_version(left: str, right: str) -> bool:
    """Return whether two versions agree, the local part (`+cu130`) aside.

    /version reports vLLM's own number, and wheels add a local part to the package's.
    """
    return left.partition("+")[0].removeprefix("v") == right.partition("+")[0].removeprefix("v")


def version_in_path(path: str) -> str | None:
    """Return the version that the last directory of a path claims ("/opt/vllm-0.25.1")."""
    found = _IN_PATH.findall(path.rpartition("/")[2])
    return found[0] if len(found) == 1 else None
