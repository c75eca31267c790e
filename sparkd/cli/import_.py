# SPDX-License-Identifier: Apache-2.0
"""sparkctl import: from units, compose files, container lines and scripts to proposed engines."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.adapters.config_files import CONFIG_DIRECTORY, ENGINE_DIRECTORY, HOST_FILE
from sparkd.adapters.launch_files import HostSurroundings, SourceError, documents
from sparkd.adapters.new_files import ChangedError, create, extend
from sparkd.cli import engine_file
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import neutralise
from sparkd.core.config import Source
from sparkd.core.importing import plan as planning
from sparkd.core.importing.model import Refused
from sparkd.core.importing.tenants import appended
from sparkd.core.text import is_plain_path

if TYPE_CHECKING:
    from sparkd.core.importing.plan import Document, Plan
    from sparkd.core.importing.proposal import Proposal
    from sparkd.core.importing.tenants import TenantProposal

SUMMARY = "propose engines from what starts vLLM today; starts, stops and overwrites nothing"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the verb and its options."""
    parser = subparsers.add_parser("import", help=SUMMARY, description=f"{SUMMARY}.")
    _add_arguments(parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE",
        help="a unit file or the name of a unit, a compose file, a quadlet, a launch script, a"
        " README, or a quoted `docker run …` line; - reads one such text from standard input",
    )  # fmt: skip
    parser.add_argument("--write", action="store_true", help="write the files that can be applied")
    parser.add_argument(
        "--replace", action="store_true",
        help="write, apply, and put the unit that was imported out of service; it is kept",
    )  # fmt: skip
    running = parser.add_mutually_exclusive_group()
    running.add_argument(
        "--adopt-running", action="store_true",
        help="with --replace: a unit that runs serves on until the engine is started",
    )  # fmt: skip
    running.add_argument(
        "--stop", action="store_true", help="with --replace: stop a unit that runs"
    )
    parser.add_argument(
        "--undo", action="store_true",
        help="give back the unit that was replaced last, or the one that is named",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    parser.add_argument(
        "--venv", metavar="DIRECTORY",
        help="the Python environment for engines whose source names none on this host, such as"
        " containers",
    )  # fmt: skip
    parser.add_argument(
        "--config-dir", metavar="DIRECTORY", type=Path,
        default=CONFIG_DIRECTORY / ENGINE_DIRECTORY, help="where files are written (%(default)s)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the plan, and write it when asked to.

    Returns:
        0 when every source was understood (and everything asked for was written), 1 when one was
        refused or a file was not written.
    """
    if args.undo:
        from sparkd.cli import handover  # noqa: PLC0415  (it brings systemd along)

        for line in handover.undo(args.sources, args.config_dir):
            print(neutralise(line))
        return Exit.OK
    if not args.sources:
        raise CliError("name what is to be imported", Exit.USAGE)
    if args.venv is not None and not is_plain_path(args.venv):
        raise CliError(
            f"--venv {args.venv}: must be an absolute path of plain characters", Exit.USAGE
        )
    found: list[Document] = []
    missing: list[Refused] = []
    for source in args.sources:
        try:
            found += _documents(source)
        except SourceError as error:
            missing.append(Refused(source, str(error)))
    existing = _existing(args.config_dir)
    plan = planning.make(
        found, HostSurroundings(), venv=args.venv, existing=existing, memory_total=_memory_total()
    )
    plan.refused = [*missing, *plan.refused]
    if args.replace:
        return _replace(args, found, plan)
    outcomes = _outcomes(plan, args.config_dir, write=args.write)
    kept = _keep(plan.tenants, existing[0], write=args.write)
    if args.json:
        print(json.dumps(as_json(plan), indent=2, ensure_ascii=True))
    else:
        for line in _report(plan, outcomes, kept):
            print(neutralise(line))
    done = ("written", "appended")
    unwritten = args.write and not all(outcome.startswith(done) for outcome in (*outcomes, *kept))
    return Exit.FAILURE if plan.refused or unwritten else Exit.OK


def _replace(args: argparse.Namespace, found: "Sequence[Document]", plan: "Plan") -> int:
    from sparkd.cli import handover  # noqa: PLC0415  (it brings systemd along)

    handover.require_root()
    if len(args.sources) != 1 or len(found) > 1:
        raise CliError("--replace hands over one unit at a time: name one", Exit.USAGE)
    wish = handover.wish_of(args)
    document = found[0] if found else planning.Document(args.sources[0], "")
    handover.check(document, plan, wish)
    engine = plan.engines[0]
    said = handover.replace(
        document, plan, wish, lambda: _outcome(engine, args.config_dir, write=True)
    )
    for line in said:
        print(neutralise(line))
    return Exit.OK


def _documents(source: str) -> "list[Document]":
    if source != "-":
        return documents(source)
    return [planning.Document("standard input", sys.stdin.read())]


def _existing(directory: Path) -> list[Source]:
    """Return the configuration that is there; a file that cannot be read counts as empty."""
    surroundings = HostSurroundings()
    host = _host_file(directory)
    files = sorted(directory.glob("[!.]*.toml"))
    return [
        Source(str(host), surroundings.read(str(host)) or ""),
        *(Source(str(file), surroundings.read(str(file)) or "", file.stem) for file in files),
    ]


def _host_file(directory: Path) -> Path:
    """Return the sparkd.toml that belongs to a folder of engines."""
    return directory.parent / HOST_FILE


def _memory_total() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def as_json(plan: "Plan") -> dict[str, list[dict[str, object]]]:
    """Return the stable form for scripts."""
    return {
        "engines": [
            {
                "name": engine.name,
                "config": engine.config,
                "argv": engine.argv,
                "environment": engine.environment,
            }
            for engine in plan.engines
        ],
        "tenants": [
            {
                "name": tenant.name,
                "text": tenant.text,
                "is_known": tenant.is_known,
                "obstacle": tenant.obstacle,
            }
            for tenant in plan.tenants
        ],
        "refused": [dict(refused._asdict()) for refused in plan.refused],
        "notes": [dict(note._asdict()) for note in plan.notes],
    }


def _outcomes(plan: "Plan", directory: Path, *, write: bool) -> list[str]:
    return [_outcome(engine, directory, write=write) for engine in plan.engines]


def _outcome(engine: "Proposal", directory: Path, *, write: bool) -> str:
    obstacle = "`sparkctl apply` would refuse it as it stands; see the notes"
    return engine_file.outcome(
        directory / f"{engine.name}.toml",
        engine.config,
        obstacle="" if engine.is_applicable else obstacle,
        write=write,
    )


def _keep(tenants: "Sequence[TenantProposal]", host: Source, *, write: bool) -> list[str]:
    """Return what becomes of each tenant, and append those that can be written to sparkd.toml."""
    fitting = [tenant for tenant in tenants if not tenant.obstacle]
    outcome = f"would be appended to {host.path} with --write"
    if write and fitting:
        outcome = _append(fitting, host)
    commented = ", as a comment: its memory is not known"
    return [
        f"not written: {tenant.obstacle}"
        if tenant.obstacle
        else outcome + (commented if not tenant.is_known else "")
        for tenant in tenants
    ]


def _append(tenants: "Sequence[TenantProposal]", host: Source) -> str:
    file, before = Path(host.path), str(host.data)
    try:
        if file.exists():
            extend(file, before, appended(before, tenants))
        else:
            create(file, appended("", tenants))
    except (ChangedError, FileExistsError) as error:
        return f"not written: {file}: {error}"
    except OSError as error:
        return f"not written: {file}: {error.strerror}"
    return f"appended to {file}"


def _report(plan: "Plan", outcomes: Sequence[str], kept: Sequence[str]) -> Iterable[str]:
    for engine, outcome in zip(plan.engines, outcomes, strict=True):
        yield f"engine {engine.name} from {engine.origin}"
        yield f"  {outcome}"
        yield f"  starts: {shlex.join(engine.argv)}"
        yield ""
        yield from (f"    {line}".rstrip() for line in engine.config.splitlines())
        yield ""
    for tenant, outcome in zip(plan.tenants, kept, strict=True):
        yield f"tenant {tenant.name} from {tenant.origin}"
        yield f"  {outcome}"
        yield ""
        yield from (f"    {line}".rstrip() for line in tenant.text.splitlines())
        yield ""
    for refused in plan.refused:
        yield f"refused: {refused.source}: {refused.reason}"
    if plan.refused:
        yield ""
    for note in plan.notes:
        place = f"{note.source}:{note.line}" if note.line else note.source
        yield f"{note.code} {place}: {note.text}"
    if not plan.engines and not plan.refused:
        yield "nothing to import"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb by itself: `python3 -m sparkd.cli.import_ SOURCE…`."""
    parser = argparse.ArgumentParser(prog="sparkctl import", description=f"{SUMMARY}.")
    _add_arguments(parser)
    try:
        return run(parser.parse_args(argv))
    except CliError as error:
        print(f"sparkctl: {neutralise(error.message)}", file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
