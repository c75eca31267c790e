# SPDX-License-Identifier: Apache-2.0
"""Virtual machines for the tests: one per systemd, shared, because booting one takes a while."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from beds import rootfs
from beds.fixtures import beds, deb, virtual_machines  # noqa: F401
from beds.vm import Machine

from tests.vm.field import MEMORY_MB, Field


@pytest.fixture(scope="session")
def stand_in(
    virtual_machines: None,  # noqa: ARG001, F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A program that takes memory and time like a compiler."""
    program = tmp_path_factory.mktemp("cicc") / "cicc"
    source = Path(__file__).with_name("cicc.c")
    argv = ["gcc", "-O1", "-static", "-Wall", "-Werror", "-o", str(program), str(source)]
    subprocess.run(argv, check=True, timeout=300)
    return program


@pytest.fixture(scope="session")
def field_of(
    beds: None,  # noqa: ARG001, F811
    deb: Path,  # noqa: F811
    stand_in: Path,
) -> Iterator[Callable[[str], Field]]:
    """The machine of a suite, booted when first asked for."""
    fields: dict[str, Field] = {}
    with ExitStack() as stack:

        def get(suite: str) -> Field:
            if suite not in fields:
                files = {
                    "/opt/cuda/bin/cicc": stand_in,
                    "/usr/local/bin/ninja": Path("/usr/bin/ninja"),
                    "/usr/bin/earlyoom": rootfs.tool_from_package("earlyoom", "usr/bin/earlyoom"),
                }
                layers = rootfs.with_package(suite, deb)
                machine = Machine(layers, memory_mb=MEMORY_MB, files=files, limit=9000)
                fields[suite] = Field(stack.enter_context(machine))
            return fields[suite]

        yield get


@pytest.fixture
def field(request: pytest.FixtureRequest, field_of: Callable[[str], Field]) -> Iterator[Field]:
    """A machine with sparkd; by default with systemd 252, or the suite of the parameter."""
    field = field_of(getattr(request, "param", "bookworm"))
    yield field
    field.clean()
    field.check_tracebacks()
