# SPDX-License-Identifier: Apache-2.0
"""The host and the ways on which something is launched."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sparkd.core.doctor.model import Finding, finding
from sparkd.core.quantities import format_size

PAGE_SIZE = 4096


class Facts(NamedTuple):
    """What was seen; None or empty where it could not be."""

    memory_total: int
    memory_available: int
    floor: int
    """memory.floor in bytes."""
    swap_total: int
    swap_free: int
    page_size: int
    kernel: str
    machine: str
    gpus: Sequence[str]
    driver: str
    """Version of the loaded kernel module; '' without one."""
    driver_library: str
    """Version of libcuda on disk."""
    has_gpu_device: bool
    """Whether the machine has an NVIDIA device at all."""
    pressure: Mapping[str, float] | None
    """Percent of the last 10 s by kind; None without PSI."""
    killers: Sequence[str]
    clock_synchronised: bool | None
    programs: Mapping[str, Sequence[str]]
    """Every file of a name on PATH and in the usual folders."""
    memory_controller: bool | None
    daemon: str
    """Version that answers on the bus; '' for none."""
    version: str
    systemd: str
    manager_path: str
    """PATH that services get from systemd."""
    cuda_on_manager_path: bool
    limits: Mapping[str, str]
    """Limits of this shell, which engines started by hand get."""


def judge(facts: Facts) -> Iterator[Finding]:
    """Everything wrong with the host itself."""
    yield from _memory(facts)
    yield from _driver(facts)
    if facts.page_size != PAGE_SIZE:
        yield finding("DOC104", "host", f"pages have {facts.page_size >> 10} KiB")
    if facts.pressure is None:
        yield finding("DOC105", "host", "the kernel has no /proc/pressure/memory")
    for killer in facts.killers:
        yield finding("DOC106", killer, f"{killer} is running")
    if facts.clock_synchronised is False:
        yield finding("DOC107", "host", "systemd says NTPSynchronized=no")
    for name, places in sorted(facts.programs.items()):
        if len(places) > 1:
            yield finding("DOC108", name, f"found {len(places)} times: {', '.join(places)}")
    if facts.memory_controller is False:
        yield finding("DOC109", "host", "the memory controller is not in cgroup v2's tree")
    if not facts.daemon:
        yield finding("DOC110", "sparkd.service", "nobody answers on the bus")
    elif facts.daemon != facts.version:
        reason = f"sparkd {facts.daemon} runs, this is {facts.version}"
        yield finding("DOC111", "sparkd.service", reason)


def _memory(facts: Facts) -> Iterator[Finding]:
    if facts.memory_available < facts.floor:
        reason = (
            f"{format_size(facts.memory_available)} of {format_size(facts.memory_total)} is"
            f" available, memory.floor is {format_size(facts.floor)}"
        )
        yield finding("DOC101", "host", reason)


def _driver(facts: Facts) -> Iterator[Finding]:
    if not facts.driver:
        if facts.has_gpu_device:
            yield finding("DOC102", "host", "there is an NVIDIA device and no loaded driver")
    elif facts.driver_library and facts.driver_library != facts.driver:
        reason = f"module {facts.driver} is loaded, libcuda is {facts.driver_library}"
        yield finding("DOC103", "host", reason)


def to_json(facts: Facts) -> dict[str, object]:
    """The host's part of `sparkctl doctor --json`."""
    return {
        "memory_total_bytes": facts.memory_total,
        "memory_available_bytes": facts.memory_available,
        "memory_floor_bytes": facts.floor,
        "swap_total_bytes": facts.swap_total,
        "swap_free_bytes": facts.swap_free,
        "page_size_bytes": facts.page_size,
        "kernel": facts.kernel,
        "machine": facts.machine,
        "systemd": facts.systemd or None,
        "gpus": list(facts.gpus),
        "driver": facts.driver or None,
        "driver_library": facts.driver_library or None,
        "pressure_avg10": None if facts.pressure is None else dict(facts.pressure),
        "killers": list(facts.killers),
        "clock_synchronised": facts.clock_synchronised,
        "programs": {name: list(places) for name, places in facts.programs.items()},
        "memory_controller": facts.memory_controller,
        "daemon": facts.daemon or None,
        "version": facts.version,
        "services_path": facts.manager_path or None,
        "cuda_on_services_path": facts.cuda_on_manager_path,
        "shell_limits": dict(facts.limits),
    }


def lines(facts: Facts) -> Iterator[str]:
    """The host for a person, a line each."""
    free = format_size(facts.memory_available)
    swap = format_size(facts.swap_total) if facts.swap_total else "none"
    yield f"memory {format_size(facts.memory_total)}, {free} available, swap {swap}"
    gpu = ", ".join(facts.gpus) or "none seen"
    yield f"GPU {gpu}; driver {facts.driver or 'not loaded'}, libcuda {facts.driver_library or '?'}"
    yield (
        f"kernel {facts.kernel} {facts.machine}, pages {facts.page_size >> 10} KiB,"
        f" systemd {facts.systemd or '?'}"
    )
    pressure = facts.pressure or {}
    shown = ", ".join(f"{kind} {value:g} %" for kind, value in pressure.items())
    yield f"pressure (10 s) {shown or 'not known'}"
    where = "with nvcc" if facts.cuda_on_manager_path else "without nvcc"
    yield f"PATH of services {facts.manager_path or '?'} ({where}; engines add cuda_home/bin)"
    yield "limits of this shell " + ", ".join(f"{k} {v}" for k, v in facts.limits.items())
    clock = {True: "synchronised", False: "not synchronised", None: "not known"}
    killers = ", ".join(facts.killers) or "none"
    yield f"clock {clock[facts.clock_synchronised]}; other killers {killers}"
