# SPDX-License-Identifier: Apache-2.0
"""with-credentials: put credentials into a program's environment, then become that program.

`Environment=` in a unit is readable by everybody over D-Bus and a command line by everybody in
/proc; a process's environment only by its own user and root. systemd passes credentials as files
(`LoadCredential=`), vLLM wants VLLM_API_KEY and HF_TOKEN as variables: this stands between.
"""

import os
import sys
from pathlib import Path
from typing import NoReturn

USAGE = "usage: with-credentials --export=NAME... -- PROGRAM [ARG...]"


def main(argv: list[str] | None = None) -> NoReturn:
    """Export the named credentials and execute the program.

    Exits with 78 when a credential cannot be read, 2 for wrong usage, 203 (systemd's EXIT_EXEC)
    when the program cannot be executed.
    """
    words = sys.argv[1:] if argv is None else argv
    if "--" not in words or not words[words.index("--") + 1 :]:
        _end(2, USAGE)
    split = words.index("--")
    names = [word.removeprefix("--export=") for word in words[:split]]
    if any(not word.startswith("--export=") for word in words[:split]):
        _end(2, USAGE)
    folder = Path(os.environ.get("CREDENTIALS_DIRECTORY", "/nonexistent"))
    for name in names:
        try:
            os.environ[name] = (folder / name).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError, ValueError) as error:
            _end(78, f"with-credentials: cannot read the credential {name}: {_why(error)}")
    program = words[split + 1 :]
    try:
        os.execv(program[0], program)  # noqa: S606  (no shell is the point)
    except OSError as error:
        _end(203, f"with-credentials: cannot execute {program[0]}: {error.strerror}")


def _why(error: Exception) -> str:
    """Why a credential cannot be used, without a byte of it."""
    return error.strerror or "unreadable" if isinstance(error, OSError) else "not one line of text"


def _end(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr)  # noqa: T201  (its output is the unit's log)
    raise SystemExit(status)
