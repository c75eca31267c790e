# SPDX-License-Identifier: Apache-2.0
"""`sparkctl rollback`: bring back an earlier revision's units and TOML. It needs no daemon."""

import os
import sys
from argparse import Namespace

from sparkd.adapters import applying, operations
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.systemctl_manager import Systemctl
from sparkd.adapters.unit_files import ApplyBusyError, ApplyError
from sparkd.cli import absent
from sparkd.cli.answers import print_json
from sparkd.cli.apply import diff_lines, lines, reason_of
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.history import number_of
from sparkd.cli.terminal import neutralise, paint_for
from sparkd.core.config import ConfigErrors


def run(args: Namespace) -> int:
    """Roll back, or with --dry-run show what that would do.

    Returns:
        FAILURE when a unit was refused, else OK.

    Raises:
        CliError: it was refused.
    """
    number = number_of(args.revision)
    if os.geteuid() != 0:
        raise CliError("only root may roll back; run it with sudo", Exit.NOT_PERMITTED)
    flags = applying.Flags(args.dry_run, args.force, prune=True, why=reason_of(args))
    try:
        answer = applying.rollback(Systemctl(), number, flags, absent.author())
    except ConfigErrors as refused:
        raise CliError("\n".join(map(str, refused.errors)), Exit.CONFIG) from None
    except ApplyBusyError as error:
        raise CliError(str(error), Exit.BUSY) from None
    except (ApplyError, BusError, applying.NothingToRollBackError) as error:
        raise CliError(operations.describe_failure(error)) from None
    if args.json:
        print_json(answer)
    else:
        paint = paint_for(sys.stdout, os.environ)
        shown = diff_lines(str(answer["config_diff"]), paint) + lines(answer, paint)
        print("\n".join([*shown, neutralise(_config_sentence(answer))]))
    return Exit.FAILURE if answer["refused"] else Exit.OK


def _config_sentence(answer: dict[str, object]) -> str:
    if not answer["config_known"]:
        return (
            "the TOML of that state is not known and stays as it is: the next 'sparkctl apply'"
            " would write its units again"
        )
    changed = answer["config_changed"]
    if not isinstance(changed, list) or not changed:
        return "the TOML is the one of that state"
    would = "would be" if answer["dry_run"] else "was"
    kept = "" if answer["dry_run"] else "; what stood there is kept in the new revision"
    return f"TOML {would} brought back too: {', '.join(changed)}{kept}"
