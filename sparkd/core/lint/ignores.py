# SPDX-License-Identifier: Apache-2.0
"""`[lint] ignore`: which findings an operator has accepted, and why."""

import difflib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sparkd.core.lint.registry import BY_CODE, UNUSED_IGNORE

_LONGEST_REASON = 500


class IgnoreError(NamedTuple):
    """A wrong entry: its code as written, the broken rule, and a hint ('' for none)."""

    code: str
    rule: str
    hint: str = ""


def ignore_errors(ignore: Mapping[str, object]) -> Iterator[IgnoreError]:
    """Yield what is wrong with a table of codes and reasons."""
    for code, reason in ignore.items():
        if code == UNUSED_IGNORE.code:
            yield IgnoreError(code, "cannot be ignored: remove the ignore that ignores nothing")
        elif code not in BY_CODE:
            close = difflib.get_close_matches(code.upper(), BY_CODE, n=1, cutoff=0.8)
            hint = f"did you mean {close[0]}?" if close else "sparkctl check --explain lists them"
            yield IgnoreError(code, "is no code of a lint rule", hint)
        elif not isinstance(reason, str) or not reason.strip():
            yield IgnoreError(code, "must have a reason, as a text that is not empty")
        elif len(reason) > _LONGEST_REASON:
            yield IgnoreError(code, f"must have a reason of at most {_LONGEST_REASON} characters")
