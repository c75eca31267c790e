# SPDX-License-Identifier: Apache-2.0
"""Published ports of containers, as Docker, Podman and Compose write them."""

import re
from collections.abc import Iterator

from sparkd.core.importing.model import Published, Word

_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?\Z")
_MAX_RANGE = 1000


def published(word: Word) -> Iterator[Published]:
    """Yield what `8011:8000`, `127.0.0.1:8011:8000/tcp`, `8000` or `9000-9003:8000-8003` publishes.

    What cannot be known is yielded with a `problem`: whether it matters shows once the server's own
    port is known. A port that is not TCP's yields nothing.
    """
    text, _, protocol = word.text.partition("/")
    if word.problem:
        yield _unknown(word, word.problem)
    elif protocol.lower() in {"", "tcp"}:
        head, _, inside = text.rpartition(":")
        host, _, outside = head.rpartition(":")
        yield from _pairs(word, inside, outside, host.strip("[]"))


def long_form(target: Word, outside: Word | None, host: str) -> Iterator[Published]:
    """Yield what the long form of Compose publishes."""
    problem = target.problem or (outside.problem if outside else "")
    if problem:
        yield _unknown(outside or target, problem)
    else:
        yield from _pairs(outside or target, target.text, outside.text if outside else "", host)


def _pairs(word: Word, inside: str, outside: str, host: str) -> Iterator[Published]:
    inner, outer = _numbers(inside), _numbers(outside)
    if not inner or (outside and not outer):
        yield _unknown(word, f"{word.text} is no port mapping")
    elif len(outer) > 1 and len(outer) != len(inner):
        reason = f"{word.text}: which of the ports is taken is decided at each start"
        yield _unknown(word, reason)
    else:
        for index, number in enumerate(inner):
            yield Published(number, host, outer[index] if outer else 0, word.origin)


def _numbers(text: str) -> list[int]:
    match = _RANGE.match(text)
    if match is None:
        return []
    first, last = int(match[1]), int(match[2] or match[1])
    fits = 0 < first <= last <= 65535 and last - first < _MAX_RANGE
    return list(range(first, last + 1)) if fits else []


def _unknown(word: Word, problem: str) -> Published:
    return Published(0, "", 0, word.origin, problem)
