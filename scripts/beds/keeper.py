# SPDX-License-Identifier: Apache-2.0
"""Keeps one container: mounts its file system, runs systemd-nspawn, and always cleans up.

It is a process of its own so that a test run that is killed leaves nothing behind: its stdin is a
pipe from the owner, and the end of that pipe, a signal or the time limit all end the container.
Started as ``python3 keeper.py FOLDER``; the folder holds `plan.json` and receives `nspawn.pid`
(rewritten at each boot), `console` and, at the end, `ended` with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

#: systemd-nspawn's status for "the guest asked for a reboot" when it runs with --keep-unit.
REBOOT = 133
#: Seconds a killed container may take to be gone before nspawn itself is killed.
PATIENCE = 10.0
LET_GO = "its owner let it go"


class Ended(Exception):  # noqa: N818  (not an error: the reason why the container's time is over)
    """The container has to go; the text says why."""


def main(folder: Path) -> int:
    """Run the container that ``folder/plan.json`` describes until its end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    plan = json.loads((folder / "plan.json").read_text())
    root = folder / "root"
    cgroups: list[Path] = []
    reason = "the keeper failed"
    try:
        mount_root(folder, root, plan["lowerdir"])
        prepare_root(root, plan)
        cgroups = make_cgroups(plan["name"])
        keep_running(folder, plan, cgroups)
    except Ended as ended:
        reason = str(ended)
    except Exception as error:  # noqa: BLE001  (the owner reads the reason; the clean-up must go on)
        reason = f"{type(error).__name__}: {error}"
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        remove_cgroups(cgroups)
        unmount(root)
        unmount(folder / "upper-on-tmpfs")
        if reason == LET_GO:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            (folder / "ended").write_text(reason + "\n")
    return 0


def _on_signal(number: int, _frame: object) -> NoReturn:
    raise Ended(f"the keeper got {signal.Signals(number).name}")


def mount_root(folder: Path, root: Path, lowerdir: str) -> None:
    """Mount the overlay: on the folder's own file system, or on a tmpfs where that cannot be."""
    root.mkdir()
    if try_overlay(folder / "upper", root, lowerdir) is None:
        return
    # An overlay's upper folder cannot itself lie on an overlay, as it does in many containers.
    scratch = folder / "upper-on-tmpfs"
    scratch.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(scratch)], check=True)
    problem = try_overlay(scratch / "upper", root, lowerdir)
    if problem:
        raise Ended(f"no overlay file system here: {problem}")


def try_overlay(upper: Path, root: Path, lowerdir: str) -> str | None:
    """Mount and return nothing, or return what mount said."""
    work = upper.with_name(upper.name + ".work")
    upper.mkdir(mode=0o755)
    work.mkdir()
    options = f"lowerdir={lowerdir},upperdir={upper},workdir={work}"
    done = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr.strip() or f"exit status {done.returncode}" if done.returncode else None


def prepare_root(root: Path, plan: dict[str, Any]) -> None:
    """Give the guest its identity and the files it was promised."""
    (root / "etc/machine-id").write_text(plan["machine_id"] + "\n")
    (root / "etc/hostname").write_text(plan["name"] + "\n")
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {plan['name']}\n::1 localhost\n")
    for path, text in plan["files"].items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def hierarchies() -> list[Path]:
    """Mount points of the cgroup hierarchies that systemd in the guest may use."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            found.append(Path(place))
    return found


def make_cgroups(name: str) -> list[Path]:
    """A cgroup of its own in each hierarchy, so that containers can run side by side.

    Where systemd is PID 1, nspawn asks it for a scope instead.
    """
    if Path("/run/systemd/system").is_dir():
        return []
    cgroups = [place / name for place in hierarchies()]
    if not cgroups:
        raise Ended("no cgroup2 and no name=systemd hierarchy is mounted")
    for cgroup in cgroups:
        cgroup.mkdir(exist_ok=True)
    return cgroups


def enter(cgroups: list[Path]) -> None:
    """Move this process, about to become nspawn, into the container's cgroups."""
    for cgroup in cgroups:
        (cgroup / "cgroup.procs").write_text("0")


def remove_cgroups(cgroups: list[Path]) -> None:
    """Remove the container's cgroups, innermost first; the kernel may need a moment."""
    for cgroup in cgroups:
        for _ in range(20):
            for inner in sorted(cgroup.glob("**/"), key=lambda path: -len(path.parts)):
                with contextlib.suppress(OSError):
                    inner.rmdir()
            if not cgroup.exists():
                break
            time.sleep(0.1)


def keep_running(folder: Path, plan: dict[str, Any], cgroups: list[Path]) -> NoReturn:
    """Boot, and boot again after each reboot, until the container has to go."""
    deadline = time.monotonic() + plan["limit"]
    environment = os.environ | {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
    with (folder / "console").open("ab") as console:
        while True:
            nspawn = subprocess.Popen(
                nspawn_argv(folder / "root", plan, own_cgroup=bool(cgroups)),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env=environment,
                # This process has no threads, for which alone this would be unsafe.
                preexec_fn=lambda: enter(cgroups),  # noqa: PLW1509
            )
            publish(folder / "nspawn.pid", str(nspawn.pid))
            try:
                wait(nspawn, deadline)
            finally:
                end(nspawn)
            if nspawn.returncode != REBOOT:
                raise Ended(f"nspawn ended with status {nspawn.returncode}")


def nspawn_argv(root: Path, plan: dict[str, Any], *, own_cgroup: bool) -> list[str]:
    """The command that boots the guest."""
    return [
        "systemd-nspawn",
        "--quiet",
        f"--directory={root}",
        "--boot",
        "--private-network",
        "--register=no",
        *(["--keep-unit"] if own_cgroup else []),
        f"--machine={plan['name']}",
        "--link-journal=no",
        "--resolv-conf=off",
        "--timezone=off",
        *(f"--bind-ro={host}:{guest}" for host, guest in plan["binds"].items()),
    ]


def publish(path: Path, text: str) -> None:
    """Write a small file that a reader sees whole or not at all."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(text)
    scratch.rename(path)


def wait(nspawn: subprocess.Popen[bytes], deadline: float) -> None:
    """Return when nspawn has ended.

    Raises:
        Ended: the owner is gone, or the time limit has passed.
    """
    handle = os.pidfd_open(nspawn.pid)
    try:
        rest = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([handle, sys.stdin], [], [], rest)
    finally:
        os.close(handle)
    if handle in ready:
        nspawn.wait()
    elif ready:
        raise Ended(LET_GO)
    else:
        raise Ended("its time limit has passed")


def end(nspawn: subprocess.Popen[bytes]) -> None:
    """Kill what still runs: the guest's PID 1 first, which takes every guest process with it."""
    if nspawn.poll() is None:
        for child in children(nspawn.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            nspawn.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            nspawn.kill()
            nspawn.wait()


def children(parent: int) -> list[int]:
    """PIDs of a process' direct children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may hold blanks and more parentheses.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[1]) == parent:
                    found.append(int(entry.name))
    return found


def unmount(path: Path) -> None:
    """Unmount, lazily when something still holds it, and remove the folder."""
    if path.is_dir():
        for attempt in range(20):
            if subprocess.run(["umount", "-q", str(path)], check=False).returncode == 0:
                break
            if subprocess.run(["mountpoint", "-q", str(path)], check=False).returncode != 0:
                break
            time.sleep(0.1)
            if attempt == 19:
                subprocess.run(["umount", "--lazy", str(path)], check=False)
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
