# SPDX-License-Identifier: Apache-2.0
"""pytest fixtures over the beds; the conftest.py of each folder of tests imports what it offers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beds import real_vllm as vllm_bed
from beds import rootfs
from beds import vm as vm_bed
from beds.cache import BedError, locked
from beds.container import Container, missing_tools

if TYPE_CHECKING:
    from collections.abc import Iterator

REPO = Path(__file__).resolve().parents[2]


def must_have_beds() -> bool:
    """Whether a bed that cannot be had is a failure: on CI it is, so that no skip looks green."""
    return any(os.environ.get(name, "") not in ("", "0", "false") for name in ("CI", "SPARKD_CI"))


@pytest.fixture(scope="session")
def beds() -> None:
    """Require that containers can be booted here."""
    lacking = missing_tools()
    if lacking:
        message = f"no container bed here: {', '.join(lacking)} is missing (see scripts/test)"
        (pytest.fail if must_have_beds() else pytest.skip)(message)


@pytest.fixture(scope="session")
def deb() -> Path:
    """The package, built from this tree, or the one that SPARKD_DEB names."""
    given = os.environ.get("SPARKD_DEB")
    if given:
        return Path(given)
    with locked("deb"):  # several workers of one test run build in the same folder
        built = subprocess.run(
            [REPO / "scripts/build-deb"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
    assert built.returncode == 0, built.stderr
    return Path(built.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="session", params=list(rootfs.SUITES))
def suite(request: pytest.FixtureRequest) -> str:
    """Each Debian suite, that is each systemd version, in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def base_layers(beds: None, suite: str) -> rootfs.Layers:  # noqa: ARG001
    """The suite's base system, without sparkd."""
    return rootfs.base(suite)


@pytest.fixture(scope="session")
def layers(beds: None, suite: str, deb: Path) -> rootfs.Layers:  # noqa: ARG001
    """The suite's base system with the package installed: once per session, shared by all."""
    return rootfs.with_package(suite, deb)


@pytest.fixture
def bare_container(base_layers: rootfs.Layers) -> Iterator[Container]:
    """A booted machine on which sparkd was never installed."""
    with Container(base_layers) as machine:
        yield machine


@pytest.fixture
def container(layers: rootfs.Layers) -> Iterator[Container]:
    """A booted machine with sparkd installed, for one test."""
    with Container(layers) as machine:
        yield machine


@pytest.fixture(scope="session")
def real_vllm(beds: None) -> vllm_bed.RealVllm:  # noqa: ARG001
    """A real vLLM (CPU build) and a tiny checkpoint, on the host."""
    try:
        return vllm_bed.real_vllm()
    except BedError as error:
        if must_have_beds():
            raise
        pytest.skip(f"no real vLLM here: {error}")


@pytest.fixture
def vllm_container(layers: rootfs.Layers, real_vllm: vllm_bed.RealVllm) -> Iterator[Container]:
    """A booted machine with sparkd and a real vLLM at /opt/vllm, its model at /models/tiny."""
    with Container(layers, binds=real_vllm.binds(layers), limit=5400) as machine:
        yield machine


@pytest.fixture(scope="session")
def virtual_machines() -> None:
    """Require that virtual machines can be booted here."""
    lacking = vm_bed.missing_tools()
    if lacking:
        message = f"no virtual machine here: {', '.join(lacking)} is missing (see scripts/test)"
        (pytest.fail if must_have_beds() else pytest.skip)(message)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' own checker of metrics and rules."""
    try:
        return rootfs.tool_from_package("prometheus", "usr/bin/promtool")
    except BedError as error:
        if must_have_beds():
            raise
        pytest.skip(f"no promtool here: {error}")
