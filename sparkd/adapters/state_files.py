# SPDX-License-Identifier: Apache-2.0
"""The small files that the helpers, the daemon and sparkctl share.

`/run/sparkd` (tmpfs, made by tmpfiles.d) holds what is true only now: the slot's claim, who waits,
what a helper found out in this invocation. `/var/lib/sparkd/ledger` holds each engine's ends of
life and its hold, across reboots; when that disk is full the entry goes to `/run/sparkd/ledger`
instead, and a revision number tells which of the two copies is the newer one. Both folders belong
to root and nobody else can write there.
"""

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkd.core import burst
from sparkd.core.end_of_life import Finding
from sparkd.core.slot import Claim, Waiter, claim_text, parse_claim

SIZE_MAX = 1 << 20
"""No state file comes near this; a larger one is not ours."""


class StateFiles:
    """The shared files below a run folder and a state folder."""

    def __init__(self, run: str = "/run/sparkd", state: str = "/var/lib/sparkd") -> None:
        self._run = Path(run)
        self._ledgers = (Path(state) / "ledger", Path(run) / "ledger")

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Hold an exclusive lock; the kernel drops it when the process dies, however it dies."""
        self._run.mkdir(mode=0o750, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._run / f"{name}.lock", flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    # the start slot

    def claim(self) -> Claim | None:
        """Who has the slot, alive or not."""
        text = _read(self._run / "slot")
        return None if text is None else parse_claim(text)

    def write_claim(self, claim: Claim) -> None:
        """Take the slot; call it with the lock 'slot' held."""
        write_atomic(self._run / "slot", claim_text(claim))

    def waiters(self) -> list[Waiter]:
        """Everybody who said that they wait, alive or not."""
        found = []
        for path in sorted((self._run / "waiting").glob("*.json")):
            match read_json(path):
                case {
                    "unit": str(unit),
                    "invocation_id": str(invocation),
                    "order": int(order),
                    "since": since,
                    "blocked": str(blocked),
                } if path.name == f"{unit}.json":
                    arrived = burst.finite(since)
                    if arrived is not None:
                        found.append(Waiter(unit, invocation, order, arrived, blocked))
        return found

    def write_waiter(self, waiter: Waiter) -> None:
        """Say that this unit waits; its earlier entry is replaced."""
        write_atomic(
            self._run / "waiting" / f"{waiter.unit}.json", json.dumps(waiter._asdict()) + "\n"
        )

    def drop_waiter(self, unit: str) -> None:
        """Say that this unit waits no longer."""
        (self._run / "waiting" / f"{unit}.json").unlink(missing_ok=True)

    # what was started, and what helpers found out in an invocation

    def write_started(self, unit: str, invocation_id: str, launch_hash: str) -> None:
        """Remember from which text of its unit file an invocation was started."""
        value = {"invocation_id": invocation_id, "launch_hash": launch_hash}
        write_atomic(self._run / "started" / f"{unit}.json", json.dumps(value) + "\n")

    def started(self, unit: str) -> str | None:
        """The invocation that was started last and whose end has not been recorded."""
        match read_json(self._run / "started" / f"{unit}.json"):
            case {"invocation_id": str(invocation)}:
                return invocation
        return None

    def drop_started(self, unit: str) -> None:
        """Say that the end of the last invocation is on record."""
        (self._run / "started" / f"{unit}.json").unlink(missing_ok=True)

    def launch_hash(self, unit: str, invocation_id: str) -> str | None:
        """The launch hash of this very invocation; None when it is not known."""
        match read_json(self._run / "started" / f"{unit}.json"):
            case {"invocation_id": str(seen), "launch_hash": str(value)} if seen == invocation_id:
                return value
        return None

    def write_finding(self, unit: str, invocation_id: str, finding: Finding) -> None:
        """Leave the post-mortem a word about this invocation."""
        value = {"invocation_id": invocation_id, **finding._asdict()}
        write_atomic(self._run / "findings" / f"{unit}.json", json.dumps(value) + "\n")

    def finding(self, unit: str, invocation_id: str) -> Finding | None:
        """What a helper of this very invocation found out, if anything."""
        match read_json(self._run / "findings" / f"{unit}.json"):
            case {
                "invocation_id": str(seen),
                "helper": str(helper),
                "cls": str(cls),
                "reason": str(reason),
                "permanent": bool(permanent),
            } if seen == invocation_id:
                return Finding(helper, cls, reason, permanent)
        return None

    # the ledger

    def ledger(self, engine: str) -> burst.Ledger:
        """What is remembered of this engine; a file that cannot be read counts as absent."""
        return self._newest_ledger(engine)[1]

    def write_ledger(self, engine: str, ledger: burst.Ledger) -> Path:
        """Replace what is remembered, on disk or, when the disk refuses, in the run folder.

        Call it with the lock 'ledger' held. The older copy stays behind when the disk is full; a
        hold that was released must not come back from it, so the copies are numbered.

        Returns:
            The file that was written.

        Raises:
            OSError: neither place could be written.
        """
        value = {**burst.to_json(ledger), "revision": self._newest_ledger(engine)[0] + 1}
        text = json.dumps(value) + "\n"
        disk, memory = (folder / f"{engine}.json" for folder in self._ledgers)
        try:
            write_atomic(disk, text)
        except OSError:
            write_atomic(memory, text)
            return memory
        memory.unlink(missing_ok=True)
        return disk

    def _newest_ledger(self, engine: str) -> tuple[int, burst.Ledger]:
        newest = (0, burst.Ledger())
        for folder in self._ledgers:
            value = read_json(folder / f"{engine}.json")
            if value is None:
                continue
            revision = value.get("revision")
            number = revision if isinstance(revision, int) else 0
            if number >= newest[0]:
                newest = (number, burst.from_json(value))
        return newest


def write_atomic(path: Path, text: str, mode: int = 0o640, *, exact: bool = False) -> None:
    """Write a whole file or nothing: a temporary one beside it, fsync, rename, fsync the folder.

    With `exact` the mode is what it says, whatever the umask: for files that a group may read.

    Raises:
        OSError: the file is the old one; or the new one, when only the last fsync failed.
    """
    path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*.tmp"):  # by a writer that was killed
        left.unlink(missing_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if exact:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        # An error of a descriptor does not say whose.
        raise OSError(error.errno, error.strerror, str(path)) from error
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        return os.read(fd, SIZE_MAX).decode("utf-8", "backslashreplace")
    except OSError:
        return None
    finally:
        os.close(fd)


def read_json(path: Path) -> Mapping[str, object] | None:
    """A small file's JSON object; None when there is none, or when it is damaged or no file."""
    text = _read(path)
    try:
        value = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
