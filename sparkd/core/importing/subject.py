# SPDX-License-Identifier: Apache-2.0
"""The engine that is proposed: how it is started today, and what it will run from."""

from dataclasses import dataclass

from sparkd.core.importing.container import on_host
from sparkd.core.importing.model import Launch, Notebook, Origin, Word
from sparkd.core.importing.relative_paths import Matching, anchored
from sparkd.core.importing.vllm_args import ServeTable


@dataclass(frozen=True, slots=True)
class Subject:
    """One engine on its way into a file.

    `venv` is the Python environment that it will run from; None where it keeps its image, or where
    nothing says which. `matching` finds files by a pattern, to know a relative path from a name.
    """

    launch: Launch
    table: ServeTable
    name: str
    notebook: Notebook
    venv: Word | None
    matching: Matching

    @property
    def uses_image(self) -> bool:
        """Whether it goes on running in a container."""
        return self.launch.image is not None and self.venv is None

    @property
    def leaves_image(self) -> bool:
        """Whether it runs in a container today and will not."""
        return self.launch.image is not None and self.venv is not None

    def on_host(self, text: str) -> str:
        """Return a value as the engine will need it: a path in a container it leaves moves."""
        return on_host(text, self.launch.mounts) if self.leaves_image else text

    def anchored(self, name: str, text: str, origin: Origin) -> str:
        """Return the value of a setting with an absolute path in the place of a relative one."""
        return anchored(name, text, origin, self.launch, self.notebook, self.matching)
