# SPDX-License-Identifier: Apache-2.0
"""sparkd(8): watches the engines that systemd runs, remembers how they died, answers sparkctl.

It may be killed at any moment: engines, slot, gate, post-mortem and restart bound do without it. So
it repairs little of what it runs on; when the bus stays away it ends, and systemd starts it again.
"""

# isort: off
import sparkd.daemon.lean  # noqa: F401  (first, see there)

# isort: on
import argparse
import fcntl
import os
import sys
from pathlib import Path

from sparkd import __version__
from sparkd.adapters.service_manager import BusError
from sparkd.daemon import log
from sparkd.daemon.daemon import Daemon, Places, StartError

FAILURE = 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="sparkd", description="Host supervisor for vLLM engines.")
    p.add_argument("--version", action="version", version=f"sparkd {__version__}")
    p.add_argument("--config", type=Path, default=Places().config, metavar="DIRECTORY")
    return p


def main(argv: list[str] | None = None) -> int:
    """Run until a signal or a lost bus ends it.

    Returns:
        0 after SIGTERM or SIGINT; 1 when another sparkd runs, there is no bus, or the bus
        stayed away.
    """
    options = parser().parse_args(argv)
    places = Places(config=options.config)
    try:
        lock = only_instance(Path(places.run))
        daemon = Daemon(places)
        daemon.start()
    except (StartError, BusError, OSError) as error:
        log.critical(f"cannot start: {error}")
        return FAILURE
    try:
        return daemon.run()
    finally:
        os.close(lock)


def only_instance(run: Path) -> int:
    """Make sure that this is the only sparkd.

    Returns:
        A descriptor that keeps it so while it is open.

    Raises:
        StartError: another one runs.
        OSError: the run folder cannot be used.
    """
    run.mkdir(mode=0o750, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(run / "daemon.lock", flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise StartError(f"another sparkd is running (PID {owner or 'unknown'})") from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


if __name__ == "__main__":
    sys.exit(main())
