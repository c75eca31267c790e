# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM905 - a table of words reads best as text
"""Podman quadlets: `.container` files."""

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sparkd.core.importing import codes, container, docker, dot_env, ports, unit_words
from sparkd.core.importing.container import Container
from sparkd.core.importing.model import (
    Context,
    Findings,
    Origin,
    RefusalError,
    Surroundings,
    Word,
)
from sparkd.core.importing.unit_text import Fragment, Setting, Unit, merge

_COVERED = frozenset(
    "Image Exec Entrypoint Environment EnvironmentFile ContainerName PublishPort AddDevice"
    " WorkingDir PodmanArgs Secret Label Annotation Network RunInit LogDriver HealthCmd"
    " HealthInterval HealthRetries HealthStartPeriod HealthTimeout HealthOnFailure GlobalArgs"
    " Notify".split()
)


def read(
    fragment: Fragment,
    drop_ins: Sequence[Fragment],
    surroundings: Surroundings,
    findings: Findings,
    home: str | None = None,
) -> None:
    """Add what the quadlet runs to `findings`; `home` is that of a rootless quadlet's user."""
    file = posixpath.basename(fragment.path)
    stem = file.removesuffix(".container")
    unit = merge(f"{stem}.service", fragment, drop_ins)
    try:
        _read(unit, stem, fragment, surroundings, findings, home)
    except RefusalError as error:
        findings.refuse(error, names=(stem,), unit="" if home else unit.name)


def _read(
    unit: Unit,
    stem: str,
    fragment: Fragment,
    surroundings: Surroundings,
    findings: Findings,
    home: str | None,
) -> None:
    origin = Origin(fragment.path)
    if not any(setting.section == "Container" for setting in unit.settings):
        raise RefusalError(origin, "it has no [Container] section")
    context = Context(
        origin=origin, notebook=findings.notebook, surroundings=surroundings, names=(stem,)
    )
    known = unit_words.specifiers(unit.name, home or "/root", "root", is_user_unit=home is not None)
    described = Container(origin, names=[])
    if (name := unit.last("Container", "ContainerName")) is not None:
        described.names.append(name.value)
    described.names.append(stem)
    described.image = _image(unit)
    variables, unread = _service_variables(unit, known, context)

    def lookup(name: str, place: Origin) -> Word:
        if name in variables:
            return variables[name]
        where = f"; {unread[0]} cannot be read" if unread else ""
        problem = f"${{{name}}} is set by nothing in [Service]{where}"
        return Word(f"${{{name}}}", place, problem)

    described.command = _command(unit.last("Container", "Exec"), known, lookup)
    if (entrypoint := unit.last("Container", "Entrypoint")) is not None:
        text = entrypoint.value
        words = unit_words.split(text.strip("[]").replace(",", " ")) if text[:1] == "[" else None
        texts = [word.text for word in words] if words else [text]
        described.entrypoint = [Word(item, entrypoint.origin) for item in texts]
    _fill(unit, known, described, context)
    _note_settings(unit, context)
    launches = container.launches(described, context)
    after = tuple(
        word
        for setting in unit.all("Unit", "After")
        for word in setting.value.split()
        if word.endswith(".service")
    )
    findings.launches += [
        replace(launch, unit=unit.name, is_users=home is not None, after=after)
        for launch in launches
    ]


def _image(unit: Unit) -> Word | None:
    setting = unit.last("Container", "Image")
    if setting is None:
        return None
    if setting.value.endswith((".image", ".build")):
        raise RefusalError(
            setting.origin, f"Image={setting.value} names another quadlet: write the image itself"
        )
    return Word(setting.value, setting.origin)


def _service_variables(
    unit: Unit, known: unit_words.Specifiers, context: Context
) -> tuple[dict[str, Word], list[str]]:
    """Return the variables in which systemd expands `${…}` of Exec=: those of [Service]."""
    variables: dict[str, Word] = {}
    unread: list[str] = []
    for setting in unit.all("Service", "Environment"):
        variables |= dict(unit_words.environment(setting, known))
    for setting in unit.all("Service", "EnvironmentFile"):
        path = known.expand(setting.value, setting.origin).text.removeprefix("-")
        text = context.surroundings.read(path)
        if text is None:
            unread.append(path)
        else:
            variables |= dict(unit_words.environment_file(text, path))
    return variables, unread


def _command(
    setting: Setting | None, known: unit_words.Specifiers, lookup: unit_words.Lookup
) -> list[Word]:
    if setting is None:
        return []
    raw_words = unit_words.split(setting.value)
    if raw_words and raw_words[-1].is_open:
        raise RefusalError(setting.origin, f"{setting.key}=: a quotation mark is never closed")
    words = [known.expand(raw.text, setting.at(raw.offset)) for raw in raw_words]
    # The program is podman's; every word of Exec= is an argument of it and so is expanded.
    program = Word("podman", setting.origin)
    return unit_words.expand_variables([program, *words], lookup)[1:]


def _fill(unit: Unit, known: unit_words.Specifiers, described: Container, context: Context) -> None:
    for setting in unit.all("Container", "Environment"):
        described.environment |= dict(unit_words.environment(setting, known))
    folder = posixpath.dirname(described.origin.source)
    from_files: dict[str, Word] = {}
    for setting in unit.all("Container", "EnvironmentFile"):
        path = known.expand(setting.value, setting.origin).text
        word = Word(posixpath.normpath(posixpath.join(folder, path)), setting.origin)
        from_files |= dot_env.docker_env_file(word, context)
    described.environment = from_files | described.environment
    for setting in unit.all("Container", "PublishPort"):
        described.published += ports.published(_port(known.expand(setting.value, setting.origin)))
    for setting in unit.all("Container", "Network"):
        container.use_network(described, Word(setting.value, setting.origin), context)
    for setting in unit.all("Container", "Volume"):
        if bind := container.mount(known.expand(setting.value, setting.origin).text):
            described.mounts.append(bind)
    for setting in unit.all("Container", "AddDevice"):
        if "nvidia.com/gpu" in setting.value:
            described.gpus.append(Word(setting.value, setting.origin))
    for setting in unit.all("Container", "Secret"):
        described.environment |= dict(_secret(setting))
    for setting in unit.all("Container", "PodmanArgs"):
        words = [Word(raw.text, setting.origin) for raw in unit_words.split(setting.value)]
        options, _ = docker.read_options(words)
        docker.apply_options(described, options, context)
        container.note_options(options, context, docker.SILENT)
    if (directory := unit.last("Container", "WorkingDir")) is not None:
        described.directory = directory.value


def _port(word: Word) -> Word:
    # systemd expands ${…} there, too, but from its own environment alone.
    return word._replace(problem=f"{word.text} is not expanded here") if "$" in word.text else word


def _secret(setting: Setting) -> Iterator[tuple[str, Word]]:
    name, _, rest = setting.value.partition(",")
    parts = container.volume_dictionary(rest)
    if parts.get("type") == "env":
        problem = f"it is podman's secret {name}"
        yield parts.get("target", name), Word("", setting.origin, problem)


def _note_settings(unit: Unit, context: Context) -> None:
    for setting in unit.settings:
        if setting not in unit.all(setting.section, setting.key):
            continue
        if not setting.key:
            first = setting.value.split()[0][:40]
            reason = (
                f"the line that begins with `{first}` is no assignment: Podman refuses the file"
            )
            raise RefusalError(setting.origin, reason)
        key, value = setting.key, setting.value
        word = Word(value, setting.origin)
        if setting.section == "Container" and key == "AutoUpdate":
            text = f"AutoUpdate={value}: the image may change under the engine"
            context.notebook.add(setting.origin, codes.PULL, text)
        elif setting.section == "Container" and key not in _COVERED:
            container.note_options([(key, word)], context, frozenset())
        elif setting.section == "Service" and key == "Restart" and value != "always":
            text = f"Restart={value} misses an exit with status 0: sparkd uses Restart=always"
            context.notebook.add(setting.origin, codes.ON_FAILURE, text)
        elif setting.section == "Service" and key not in {
            "Restart",
            "RestartSec",
            "Environment",
            "EnvironmentFile",
            "Type",
        }:
            text = f"{key}={value} is not carried over"
            context.notebook.add(setting.origin, codes.SETTING, text)
