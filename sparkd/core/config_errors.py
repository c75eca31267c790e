# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration: all of it at once, each with the place and the rule."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sparkd.core.secrecy import contains_secret

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True, order=True)
class ConfigError:
    """One broken rule, printed as `file:line: key: value: rule (hint)`.

    `key` and `value` are empty where there is none to show; `value` never holds a secret. `line`
    is 1-based, 0 where the whole file is meant.
    """

    path: str
    line: int
    key: str
    value: str
    rule: str
    hint: str = ""

    def __str__(self) -> str:
        """Return the error as one line."""
        path = self.path if self.path.isprintable() else ascii(self.path)
        place = f"{path}:{self.line}" if self.line else path
        parts = [place, *(part for part in (self.key, self.value) if part), self.rule]
        return ": ".join(parts) + (f" ({self.hint})" if self.hint else "")


class ConfigErrors(Exception):  # noqa: N818 - it is several errors, and its name says so
    """A refused configuration; `errors` is sorted by file and line and is never empty."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = tuple(sorted(errors))
        super().__init__("\n".join(map(str, self.errors)))


def shown(value: object, *, secret: bool = False) -> str:
    """Return `value` as an error message may show it: one short line, and no secret."""
    if secret or contains_secret(value):
        return "(hidden)"
    if isinstance(value, str):
        text = json.dumps(value, ensure_ascii=True)
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, dict):
        text = "(a table)"
    elif isinstance(value, list):
        text = "(a list)"
    else:
        text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
