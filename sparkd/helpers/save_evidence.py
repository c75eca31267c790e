# SPDX-License-Identifier: Apache-2.0
"""save-evidence: keep what shows why an engine stands, before somebody ends it.

Run by sparkd-evidence@ENGINE.service, which may look into other processes; the daemon may not. It
changes nothing about the engine: py-spy, where it is installed, stops each process for a moment.
"""

import argparse
import os
import stat
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from sparkd.adapters import engine_probe, journal, probe, proc, systemctl
from sparkd.adapters.state_files import write_atomic
from sparkd.core.lines import neutralise
from sparkd.core.schema import ENGINE_NAME
from sparkd.helpers import unit as own_unit

FOLDER = Path("/var/lib/sparkd/evidence")
KEPT = 20
"""Files of one engine; the oldest go."""
SIZE_MAX = 1 << 20
LINES = 400
PROCESSES = 64
STACKS = 8
"""Processes of which py-spy is asked for stacks."""
STACKS_S = 8.0
PY_SPY = (Path("/usr/bin/py-spy"), Path("/usr/local/bin/py-spy"))
"""Only root's own: this runs as root, and an engine's user may write in its environment."""
STATUS = ("Name", "State", "Threads", "VmRSS", "VmSwap", "voluntary_ctxt_switches")


def parser() -> argparse.ArgumentParser:
    """The command line, for the unit and for a person."""
    p = argparse.ArgumentParser(prog="save-evidence", description=(__doc__ or "").splitlines()[0])
    p.add_argument("--engine", required=True)
    p.add_argument("--folder", type=Path, default=FOLDER)
    return p


def main(argv: list[str] | None = None) -> int:
    """Write one file and say where it is.

    Returns:
        0, or 1 when the engine does not run, cannot be seen, or the file cannot be written.
    """
    options = parser().parse_args(argv)
    if not ENGINE_NAME.match(options.engine):
        own_unit.fail(f"{options.engine!r} is no engine's name")
        return 1
    unit = f"vllm-{options.engine}.service"
    seen = systemctl.show([unit], ["MainPID", "InvocationID"])
    row = seen[0] if seen else {}
    pid = int(row.get("MainPID") or 0)
    if not pid:
        own_unit.fail(f"{unit} has no main process, or systemd cannot be seen")
        return 1
    name = f"{options.engine}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.txt"
    text = "\n".join(_sections(unit, pid, row.get("InvocationID", "")))
    try:
        write_atomic(options.folder / name, text[:SIZE_MAX] + "\n")
    except OSError as error:
        own_unit.fail(f"cannot write {options.folder / name}: {error.strerror}")
        return 1
    _forget_old(options.folder, options.engine)
    own_unit.say(f"saved {options.folder / name}")
    return 0


def _sections(unit: str, pid: int, invocation: str) -> Iterator[str]:
    yield f"{unit}, invocation {invocation}, main process {pid}"
    yield time.strftime("saved at %Y-%m-%d %H:%M:%S %z")
    members = proc.pids_in(proc.cgroup_of(pid))[:PROCESSES]
    yield "\n== processes"
    for member in members:
        yield _process(member)
    yield "\n== stacks"
    yield from _stacks(pid, members)
    yield "\n== vLLM's metrics"
    yield from _metrics(pid)
    yield f"\n== the last {LINES} lines of the log"
    if invocation:
        yield from _last_lines(invocation)


def _process(pid: int) -> str:
    status = _read(f"{pid}/status").splitlines()
    fields = [row.replace("\t", " ") for row in status if row.split(":")[0] in STATUS]
    waits = _read(f"{pid}/wchan")
    kernel = _read(f"{pid}/stack").rstrip().replace("\n", "\n    ")
    return f"{pid}: {'; '.join(fields)}; waits in {waits or '-'}\n    {kernel}".rstrip()


def _stacks(main: int, members: list[int]) -> Iterator[str]:
    tool = next((str(path) for path in PY_SPY if _is_roots(path)), None)
    if tool is None:
        yield "py-spy is not installed in /usr/bin or /usr/local/bin, or is not root's"
        return
    engines = [pid for pid in members if proc.process(pid).name.startswith("VLLM::")]
    for pid in [main, *(pid for pid in engines if pid != main)][:STACKS]:
        yield f"-- {pid} {proc.process(pid).name}"
        argv = [tool, "dump", "--pid", str(pid)]
        try:
            done = subprocess.run(
                argv, capture_output=True, timeout=STACKS_S, check=False, text=True,
                errors="replace",
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            yield f"py-spy: {error}"
            continue
        yield done.stdout or done.stderr


def _is_roots(path: Path) -> bool:
    try:
        seen = path.stat()
    except OSError:
        return False
    writable = seen.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return seen.st_uid == 0 and not writable and os.access(path, os.X_OK)


def _metrics(pid: int) -> Iterator[str]:
    address = engine_probe.address_of(pid)
    if address is None:
        yield "its command line does not say where it listens"
        return
    reply = probe.ask(
        address, ("GET", "/metrics", b""),
        deadline=time.monotonic() + engine_probe.QUESTION_S,
        accept=engine_probe.METRICS_TYPE, reply_max=engine_probe.METRICS_MAX,
    )  # fmt: skip
    if reply.status != 200:
        yield f"{reply.kind} {reply.status or ''} {reply.detail}".rstrip()
    for line in reply.body.decode("utf-8", "replace").splitlines():
        if line.startswith("vllm:") and "_bucket{" not in line:
            yield neutralise(line)


def _last_lines(invocation: str) -> Iterator[str]:
    log = journal.InvocationLog(invocation)
    log.skip_to_last(LINES)
    until = time.monotonic() + STACKS_S
    for entry in deque(log.read(until=until), maxlen=LINES):
        at = time.strftime("%H:%M:%S", time.localtime(entry.realtime))
        yield f"{at} {neutralise(entry.message.decode('utf-8', 'replace'))}"


def _read(name: str) -> str:
    try:
        return (proc.PROC / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _forget_old(folder: Path, engine: str) -> None:
    # The time in the name is of fixed width, so names sort by age; another engine's name may begin
    # like this one's.
    mine = sorted(f for f in folder.glob(f"{engine}-????????T??????Z.txt"))
    for file in mine[:-KEPT]:
        file.unlink(missing_ok=True)
