# SPDX-License-Identifier: Apache-2.0
"""What starts showed, written beside the revisions that predicted it."""

import json
from collections.abc import Sequence
from pathlib import Path

from sparkd.adapters import applying
from sparkd.core.projection import Entry
from sparkd.core.status import Boot
from sparkd.daemon import log


def take_in(entries: Sequence[Entry], folder: Path) -> None:
    """Record every start among these; doing it twice changes nothing.

    A disk that refuses costs the comparison and nothing else: incidents must not wait for it.
    """
    for entry in entries:
        if not isinstance(entry.row, Boot):
            continue
        try:
            applying.record_boot(json.loads(entry.text), folder)
        except OSError as error:
            log.warning(f"{entry.row.engine}: what its start showed is not recorded: {error}")
