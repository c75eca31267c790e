# SPDX-License-Identifier: Apache-2.0
"""Where the beds keep what is slow to build, and how two builders stay out of each other's way."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class BedError(Exception):
    """A bed could not be built or did not behave; the message says which tool, and what it said."""


def cache_dir() -> Path:
    """Folder of everything cached: ``$SPARKD_BEDS``, else ``sparkd-beds`` in the user's cache."""
    chosen = os.environ.get("SPARKD_BEDS")
    if chosen:
        path = Path(chosen)
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkd-beds"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def digest(*parts: str) -> str:
    """Twelve hex digits that change whenever one of the inputs does."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def say(text: str) -> None:
    """Tell whoever waits what takes so long; stderr, so that results stay alone on stdout."""
    print(f"beds: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock of that name; a second builder waits for the first."""
    with (cache_dir() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(name: str, build: Callable[[Path], None]) -> Path:
    """The cached folder ``name``, made by ``build(temporary folder)`` when it is not there yet.

    The folder appears by rename, so a build that was interrupted leaves nothing that looks whole.

    Raises:
        BedError: from ``build``.
    """
    final = cache_dir() / name
    if final.is_dir():
        return final
    with locked(name):
        if final.is_dir():
            return final
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=cache_dir()))
        try:
            build(scratch)
            scratch.rename(final)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    return final


def command(argv: Sequence[str], *, limit: float, **options: object) -> str:
    """Run one tool and return its stdout.

    Args:
        argv: program and arguments; no shell.
        limit: seconds after which it is killed.
        options: passed to `subprocess.run`.

    Raises:
        BedError: the tool is missing, took too long or failed; with the end of what it printed.
    """
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
            **options,
        )
    except FileNotFoundError as error:
        raise BedError(f"{argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise BedError(f"{' '.join(argv)}: still running after {limit:.0f} s") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise BedError(f"{' '.join(argv)}: exit status {done.returncode}\n{tail}")
    return str(done.stdout)
