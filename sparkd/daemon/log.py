# SPDX-License-Identifier: Apache-2.0
"""The daemon's own log: one line for a person on stderr, with the priority that journald reads.

What tools read are the structured entries of `adapters.journal`, not these lines.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

# structlog imports rich where it is installed, for tracebacks on a terminal: 6 MB for nothing.
sys.modules.setdefault("rich", None)  # type: ignore[arg-type]

import structlog  # noqa: E402

_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def setup() -> None:
    """Set the process's logging up; call it once, before anything is logged."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, _line],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def get() -> Any:  # noqa: ANN401  (structlog's own type says no more)
    """The logger."""
    return structlog.get_logger()


def _line(_logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    text = str(event.pop("event", ""))
    trace = event.pop("exception", "")
    details = " ".join(f"{key}={value}" for key, value in event.items())
    lines = f"{text} ({details})" if details else text
    if trace:
        lines = f"{lines}\n{trace}"
    level = _PRIORITY.get(method, 6)
    return "\n".join(f"<{level}>{line}" for line in lines.splitlines())
