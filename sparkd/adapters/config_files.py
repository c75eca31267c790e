# SPDX-License-Identifier: Apache-2.0
"""Reading the configuration from disk: whole, stable, and from files that only root can write."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sparkd.core.config import Config, ConfigError, ConfigErrors, Source
from sparkd.core.config_reader import MAX_FILE_BYTES

CONFIG_DIRECTORY = Path("/etc/sparkd")
HOST_FILE = "sparkd.toml"
ENGINE_DIRECTORY = "engines.d"

MAX_ENGINES = 256
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_sources(path: Path) -> list[Source]:
    """Read a configuration directory, or a single file.

    A directory holds `sparkd.toml` (absent: defaults) and `engines.d/*.toml`. A single file named
    `sparkd.toml` is a host's, any other an engine's that is named like the file. Files that do not
    end in `.toml` and hidden files, such as an editor's, are not configuration.

    Raises:
        ConfigErrors: with every file that is missing, unsafe, too large or changing.
    """
    errors: list[ConfigError] = []
    sources: list[Source] = []
    for file in _files(path, errors):
        try:
            data = _read(file)
        except _RefusedError as error:
            errors.append(_error(file, str(error)))
        except OSError as error:
            errors.append(_error(file, f"cannot be read: {error.strerror}"))
        else:
            engine = None if _is_host_file(file) else file.name.removesuffix(".toml")
            sources.append(Source(str(file), data, engine))
    if errors:
        raise ConfigErrors(errors)
    return sources


def credential_errors(config: Config) -> list[ConfigError]:
    """Return what is wrong with the files that `[credentials]` names; their content is not read."""
    errors: list[ConfigError] = []
    for engine in config.engines:
        for credential in engine.credentials:
            if rule := _credential_rule(Path(credential.path)):
                key = f"credentials.{credential.name}"
                path = credential.path
                errors.append(ConfigError(engine.source, credential.line, key, path, rule))
    for hook in config.host.alerts.webhooks:
        if hook.credential is not None and (rule := _credential_rule(Path(hook.credential))):
            key = f"alerts: credential of {hook.name}"
            errors.append(ConfigError(HOST_FILE, 0, key, hook.credential, rule))
    return errors


class _RefusedError(Exception):
    """A file that must not be trusted; the text is the rule."""


def _files(path: Path, errors: list[ConfigError]) -> Iterator[Path]:
    try:
        if not path.is_dir():
            yield path
            return
        host_file, engine_directory = path / HOST_FILE, path / ENGINE_DIRECTORY
        if not host_file.exists() and not engine_directory.is_dir():
            rule = f"holds neither {HOST_FILE} nor {ENGINE_DIRECTORY}/"
            errors.append(_error(path, rule))
            return
        for directory in (path, engine_directory):
            if directory.is_dir():
                _check_owner(directory, directory.stat(), errors)
        if host_file.exists():
            yield host_file
        names = sorted(_engine_files(engine_directory))
    except OSError as error:
        errors.append(_error(path, f"cannot be read: {error.strerror}"))
        return
    if len(names) > MAX_ENGINES:
        errors.append(_error(engine_directory, f"must not hold more than {MAX_ENGINES} engines"))
        return
    yield from names


def _engine_files(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return [
        file
        for file in directory.iterdir()
        if file.name.endswith(".toml") and not file.name.startswith(".")
    ]


def _is_host_file(file: Path) -> bool:
    return file.name == HOST_FILE and file.parent.name != ENGINE_DIRECTORY


def _check_owner(path: Path, status: os.stat_result, errors: list[ConfigError]) -> None:
    if rule := _owner_rule(status):
        errors.append(_error(path, rule))


def _owner_rule(status: os.stat_result) -> str | None:
    """Say why others could have written here; None if only root or this user could."""
    if status.st_uid not in {0, os.geteuid()}:
        return f"must belong to root, not to uid {status.st_uid}: chown root it"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        return f"must be writable by its owner only, its mode is {mode:04o}: chmod go-w it"
    return None


def _read(file: Path) -> bytes:
    """Open once, judge what was opened, and read it twice: a torn file must not pass for a whole.

    Most prefixes of a TOML file that parse at all mean something else, so parsing proves nothing.
    """
    # O_NONBLOCK: opening a FIFO must not wait for a writer.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise _RefusedError("must be a regular file")
        if rule := _owner_rule(before):
            raise _RefusedError(rule)
        if before.st_size > MAX_FILE_BYTES:
            raise _RefusedError(f"must not be larger than {MAX_FILE_BYTES >> 20} MiB")
        first, second = _read_all(descriptor), _read_all(descriptor)
        after = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if first != second or _version(before) != _version(after) or len(first) != after.st_size:
        raise _RefusedError("changed while it was read: try again when it is saved")
    return first


def _read_all(descriptor: int) -> bytes:
    chunks: list[bytes] = []
    offset = 0
    while offset <= MAX_FILE_BYTES and (chunk := os.pread(descriptor, 1 << 16, offset)):
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks)


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_mtime_ns, status.st_size


def _credential_rule(path: Path) -> str | None:
    try:
        status = path.lstat()
    except OSError as error:
        return f"names a file that cannot be used: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "must name a regular file"
    if status.st_uid not in {0, os.geteuid()}:
        return f"must name a file of root, not of uid {status.st_uid}: chown root it"
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        mode = stat.S_IMODE(status.st_mode)
        return f"must name a file for its owner only, its mode is {mode:04o}: chmod 0600 it"
    if status.st_size == 0:
        return "must name a file that is not empty"
    return None


def _error(path: Path, rule: str) -> ConfigError:
    return ConfigError(str(path), 0, "", "", rule)
