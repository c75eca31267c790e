# SPDX-License-Identifier: Apache-2.0
"""The kernel's view, with real sockets, processes and users."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.adapters import proc

TIMEOUT_S = 20
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 and "CI" not in os.environ,
    reason="only root may become another user or make a control group; CI must be root",
)


@pytest.fixture
def bound():
    """Listen on addresses, the first on a free port and the others on the same one."""
    with contextlib.ExitStack() as open_sockets:

        def listen(address, port=0, *, v6only=True):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = open_sockets.enter_context(socket.socket(family))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, v6only)
            sock.bind((address, port))
            sock.listen()
            return inode(sock), sock.getsockname()[1]

        yield listen


def inode(sock):
    return str(os.fstat(sock.fileno()).st_ino)


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),  # whoever binds the wildcard meets every listener of the port
        ("0.0.0.0", "0.0.0.0"),
        ("::1", "::1"),
        ("::", "::1"),
        ("::1", "::"),
        ("127.0.0.1", "::"),
    ],
)
def test_finds_the_listener(bound, address, asked):
    node, port = bound(address)
    assert proc.listeners(asked, port) == {node}


@pytest.mark.parametrize(
    ("address", "asked"),
    [("127.0.0.2", "127.0.0.1"), ("::1", "127.0.0.1"), ("127.0.0.1", "::1"), ("0.0.0.0", "::1")],
)
def test_another_address_is_another_listener(bound, address, asked):
    _, port = bound(address)
    assert proc.listeners(asked, port) == set()


def test_ipv6_wildcard_serves_ipv4_too(bound):
    node, port = bound("::", v6only=False)
    assert proc.listeners("127.0.0.1", port) == {node}
    assert proc.listeners("0.0.0.0", port) == {node}


def test_ipv4_mapped_listener_is_an_ipv4_listener(bound):
    node, port = bound("::ffff:127.0.0.1", v6only=False)
    assert proc.listeners("127.0.0.1", port) == {node}
    assert proc.listeners("127.0.0.2", port) == set()


def test_the_exact_listener_wins_as_it_does_in_the_kernel(bound):
    everywhere, port = bound("0.0.0.0")
    with socket.socket() as exact:
        exact.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            exact.bind(("127.0.0.1", port))  # the kernel allows both only where both agree to it
    assert proc.listeners("127.0.0.1", port) == {everywhere}


def test_both_listeners_where_both_share_the_port():
    with socket.socket() as everywhere, socket.socket() as exact:
        for sock in (everywhere, exact):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        everywhere.bind(("0.0.0.0", 0))
        port = everywhere.getsockname()[1]
        exact.bind(("127.0.0.1", port))
        everywhere.listen()
        exact.listen()
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S):
            exact.settimeout(TIMEOUT_S)
            exact.accept()[0].close()  # the kernel gave it to the exact one
        assert proc.listeners("127.0.0.1", port) == {inode(exact)}
        assert proc.listeners("127.0.0.2", port) == {inode(everywhere)}


def test_a_bound_socket_that_does_not_listen_is_no_listener():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        assert proc.listeners("127.0.0.1", sock.getsockname()[1]) == set()


def test_a_connection_is_no_listener(bound):
    node, port = bound("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S):
        assert proc.listeners("127.0.0.1", port) == {node}


STRANGER = """
import socket, sys
sock = socket.socket()
sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
sock.bind(("127.0.0.1", int(sys.argv[1])))
sock.listen()
print("bound", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def child(code, *args):
    with subprocess.Popen(
        [sys.executable, "-c", code, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout.readline()
            yield process
        finally:
            process.kill()


def test_a_stranger_on_the_same_port_is_seen_beside_us():
    """SO_REUSEPORT lets a second process take half of an engine's connections."""
    with socket.socket() as ours:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        port = ours.getsockname()[1]
        with child(STRANGER, str(port)) as stranger:
            nodes = proc.listeners("127.0.0.1", port)
            assert len(nodes) == 2
            assert {p.pid for p in proc.owners_of(nodes)} == {os.getpid(), stranger.pid}
            assert [p.pid for p in proc.owners_of({inode(ours)})] == [os.getpid()]
            assert proc.owners_of(nodes - {inode(ours)}, [os.getpid()]) == []


def test_every_process_that_has_the_socket_owns_it(bound):
    node, _ = bound("127.0.0.1")
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        assert {p.pid for p in proc.owners_of({node})} == {os.getpid(), pid}
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_nobody_owns_nothing():
    assert proc.owners_of(set()) == []
    assert proc.owners_of({"0"}, [os.getpid()]) == []


SYSTEMD_TREE = next(
    (path for path in (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup")) if path.is_dir()),
    Path("/nonexistent"),
)


@needs_root
def test_control_groups_and_their_members():
    """Systemd's own hierarchy on a hybrid host, the only one with cgroup v2."""
    parent = SYSTEMD_TREE / f"sparkd-test-{os.getpid()}.slice"
    group = parent / "vllm-a.service"
    group.mkdir(parents=True)
    try:
        with child("print(flush=True); input()") as process:
            assert process.pid not in proc.pids_in(f"/{parent.name}")
            (group / "cgroup.procs").write_text(str(process.pid))
            assert proc.cgroup_of(process.pid) == f"/{parent.name}/{group.name}"
            assert proc.pids_in(f"/{parent.name}/{group.name}") == [process.pid]
            assert proc.pids_in(f"/{parent.name}") == [process.pid]
            assert proc.pids_in(f"/{parent.name}/vllm-") == []
            assert str(proc.process(process.pid)).endswith(f"(PID {process.pid}, vllm-a.service)")
    finally:
        group.rmdir()
        parent.rmdir()


GONE = 4_194_305
"""Above the kernel's largest process id."""


def test_a_process_that_is_gone():
    assert proc.cgroup_of(GONE) == ""
    assert proc.start_time(GONE) is None
    assert proc.resident_bytes(GONE) == 0
    assert str(proc.process(GONE)) == f"a process (PID {GONE})"
    assert proc.owners_of({"1"}, [GONE]) == []


def test_a_zombie_has_no_start_time():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert proc.start_time(pid) is None
    os.waitpid(pid, 0)


def test_a_name_with_spaces_and_brackets():
    code = "open('/proc/self/comm','w').write('a) Z (b'); print(flush=True); input()"
    with child(code) as process:
        started = proc.start_time(process.pid)
        assert started > proc.start_time(os.getpid()) > 0
        assert proc.process(process.pid).name == "a) Z (b"


def test_memory_is_plausible():
    memory = proc.memory()
    assert 0 < memory.available <= memory.total
    assert 0 < proc.resident_bytes(os.getpid()) < memory.total


@pytest.fixture
def tree():
    """A folder that everybody can get to, unlike pytest's own."""
    base = Path(f"/var/tmp/sparkd-test-{os.getpid()}")
    base.mkdir(mode=0o755)
    yield base
    for path in sorted(base.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    base.rmdir()


def make(path, mode, *, folder=False):
    path.mkdir() if folder else path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return str(path)


@needs_root
@pytest.mark.parametrize(
    ("mode", "readable", "writable", "runnable"),
    [
        (0o644, True, False, False),
        (0o755, True, False, True),
        (0o600, False, False, False),
        (0o711, False, False, True),
        (0o666, True, True, False),
    ],
)
def test_what_another_user_may_do_with_a_file(tree, mode, readable, writable, runnable):
    path = make(tree / "file", mode)
    seen = [proc.usable_by("nobody", path, want) for want in (os.R_OK, os.W_OK, os.X_OK)]
    assert seen == [readable, writable, runnable]
    assert proc.usable_by("root", path, os.R_OK)


@needs_root
@pytest.mark.parametrize(
    ("mode", "readable", "writable"),
    [
        (0o755, True, False),
        (0o744, False, False),  # names can be listed, files cannot be opened
        (0o711, False, False),
        (0o777, True, True),
        (0o722, False, False),
    ],
)
def test_what_another_user_may_do_with_a_folder(tree, mode, readable, writable):
    path = make(tree / "folder", mode, folder=True)
    assert proc.usable_by("nobody", path, os.R_OK) is readable
    assert proc.usable_by("nobody", path, os.W_OK) is writable
    assert proc.usable_by("nobody", path, os.X_OK) is False, "a folder is no program"


@needs_root
def test_every_folder_on_the_way_counts(tree):
    make(tree / "closed", 0o700, folder=True)
    path = make(tree / "closed" / "open", 0o755)
    assert proc.usable_by("nobody", path, os.R_OK) is False


@needs_root
def test_what_is_not_there():
    assert proc.usable_by("nobody", "/nonexistent/vllm", os.X_OK) is False
    assert proc.usable_by("no-such-user-here", "/", os.R_OK) is None
    assert proc.usable_by("nobody", "/etc\0", os.R_OK) is False, "and the child has ended"


def test_asking_leaves_us_who_we_are():
    before = os.getresuid(), os.getgroups()
    proc.usable_by("nobody", "/", os.R_OK)
    assert (os.getresuid(), os.getgroups()) == before
