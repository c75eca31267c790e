# SPDX-License-Identifier: Apache-2.0
"""The daemon's own log: lines for a person on stderr, each with the priority that journald reads.

What tools read are the structured entries of `adapters.journal`, not these lines.
"""

import contextlib
import logging
import sys

import structlog
from structlog.typing import EventDict, WrappedLogger

_PRIORITIES = {"info": 6, "warning": 4, "error": 3, "exception": 3, "critical": 2}
_key_values = structlog.processors.KeyValueRenderer()


def _for_journald(_logger: WrappedLogger, method: str, event: EventDict) -> str:
    """The text, the trace below it, and what else was given as key=value; a priority a line."""
    parts = [str(event.pop("event"))]
    trace = event.pop("exception", "")
    if event:
        parts.append(str(_key_values(None, method, event)))
    text = "\n".join(filter(None, [" ".join(parts), trace]))
    return "\n".join(f"<{_PRIORITIES[method]}>{line}" for line in text.splitlines())


structlog.configure(
    processors=[structlog.processors.format_exc_info, _for_journald],
    wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    logger_factory=lambda *_: structlog.WriteLogger(sys.stderr),
)
_log = structlog.get_logger()


def info(text: str, **more: object) -> None:
    """Say what happened."""
    _say("info", text, more)


def warning(text: str, **more: object) -> None:
    """Say what is unusual, and may need a look."""
    _say("warning", text, more)


def error(text: str, **more: object) -> None:
    """Say what failed; the daemon goes on."""
    _say("error", text, more)


def critical(text: str, **more: object) -> None:
    """Say why the daemon ends."""
    _say("critical", text, more)


def exception(text: str, **more: object) -> None:
    """As `error`, with the trace of the exception that is being handled."""
    _say("exception", text, more)


def _say(method: str, text: str, more: dict[str, object]) -> None:
    with contextlib.suppress(OSError):  # journald away: a line that is lost must end nothing
        getattr(_log, method)(text, **more)
