# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests under a real systemd."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from beds.container import Container
from beds.fixtures import (  # noqa: F401
    bare_container,
    base_layers,
    beds,
    container,
    deb,
    layers,
    promtool,
    suite,
)

from tests.system.lab import Lab


@pytest.fixture
def lab(container: Container) -> Iterator[Lab]:  # noqa: F811
    """A machine with sparkd, ready for simulated engines."""
    lab = Lab(container)
    yield lab
    lab.check_tracebacks()
