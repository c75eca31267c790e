# SPDX-License-Identifier: Apache-2.0
"""Containers as Docker and Podman have them on disk.

Docker keeps each one in `containers/ID/config.v2.json` and `hostconfig.json` below its data root.
Podman 4.8 and later keep them in the table ContainerConfig of `db.sql` below their storage (seen of
5.4.2); before that it was a BoltDB file, which only Podman itself can read, so it is asked.
"""

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sparkd.adapters.commands import output
from sparkd.adapters.model_files import read_json
from sparkd.core.doctor.containers import Container

DOCKER_ROOTS = (Path("/var/lib/docker"), Path("/var/snap/docker/common/var-lib-docker"))
DAEMON_JSON = Path("/etc/docker/daemon.json")
PODMAN_ROOT = Path("/var/lib/containers/storage")
_USERS_DOCKER = ".local/share/docker"
_USERS_PODMAN = ".local/share/containers/storage"
_MAX_CONTAINERS = 500
_MAX_BYTES = 256 << 20
_MAX_VALUE = 1 << 20
"""Bytes of one value in Podman's database; a container's description has some ten thousand."""
_MAX_PORT = 65_535
_BUSY_S = 2.0
_STEP = 10_000
_MAX_STEPS = 1000
"""A thousand times ten thousand of SQLite's instructions: a second or less."""
_PODMAN_RUNS = 3
"""libpod's ContainerStateRunning."""

_T = TypeVar("_T", dict[str, Any], list[Any])


def containers(homes: Sequence[Path] = ()) -> Iterator[Container]:
    """Every container of the system's engines and of those of the users with these homes."""
    for root in dict.fromkeys([*DOCKER_ROOTS, *_configured()]):
        yield from docker(root, "docker")
    yield from podman(PODMAN_ROOT, "podman")
    if (PODMAN_ROOT / "libpod/bolt_state.db").exists():
        yield from asked_podman()
    for home in homes:
        yield from docker(home / _USERS_DOCKER, f"{home.name}'s docker")
        yield from podman(home / _USERS_PODMAN, f"{home.name}'s podman")


def _configured() -> Iterator[Path]:
    match read_json(DAEMON_JSON):
        case {"data-root": str(root)} if root.startswith("/"):
            yield Path(root)


def docker(root: Path, engine: str) -> Iterator[Container]:
    """The containers below a data root of Docker's; what is not recognisable is left out."""
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        folders = sorted((root / "containers").iterdir())[:_MAX_CONTAINERS]
    for folder in folders:
        own, host = read_json(folder / "config.v2.json"), read_json(folder / "hostconfig.json")
        if own and host:
            yield _container(engine, own, host)


def _container(engine: str, own: Mapping[str, Any], host: Mapping[str, Any]) -> Container:
    """From Docker's two files, or from the answer of `inspect`, which has the same keys."""
    return Container(
        engine=engine,
        name=str(own.get("Name") or own.get("ID") or "?").lstrip("/"),
        policy=str(_table(host, "RestartPolicy").get("Name") or ""),
        runs=_table(own, "State").get("Running") is True,
        stopped_by_hand=own.get("HasBeenManuallyStopped") is True,
        # Path and Args are what is executed: the entry point and the command, put together.
        command=_words(_table(own, "Config").get("Image"), own.get("Path"), own.get("Args")),
        host_network=host.get("NetworkMode") == "host",
        published=tuple(sorted(set(_bound(_table(host, "PortBindings"))))),
    )


def _bound(bindings: Mapping[str, object]) -> Iterator[int]:
    for rows in bindings.values():
        for row in rows if isinstance(rows, list) else ():
            text = str(row.get("HostPort") or "") if isinstance(row, dict) else ""
            # An empty one is chosen anew at each start.
            if text.isascii() and text.isdigit() and len(text) <= len(str(_MAX_PORT)):
                yield int(text)


def asked_podman() -> Iterator[Container]:
    """The containers that Podman itself names; none where it is missing or fails."""
    numbers = (output(["podman", "ps", "--all", "--quiet", "--no-trunc"]) or "").split()
    said = output(["podman", "inspect", *numbers[:_MAX_CONTAINERS]]) if numbers else None
    for one in _parsed(said or "[]", list):
        if isinstance(one, dict):
            yield _container("podman", one, _table(one, "HostConfig"))


def podman(root: Path, engine: str) -> Iterator[Container]:
    """The containers in a storage folder of Podman's; what is not recognisable is left out."""
    for text, state_text in _podman_rows(root / "db.sql"):
        config, state = _parsed(text, dict), _parsed(state_text, dict)
        process = _table(_table(config, "spec"), "process")
        own_network = config.get("createNetNS") is True or config.get("netNsCtr")
        yield Container(
            engine=engine,
            name=str(config.get("name") or config.get("id") or "?"),
            policy=str(config.get("restart_policy") or ""),
            runs=state.get("state") == _PODMAN_RUNS,
            stopped_by_hand=state.get("stoppedByUser") is True,
            command=_words(config.get("rawImageName"), process.get("args")),
            host_network=bool(config) and not own_network,
            published=tuple(sorted(_mapped(config.get("newPortMappings")))),
        )


def _podman_rows(file: Path) -> Iterator[tuple[object, object]]:
    query = (
        "SELECT c.JSON, s.JSON FROM ContainerConfig AS c LEFT JOIN ContainerState AS s"
        " ON s.ID = c.ID LIMIT ?"
    )
    try:
        if not file.is_file() or file.stat().st_size > _MAX_BYTES:
            return
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        with contextlib.closing(connection):
            # It may be any user's file: what looks like a table may be a view without an end, or
            # one of values without one.
            steps = itertools.count(1)
            connection.set_progress_handler(lambda: next(steps) > _MAX_STEPS, _STEP)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE)
            yield from connection.execute(query, (_MAX_CONTAINERS,))
    except (OSError, sqlite3.Error):
        return


def _mapped(mappings: object) -> set[int]:
    found: set[int] = set()
    for row in mappings if isinstance(mappings, list) else ():
        match row:
            case {"host_port": int(port), "range": int(count)} if 1 <= count <= _MAX_PORT:
                found.update(range(max(port, 0), min(port + count, _MAX_PORT + 1)))
            case {"host_port": int(port)} if 0 <= port <= _MAX_PORT:
                found.add(port)
    return found


def _parsed(text: object, kind: type[_T]) -> _T:
    try:
        value = json.loads(text) if isinstance(text, str | bytes) else None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, kind) else kind()


def _table(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def _words(*parts: object) -> tuple[str, ...]:
    """Texts and lists of texts, flattened; what is neither is left out."""
    found: list[str] = []
    for part in parts:
        if isinstance(part, str):
            found.append(part)
        elif isinstance(part, list):
            found += [word for word in part if isinstance(word, str)]
    return tuple(found)
