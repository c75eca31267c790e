# SPDX-License-Identifier: Apache-2.0
"""Lines in the shapes that vLLM 0.32 prints: prefixed records, bare uvicorn lines, tracebacks.

Or, with `--logging-config.formatter json`, records as JSON objects; then a traceback that a logger
prints is part of its record, and what no logger prints stays bare.
"""

import json
import os
import time
from collections.abc import Iterable


def _write(descriptor: int, text: str) -> None:
    # A log that nobody reads any more must not change how the engine lives or dies.
    data = text.encode(errors="surrogateescape")
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            return


class Log:
    """The output of one process.

    Records go to standard output, uvicorn's own lines and tracebacks to standard error, each
    physical line in one write so that the processes of one engine do not cut each other's lines.
    """

    def __init__(self, process: str, *, as_json: bool = False) -> None:
        self.process = process
        self.as_json = as_json

    def record(self, level: str, where: str, message: str) -> None:
        """One logger record; every line of `message` repeats the prefix, as vLLM's formatter does.

        `where` is `file.py:line`.
        """
        if self.as_json:
            self._object(1, level, f"vllm.sim.{where.partition('.py')[0]}", message)
            return
        stamp = time.strftime("%m-%d %H:%M:%S")
        prefix = f"({self.process} pid={os.getpid()}) {level} {stamp} [{where}] "
        for line in message.split("\n"):
            _write(1, f"{prefix}{line}\n")

    def info(self, where: str, message: str) -> None:
        """A record of level INFO."""
        self.record("INFO", where, message)

    def warning(self, where: str, message: str) -> None:
        """A record of level WARNING."""
        self.record("WARNING", where, message)

    def error(self, where: str, message: str) -> None:
        """A record of level ERROR."""
        self.record("ERROR", where, message)

    def uvicorn(self, message: str, level: str = "INFO") -> None:
        """A line of uvicorn: bare since vLLM 0.32."""
        if self.as_json:
            self._object(2, level, "uvicorn.error", message)
            return
        _write(2, f"{level + ':':<10}{message}\n")

    def access(self, client: str, request: str, status: str) -> None:
        """A line of uvicorn's access log, on standard output."""
        if self.as_json:
            number = status.partition(" ")[0]
            said = f'{client} - "{request} HTTP/1.1" {number}'
            self._object(1, "INFO", "uvicorn.access", said)
            return
        _write(1, f'INFO:     {client} - "{request} HTTP/1.1" {status}\n')

    def _object(self, descriptor: int, level: str, name: str, message: str) -> None:
        """What python-json-logger makes of a record, with vLLM's members in their order."""
        text, mark, trace = message.partition("\nTraceback (most recent call last):")
        members = {
            "asctime": time.strftime("%Y-%m-%d %H:%M:%S,000"),
            "levelname": level,
            "name": name,
            "processName": "MainProcess" if self.process == "APIServer" else self.process,
            "process": os.getpid(),
            "message": text,
        }
        if mark:
            members["exc_info"] = mark[1:] + trace
        members["vllm_process_name"] = self.process
        _write(descriptor, json.dumps(members) + "\n")

    def bare(self, text: str) -> None:
        """Text without any prefix: tracebacks, C++ output, usage."""
        _write(2, f"{text}\n")

    def out(self, text: str) -> None:
        """Text of the command line itself, on standard output."""
        _write(1, f"{text}\n")

    def flood(self, where: str, lines: int) -> None:
        """Print `lines` numbered ERROR records, as vLLM's dump of a batch's tensors does."""
        if self.as_json:
            for n in range(1, lines + 1):
                self.record("ERROR", where, f"  tensor row {n} of {lines}: [0.0, 0.0]")
            return
        stamp = time.strftime("%m-%d %H:%M:%S")
        prefix = f"({self.process} pid={os.getpid()}) ERROR {stamp} [{where}]"
        for start in range(0, lines, 500):
            numbers = range(start + 1, min(start + 500, lines) + 1)
            _write(
                1, "".join(f"{prefix}   tensor row {n} of {lines}: [0.0, 0.0]\n" for n in numbers)
            )


def traceback(frames: Iterable[tuple[str, int, str, str]], error: str) -> str:
    """A Python traceback: frames are (file, line, function, source line), then the error."""
    lines = ["Traceback (most recent call last):"]
    for file, line, function, source in frames:
        lines.append(f'  File "{file}", line {line}, in {function}')
        if source:
            lines.append(f"    {source}")
    return "\n".join([*lines, error])


def throughput(
    *, prompt: float, generation: float, running: int, waiting: int, kv_usage: float
) -> str:
    """The periodic statistics line; rates in tokens per second, `kv_usage` from 0 to 1."""
    return (
        f"Engine 000: Avg prompt throughput: {prompt:.1f} tokens/s, "
        f"Avg generation throughput: {generation:.1f} tokens/s, "
        f"Running: {running} reqs, Waiting: {waiting} reqs, "
        f"GPU KV cache usage: {kv_usage * 100:.1f}%, Prefix cache hit rate: 0.0%"
    )
