# SPDX-License-Identifier: Apache-2.0
"""systemd through systemctl, for a sparkctl that runs without the daemon.

Nothing has to be imported for it (pydbus takes 150 ms), and as root it works without a D-Bus
daemon too: systemctl then talks to systemd's private socket.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from sparkd.adapters.service_manager import BusError, ServiceManager
from sparkd.adapters.systemctl import TIMEOUT_S
from sparkd.core.unit_state import UnitFacts

RELOAD_S = 60.0
"""daemon-reload runs every generator."""

_PROPERTIES = (
    "LoadState", "ActiveState", "SubState", "Result", "MainPID", "InvocationID", "StatusText",
    "UnitFileState", "FragmentPath", "DropInPaths", "NeedDaemonReload", "NRestarts", "Job",
    "StateChangeTimestamp", "ActiveEnterTimestamp", "InactiveExitTimestamp",
    "ExecMainStartTimestamp",
)  # fmt: skip


class Systemctl(ServiceManager):
    """The system's service manager; every method raises BusError when systemctl fails."""

    def unit(self, name: str) -> UnitFacts:
        """The state of a unit; one that does not exist has load_state 'not-found'."""
        wanted = "--property=" + ",".join(_PROPERTIES)
        text = _run("show", "--timestamp=us+utc", wanted, "--", name)
        rows = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
        return _facts(name, rows, self._job_type(name) if _number(rows, "Job") else "")

    def _job_type(self, unit: str) -> str:
        for line in _run("list-jobs", "--no-legend", "--full", "--", unit).splitlines():
            words = line.split()
            if len(words) >= 3 and words[1] == unit:
                return words[2]
        return ""

    def loaded_engine_units(self) -> list[str]:
        """Every 'vllm-*.service' that systemd has in memory, whoever wrote it."""
        text = _run(
            "list-units", "--all", "--plain", "--no-legend", "--full", "--", "vllm-*.service"
        )
        rows = [line.split() for line in text.splitlines()]
        return [row[0] for row in rows if len(row) > 1 and row[1] != "not-found"]

    def start(self, unit: str, mode: str = "replace") -> str:
        """Queue a start job; systemctl tells no object path, so it is ''."""
        _run("start", "--no-block", f"--job-mode={mode}", "--", unit)
        return ""

    def stop(self, unit: str) -> str:
        """Queue a stop job, which also cancels a pending automatic restart."""
        _run("stop", "--no-block", "--", unit)
        return ""

    def restart(self, unit: str) -> str:
        """Queue a restart job."""
        _run("restart", "--no-block", "--", unit)
        return ""

    def reset_failed(self, unit: str) -> None:
        """Forget a failure and the start limit's count; nothing to forget is no error."""
        try:
            _run("reset-failed", "--", unit)
        except BusError as error:
            if "not loaded" not in str(error):
                raise

    def reload(self) -> None:
        """daemon-reload; running units are not touched."""
        _run("daemon-reload", timeout_s=RELOAD_S)

    def enable(self, units: list[str]) -> None:
        """Enable unit files for the next boots; the running system learns of it by `reload`."""
        _run("enable", "--no-reload", "--quiet", "--", *units, timeout_s=RELOAD_S)

    def disable(self, units: list[str]) -> None:
        """Undo `enable`."""
        _run("disable", "--no-reload", "--quiet", "--", *units, timeout_s=RELOAD_S)


def _run(*words: str, timeout_s: float = TIMEOUT_S) -> str:
    argv = ["systemctl", "--no-pager", "--no-ask-password", *words]
    try:
        done = subprocess.run(
            argv,
            env={**os.environ, "LC_ALL": "C.UTF-8", "SYSTEMD_COLORS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        raise BusError("systemctl is missing") from None
    except subprocess.TimeoutExpired:
        raise BusError(f"systemd did not answer within {timeout_s:.0f} s") from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"systemctl ended with {done.returncode}"
        raise BusError(said)
    return done.stdout


def _facts(name: str, rows: Mapping[str, str], job_type: str) -> UnitFacts:
    return UnitFacts(
        unit=name,
        load_state=rows.get("LoadState", ""),
        active_state=rows.get("ActiveState", ""),
        sub_state=rows.get("SubState", ""),
        result=rows.get("Result", ""),
        main_pid=_number(rows, "MainPID"),
        invocation_id=rows.get("InvocationID", ""),
        status_text=rows.get("StatusText", ""),
        unit_file_state=rows.get("UnitFileState", ""),
        fragment_path=rows.get("FragmentPath", ""),
        drop_ins=tuple(rows.get("DropInPaths", "").split()),
        need_daemon_reload=rows.get("NeedDaemonReload") == "yes",
        n_restarts=_number(rows, "NRestarts"),
        job_type=job_type,
        state_change=_seconds(rows, "StateChangeTimestamp"),
        active_enter=_seconds(rows, "ActiveEnterTimestamp"),
        inactive_exit=_seconds(rows, "InactiveExitTimestamp"),
        main_start=_seconds(rows, "ExecMainStartTimestamp"),
    )


def _number(rows: Mapping[str, str], name: str) -> int:
    text = rows.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _seconds(rows: Mapping[str, str], name: str) -> float:
    """'Sun 2026-11-29 18:37:14.123456 UTC' as seconds since the epoch; 0 for never."""
    words: Sequence[str] = rows.get(name, "").split()
    if len(words) != 4:
        return 0.0
    try:
        return datetime.fromisoformat(f"{words[1]} {words[2]}").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0
