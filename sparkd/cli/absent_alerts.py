# SPDX-License-Identifier: Apache-2.0
"""The queue of alerts and a test alert without the daemon: for root, by the files on disk."""

import os
from typing import Any

from sparkd.adapters import alert_queue, config_files
from sparkd.adapters.alert_post import NOBODY, PostOffice
from sparkd.adapters.alert_queue import QueueError
from sparkd.cli.absent import say
from sparkd.cli.exits import CliError, Exit
from sparkd.core import config as core_config
from sparkd.core.config import ConfigErrors
from sparkd.core.config_model import AlertConfig


def rows(limit: int, why: str) -> list[dict[str, Any]]:
    """As the daemon's Alerts.

    Raises:
        CliError: not root, or the queue cannot be read.
    """
    config = _config("look into its queue", why)
    if not config.is_on:
        return []
    try:
        return [alert_queue.to_json(row) for row in PostOffice(config).rows(limit)]
    except QueueError as error:
        raise CliError(str(error)) from None


def test(why: str) -> list[dict[str, Any]]:
    """As the daemon's TestAlert.

    Raises:
        CliError: not root, nobody is configured, or the configuration has errors.
    """
    config = _config("send alerts", why)
    if not config.is_on:
        raise CliError(NOBODY, Exit.CONFIG)
    try:
        return [tried.to_json() for tried in PostOffice(config).test()]
    except QueueError as error:
        raise CliError(str(error)) from None


def _config(what: str, why: str) -> AlertConfig:
    if os.geteuid() != 0:
        raise CliError(f"{why}, and only root may {what} without it", Exit.NOT_PERMITTED)
    say(why)
    file = config_files.CONFIG_DIRECTORY / config_files.HOST_FILE
    try:
        sources = config_files.read_sources(file) if file.exists() else []
        return core_config.load(sources, None).host.alerts
    except ConfigErrors as error:
        raise CliError("\n".join(map(str, error.errors)), Exit.CONFIG) from None
