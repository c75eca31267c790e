# SPDX-License-Identifier: Apache-2.0
"""What the configuration says and what the unit files hold, read again when either changed.

Looking is not applying: a change is only shown as pending. A configuration with errors is reported,
and the last good one goes on counting.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sparkd.adapters import config_files, proc
from sparkd.adapters.unit_files import UNIT_DIRECTORY, ApplyError, UnitDirectory, is_unit_name
from sparkd.core import config as core_config
from sparkd.core import marker, units
from sparkd.core.apply_plan import DiskUnit, Kind
from sparkd.core.config import Config, ConfigErrors, EngineConfig
from sparkd.core.config_state import ConfigFacts, UnitFile
from sparkd.core.schema import ENGINE_NAME
from sparkd.core.unit_state import engine_of, unit_of


class Paths(NamedTuple):
    """Where things are; tests put them elsewhere."""

    config: Path = config_files.CONFIG_DIRECTORY
    units: Path = UNIT_DIRECTORY

    @property
    def root(self) -> Path:
        """The root of the machine whose unit directory this is; in a test, beside it."""
        parts, below = self.units.parts, UNIT_DIRECTORY.parts[1:]
        real = parts[-len(below) :] == below
        return Path(*parts[: -len(below)]) if real else self.units.parent / "root"


class View(NamedTuple):
    """One look. `config` is None when there has never been a good one."""

    config: Config | None
    errors: tuple[str, ...]
    rendered: Mapping[str, str]
    on_disk: Mapping[str, DiskUnit]

    def engine(self, name: str) -> EngineConfig | None:
        """The engine's configuration, if it has one."""
        engines = () if self.config is None else self.config.engines
        return next((engine for engine in engines if engine.name == name), None)

    def names(self) -> list[str]:
        """Every configured engine in the order of starting, then those with only a unit of ours."""
        configured = [] if self.config is None else [e.name for e in self.config.engines]
        others = sorted(
            engine_of(unit)
            for unit, found in self.on_disk.items()
            if unit.endswith(".service") and marker.marker_of(found.text) is not None
        )
        extra = [name for name in others if name not in configured and ENGINE_NAME.match(name)]
        return [*configured, *extra]

    def facts(self, name: str, hash_running: str | None) -> ConfigFacts:
        """How configuration, unit file and running process of an engine compare."""
        unit = unit_of(name)
        found = self.on_disk.get(unit)
        wanted = self.rendered.get(unit)
        known = self.config is not None
        matches = None
        if found is not None and wanted is not None:
            matches = marker.same_content(found.text, wanted)
        return ConfigFacts(
            in_config=self.engine(name) is not None if known else None,
            file=_kind(found),
            matches=matches,
            hash_on_disk=None if found is None else marker.launch_hash(found.text),
            hash_running=hash_running,
        )


class ConfigView:
    """Keeps the last look, and looks again only when a file changed."""

    def __init__(self, paths: Paths | None = None) -> None:
        self._paths = paths or Paths()
        self._seen: object = None
        self._view = View(None, (), {}, {})

    def look(self) -> View:
        """The present state; costs a few stat calls when nothing changed."""
        fingerprint = tuple(self._fingerprint())
        if fingerprint != self._seen:
            self._view = self._read()
            self._seen = fingerprint
        return self._view

    def _read(self) -> View:
        config = self._view.config
        errors: tuple[str, ...] = ()
        try:
            config = load(self._paths.config)
        except ConfigErrors as error:
            errors = tuple(map(str, error.errors))
        try:
            on_disk = UnitDirectory(self._paths.units).read()
        except ApplyError as error:
            return self._view._replace(errors=(*errors, str(error)))
        rendered = {} if config is None else units.render(config, host_facts())
        return View(config, errors, rendered, on_disk)

    def _fingerprint(self) -> Iterator[tuple[str, int, int, int]]:
        engines = self._paths.config / config_files.ENGINE_DIRECTORY
        yield from _stats([self._paths.config / config_files.HOST_FILE])
        yield from _stats(sorted(engines.glob("*.toml")))
        try:
            files = [file for file in self._paths.units.iterdir() if is_unit_name(file.name)]
        except OSError:
            files = []
        yield from _stats(sorted(files))


def load(directory: Path) -> Config:
    """Read and check the whole configuration.

    Raises:
        ConfigErrors: with every error in it.
    """
    sources = config_files.read_sources(directory)
    return core_config.load(sources, proc.memory().total)


def host_facts() -> units.HostFacts:
    """What rendering must know of this host."""
    return units.HostFacts(has_swap=_has_swap())


def _has_swap() -> bool:
    text = Path("/proc/swaps").read_text(encoding="utf-8", errors="replace")
    return len(text.splitlines()) > 1


def _kind(found: DiskUnit | None) -> UnitFile:
    if found is None:
        return UnitFile.ABSENT
    if found.kind is not Kind.REGULAR or marker.marker_of(found.text) is None:
        return UnitFile.FOREIGN
    return UnitFile.EDITED if marker.is_hand_edited(found.text) else UnitFile.OURS


def _stats(files: list[Path]) -> Iterator[tuple[str, int, int, int]]:
    for file in files:
        try:
            status = file.lstat()
        except OSError:
            continue
        yield str(file), status.st_ino, status.st_mtime_ns, status.st_size
