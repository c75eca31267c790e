# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests with a real vLLM under a real systemd."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from beds.container import Container
from beds.fixtures import (  # noqa: F401
    beds,
    deb,
    layers,
    real_vllm,
    suite,
    vllm_container,
)
from beds.real_vllm import GUEST_DOOMED, GUEST_MODEL, GUEST_VENV

from tests.vllm.real_lab import RealLab


@pytest.fixture
def real_lab(vllm_container: Container) -> RealLab:  # noqa: F811
    """A machine with sparkd and a real vLLM."""
    return RealLab(vllm_container, GUEST_VENV, GUEST_MODEL, GUEST_DOOMED)
