# SPDX-License-Identifier: Apache-2.0
"""Asks the machine, the environments and the checkpoints what lint wants to know.

Whatever cannot be read is left out: lint is silent where it does not know. The only program that is
run is `vllm serve --help=all` of an engine's own environment, as the engine's user, and its answer
is kept until the environment changes: vLLM imports for 12 s or more.
"""

import contextlib
import hashlib
import json
import os
import pwd
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkd.adapters import model_files
from sparkd.core.config_model import Config, EngineConfig
from sparkd.core.lint.checkpoint import Checkpoint, read_checkpoint
from sparkd.core.lint.facts import EngineFacts, Facts, HostFacts
from sparkd.core.lint.vllm_help import Flag, parse_help

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+!_-]{0,63}\Z")
_MAX_HELP_BYTES = 4 << 20
_HELP_SECONDS = 180
# `vllm serve` of 0.11 to 0.33 has 200 flags or more; with fewer the text is another one.
_FEWEST_FLAGS = 50
_CACHE_FORMAT = 1

Tell = Callable[[str], None]


def gather(
    config: Config,
    memory_total: int | None,
    *,
    this_machine: bool,
    ask: bool,
    tell: Tell = lambda _: None,
) -> Facts:
    """Return what lint may know.

    Args:
        config: the configuration, accepted; its files belong to root or to the caller.
        memory_total: bytes of memory to judge by, None for unknown.
        this_machine: whether the configuration is meant for this machine; if not, only
            `memory_total` is known of the host.
        ask: whether a vllm may be run whose answer is not kept already.
        tell: called with one line before something that takes long.
    """
    host = _host(memory_total) if this_machine else HostFacts(memory_total)
    flags: dict[str, Mapping[str, Flag] | None] = {}
    for engine in config.engines:
        # Another engine's user may be able to run what this one's cannot.
        if flags.get(engine.venv) is None:
            flags[engine.venv] = _flags(engine, ask=ask, tell=tell)
    engines = {
        engine.name: EngineFacts(
            version=installed_version(Path(engine.venv)),
            flags=flags[engine.venv],
            checkpoint=_checkpoint(engine.model),
        )
        for engine in config.engines
    }
    return Facts(host, engines)


def _host(memory_total: int | None) -> HostFacts:
    memory = _meminfo()
    gpus = _gpus()
    return HostFacts(
        memory_total=memory_total,
        memory_available=None if _an_engine_runs() else memory.get("MemAvailable"),
        swap_total=memory.get("SwapTotal"),
        min_free=_min_free(),
        gpu=gpus[0] if gpus else None,
        gpu_count=len(gpus),
    )


def _meminfo() -> dict[str, int]:
    fields: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            fields[name] = int(rest.split()[0]) * 1024
    return fields


def _min_free() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/vm/min_free_kbytes").read_text(encoding="ascii")) * 1024
    return None


def _gpus() -> list[str]:
    """Return the names of the GPUs that the NVIDIA driver lists; they need no nvidia-smi."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            models = [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
            names += models[:1]
    return names


def _an_engine_runs() -> bool:
    """Whether a process of any vLLM engine is there; then MemAvailable says nothing of a boot."""
    for file in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            name = file.read_text(encoding="utf-8", errors="replace").strip()
            if name == "vllm" or name.startswith("VLLM::"):
                return True
    return False


def _checkpoint(model: str) -> Checkpoint | None:
    if not model.startswith("/"):
        return None
    files = model_files.look(Path(model))
    if files is None or not files.config:
        return None
    quantization = model_files.read_json(Path(model) / "hf_quant_config.json")
    # Of an incomplete checkpoint the size is not known.
    shards = 0 if files.missing else files.files
    return read_checkpoint(files.config, quantization, files.whole_weights, shards)


def installed_version(venv: Path) -> str | None:
    """Return vLLM's version from the package metadata of an environment.

    None when there is none, or more than one, as after an upgrade that broke off.
    """
    metadata = _metadata(venv)
    if metadata is None:
        return None
    with contextlib.suppress(OSError):
        text = metadata.read_text(encoding="utf-8", errors="replace")
        for line in text.partition("\n\n")[0].splitlines():
            if line.startswith("Version:"):
                version = line.partition(":")[2].strip()
                return version if _VERSION.match(version) else None
    return None


def _metadata(venv: Path) -> Path | None:
    with contextlib.suppress(OSError):
        found = list(venv.glob("lib/python3*/site-packages/vllm-*.dist-info/METADATA"))
        if len(found) == 1:
            return found[0]
    return None


def _flags(engine: EngineConfig, *, ask: bool, tell: Tell) -> Mapping[str, Flag] | None:
    fingerprint = _fingerprint(Path(engine.venv))
    if fingerprint is None:
        return None
    kept = _cache_file(fingerprint)
    text = _read_kept(kept, fingerprint)
    if text is None:
        if not ask:
            return None
        tell(f"asking {engine.executable} for its flags; the answer is kept")
        text = _ask(engine)
        if text is None:
            return None
        _keep(kept, fingerprint, text)
    flags = parse_help(text)
    return flags if len(flags) >= _FEWEST_FLAGS else None


def _fingerprint(venv: Path) -> str | None:
    """Return what changes when vLLM in an environment does; None where there is no vLLM."""
    metadata = _metadata(venv)
    if metadata is None:
        return None
    parts = [str(venv)]
    for file in (venv / "bin/vllm", venv / "bin/python", metadata, metadata.parent / "RECORD"):
        try:
            status = file.stat()
        except OSError:
            parts.append("-")
        else:
            parts.append(f"{file}:{status.st_ino}:{status.st_mtime_ns}:{status.st_size}")
    if parts[1] == "-":
        return None
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def _cache_file(fingerprint: str) -> Path:
    if os.geteuid() == 0:
        directory = Path("/var/cache/sparkd")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        directory = Path(base if base.startswith("/") else Path.home() / ".cache") / "sparkd"
    return directory / f"vllm-help-{fingerprint[:32]}.json"


def _read_kept(file: Path, fingerprint: str) -> str | None:
    kept = model_files.read_json(file)
    text = kept.get("help")
    same = kept.get("format") == _CACHE_FORMAT and kept.get("fingerprint") == fingerprint
    return text if same and isinstance(text, str) else None


def _keep(file: Path, fingerprint: str, text: str) -> None:
    """Write the answer whole or not at all; a cache that cannot be written costs only time."""
    value = {"format": _CACHE_FORMAT, "fingerprint": fingerprint, "help": text}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as stream:
            json.dump(value, stream)
        Path(stream.name).replace(file)


def _ask(engine: EngineConfig) -> str | None:
    """Return the help of the engine's vllm; None when it cannot be run as the engine's user."""
    for option in ("--help=all", "--help"):
        text = _run([engine.executable, "serve", option], engine)
        if text is not None and len(parse_help(text)) >= _FEWEST_FLAGS:
            return text
    return None


def _run(argv: list[str], engine: EngineConfig) -> str | None:
    with _home(engine.user) as (home, identity):
        if home is None:
            return None
        environment = {
            "HOME": home,
            "PATH": f"{engine.venv}/bin:/usr/local/bin:/usr/bin:/bin",
            # argparse wraps at this width.
            "COLUMNS": "500",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
        }
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=home,
                start_new_session=True,
                **identity,
            )
        except OSError:
            return None
        try:
            output: bytes = process.communicate(timeout=_HELP_SECONDS)[0]
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)
        if process.returncode != 0 or len(output) > _MAX_HELP_BYTES:
            return None
        return str(output, "utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process and of its children, which share its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextlib.contextmanager
def _home(user: str) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield an empty home and the arguments that make a process the engine's user's.

    Root never runs an environment's code as root, unless the engine itself does. The home is None
    when there is no such user.
    """
    if os.geteuid() != 0:
        with tempfile.TemporaryDirectory(prefix="sparkctl-") as home:
            yield home, {}
        return
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        yield None, {}
        return
    with tempfile.TemporaryDirectory(prefix="sparkctl-", ignore_cleanup_errors=True) as home:
        os.chown(home, entry.pw_uid, entry.pw_gid)
        groups = os.getgrouplist(user, entry.pw_gid)
        yield home, {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}
