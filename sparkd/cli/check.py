# SPDX-License-Identifier: Apache-2.0
"""`sparkctl check`: every error in a configuration, without a daemon and without systemd."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkd.adapters.config_files import CONFIG_DIRECTORY, credential_errors, read_sources
from sparkd.core.config import Config, ConfigError, ConfigErrors, load
from sparkd.core.quantities import parse_size

if TYPE_CHECKING:
    # argparse has no public name for what add_subparsers() returns.
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001

EX_OK = 0
EX_CONFIG = 78


def add_parser(subparsers: "Subparsers") -> None:
    """Add the `check` verb to sparkctl's parser."""
    parser = subparsers.add_parser("check", help="check the configuration", description=__doc__)
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's own arguments to `parser`."""
    parser.add_argument(
        "path",
        nargs="?",
        type=Path,
        default=CONFIG_DIRECTORY,
        metavar="PATH",
        help="a directory like /etc/sparkd, or a single file (default: %(default)s)",
    )
    parser.add_argument(
        "--memory-total",
        type=_memory_total,
        default=None,
        metavar="SIZE",
        help='check against a machine with this much memory, such as 121G; "none" leaves'
        " over-commitment unchecked (default: this machine's)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """Check and print; return 0 or, when the configuration is refused, 78 (EX_CONFIG)."""
    memory_total = _this_machines_memory() if args.memory_total is None else args.memory_total
    try:
        config = _load(args.path, memory_total or None)
    except ConfigErrors as refused:
        if args.json:
            _print_json({"ok": False, "errors": [_error(error) for error in refused.errors]})
        else:
            for error in refused.errors:
                print(error, file=sys.stderr)
        return EX_CONFIG
    if args.json:
        engines = [_engine(config, index) for index in range(len(config.engines))]
        _print_json({"ok": True, "errors": [], "engines": engines})
    else:
        _print_table(config)
    return EX_OK


def _load(path: Path, memory_total: int | None) -> Config:
    config = load(read_sources(path), memory_total)
    if errors := credential_errors(config):
        raise ConfigErrors(errors)
    return config


def _memory_total(text: str) -> int:
    if text == "none":
        return 0
    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a size nor none") from None


def _this_machines_memory() -> int:
    """Return MemTotal in bytes, 0 where it cannot be read."""
    try:
        with Path("/proc/meminfo").open(encoding="ascii") as meminfo:
            for line in meminfo:
                if line.startswith("MemTotal:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _error(error: ConfigError) -> dict[str, Any]:
    return {
        "file": error.path,
        "line": error.line or None,
        "key": error.key or None,
        "value": error.value or None,
        "rule": error.rule,
        "hint": error.hint or None,
    }


def _engine(config: Config, index: int) -> dict[str, Any]:
    engine = config.engines[index]
    return {
        "name": engine.name,
        "unit": engine.unit,
        "model": engine.model,
        "host": engine.host,
        "port": engine.port,
        "order": engine.order,
        "memory_utilization": engine.memory_utilization,
        "memory_max": str(engine.memory_max or config.host.memory_max),
        "autostart": engine.autostart,
        "served_names": list(engine.served_names),
    }


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _print_table(config: Config) -> None:
    count = len(config.engines)
    print(f"{count} engine{'' if count == 1 else 's'}, OK")
    if not config.engines:
        return
    rows = [("ENGINE", "PORT", "ORDER", "MEMORY", "MODEL")]
    rows += [
        (e.name, str(e.port), str(e.order), f"{e.memory_utilization:.0%}", e.model)
        for e in config.engines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[-1]]))


def main() -> int:
    """Run the verb alone: `python3 -m sparkd.cli.check`."""
    parser = argparse.ArgumentParser(prog="sparkctl check", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
