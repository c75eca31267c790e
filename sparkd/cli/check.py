# SPDX-License-Identifier: Apache-2.0
"""`sparkctl check`: every error in a configuration, and then what lint finds in it.

It needs neither the daemon nor systemd. Lint is skipped when the configuration is refused.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkd.adapters import lint_facts
from sparkd.adapters.config_files import CONFIG_DIRECTORY, credential_errors, read_sources
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import neutralise
from sparkd.core.config import Config, ConfigError, ConfigErrors, Source, load
from sparkd.core.lint import docs, registry
from sparkd.core.lint.engine import counting, has_errors, lint
from sparkd.core.lint.model import Finding, Severity
from sparkd.core.quantities import parse_size

if TYPE_CHECKING:
    # argparse has no public name for what add_subparsers() returns.
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001


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
    parser.add_argument(
        "--no-ask",
        action="store_true",
        help="do not run the environments' vllm for its flags; use answers kept from earlier",
    )
    parser.add_argument(
        "--explain",
        nargs="?",
        const="",
        metavar="CODE",
        help="explain a lint rule and check nothing; without a code, list the rules",
    )
    parser.add_argument("--document", action="store_true", help="print every lint rule as Markdown")
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def run(args: argparse.Namespace) -> int:
    """Check and print.

    Returns 78 (EX_CONFIG) when the configuration is refused, 1 when lint finds an error that is not
    ignored, else 0.
    """
    if args.document:
        print(docs.markdown(), end="")
        return Exit.OK
    if args.explain is not None:
        print(_explanation(args.explain))
        return Exit.OK
    this_machine = args.memory_total is None
    memory_total = (_this_machines_memory() if this_machine else args.memory_total) or None
    try:
        sources, config = _load(args.path, memory_total)
    except ConfigErrors as refused:
        if args.json:
            errors = [_error(error) for error in refused.errors]
            _print_json({"ok": False, "errors": errors, "findings": []})
        else:
            for error in refused.errors:
                print(error, file=sys.stderr)
        return Exit.CONFIG
    facts = lint_facts.gather(
        config, memory_total, this_machine=this_machine, ask=not args.no_ask, tell=_tell
    )
    findings = lint(sources, config, facts)
    failed = has_errors(findings)
    if args.json:
        _print_json(
            {
                "ok": not failed,
                "errors": [],
                "findings": [_finding(finding) for finding in findings],
                "engines": [_engine(config, index) for index in range(len(config.engines))],
            }
        )
    else:
        for finding in counting(findings):
            print(neutralise(_line(finding)), file=sys.stderr)
        _print_table(config, findings)
    return Exit.FAILURE if failed else Exit.OK


def _explanation(code: str) -> str:
    if not code:
        return docs.overview()
    rule = registry.BY_CODE.get(code.upper())
    if rule is None:
        message = f"{code}: no lint rule has this code; 'sparkctl check --explain' lists them"
        raise CliError(message, Exit.USAGE)
    return docs.explain(rule)


def _load(path: Path, memory_total: int | None) -> tuple[list[Source], Config]:
    sources = read_sources(path)
    config = load(sources, memory_total)
    if errors := credential_errors(config):
        raise ConfigErrors(errors)
    return sources, config


def _tell(line: str) -> None:
    """Say what takes long, to somebody who is watching."""
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


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


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "engine": finding.engine or None,
        "file": finding.file,
        "line": finding.line,
        "key": finding.key,
        "sentence": finding.sentence,
        "instead": finding.instead,
        "reference": finding.reference,
        "ignored": finding.ignored or None,
    }


def _line(finding: Finding) -> str:
    place = f"{finding.file}:{finding.line}"
    what = f"{finding.code} {finding.severity}: {finding.key}: {finding.sentence}"
    return f"{place}: {what} (instead: {finding.instead})"


def _print_json(value: object) -> None:
    # ASCII: a path may hold bytes that no terminal and no encoding takes.
    print(json.dumps(value, indent=2, ensure_ascii=True))


def _verdict(findings: Sequence[Finding]) -> str:
    """Return "OK", or how many findings there are of each kind."""
    counts = dict.fromkeys(Severity, 0)
    for finding in counting(findings):
        counts[finding.severity] += 1
    parts = [_plural(counts[Severity.ERROR], "error"), _plural(counts[Severity.WARNING], "warning")]
    if counts[Severity.INFO]:
        parts.append(f"{counts[Severity.INFO]} info")
    ignored = sum(1 for finding in findings if finding.ignored)
    told = [part for part in parts if part] or ["OK"]
    return ", ".join([*told, f"{ignored} ignored"] if ignored else told)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}" if count else ""


def _print_table(config: Config, findings: Sequence[Finding]) -> None:
    count = len(config.engines)
    print(f"{count} engine{'' if count == 1 else 's'}, {_verdict(findings)}")
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
    try:
        return run(parser.parse_args())
    except CliError as error:
        print(f"sparkctl: {error.message}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
