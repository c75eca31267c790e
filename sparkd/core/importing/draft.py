# SPDX-License-Identifier: Apache-2.0
"""A file of engines.d while it is written, and what sparkd's own loader makes of one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sparkd.core.config import Config, Source, load
from sparkd.core.importing import toml_text

Entry = tuple[str, object, str]
"""Key, value, comment."""


@dataclass(slots=True)
class Draft:
    """What goes into the file, section by section."""

    top: list[Entry] = field(default_factory=list)
    runtime: list[Entry] = field(default_factory=list)
    serve: list[Entry] = field(default_factory=list)
    env: list[Entry] = field(default_factory=list)
    credentials: list[Entry] = field(default_factory=list)
    ready: list[Entry] = field(default_factory=list)
    memory: list[Entry] = field(default_factory=list)

    def text(self, head: str) -> str:
        """Return the file."""
        lines = [head, *_lines(self.top)]
        for name in ("runtime", "serve", "env", "credentials", "ready", "memory"):
            if entries := getattr(self, name):
                lines += ["", f"[{name}]", *_lines(entries)]
        return "\n".join(lines) + "\n"


def _lines(entries: Sequence[Entry]) -> Iterator[str]:
    for key, value, comment in entries:
        yield toml_text.assignment(key, value, comment)


def loaded(text: str, name: str) -> Config:
    """Return what `apply` would load from the file of one engine.

    Raises:
        ConfigErrors: it would refuse the file.
    """
    return load([Source(f"{name}.toml", text, name)], None)
