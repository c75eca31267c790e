# SPDX-License-Identifier: Apache-2.0
"""A throw-away machine: a real systemd booted in a container, driven from Python.

    with Container(rootfs.base("bookworm")) as machine:
        machine.push("/etc/systemd/system/x.service", "[Service] ...")
        machine.run(["systemctl", "start", "x.service"])
        machine.reboot()

Needs root, systemd-nspawn and overlayfs. The host's PID 1 may be anything; nothing of the host is
changed. The guest has its own network (loopback only), a cgroup v2 tree and a persistent journal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from beds import keeper
from beds.cache import BedError
from beds.guest import ENVIRONMENT, Guest
from beds.rootfs import Layers, host_has

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")

#: Seconds until a booted guest must have reached the unit that `Container` waits for. At a reboot
#: the shutdown is part of it, for which an engine may take its TimeoutStopSec=.
BOOT_LIMIT = 240.0
_FOLDERS = Path("/var/tmp")
_PREFIX = "sparkd-bed-"


def missing_tools() -> list[str]:
    """What the host lacks for a container; empty when one can be booted."""
    tools = [tool for tool in ("systemd-nspawn", "nsenter", "mmdebstrap") if not host_has(tool)]
    return tools + ([] if os.geteuid() == 0 else ["root's rights"])


class Container(Guest):
    """One booted guest. Leaving the ``with`` block, or the end of this process, removes it.

    Args:
        layers: the root file system, never written to.
        binds: host path to guest path, read-only.
        limit: seconds after which the guest is killed whatever happens.
        files: guest path to text, written before the first boot.
        wait_for: unit whose activity ends the boot.

    Raises:
        BedError: the guest did not come up; with the end of its console.
    """

    def __init__(
        self,
        layers: Layers,
        *,
        binds: Mapping[str, str] | None = None,
        limit: float = 3600.0,
        files: Mapping[str, str] | None = None,
        wait_for: str = "multi-user.target",
    ) -> None:
        lacking = missing_tools()
        if lacking:
            raise BedError(f"a container needs {', '.join(lacking)}")
        reap()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_FOLDERS))
        self.name = f"bed-{uuid.uuid4().hex[:12]}"
        self._wait_for = wait_for
        self._leader = 0
        self._backgrounds: list[Background] = []
        self._enter: list[str] = []
        plan = {
            "name": self.name,
            "lowerdir": layers.lowerdir,
            "machine_id": uuid.uuid4().hex,
            "binds": dict(binds or {}),
            "files": dict(files or {}),
            "limit": limit,
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))
        self._keeper = subprocess.Popen(
            [sys.executable, keeper.__file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        (self.folder / "keeper.pid").write_text(str(self._keeper.pid))
        try:
            self._await_boot(previous=0)
        except BaseException:
            self.close()
            raise

    # --- life ------------------------------------------------------------------------------

    def close(self) -> None:
        """Kill the guest and remove every trace of it. May be called twice."""
        for background in self._backgrounds:
            background.kill()
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(60)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        _remove(self.folder)

    def reboot(self, *, hard: bool = False) -> None:
        """``systemctl reboot``, and wait until the guest is up again with its state kept.

        ``hard`` is the reset button: the kernel ends every process at once and nothing is stopped.
        What had been written stays, synced or not: the page cache is the host's.
        """
        previous = self._leader
        how = ["--force", "--force"] if hard else []
        # The call is cut off by the reboot it asks for: its status says nothing.
        self.run(["systemctl", "reboot", "--no-wall", *how], check=False)
        self._await_boot(previous)

    @property
    def leader(self) -> int:
        """The host's PID of the guest's PID 1."""
        return self._leader

    def console(self, lines: int = 30) -> str:
        """The end of what the guest's systemd printed on its console."""
        try:
            text = (self.folder / "console").read_text(errors="replace")
        except OSError:
            return "(no console)"
        return "\n".join(text.splitlines()[-lines:])

    def _await_boot(self, previous: int) -> None:
        deadline = time.monotonic() + BOOT_LIMIT
        while True:
            if (self.folder / "ended").exists() or self._keeper.poll() is not None:
                reason = _read(self.folder / "ended") or "the keeper died"
                raise BedError(f"the container ended: {reason}\n{self.console()}")
            if self._find_leader(previous):
                asked = self.run(["systemctl", "is-active", "--quiet", self._wait_for], check=False)
                if asked.returncode == 0:
                    return
            if time.monotonic() > deadline:
                raise BedError(f"{self._wait_for} not active in time\n{self.console()}")
            time.sleep(0.1)

    def _find_leader(self, previous: int) -> bool:
        nspawn = _read(self.folder / "nspawn.pid")
        if not nspawn:
            return False
        for child in keeper.children(int(nspawn)):
            if child != previous and _is_first_in_namespace(child):
                self._leader = child
                self._enter = _enter_argv(child)
                return True
        return False

    # --- commands --------------------------------------------------------------------------

    def _argv(
        self, command: Sequence[str] | str, user: str | None, env: Mapping[str, str] | None
    ) -> list[str]:
        program = ["bash", "-c", command] if isinstance(command, str) else list(command)
        settings = [f"{key}={value}" for key, value in {**ENVIRONMENT, **(env or {})}.items()]
        become = ["runuser", f"--user={user}", "--"] if user else []
        return [*self._enter, "env", "--ignore-environment", *settings, *become, *program]

    def shell_argv(self) -> list[str]:
        """The command that opens a shell in the guest on this terminal."""
        return self._argv(["bash", "-i"], None, {"TERM": os.environ.get("TERM", "dumb")})

    def run(
        self,
        command: Sequence[str] | str,
        *,
        limit: float = 120.0,
        check: bool = True,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        text_in: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """As `Guest.run` says."""
        __tracebackhide__ = True  # pytest: the caller's line is what matters
        argv = self._argv(command, user, env)
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(text_in, timeout=limit)
        except BaseException as error:
            _kill_group(process)
            out, err = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise BedError(f"{command!r}: still running after {limit} s\n{out}{err}") from None
            raise
        done = subprocess.CompletedProcess(argv, process.returncode, out, err)
        if check and done.returncode:
            raise BedError(f"{command!r}: exit status {done.returncode}\n{out}{err}")
        return done

    def start_background(
        self,
        command: Sequence[str] | str,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Background:
        """Start a command in the guest and go on; it ends with the guest at the latest."""
        handle, name = tempfile.mkstemp(prefix="background.", dir=self.folder)
        with os.fdopen(handle, "wb") as output:
            process = subprocess.Popen(
                self._argv(command, user, env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        background = Background(process, Path(name))
        self._backgrounds.append(background)
        return background

    # --- files ------------------------------------------------------------------------------

    def push_file(self, source: Path, path: str) -> None:
        """Copy one host file into the guest, making its folders and keeping its mode."""
        with source.open("rb") as content:
            mode = f"--mode={source.stat().st_mode & 0o7777:o}"
            argv = self._argv(["install", "-D", mode, "/dev/stdin", path], None, None)
            subprocess.run(argv, stdin=content, check=True, timeout=120)


class Background:
    """A command that runs in the guest while the test goes on."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output

    def output(self) -> str:
        """What it has printed so far, stdout and stderr together."""
        return self._output.read_text(errors="replace")

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def wait(self, limit: float = 120.0) -> int:
        """Its exit status.

        Raises:
            BedError: it has not ended in time; it is killed then.
        """
        try:
            return self._process.wait(limit)
        except subprocess.TimeoutExpired:
            _kill_group(self._process)
            raise BedError(f"still running after {limit} s\n{self.output()}") from None

    def kill(self) -> None:
        """Kill it now."""
        _kill_group(self._process)
        self._process.wait()


def reap() -> None:
    """Remove what keepers that were killed themselves could not."""
    for folder in _FOLDERS.glob(f"{_PREFIX}*"):
        owner = _read(folder / "keeper.pid")
        if owner and not _is_keeper(int(owner), folder):
            _remove(folder)


def _remove(folder: Path) -> None:
    for place in ("root", "upper-on-tmpfs"):
        keeper.unmount(folder / place)
    shutil.rmtree(folder, ignore_errors=True)


def _is_keeper(pid: int, folder: Path) -> bool:
    return str(folder) in _read(Path(f"/proc/{pid}/cmdline"))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_first_in_namespace(pid: int) -> bool:
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("NSpid:"):
            numbers = line.split()[1:]
            return len(numbers) > 1 and numbers[-1] == "1"
    return False


def _enter_argv(leader: int) -> list[str]:
    """The command prefix that runs the rest inside the guest, in a cgroup of the guest."""
    joins = []
    for line in _read(Path(f"/proc/{leader}/cgroup")).splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or controllers == "name=systemd":
            joins.append((number == "0", path.removesuffix("/init.scope") + "/bed"))
    places = {False: [], True: []}  # type: dict[bool, list[Path]]
    for place in keeper.hierarchies():
        kind = (place / "cgroup.controllers").exists() or (
            place / "cgroup.subtree_control"
        ).exists()
        places[kind].append(place)
    script = ""
    for unified, path in joins:
        for place in places[unified][:1]:
            cgroup = f"{place}{path}"
            # A process outside the guest's cgroups could not be moved by the guest's systemd.
            script += f"mkdir -p '{cgroup}' && echo 0 >'{cgroup}/cgroup.procs'; "
    script = f'{{ {script or ":; "}}} 2>/dev/null; exec "$@"'
    enter = ["nsenter", f"--target={leader}", "--mount", "--uts", "--ipc", "--net", "--pid"]
    return ["sh", "-c", script, "sh", *enter, "--cgroup", "--"]


def _kill_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
