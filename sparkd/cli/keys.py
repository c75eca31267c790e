# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/configuration.md: `python3 -m sparkd.cli.keys`."""

import sys

from sparkd.core.schema_docs import markdown

if __name__ == "__main__":
    sys.stdout.write(markdown())
