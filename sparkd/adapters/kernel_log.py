# SPDX-License-Identifier: Apache-2.0
"""New lines of the kernel, from the journal: /dev/kmsg would need CAP_SYSLOG and a device."""

from systemd._reader import APPEND, INVALIDATE, _Reader

REFUSED = b"NV_ERR_NO_MEMORY"
"""The NVIDIA driver could not get memory: before a host froze, and in starts that went well."""


class KernelLog:
    """The kernel's lines from now on."""

    def __init__(self) -> None:
        """Stand at the newest line.

        Raises:
            OSError: the journal cannot be read.
        """
        self._reader = _Reader()
        self._reader.add_match("_TRANSPORT=kernel")
        self._reader.seek_tail()
        self._reader._previous()
        self._reader.fileno()

    def says(self, text: bytes) -> bool:
        """Whether a line that has come since the last call contains the text."""
        if self._reader.process() not in {APPEND, INVALIDATE}:
            return False
        found = False
        while self._reader._next():
            try:
                message = self._reader._get("MESSAGE")
            except (KeyError, OSError):
                continue
            found = found or (isinstance(message, bytes) and text in message)
        return found
