# SPDX-License-Identifier: Apache-2.0
"""thaw (ExecStartPre= and ExecStopPost= of sparkd.service): let every frozen compiler go on.

systemd runs it after sparkd has ended in whatever way, `kill -9` included; so a compiler that
sparkd has frozen does not stay so without sparkd.
"""

import argparse
import sys

from sparkd.adapters.freezer import Freezer


def main(argv: list[str] | None = None) -> int:
    """Let them go on.

    Returns:
        0, always: it must not keep sparkd from starting.
    """
    parser = argparse.ArgumentParser(prog="thaw", description=__doc__.splitlines()[0])
    parser.parse_args(argv)
    count = Freezer().thaw_all()
    if count:
        print(f"let {count} frozen compilers go on", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
