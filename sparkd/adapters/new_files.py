# SPDX-License-Identifier: Apache-2.0
"""Files that are made for an operator, and never in place of one of theirs."""

import os
import tempfile
from pathlib import Path


def create(path: Path, text: str) -> None:
    """Create a file with its whole content at once.

    Raises:
        FileExistsError: there is one already; it stays as it is.
        OSError: the directory cannot be written to.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(name, path)  # unlike a rename, it never replaces what is there
    finally:
        Path(name).unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
