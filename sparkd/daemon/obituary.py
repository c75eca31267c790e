# SPDX-License-Identifier: Apache-2.0
"""Tells of the daemon's own end, without the daemon: /usr/libexec/sparkd/alert.

systemd calls it twice. As ExecStopPost= of sparkd.service, with --ended, it queues an alert when
the end was a failure and has sparkd-alert@.service deliver it. That is the program's other half; it
is also sparkd's OnFailure=, for ends after which no ExecStopPost= is run. systemd 252 starts no
OnFailure= while Restart=always brings the unit back, systemd 254 and later do so for every attempt:
the end's invocation makes it one alert, whoever tells of it first.
"""

import sparkd.daemon.lean  # noqa: F401  (first, see there)

# isort: split
import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from sparkd.adapters import config_files
from sparkd.adapters.alert_post import PostOffice
from sparkd.adapters.alert_queue import QueueError
from sparkd.core import alerts
from sparkd.core import config as core_config
from sparkd.core.alerts import Alert
from sparkd.core.config import ConfigErrors
from sparkd.core.config_model import AlertConfig
from sparkd.daemon import log

DELIVER_S = 90.0
"""How long one run goes on trying; a daemon that is back, or the next run, does the rest."""
PAUSE_S = 1.0


def parser() -> argparse.ArgumentParser:
    """The command line; two units are its only callers that matter."""
    p = argparse.ArgumentParser(prog="alert", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--unit", required=True, help="the unit that ended")
    p.add_argument("--ended", action="store_true", help="queue only: this is its ExecStopPost=")
    return p


def main(argv: list[str] | None = None) -> int:
    """Queue what ended, and deliver what is queued.

    Returns:
        0, or 1 when nobody could be told; the reason is on standard error.
    """
    options = parser().parse_args(argv)
    config = _alerts_of(config_files.CONFIG_DIRECTORY / config_files.HOST_FILE)
    if config is None:
        return 1
    if not config.is_on:
        return 0
    try:
        office = PostOffice(config)
        ending = _ending(options.unit, os.environ, "" if options.ended else "MONITOR_")
        if ending is not None:
            office.enter([ending])
        if options.ended:
            return _hand_over(options.unit) if office.next_due() is not None else 0
        return _deliver(office)
    except (QueueError, OSError) as error:
        log.error(f"cannot tell of the end of {options.unit}: {error}")
        return 1


def _alerts_of(file: Path) -> AlertConfig | None:
    """`[alerts]`; None when sparkd.toml is in error. Errors in an engine's file do not matter."""
    try:
        sources = config_files.read_sources(file) if file.exists() else []
        return core_config.load(sources, None).host.alerts
    except ConfigErrors as error:
        log.error(f"nobody can be told: {error}")
        return None


def _ending(unit: str, environment: Mapping[str, str], prefix: str) -> Alert | None:
    """The alert of a failed end that systemd describes in the environment.

    ExecStopPost= has SERVICE_RESULT, EXIT_CODE, EXIT_STATUS and INVOCATION_ID; a unit started by
    OnFailure= has the same with MONITOR_ in front.
    """
    invocation = environment.get(f"{prefix}INVOCATION_ID", "")
    result = environment.get(f"{prefix}SERVICE_RESULT", "")
    if result in {"", "success"}:
        return None
    words = [environment.get(f"{prefix}EXIT_{part}", "") for part in ("CODE", "STATUS")]
    status = " ".join(word for word in words if word)
    return alerts.of_daemon_end(unit, result, status, invocation, time.time())


def _hand_over(unit: str) -> int:
    """Have the alert delivered outside of this unit, which wants to start again."""
    argv = ["systemctl", "start", "--no-block", f"sparkd-alert@{unit}.service"]
    return subprocess.run(argv, timeout=20, check=False).returncode


def _deliver(office: PostOffice) -> int:
    end = time.monotonic() + DELIVER_S
    while (due := office.next_due()) is not None and time.monotonic() < end:
        tried = office.deliver_one()
        if tried is not None and not tried.outcome.taken:
            log.warning(f"alerts wait for {tried.destination}: {tried.outcome.detail}")
        elif tried is None:
            # Another attempt is not due yet, or the daemon is delivering.
            time.sleep(min(max(due - time.time(), PAUSE_S), max(end - time.monotonic(), PAUSE_S)))
    return 0 if office.next_due() is None else 1


if __name__ == "__main__":
    sys.exit(main())
