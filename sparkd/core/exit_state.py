# SPDX-License-Identifier: Apache-2.0
"""What an exit says by itself, when the log says nothing."""

from collections.abc import Mapping
from typing import NamedTuple


class ExitState(NamedTuple):
    """systemd's `$SERVICE_RESULT`, `$EXIT_CODE` and `$EXIT_STATUS` of an ended unit.

    Attributes:
        result: `success`, `exit-code`, `signal`, `core-dump`, `oom-kill`, `timeout`, ...
        code: `exited`, `killed`, `dumped`, or empty when no process was ever started.
        status: exit status as digits, or the signal's name without `SIG`.
    """

    result: str
    code: str
    status: str


EXTERNAL_STOP = "external-sigterm"
"""The class of an end by a signal that is no stop of systemd's."""
EXIT_CLASSES = frozenset(
    {
        "kernel-oom-kill",
        "start-timed-out",
        "exec-failed",
        EXTERNAL_STOP,
        "main-process-killed",
        "main-process-crashed",
        "start-failed-unexplained",
        "exit-without-a-line",
    }
)
"""Classes that `class_of_exit` may return."""

# systemd.exec(5), "Process Exit Codes": systemd failed before it could run the command.
_SETUP_FAILED = range(200, 244)
_SHELL_FAILED = (126, 127)
_TERMINATED = ("TERM", "INT", "HUP", "15", "2", "1")


def class_of_exit(exit_state: ExitState, *, starting: bool) -> str:
    """Return the class of an exit that nobody asked for and that no line explains.

    Args:
        exit_state: how the unit ended.
        starting: whether a start was under way, as far as the log shows.
    """
    result, code, status = exit_state
    if result == "oom-kill":
        return "kernel-oom-kill"
    if result == "timeout":
        return "start-timed-out"
    if result in ("resources", "exec-condition"):
        return "exec-failed"
    if code in ("killed", "dumped"):
        if status in _TERMINATED:
            return EXTERNAL_STOP
        return "main-process-killed" if status in ("KILL", "9") else "main-process-crashed"
    if status.isdigit() and (int(status) in _SETUP_FAILED or int(status) in _SHELL_FAILED):
        return "exec-failed"
    return "start-failed-unexplained" if starting else "exit-without-a-line"


def exit_from_journal(told: Mapping[str, str]) -> ExitState | None:
    """Return the exit state that systemd's journal lines tell of, None if they tell of none.

    Args:
        told: `result`, `code` and `status` as found in the lines, a status as `1/FAILURE` or
            `9/KILL`.
    """
    result, code = told.get("result", ""), told.get("code", "")
    if not result and not code:
        return None
    if result == "success" and not code:
        return ExitState("success", "exited", "0")
    number, _, name = told.get("status", "").partition("/")
    by_signal = code in ("killed", "dumped")
    inferred = {"exited": "exit-code", "killed": "signal", "dumped": "core-dump"}.get(code, "")
    return ExitState(result or inferred, code, name if by_signal and name else number)
