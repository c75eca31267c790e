# SPDX-License-Identifier: Apache-2.0
"""Keeps what the daemon does not need out of its memory. Import it before anything else.

structlog and httpx import rich and click where these are installed, to be pretty on a terminal
that a daemon does not have: 6 MB that stay resident (measured).
"""

import sys

for _name in ("rich", "click"):
    sys.modules.setdefault(_name, None)  # type: ignore[arg-type]  # None: "cannot be imported"
