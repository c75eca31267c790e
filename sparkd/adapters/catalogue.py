# SPDX-License-Identifier: Apache-2.0
"""Loads the shipped signature catalogue from the TOML files beside the package."""

import tomllib
from pathlib import Path

from sparkd.core.signatures import Catalogue, CatalogueError, parse_catalogue

DIRECTORY = Path(__file__).parent.parent / "signatures"


def read_tables(directory: Path = DIRECTORY) -> dict[str, dict[str, object]]:
    """Return every TOML file of `directory` by name.

    Raises:
        CatalogueError: a file cannot be read or is not TOML; names all of them.
    """
    tables: dict[str, dict[str, object]] = {}
    problems: list[str] = []
    for path in sorted(directory.glob("*.toml")):
        try:
            tables[path.name] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{path}: {error}")
    if not tables and not problems:
        problems.append(f"{directory}: no signature files; reinstall the package")
    if problems:
        raise CatalogueError("\n".join(problems))
    return tables


def load_catalogue(directory: Path = DIRECTORY) -> Catalogue:
    """Return the shipped catalogue.

    Raises:
        CatalogueError: the installed files are missing or damaged.
    """
    return parse_catalogue(read_tables(directory), check_patterns=directory != DIRECTORY)
