# SPDX-License-Identifier: Apache-2.0
"""The daemon's own log: lines for a person on stderr, each with the priority that journald reads.

What tools read are the structured entries of `adapters.journal`, not these lines. A logging library
would do no more here: structlog brings asyncio along, and with it 3 MB that stay (measured).
"""

import sys
import traceback


def info(text: str) -> None:
    """Say what happened."""
    _write(6, text)


def warning(text: str) -> None:
    """Say what is unusual, and may need a look."""
    _write(4, text)


def error(text: str) -> None:
    """Say what failed; the daemon goes on."""
    _write(3, text)


def critical(text: str) -> None:
    """Say why the daemon ends."""
    _write(2, text)


def exception(text: str) -> None:
    """As `error`, with the trace of the exception that is being handled."""
    _write(3, f"{text}\n{traceback.format_exc()}")


def _write(priority: int, text: str) -> None:
    lines = (f"<{priority}>{line}\n" for line in text.splitlines())
    sys.stderr.write("".join(lines))
    sys.stderr.flush()
