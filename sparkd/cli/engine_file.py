# SPDX-License-Identifier: Apache-2.0
"""What becomes of a proposed engine's file, in a sentence: what is there is never replaced."""

from pathlib import Path

from sparkd.adapters.new_files import create


def outcome(path: Path, text: str, *, obstacle: str, write: bool) -> str:
    """Write the file, if that is wanted and nothing is against it, and say what became of it."""
    if path.exists():
        return f"not written: {path} exists"
    if obstacle:
        return f"not written: {obstacle}"
    if not write:
        return f"would be written to {path} with --write"
    try:
        create(path, text)
    except FileExistsError:
        return f"not written: {path} exists"
    except OSError as error:
        return f"not written: {path}: {error.strerror}"
    return f"written to {path}"
