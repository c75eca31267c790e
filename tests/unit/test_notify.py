# SPDX-License-Identifier: Apache-2.0
"""What is told to systemd arrives, and costs nothing when systemd cannot take it."""

import socket
from pathlib import Path

import pytest

from sparkd.adapters import notify


def test_it_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        notify.status("loading weights", extend_s=2)
        assert systemd.recv(4096) == b"STATUS=loading weights\nEXTEND_TIMEOUT_USEC=2000000"


def test_a_systemd_that_is_gone_fails_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(path))
    for gone in (path, tmp_path / "never"):
        monkeypatch.setenv("NOTIFY_SOCKET", str(gone))
        notify.send("READY=1")
