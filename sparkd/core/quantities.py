# SPDX-License-Identifier: Apache-2.0
"""Sizes and durations as an operator writes them: "20G", "92%", "1080s", "1h"."""

import re
from dataclasses import dataclass

_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SIZE = re.compile(r"([0-9]{1,15})([KMGT]?)\Z")
_PERCENT = re.compile(r"([0-9]{1,3})%\Z")
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:min|s|m|h|d))+\Z")
_DURATION_PART = re.compile(r"([0-9]+)(min|s|m|h|d)")


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A share of memory: exactly one of `bytes` and `percent` (1 to 100, of physical memory)."""

    bytes: int | None = None
    percent: int | None = None

    def __str__(self) -> str:
        """Return the limit as systemd reads it."""
        return f"{self.percent}%" if self.percent is not None else str(self.bytes)

    def of(self, memory_total: int) -> int:
        """Return the bytes that the limit means on a host with so many bytes of memory."""
        return self.bytes or memory_total * (self.percent or 0) // 100


def parse_size(text: str) -> int:
    """Return the bytes in `text`; K, M, G and T are powers of 1024, as in systemd.

    Raises:
        ValueError: `text` is no size.
    """
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _BINARY[match[2]]


def parse_limit(text: str) -> MemoryLimit:
    """Return a limit from a size or a percentage.

    Raises:
        ValueError: `text` is neither, or a size of zero, or a percentage outside 1 to 100.
    """
    if match := _PERCENT.match(text):
        percent = int(match[1])
        if not 1 <= percent <= 100:
            raise ValueError(text)
        return MemoryLimit(percent=percent)
    size = parse_size(text)
    if size == 0:
        raise ValueError(text)
    return MemoryLimit(bytes=size)


def parse_duration(text: str) -> int:
    """Return the whole seconds in `text`: "90s", "18m" or "18min", "1h", "1h30m", "2d".

    Raises:
        ValueError: `text` is no duration. A bare number is none: its unit would be a guess.
    """
    if not _DURATION.match(text):
        raise ValueError(text)
    return sum(int(count) * _SECONDS[unit] for count, unit in _DURATION_PART.findall(text))


def format_size(size: int) -> str:
    """Return `size` bytes for people, in GiB or MiB with one decimal."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.1f} MiB"
