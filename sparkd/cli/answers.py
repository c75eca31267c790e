# SPDX-License-Identifier: Apache-2.0
"""From the daemon's refusals to sparkctl's exit statuses, and from values to JSON on stdout."""

import json
import sys

from sparkd.adapters.bus_client import DaemonError, Kind
from sparkd.cli.exits import CliError, Exit

_CODES = {
    Kind.NO_SUCH_ENGINE: Exit.NO_SUCH_ENGINE,
    Kind.NO_SUCH_INCIDENT: Exit.NO_SUCH_ENGINE,
    Kind.NOT_PERMITTED: Exit.NOT_PERMITTED,
    Kind.BUSY: Exit.BUSY,
    Kind.CONFIG: Exit.CONFIG,
    Kind.HELD: Exit.FAILURE,
    Kind.FAILED: Exit.FAILURE,
}


def code_of(error: DaemonError) -> Exit:
    """The exit status for what the daemon refused."""
    return _CODES[error.kind]


def refusal(error: DaemonError) -> CliError:
    """The error that ends sparkctl for what the daemon refused."""
    return CliError(error.message, code_of(error))


def print_json(value: object) -> None:
    """JSON for scripts; ASCII only, so that no text in it can drive a terminal."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")
