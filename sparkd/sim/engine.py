# SPDX-License-Identifier: Apache-2.0
"""A vLLM engine without a model: the command line, the start and the end of the main process."""

import errno
import os
import signal
import socket
import sys
import time
from pathlib import Path

from sparkd.sim import texts
from sparkd.sim.apiserver import ApiServer
from sparkd.sim.life import (
    FILE_VARIABLE,
    KINDS,
    PREFIX,
    SETTINGS,
    Kind,
    Life,
    LifeError,
    from_environment,
)
from sparkd.sim.logs import Log
from sparkd.sim.options import USAGE, Options, UsageError, parse

_EX_CONFIG = 78
_UNKNOWN_FLAG = "--simulated-unknown-flag"


def _help() -> str:
    lines = [
        "usage: sparkd-sim-engine serve MODEL [--port PORT] [any flag of vllm serve]",
        "       sparkd-sim-engine install VENV",
        "       sparkd-sim-engine --version | --help",
        "",
        "A simulated vLLM engine: the process tree, log lines, endpoints and metrics of a real",
        "one, without a model or a GPU. `install` writes VENV/bin/vllm. Its life is set by",
        "environment variables, or by the same names in lower case without the prefix in the JSON",
        f"file that {FILE_VARIABLE} names; the file is read at every start and wins.",
        'A serving engine dies on POST /sim/die {"kind": KIND} from the same machine.',
        "",
        "settings (default):",
    ]
    defaults = Life()
    for key, setting in SETTINGS.items():
        default = getattr(defaults, key)
        shown = "" if default is None else f" ({default})"
        lines.append(f"  {PREFIX}{key.upper()}\n      {setting.help}{shown}")
    lines += ["", "kinds of death:"]
    lines += [f"  {kind}\n      {trait.says}" for kind, trait in KINDS.items()]
    return "\n".join(lines)


def _life(log: Log) -> Life | None:
    path = os.environ.get(FILE_VARIABLE)
    text = None
    try:
        if path and Path(path).exists():
            text = Path(path).read_text()
        return from_environment(os.environ, text)
    except LifeError as error:
        problems = error.problems
    except (OSError, UnicodeDecodeError) as error:
        problems = [f"{path}: cannot be read: {error}"]
    for problem in problems:
        log.bare(f"sparkd-sim-engine: {problem}")
    return None


def main(arguments: list[str] | None = None) -> int:
    """Entry point of `sparkd-sim-engine` and `vllm`; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    log = Log("APIServer")
    command = arguments[0] if arguments else "--help"
    if "--help" in arguments or command in {"-h", "help"}:
        log.out(_help())
        return 0
    if command == "install" and len(arguments) == 2:
        return _install(Path(arguments[1]), log)
    life = _life(log)
    if life is None:
        return _EX_CONFIG
    if command in {"--version", "-v"}:
        log.out(life.version)
        return 0
    if command != "serve":
        log.bare(f"{USAGE}\nvllm: error: argument subparser: invalid choice: {command!r}")
        return 2
    return _serve(arguments[1:], life, log)


def _install(venv: Path, log: Log) -> int:
    from sparkd.sim.install import install  # noqa: PLC0415 - not on the way of an engine's start

    try:
        log.out(str(install(venv)))
    except OSError as error:
        log.bare(f"sparkd-sim-engine: {error}")
        return 1
    return 0


def _serve(arguments: list[str], life: Life, log: Log) -> int:
    # The long imports of a real start come before anything else, even before a wrong flag is seen.
    time.sleep(life.import_seconds)
    strict = life.strict_flags
    if life.death is Kind.BAD_FLAG:
        arguments, strict = [*arguments, _UNKNOWN_FLAG], True
    try:
        options = parse(
            arguments, environment_key=os.environ.get("VLLM_API_KEY", ""), strict=strict
        )
    except UsageError as error:
        log.bare(f"{error.usage}\n{error.line}")
        return 2
    log.as_json = options.json_log
    return _end(_start(options, life, log))


def _start(options: Options, life: Life, log: Log) -> int:
    for line in texts.banner(options, life.version):
        log.record(line.level, line.where, line.text)
    try:
        sock = _bind(options, life)
    except OSError as error:
        log.bare(texts.bind_failed(error))
        return 1
    if life.death is Kind.MODEL_MISSING:
        log.bare(texts.model_missing(options.model))
        return 1
    for line in texts.configuration(options):
        log.record(line.level, line.where, line.text)
    return ApiServer(options, life, sock, log).run()


def _bind(options: Options, life: Life) -> socket.socket:
    """Bind the port as vLLM does: before the engine starts, and without listening yet."""
    if life.death is Kind.PORT_IN_USE:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((options.host, options.port))
    return sock


def _end(status: int) -> int:
    """Turn a negative status into the death by that signal, which is what a parent sees."""
    if status >= 0:
        return status
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status


if __name__ == "__main__":
    sys.exit(main())
