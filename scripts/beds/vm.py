# SPDX-License-Identifier: Apache-2.0
"""A throw-away virtual machine: a real kernel with its own memory, driven from Python.

    with Machine(rootfs.with_package("bookworm", deb), memory_mb=2048) as machine:
        machine.run(["systemctl", "start", "x.service"])

What a container cannot show is real here: the memory controller of cgroup v2, pressure (PSI), the
OOM killer. Debian's cloud kernel boots in qemu with the whole system in memory as its initramfs.
KVM is not asked for, so that it runs the same everywhere; it boots in some 15 s without.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from beds.cache import BedError, built, cache_dir, command, digest, locked, say
from beds.guest import ENVIRONMENT, Guest
from beds.rootfs import Layers, host_has

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

T = TypeVar("T")

BOOT_LIMIT = 600.0
_FOLDERS = Path("/var/tmp")
_PREFIX = "sparkd-vm-"

_DIES_WITH_US = ("setpriv", "--pdeathsig=KILL")

_KERNEL_ARGUMENTS = (
    "console=ttyS0 rdinit=/sbin/init psi=1 quiet panic=-1 systemd.unified_cgroup_hierarchy=1"
)

#: What no test of a machine needs: it would be unpacked into memory at each boot.
_LEFT_OUT = (
    "./boot", "./usr/include", "./usr/lib/gcc", "./usr/share/doc", "./usr/share/i18n",
    "./usr/share/icons", "./usr/share/locale", "./usr/share/man", "./usr/share/mime",
    "./usr/share/perl", "./usr/lib/x86_64-linux-gnu/gconv", "./usr/lib/x86_64-linux-gnu/perl",
    "./usr/lib/x86_64-linux-gnu/perl-base", "./var/cache", "./var/lib/apt",
)  # fmt: skip

#: The part of each machine that is not the system: how the host talks to it.
_AGENT_UNIT = """\
[Unit]
Description=Agent of the test bed
DefaultDependencies=no
After=dbus.service
[Service]
ExecStart=/usr/bin/python3 /bed/agent.py
OOMScoreAdjust=-1000
Restart=always
"""


def missing_tools() -> list[str]:
    """What the host lacks for a virtual machine; empty when one can be booted."""
    tools = ("qemu-system-x86_64", "cpio", "mmdebstrap", "dpkg-deb")
    return [tool for tool in tools if not host_has(tool)] + (
        [] if os.geteuid() == 0 else ["root's rights"]
    )


class Machine(Guest):
    """One booted virtual machine. Leaving the ``with`` block removes it.

    Args:
        layers: the root file system, copied into the machine's memory.
        memory_mb: its memory; the system itself takes some 400 MB of that.
        cpus: its processors.
        files: guest path to text or host file, there before the boot.
        limit: seconds after which it is killed whatever happens.
        kernel_arguments: more words for the kernel's command line.

    Raises:
        BedError: it did not come up; with the end of its console.
    """

    PATIENCE = 300.0  # everything takes its time on an emulated processor
    EVERY = 1.0  # one that asks without a pause takes half of that processor

    def __init__(
        self,
        layers: Layers,
        *,
        memory_mb: int = 2048,
        cpus: int = 2,
        files: Mapping[str, str | Path] | None = None,
        limit: float = 900.0,
        kernel_arguments: str = "",
    ) -> None:
        lacking = missing_tools()
        if lacking:
            raise BedError(f"a virtual machine needs {', '.join(lacking)}")
        reap()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_FOLDERS))
        (self.folder / "owner").write_text(str(os.getpid()))
        self._answers: dict[int, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._number = 0
        self._ended = ""
        self._line: socket.socket | None = None
        initrd = self.folder / "initrd"
        _chain(initrd, [*_archives(layers), self._own_archive(files or {})])
        with (self.folder / "qemu").open("wb") as said:
            self._qemu = subprocess.Popen(
                [
                    # It must not outlive a test run that is killed.
                    *_DIES_WITH_US, "timeout", "--kill-after=5", str(limit), *_DIES_WITH_US,
                    "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-smp", str(cpus),
                    "-m", str(memory_mb), "-display", "none", "-no-reboot", "-nic", "none",
                    "-kernel", str(kernel()), "-initrd", str(initrd),
                    "-serial", f"file:{self.folder / 'console'}",
                    "-serial", f"unix:{self.folder / 'line'},server=on,wait=off",
                    "-append", f"{_KERNEL_ARGUMENTS} {kernel_arguments}",
                ],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
            )  # fmt: skip
        try:
            self._connect()
            self._await(0, BOOT_LIMIT, "the boot")
            self.run(["systemctl", "is-system-running", "--wait"], check=False, limit=BOOT_LIMIT)
        except BaseException:
            self.close()
            raise
        finally:
            initrd.unlink(missing_ok=True)

    def close(self) -> None:
        """Kill the machine and remove every trace of it. May be called twice."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._qemu.pid, 9)
        self._qemu.wait()
        if self._line is not None:
            self._line.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def console(self, lines: int = 30) -> str:
        """The end of what its kernel and systemd printed."""
        text = "".join(
            (self.folder / name).read_text(errors="replace")
            for name in ("qemu", "console")
            if (self.folder / name).exists()
        )
        return "\n".join(text.splitlines()[-lines:])

    # --- commands --------------------------------------------------------------------------

    def run(
        self,
        command: Sequence[str] | str,
        *,
        limit: float = 300.0,
        check: bool = True,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        text_in: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """As `Guest.run` says."""
        __tracebackhide__ = True
        return self.start_background(command, user=user, env=env, text_in=text_in).wait(
            limit, check=check
        )

    def start_background(
        self,
        command: Sequence[str] | str,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        text_in: str = "",
    ) -> Background:
        """Start a command and go on; ask the returned handle for its end."""
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        become = ["runuser", f"--user={user}", "--"] if user else []
        with self._changed:
            self._number += 1
            number = self._number
        self._send(
            {
                "id": number,
                "argv": [*become, *argv],
                "env": {**ENVIRONMENT, **(env or {})},
                "stdin": base64.b64encode(text_in.encode()).decode(),
            }
        )
        return Background(self, number, command)

    # --- the line --------------------------------------------------------------------------

    def answered(self, number: int) -> bool:
        """Whether the command of that number has ended."""
        with self._changed:
            return number in self._answers

    def await_answer(self, number: int, limit: float, what: str) -> dict[str, Any]:
        """What became of the command of that number; it is killed when it takes too long."""
        try:
            return self._await(number, limit, what)
        except BedError:
            with contextlib.suppress(OSError):
                self._send({"kill": number})
            raise

    def _send(self, request: dict[str, object]) -> None:
        assert self._line is not None
        data = json.dumps(request).encode("ascii") + b"\n"
        with self._sending:
            # The guest's driver loses what comes faster than it is read.
            for at in range(0, len(data), 1024):
                self._line.sendall(data[at : at + 1024])
                if len(data) > 1024:
                    time.sleep(0.02)

    def _await(self, number: int, limit: float, what: str) -> dict[str, Any]:
        deadline = time.monotonic() + limit
        with self._changed:
            while number not in self._answers:
                left = deadline - time.monotonic()
                if self._ended:
                    raise BedError(f"the machine is gone: {self._ended}\n{self.console()}")
                if left <= 0:
                    raise BedError(f"{what}: not over after {limit:.0f} s\n{self.console()}")
                self._changed.wait(min(left, 5.0))
            return self._answers[number]

    def _connect(self) -> None:
        deadline = time.monotonic() + 120
        line = socket.socket(socket.AF_UNIX)
        while True:
            try:
                line.connect(str(self.folder / "line"))
                break
            except OSError as error:
                if time.monotonic() > deadline or self._qemu.poll() is not None:
                    line.close()
                    raise BedError(f"qemu did not start\n{self.console()}") from error
                time.sleep(0.1)
        self._line = line
        threading.Thread(target=self._listen, args=(line,), daemon=True).start()

    def _listen(self, line: socket.socket) -> None:
        buffer = b""
        while True:
            try:
                data = line.recv(65536)
            except OSError:
                data = b""
            if not data:
                with self._changed:
                    self._ended = "qemu closed the line"
                    self._changed.notify_all()
                return
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for text in lines:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    answer = json.loads(text)
                    with self._changed:
                        self._answers[int(answer["id"])] = answer
                        self._changed.notify_all()

    # --- the system ------------------------------------------------------------------------

    def _own_archive(self, files: Mapping[str, str | Path]) -> Path:
        root = self.folder / "own"
        units = root / "etc/systemd/system"
        (units / "sysinit.target.wants").mkdir(parents=True)
        (root / "bed").mkdir()
        shutil.copy(Path(__file__).with_name("vm_agent.py"), root / "bed/agent.py")
        (units / "bed-agent.service").write_text(_AGENT_UNIT)
        (units / "sysinit.target.wants/bed-agent.service").symlink_to("../bed-agent.service")
        for unit in ("serial-getty@.service", "systemd-networkd.service"):
            (units / unit).symlink_to("/dev/null")
        (root / "etc/machine-id").write_text(f"{os.urandom(16).hex()}\n")
        (root / "etc/hostname").write_text("vm\n")
        for path, content in files.items():
            target = root / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copy(content, target)
            else:
                target.write_text(content)
        archive = self.folder / "own.cpio"
        paths = [".", *(str(path.relative_to(root)) for path in sorted(root.rglob("*")))]
        _pack(root, paths, archive, "--owner=+0:+0")
        shutil.rmtree(root)
        return archive


class Background:
    """A command that runs in the machine while the test goes on."""

    def __init__(self, machine: Machine, number: int, what: Sequence[str] | str) -> None:
        self._machine = machine
        self._number = number
        self._what = what

    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._machine.answered(self._number)

    def wait(
        self, limit: float = 120.0, *, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Its status and output.

        Raises:
            BedError: it has not ended in time, and is killed; or it failed, with ``check``.
        """
        __tracebackhide__ = True
        answer = self._machine.await_answer(self._number, limit, f"{self._what!r}")
        done = subprocess.CompletedProcess(
            self._what, int(answer["status"]), str(answer["out"]), str(answer["err"])
        )
        if check and done.returncode:
            text = f"{done.stdout}{done.stderr}"
            raise BedError(f"{self._what!r}: exit status {done.returncode}\n{text}")
        return done


def reap() -> None:
    """Remove what test runs that were killed could not; their machines have died with them."""
    for folder in _FOLDERS.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            owner = int((folder / "owner").read_text())
            if not Path(f"/proc/{owner}").exists():
                shutil.rmtree(folder, ignore_errors=True)


def kernel() -> Path:
    """Debian's cloud kernel, the newest that apt offers, fetched and not installed.

    Raises:
        BedError: apt cannot fetch it.
    """
    text = command(["apt-cache", "depends", "linux-image-cloud-amd64"], limit=60)
    names = [line.split()[-1] for line in text.splitlines() if "Depends:" in line]
    if not names:
        raise BedError("apt knows no linux-image-cloud-amd64")
    package = names[0]

    def unpack(target: Path) -> None:
        say(f"fetching the kernel {package}")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)  # apt drops to its own user for downloads
            command(["apt-get", "download", "-qq", package], limit=600, cwd=folder)
            command(
                ["dpkg-deb", "-x", str(next(Path(folder).glob("*.deb"))), f"{folder}/tree"],
                limit=300,
            )
            shutil.copy(next(Path(folder, "tree/boot").glob("vmlinuz-*")), target / "vmlinuz")

    return built(f"vm-{package}", unpack) / "vmlinuz"


def _archives(layers: Layers) -> list[Path]:
    """An archive for each layer, lowest first; kept as long as the layer is."""
    archives = []
    for layer in reversed(layers.folders):
        name = f"vm-{layer.name}-{digest('recipe 1', *_LEFT_OUT)}"
        archives.append(
            built(name, lambda target, layer=layer: _pack_layer(layer, target)) / "cpio"
        )
    with locked("vm-archives"):
        for old in cache_dir().glob("vm-*-*"):
            source = old.name.removeprefix("vm-").rpartition("-")[0]
            if (old / "cpio").exists() and not (cache_dir() / source).exists():
                shutil.rmtree(old, ignore_errors=True)
    return archives


def _pack_layer(layer: Path, target: Path) -> None:
    say(f"packing {layer.name} for virtual machines")
    paths = []
    for folder, names, files in os.walk(layer):
        inside = "./" + os.path.relpath(folder, layer) if folder != str(layer) else "."
        names[:] = [name for name in names if f"{inside}/{name}" not in _LEFT_OUT]
        paths.append(inside)
        others = [*files, *(name for name in names if Path(folder, name).is_symlink())]
        paths += [f"{inside}/{name}" for name in others if _is_wanted(Path(folder, name))]
    _pack(layer, paths, target / "cpio")


def _is_wanted(path: Path) -> bool:
    # A character device is overlayfs' mark for "deleted in this layer".
    return path.suffix != ".a" and not stat.S_ISCHR(path.lstat().st_mode)


def _pack(root: Path, paths: Iterable[str], archive: Path, *owner: str) -> None:
    with archive.open("wb") as out:
        subprocess.run(
            ["cpio", "--create", "--format=newc", "--quiet", *owner],
            input="\n".join(paths).encode(), stdout=out, cwd=root, check=True, timeout=300,
        )  # fmt: skip


def _chain(target: Path, archives: Sequence[Path]) -> None:
    """The kernel takes several archives one after the other, each on a boundary of 4 bytes."""
    with target.open("wb") as out:
        for archive in archives:
            with archive.open("rb") as source:
                shutil.copyfileobj(source, out, 1 << 20)
            out.write(b"\0" * (-out.tell() % 4))
