# SPDX-License-Identifier: Apache-2.0
"""What a container and a virtual machine have in common once commands can be run in them."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from beds.cache import BedError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

T = TypeVar("T")

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "SYSTEMD_PAGER": "cat",
    "SYSTEMD_COLORS": "0",
}
"""The clean environment of every command in a guest."""


class Guest(ABC):
    """A machine with a real systemd, driven by commands."""

    PATIENCE: ClassVar[float] = 120.0
    """Seconds that `wait_until` waits unless told otherwise: only what is broken takes so long."""
    EVERY: ClassVar[float] = 0.2
    """Seconds between two of its questions: each is a process in the guest."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Kill the guest and remove every trace of it. May be called twice."""

    @abstractmethod
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
        """Run a command in the guest (argv, or a string for bash) and return it with its output.

        Args:
            command: what to run; it gets a clean environment, ``/`` as its folder and no terminal.
            limit: seconds after which it is killed.
            check: whether a non-zero status is an error.
            user: guest user to run as, by default root.
            env: environment on top of the clean one.
            text_in: its standard input.

        Raises:
            BedError: it failed or took too long; with all it printed.
        """

    def out(self, command: Sequence[str] | str, **options: Any) -> str:  # noqa: ANN401
        """Run a command as `run` does and return its stdout without the last newline."""
        return self.run(command, **options).stdout.rstrip("\n")

    def push(self, path: str, text: str, *, mode: int = 0o644, owner: str = "root") -> None:
        """Write a file in the guest, making its folders."""
        self.run(
            ["install", "-D", f"--mode={mode:o}", f"--owner={owner}", "/dev/stdin", path],
            text_in=text,
        )

    def read(self, path: str) -> str:
        """Text of a file in the guest.

        Raises:
            BedError: it cannot be read.
        """
        return self.run(["cat", path]).stdout

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit as ``systemctl show`` prints them."""
        text = self.out(["systemctl", "show", unit, *(f"--property={name}" for name in properties)])
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def journal(self, *matches: str) -> list[dict[str, str]]:
        """Journal entries, oldest first, after everything written so far has reached the journal.

        Args:
            matches: arguments of journalctl, e.g. ``"--unit=x.service"``, ``"_PID=1"``.
        """
        # --sync returns once journald has written what it had received: no lost last line.
        self.run(["journalctl", "--sync"])
        lines = self.run(["journalctl", "--output=json", "--all", "--quiet", *matches]).stdout
        return [_plain(json.loads(line)) for line in lines.splitlines()]

    def wait_until(
        self,
        predicate: Callable[[], T],
        what: str | Callable[[], str],
        *,
        limit: float | None = None,
        every: float | None = None,
    ) -> T:
        """Ask until the answer is true, and return it.

        Args:
            predicate: the question.
            what: what is waited for, or what tells it in the end, with what was seen last.
            limit: seconds until it is given up.
            every: seconds between two questions.

        Raises:
            BedError: it never was; with the end of the guest's journal.
        """
        __tracebackhide__ = True  # pytest: the caller's line is what matters
        limit = self.PATIENCE if limit is None else limit
        deadline = time.monotonic() + limit
        while True:
            answer = predicate()
            if answer:
                return answer
            if time.monotonic() > deadline:
                tail = self.run(["journalctl", "--lines=60", "--no-hostname"], check=False).stdout
                text = what if isinstance(what, str) else what()
                raise BedError(f"not within {limit:.0f} s: {text}\n{tail}")
            time.sleep(self.EVERY if every is None else every)


def _plain(entry: dict[str, Any]) -> dict[str, str]:
    """Flatten an entry: journalctl gives odd bytes as lists of numbers, repeats as lists."""
    return {key: _text(value) for key, value in entry.items()}


def _text(value: Any) -> str:  # noqa: ANN401
    if isinstance(value, list):
        if all(isinstance(item, int) for item in value):
            return bytes(value).decode(errors="replace")
        return "\n".join(_text(item) for item in value)
    return "" if value is None else str(value)
