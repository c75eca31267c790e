# SPDX-License-Identifier: Apache-2.0
"""Configuration from disk: which files count, and which are not to be trusted."""

import os
from pathlib import Path

import pytest

from sparkd.adapters import config_files
from sparkd.adapters.config_files import credential_errors, read_sources
from sparkd.core.config import ConfigErrors, load

ENGINE = 'model = "org/m"\nport = 8001\n[runtime]\nvenv = "/opt/vllm"\n'

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="changing a file's owner needs root")


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    directory = tmp_path / "etc"
    (directory / "engines.d").mkdir(parents=True)
    for path in (directory, directory / "engines.d"):
        path.chmod(0o755)
    put(directory / "sparkd.toml", "")
    put(directory / "engines.d/m.toml", ENGINE)
    return directory


def put(path: Path, text: str, mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def refuse(path: Path) -> list[str]:
    with pytest.raises(ConfigErrors) as refused:
        read_sources(path)
    return [str(error) for error in refused.value.errors]


def test_a_directory(etc: Path) -> None:
    put(etc / "engines.d/b.toml", ENGINE)
    put(etc / "engines.d/c.toml~", "editor's backup")
    put(etc / "engines.d/.c.toml", "editor's swap file")
    put(etc / "engines.d/README", "")
    sources = read_sources(etc)
    assert [source.engine for source in sources] == [None, "b", "m"]
    assert sources[2].data == ENGINE.encode()


def test_without_a_host_file_its_defaults_hold(etc: Path) -> None:
    (etc / "sparkd.toml").unlink()
    assert load(read_sources(etc), None).host.compile.max_jobs == 4


def test_a_single_file_is_an_engine_or_the_host(etc: Path) -> None:
    assert [source.engine for source in read_sources(etc / "engines.d/m.toml")] == ["m"]
    assert [source.engine for source in read_sources(etc / "sparkd.toml")] == [None]
    put(etc / "engines.d/sparkd.toml", ENGINE)
    assert [s.engine for s in read_sources(etc / "engines.d/sparkd.toml")] == ["sparkd"]


def test_a_directory_without_configuration(tmp_path: Path) -> None:
    (error,) = refuse(tmp_path)
    assert "holds neither sparkd.toml nor engines.d/" in error


def test_a_missing_file(tmp_path: Path) -> None:
    (error,) = refuse(tmp_path / "x.toml")
    assert error == f"{tmp_path}/x.toml: cannot be read: No such file or directory"


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_files_that_others_can_write_are_refused(etc: Path, mode: int) -> None:
    put(etc / "sparkd.toml", "", mode)
    put(etc / "engines.d/m.toml", ENGINE, mode)
    errors = refuse(etc)
    assert len(errors) == 2
    assert all(f"its mode is {mode:04o}: chmod go-w it" in error for error in errors)


def test_a_directory_that_others_can_write_is_refused(etc: Path) -> None:
    (etc / "engines.d").chmod(0o777)
    (error,) = refuse(etc)
    assert error.startswith(f"{etc}/engines.d: must be writable by its owner only")


@as_root
def test_a_strangers_file_is_refused(etc: Path) -> None:
    os.chown(etc / "engines.d/m.toml", 12345, 0)
    (error,) = refuse(etc)
    assert "m.toml: must belong to root, not to uid 12345" in error


def test_the_owner_of_what_a_link_leads_to_counts(etc: Path, tmp_path: Path) -> None:
    target = put(tmp_path / "target.toml", ENGINE, 0o666)
    (etc / "engines.d/m.toml").unlink()
    (etc / "engines.d/m.toml").symlink_to(target)
    (error,) = refuse(etc)
    assert "must be writable by its owner only" in error


def test_a_fifo_does_not_hang_the_reader(etc: Path) -> None:
    (etc / "engines.d/m.toml").unlink()
    os.mkfifo(etc / "engines.d/m.toml", 0o600)
    (error,) = refuse(etc)
    assert "must be a regular file" in error


def test_a_huge_file_is_not_read(etc: Path) -> None:
    with (etc / "sparkd.toml").open("wb") as file:
        file.truncate(1 << 40)
    (error,) = refuse(etc)
    assert "must not be larger than 1 MiB" in error


def test_too_many_engines(etc: Path) -> None:
    for index in range(256):
        put(etc / f"engines.d/e{index}.toml", ENGINE)
    (error,) = refuse(etc)
    assert "must not hold more than 256 engines" in error


@pytest.mark.parametrize("change", [b"X", b"[restart]\n"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    etc: Path, monkeypatch: pytest.MonkeyPatch, change: bytes
) -> None:
    """An editor saves between the two readings, once with the same size."""
    file = put(etc / "sparkd.toml", "#\n")
    real = config_files._read_all
    calls = []

    def saving_between(descriptor: int) -> bytes:
        data = real(descriptor)
        calls.append(data)
        if len(calls) == 1:
            file.write_bytes(change + b"\n")
        return data

    monkeypatch.setattr(config_files, "_read_all", saving_between)
    (error,) = refuse(file)
    assert "changed while it was read" in error
    assert len(calls) == 2


def test_a_file_saved_to_the_same_bytes_while_it_is_read_is_refused(
    etc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = put(etc / "sparkd.toml", "#\n")
    real = config_files._read_all

    def touched(descriptor: int) -> bytes:
        os.utime(file, ns=(1, 1))
        return real(descriptor)

    monkeypatch.setattr(config_files, "_read_all", touched)
    (error,) = refuse(file)
    assert "changed while it was read" in error


def credentials(etc: Path, path: Path) -> list[str]:
    put(etc / "engines.d/m.toml", ENGINE + f'[credentials]\nHF_TOKEN = "{path}"\n')
    return [str(error) for error in credential_errors(load(read_sources(etc), None))]


def test_a_good_credential(etc: Path) -> None:
    assert credentials(etc, put(etc / "token", "Canary", 0o600)) == []
    assert credentials(etc, put(etc / "token", "Canary", 0o400)) == []


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o601])
def test_a_credential_that_others_can_use(etc: Path, mode: int) -> None:
    (error,) = credentials(etc, put(etc / "token", "Canary", mode))
    assert error == (
        f"{etc}/engines.d/m.toml:6: credentials.HF_TOKEN: {etc}/token: must name a file for its"
        f" owner only, its mode is {mode:04o}: chmod 0600 it"
    )


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (str, "cannot be used: No such file"),
        (lambda path: path.mkdir(), "must name a regular file"),
        (lambda path: path.symlink_to("/dev/null"), "must name a regular file"),
        (lambda path: put(path, "", 0o600), "not empty"),
    ],
)  # fmt: skip
def test_a_credential_that_is_no_file(etc: Path, make: object, rule: str) -> None:
    make(etc / "token")  # type: ignore[operator]
    (error,) = credentials(etc, etc / "token")
    assert rule in error


@as_root
def test_a_strangers_credential(etc: Path) -> None:
    path = put(etc / "token", "Canary", 0o600)
    os.chown(path, 12345, 0)
    (error,) = credentials(etc, path)
    assert "must name a file of root, not of uid 12345" in error
    assert "Canary" not in error
