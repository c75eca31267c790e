# SPDX-License-Identifier: Apache-2.0
"""Runs inside the virtual machine: carries out what the host asks for over a serial line.

A request is one line of JSON, an answer another; they carry a number, so commands overlap. It must
answer while the machine is out of memory: it is locked in memory, never chosen by the OOM killer,
and runs ahead of everything else. Its children are ordinary processes again.
"""

import base64
import contextlib
import ctypes
import json
import os
import pwd
import signal
import subprocess
import sys
import termios
import threading
import tty

LINE = "/dev/ttyS1"
MCL_CURRENT_AND_FUTURE = 3
LENGTH_MAX = 1 << 20
"""Bytes of a command's output that are carried back, from its end."""


class Agent:
    """The serial line and the commands that run."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def serve(self) -> None:
        """Take requests until the machine goes down."""
        self._send({"id": 0, "up": True})
        buffer = b""
        while True:
            buffer += os.read(self._fd, 4096)
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if line.strip():
                    self._take(json.loads(line))

    def _take(self, request: dict[str, object]) -> None:
        if "kill" in request:
            running = self._running.get(int(str(request["kill"])))
            if running is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
            return
        threading.Thread(target=self._run, args=(request,), daemon=True).start()

    def _run(self, request: dict[str, object]) -> None:
        number = int(str(request["id"]))
        answer: dict[str, object] = {"id": number}
        try:
            # start_new_session and not setsid(1): the number must be that of the command itself.
            process = subprocess.Popen(
                [str(word) for word in request["argv"]],  # type: ignore[attr-defined]
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **request["env"]},  # type: ignore[dict-item]
                cwd="/",
                start_new_session=True,
                preexec_fn=_become_ordinary,  # noqa: PLW1509  (two system calls and a write)
            )
            self._running[number] = process
            out, err = process.communicate(base64.b64decode(str(request["stdin"])))
            answer |= {"status": process.returncode, "out": _text(out), "err": _text(err)}
        except OSError as error:
            answer |= {"status": 127, "out": "", "err": f"{error}\n"}
        self._running.pop(number, None)
        self._send(answer)

    def _send(self, value: dict[str, object]) -> None:
        data = json.dumps(value).encode("ascii") + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._fd, data) :]


def _text(data: bytes) -> str:
    return data[-LENGTH_MAX:].decode("utf-8", "replace")


def _become_ordinary() -> None:
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write("0")


def main() -> None:
    """Open the line and serve."""
    fd = os.open(LINE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(fd)
    termios.tcflush(fd, termios.TCIOFLUSH)
    os.environ["HOME"] = pwd.getpwuid(0).pw_dir
    ctypes.CDLL(None).mlockall(MCL_CURRENT_AND_FUTURE)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    Agent(fd).serve()


if __name__ == "__main__":
    sys.exit(main())
