# SPDX-License-Identifier: Apache-2.0
"""`sparkctl caps`: on which launch paths the compile caps hold."""

import os
import sys
from argparse import Namespace

from sparkd.adapters import caps_files, config_view
from sparkd.adapters.unit_files import ApplyError
from sparkd.cli.answers import print_json
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import columns, neutralise, paint_for
from sparkd.core.caps import LaunchPath
from sparkd.core.config import ConfigErrors

_SHOWN = {True: ("yes", "green"), False: ("no", "red"), None: ("unknown", "yellow")}


def run(args: Namespace) -> int:
    """Print every launch path.

    Returns:
        FAILURE when one that sparkd could give the caps lacks them, else OK.

    Raises:
        CliError: the configuration has errors, or a file cannot be read.
    """
    try:
        config = config_view.load(config_view.Paths().config)
        paths = caps_files.launch_paths(config)
    except ConfigErrors as refused:
        raise CliError("\n".join(map(str, refused.errors)), Exit.CONFIG) from None
    except ApplyError as error:
        raise CliError(str(error)) from None
    if args.json:
        print_json([path._asdict() for path in paths])
    else:
        print("\n".join(_lines(paths)))
    lacking = [path for path in paths if path.is_ours and path.capped is False]
    return Exit.FAILURE if lacking and config.host.compile.everywhere else Exit.OK


def _lines(paths: list[LaunchPath]) -> list[str]:
    rows = [("LAUNCH PATH", "CAPS", "THROUGH")]
    rows += [(path.name, _SHOWN[path.capped][0], neutralise(path.detail)) for path in paths]
    paint = paint_for(sys.stdout, os.environ)
    lines = columns(rows)
    return [
        paint("bold", lines[0]),
        *(
            paint(_SHOWN[path.capped][1] if path.is_ours else "", line)
            for path, line in zip(paths, lines[1:], strict=True)
        ),
    ]
