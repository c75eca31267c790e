# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of sparkctl, and the error that carries one."""

from enum import IntEnum


class Exit(IntEnum):
    """What scripts rely on: systemctl's and LSB's numbers where they have one, else sysexits."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_RUNNING = 3
    NO_SUCH_ENGINE = 4
    BUSY = 75
    NOT_PERMITTED = 77
    CONFIG = 78


MEANINGS: dict[Exit, str] = {
    Exit.OK: "done; for status ENGINE: every named engine is ready",
    Exit.FAILURE: "it failed; the reason is on standard error. For status: systemd cannot be seen",
    Exit.USAGE: "the command line is wrong",
    Exit.NOT_RUNNING: "status ENGINE: a named engine is not ready",
    Exit.NO_SUCH_ENGINE: "no engine of that name, or no such incident",
    Exit.BUSY: "something else is at it; try again",
    Exit.NOT_PERMITTED: "the caller may not do that",
    Exit.CONFIG: "the configuration has errors; each is on standard error",
}


class CliError(Exception):
    """Ends sparkctl: the sentence for standard error and the exit status."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
