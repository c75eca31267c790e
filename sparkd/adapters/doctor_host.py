# SPDX-License-Identifier: Apache-2.0
"""Looks at the host for `sparkctl doctor`. What cannot be read is left out."""

import contextlib
import os
import platform
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkd import __version__
from sparkd.adapters import bus_client, proc
from sparkd.adapters.commands import output
from sparkd.core.doctor.host import Facts
from sparkd.core.quantities import MemoryLimit

# Programs that end others when memory is short, by the names of their processes (cut at 15).
KILLERS = frozenset({"earlyoom", "systemd-oomd", "oomd", "nohang", "nohang-desktop", "psi-notify",
                     "le9uo", "bustd", "low-memory-moni"})  # fmt: skip
_PROGRAMS = ("sparkctl", "sparkd")
_PLACES = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin",
    "/opt/sparkd/bin", "/root/.local/bin", "/root/.cargo/bin", "/root/go/bin",
)  # fmt: skip
_LIBRARY = re.compile(r"libcuda\.so\.(\d+\.\d+[\d.]*)\Z")
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+[\d.]*)")
_NVIDIA_VENDOR = "0x10de"


def look(floor: MemoryLimit) -> Facts:
    """Everything about the host."""
    memory = _meminfo()
    total = memory.get("MemTotal", 0)
    path = _manager_path()
    return Facts(
        memory_total=total,
        memory_available=memory.get("MemAvailable", 0),
        floor=floor.of(total),
        swap_total=memory.get("SwapTotal", 0),
        swap_free=memory.get("SwapFree", 0),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        kernel=platform.release(),
        machine=platform.machine(),
        gpus=_gpus(),
        driver=driver_version(),
        driver_library=_library_version(),
        has_gpu_device=_has_device(),
        pressure=_pressure(),
        killers=sorted({p.name for p in map(proc.process, proc.pids()) if p.name in KILLERS}),
        clock_synchronised=_clock(),
        programs={name: _found(name) for name in _PROGRAMS},
        memory_controller=_memory_controller(),
        daemon=_daemon(),
        version=__version__,
        systemd=_systemd(),
        manager_path=path,
        cuda_on_manager_path=any((Path(place) / "nvcc").exists() for place in path.split(":")),
        limits=_limits(),
    )


def _meminfo() -> dict[str, int]:
    fields: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in (proc.PROC / "meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
    return fields


def _gpus() -> list[str]:
    names: list[str] = []
    with contextlib.suppress(OSError):
        for file in sorted((proc.PROC / "driver/nvidia/gpus").glob("*/information")):
            text = file.read_text(encoding="utf-8", errors="replace")
            names += [
                line.partition(":")[2].strip()
                for line in text.splitlines()
                if line.startswith("Model:")
            ][:1]
    return names


def driver_version(root: Path = proc.PROC) -> str:
    """The version of the loaded NVIDIA module; '' without one."""
    with contextlib.suppress(OSError):
        text = (root / "driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
        if match := _MODULE.search(text):
            return match[1]
    return ""


def _library_version() -> str:
    for folder in (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64", "/usr/lib"):
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder)):  # noqa: PTH208  (names, not paths)
                if match := _LIBRARY.match(name):
                    return match[1]
    return ""


def _has_device() -> bool:
    with contextlib.suppress(OSError):
        for device in Path("/sys/bus/pci/devices").iterdir():
            vendor = (device / "vendor").read_text(encoding="ascii").strip()
            kind = (device / "class").read_text(encoding="ascii").strip()
            if vendor == _NVIDIA_VENDOR and kind.startswith("0x03"):
                return True
    return False


def _pressure() -> Mapping[str, float] | None:
    try:
        lines = (proc.PROC / "pressure/memory").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = {}
    for line in lines:
        words = line.split()
        if len(words) > 1 and words[1].startswith("avg10="):
            found[words[0]] = float(words[1].removeprefix("avg10="))
    return found


def _clock() -> bool | None:
    said = output(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return {"yes": True, "no": False}.get((said or "").strip())


def _found(name: str) -> list[str]:
    """Every program of a name, each file once, whatever links lead to it."""
    places = dict.fromkeys([*os.environ.get("PATH", "").split(":"), *_PLACES, *_homes()])
    seen: dict[Path, str] = {}
    for place in places:
        path = Path(place) / name
        with contextlib.suppress(OSError):
            if place.startswith("/") and path.is_file() and os.access(path, os.X_OK):
                seen.setdefault(path.resolve(), str(path))
    return list(seen.values())


def _homes() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for home in sorted(Path("/home").iterdir()):
            yield from (f"{home}/.local/bin", f"{home}/bin", f"{home}/.cargo/bin")


def _memory_controller() -> bool | None:
    """Whether systemd's tree bounds memory: in cgroup v2, or on an old layout in v1."""
    with contextlib.suppress(OSError):
        text = Path("/sys/fs/cgroup/cgroup.controllers").read_text(encoding="ascii")
        return "memory" in text.split()
    return Path("/sys/fs/cgroup/memory").is_dir() or None


def _daemon() -> str:
    try:
        return str(bus_client.status().get("version") or "")
    except (bus_client.DaemonAbsentError, bus_client.DaemonError):
        return ""


def _systemd() -> str:
    said = output(["systemctl", "--version"]) or ""
    return said.split("\n")[0].removeprefix("systemd ").strip()


def _manager_path() -> str:
    for line in (output(["systemctl", "show-environment"]) or "").splitlines():
        if line.startswith("PATH="):
            return line.removeprefix("PATH=")
    return ""


def _limits() -> dict[str, str]:
    kinds = {
        "nofile": resource.RLIMIT_NOFILE,
        "memlock": resource.RLIMIT_MEMLOCK,
        "nproc": resource.RLIMIT_NPROC,
        "core": resource.RLIMIT_CORE,
    }
    return {name: "/".join(map(_limit, resource.getrlimit(kind))) for name, kind in kinds.items()}


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
