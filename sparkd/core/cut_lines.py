# SPDX-License-Identifier: Apache-2.0
"""Which journal entries are only the rest of a line: they may not pose as a record.

journald ends a line at LineMax= (48 KiB), and where another process of the unit writes in the
middle of one: the kernel passes a long write on in pieces (seen on 6.18: one of 200,000 bytes was
parted at 182,720). Where the cut falls can be chosen by whoever has a long text logged.

A progress bar, which has no newline, ends by a change of process as well, and a record follows it:
so only a long text without a carriage return counts as cut in that way.
"""

CUT_MIN = 8192
"""Bytes behind the last carriage return of what a change of process may have cut: far more than a
bar has, and less than the kernel's pieces."""
_STREAMS_MAX = 256


class CutLines:
    """Takes the entries of one or several streams in their order."""

    def __init__(self) -> None:
        self._cut: set[tuple[str, str]] = set()

    @property
    def is_waiting(self) -> bool:
        """Whether the rest of any line has not come yet."""
        return bool(self._cut)

    def forget(self) -> None:
        """Entries are passed over."""
        self._cut.clear()

    def is_rest(self, message: bytes | str, line_break: str, stream: str, pid: str) -> bool:
        """Whether this entry is the rest of an earlier one of the same process.

        Args:
            message: its text.
            line_break: the field _LINE_BREAK, '' where there is none.
            stream: the field _STREAM_ID.
            pid: the field _PID, of the process that wrote it.
        """
        writer = (stream, pid)
        is_rest = writer in self._cut
        self._cut.discard(writer)
        by_another = line_break == "pid-change" and (is_rest or _is_long(message))
        if (line_break == "line-max" or by_another) and len(self._cut) < _STREAMS_MAX:
            self._cut.add(writer)
        return is_rest


def _is_long(message: bytes | str) -> bool:
    bar = message.rfind("\r") if isinstance(message, str) else message.rfind(b"\r")
    return len(message) - bar - 1 >= CUT_MIN
