# SPDX-License-Identifier: Apache-2.0
"""`sparkctl doctor`: one page about this host, its engines, and what a reboot would do.

It needs no daemon, changes nothing, and ends with the number of findings.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparkd.adapters import (
    caps_files,
    config_files,
    database,
    doctor_engines,
    doctor_host,
    doctor_units,
    proc,
    revision_files,
)
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.systemctl_manager import Systemctl
from sparkd.adapters.unit_files import ApplyError
from sparkd.cli.answers import print_json
from sparkd.cli.terminal import Paint, neutralise, paint_for
from sparkd.core import config as core_config
from sparkd.core.caps import LaunchPath
from sparkd.core.config import Config, ConfigError, ConfigErrors, Source
from sparkd.core.doctor import driver as driver_rules
from sparkd.core.doctor import engines as engine_rules
from sparkd.core.doctor import host as host_rules
from sparkd.core.doctor import last_boot as last_boot_rules
from sparkd.core.doctor import memory as memory_rules
from sparkd.core.doctor import origins
from sparkd.core.doctor import units as unit_rules
from sparkd.core.doctor.model import Finding, finding, markdown
from sparkd.core.doctor.origins import Value
from sparkd.core.unit_state import UnitFacts, unit_of

COUNT_MAX = 99
"""Above that, exit statuses have meanings of their own."""


class Page(NamedTuple):
    """Everything that is shown."""

    host: host_rules.Facts
    launch_paths: Sequence[LaunchPath]
    sources: Sequence[Source]
    engines: Sequence[engine_rules.Facts]
    units: Sequence[unit_rules.Facts]
    memory: memory_rules.Plan | None
    """None while the configuration is refused."""
    last_boot: Sequence[last_boot_rules.Start]
    findings: Sequence[Finding]


def run(args: Namespace) -> int:
    """Print the page.

    Returns:
        How many findings there are, at most 99.
    """
    if args.document:
        sys.stdout.write(markdown())
        return 0
    page = look()
    if args.json:
        print_json(_json(page))
    else:
        paint = paint_for(sys.stdout, os.environ)
        print("\n".join(_shown(page, paint, every_value=args.values)))
    return min(len(page.findings), COUNT_MAX)


def look() -> Page:
    """Look at everything once and judge it."""
    sources, config, found = _configuration()
    # Without a configuration the defaults are judged.
    judged = config or core_config.load([], None)
    host_config = judged.host
    host = doctor_host.look(host_config.guards.floor)
    found += host_rules.judge(host)
    paths: Sequence[LaunchPath] = ()
    try:
        paths = caps_files.launch_paths(judged)
    except ApplyError as error:
        found.append(finding("DOC001", "launch paths", str(error)))
    for path in paths if host_config.compile.everywhere else ():
        if path.is_ours and path.capped is False:
            found.append(finding("DOC201", path.name, path.detail))
    has_gpu = bool(host.gpus or host.has_gpu_device)
    engines = [] if config is None else doctor_engines.look(config, has_gpu=has_gpu)
    for engine in engines:
        found += engine_rules.judge(engine)
    units: Sequence[unit_rules.Facts] = ()
    tenants: Mapping[str, UnitFacts] = {}
    systemd = Systemctl()
    named = [source.engine for source in sources if source.engine]
    try:
        units, around = doctor_units.look(systemd, named)
        found += unit_rules.judge(units, around)
        drivers = doctor_units.drivers(systemd, [unit.name for unit in units])
        found += driver_rules.judge(drivers, host.driver, host.driver_library)
        named_units = [one.unit for one in host_config.tenants if one.unit is not None]
        tenants = doctor_units.tenants(systemd, named_units)
        found += memory_rules.judge(host_config.tenants, tenants)
    except BusError as error:
        found.append(finding("DOC001", "systemd", str(error)))
    plan = None if config is None else memory_rules.plan(config, host.memory_total, tenants)
    last_boot = _last_boot(units, found)
    found += _unseen()
    found.sort(key=lambda one: one.code)
    return Page(host, paths, sources, engines, units, plan, last_boot, found)


def _last_boot(
    units: Sequence[unit_rules.Facts], found: list[Finding]
) -> Sequence[last_boot_rules.Start]:
    try:
        starts, changed = doctor_units.last_boot()
    except (database.DatabaseError, OSError) as error:
        found.append(finding("DOC001", "last boot", str(error)))
        return ()
    planned = [facts.name for facts in unit_rules.boot_order(units)]
    found += last_boot_rules.judge(planned, starts, changed_since=changed)
    return starts


def _configuration() -> tuple[Sequence[Source], Config | None, list[Finding]]:
    sources: Sequence[Source] = ()
    try:
        sources = config_files.read_sources(config_files.CONFIG_DIRECTORY)
        config = core_config.load(sources, proc.memory().total)
    except ConfigErrors as refused:
        return sources, None, _refused(refused.errors)
    return sources, config, _refused(config_files.credential_errors(config))


def _refused(errors: Iterable[ConfigError]) -> list[Finding]:
    return [
        finding("DOC301", _short(error.path), str(error).removeprefix(f"{error.path}:").strip())
        for error in errors
    ]


def _unseen() -> Iterator[Finding]:
    """What only root can look at."""
    if os.geteuid() != 0:
        what = "holds, files of other users and who holds a port are not looked at"
        yield finding("DOC001", "sparkctl", f"not root: {what}", "sudo sparkctl doctor")
    try:
        revision_files.Revisions().numbers()
    except OSError as error:
        yield finding("DOC001", "history", f"{revision_files.FOLDER}: {error.strerror}")


# for scripts


def _json(page: Page) -> dict[str, Any]:
    units = {facts.name: facts for facts in page.units}
    names = dict.fromkeys([*units, *(engine.name for engine in page.engines)])
    order = [facts.name for facts in unit_rules.boot_order(page.units)]
    return {
        "findings": [one._asdict() for one in page.findings],
        "host": host_rules.to_json(page.host),
        "launch_paths": [path._asdict() for path in page.launch_paths],
        "settings": [value._asdict() for value in _values(page.sources, None)],
        "engines": [_engine_json(page, name, units.get(name)) for name in names],
        "boot_order": order,
        "last_boot": [start._asdict() for start in last_boot_rules.of_the_boot(page.last_boot)],
        "memory_plan": memory_rules.to_json(page.memory),
    }


def _engine_json(page: Page, name: str, unit: unit_rules.Facts | None) -> dict[str, Any]:
    preflight = next((engine for engine in page.engines if engine.name == name), None)
    return {
        "name": name,
        "unit": unit_of(name),
        **origins.to_json(_values(page.sources, name), () if unit is None else unit.drop_ins),
        "preflight": None if preflight is None else preflight._asdict(),
        "at_boot": None if unit is None else unit_rules.at_boot(unit),
        "after": [] if unit is None else list(unit.after),
    }


def _values(sources: Sequence[Source], engine: str | None) -> list[Value]:
    for source in sources:
        if source.engine == engine:
            return origins.values(source)
    return origins.values(Source("sparkd.toml", "")) if engine is None else []


# for people


def _shown(page: Page, paint: Paint, *, every_value: bool) -> Iterator[str]:
    yield paint("bold", "Host")
    yield from (f"  {neutralise(line)}" for line in host_rules.lines(page.host))
    if page.memory is not None:
        yield paint("bold", "Memory plan")
        yield from (f"  {neutralise(line)}" for line in memory_rules.lines(page.memory))
    yield paint("bold", "Compile caps")
    for path in page.launch_paths:
        capped = {True: "yes", False: "no", None: "unknown"}[path.capped]
        yield f"  {path.name}: {capped} ({neutralise(path.detail)})"
    yield from _settings(page, None, paint, every_value=every_value)
    for unit in page.units:
        yield from _settings(page, unit.name, paint, every_value=every_value)
        for drop_in in unit.drop_ins:
            place = f"{drop_in.path}:{drop_in.line}"
            yield neutralise(f"  drop-in {place}: {origins.effect(drop_in)}")
    yield paint("bold", "Next boot")
    starting = unit_rules.boot_order(page.units)
    for number, unit in enumerate(starting, 1):
        behind = [other for other in unit.after if other in {unit_of(one.name) for one in starting}]
        after = f", after {', '.join(behind)}" if behind else ""
        yield f"  {number}. {unit.name} starts (order {unit.order}{after})"
    for unit in page.units:
        if not unit_rules.starts_at_boot(unit):
            yield neutralise(f"  {unit.name} {unit_rules.at_boot(unit)}")
    if page.last_boot:
        yield paint("bold", "Last boot")
        yield from (f"  {neutralise(line)}" for line in last_boot_rules.lines(page.last_boot))
    count = len(page.findings)
    yield paint("bold", f"{count} finding{'' if count == 1 else 's'}" if count else "No findings")
    for one in page.findings:
        yield paint("red", neutralise(f"  {one.code} {one.subject}: {one.reason}"))
        yield neutralise(f"         {one.fix}")


def _settings(page: Page, engine: str | None, paint: Paint, *, every_value: bool) -> Iterator[str]:
    values = _values(page.sources, engine)
    shown = [value for value in values if every_value or value.origin != origins.DEFAULT]
    left = len(values) - len(shown)
    note = f" ({left} more at their defaults: --values)" if left else ""
    yield paint("bold", "Settings" if engine is None else f"Engine {engine}") + note
    for value in shown:
        place = value.origin
        yield neutralise(f"  {value.key} = {value.value}   [{_short(place)}]")


def _short(place: str) -> str:
    folder = f"{config_files.CONFIG_DIRECTORY}{os.sep}"
    return place.removeprefix(folder) if Path(place).is_absolute() else place
