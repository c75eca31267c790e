# SPDX-License-Identifier: Apache-2.0
"""literals.py FILE FILTER: sparkd's patterns for grep and fail2ban.

FILE gets the literals, one a line, for `grep -F -f`; FILTER a fail2ban filter with every pattern.
"""

import sys
from pathlib import Path

sys.path.insert(0, "/usr/lib/python3/dist-packages")

from sparkd.adapters.catalogue import load_catalogue


def main() -> None:
    """Write both."""
    signatures = load_catalogue().signatures
    Path(sys.argv[1]).write_text("".join(f"{one.literal}\n" for one in signatures))
    # fail2ban wants to know whom to ban: <F-ID> takes the engine's name for it. It interpolates
    # percent signs, and a filter's lines after the first are indented.
    patterns = [one.pattern.replace("%", "%%").lstrip("^") for one in signatures]
    rules = "\n    ".join(f"^<F-ID>\\([A-Za-z]+</F-ID>.*{pattern}" for pattern in patterns)
    Path(sys.argv[2]).write_text(f"[Definition]\nfailregex = {rules}\n")


main()
