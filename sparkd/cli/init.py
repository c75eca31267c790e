# SPDX-License-Identifier: Apache-2.0
"""`sparkctl init`: propose engines for the models and environments that are here.

It asks nothing and overwrites nothing: it prints what it would write, and --write writes it.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparkd.adapters import inventory, lint_facts, proc
from sparkd.adapters.config_files import CONFIG_DIRECTORY, ENGINE_DIRECTORY, read_sources
from sparkd.cli import engine_file
from sparkd.cli.answers import print_json
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import neutralise
from sparkd.core import config as core_config
from sparkd.core import scaffold
from sparkd.core.config import Config, ConfigErrors, Source
from sparkd.core.scaffold import Environment, Machine, Proposal, Refused
from sparkd.core.text import is_plain_path

_ANY = "0.0.0.0"  # noqa: S104  (asked about, not bound)


class Plan(NamedTuple):
    """What is proposed and why the rest is not."""

    proposals: Sequence[Proposal]
    refused: Sequence[Refused]
    environments: Sequence[Environment]
    errors: Sequence[str]
    """What apply would say against the proposals; nothing is written then."""


def run(args: Namespace) -> int:
    """Propose, and write with --write.

    Returns:
        0 when something is proposed and, if asked for, written; else 1.

    Raises:
        CliError: the present configuration has errors, or an argument is wrong.
    """
    plan = make([Path(text).absolute() for text in args.directories], args.venv)
    folder = CONFIG_DIRECTORY / ENGINE_DIRECTORY
    outcomes = [_outcome(one, plan, folder, write=args.write) for one in plan.proposals]
    if args.json:
        print_json(_json(plan, outcomes))
    else:
        print("\n".join(_shown(plan, outcomes)))
    written = all(outcome.startswith("written") for outcome in outcomes)
    return Exit.OK if plan.proposals and (written or not args.write) else Exit.FAILURE


def make(extra: Sequence[Path], venv: str | None) -> Plan:
    """Look around and propose.

    Raises:
        CliError: the present configuration has errors, or `venv` is no environment with vLLM.
    """
    for folder in extra:
        if not folder.is_dir():
            raise CliError(f"{folder} is no folder", Exit.USAGE)
    environments = _chosen(venv) if venv else inventory.environments(extra)
    sources, config = _existing()
    total = proc.memory().total
    machine = Machine(
        total,
        config.host.reserve.of(total),
        sum(int(e.memory_utilization * total) for e in config.engines if e.autostart),
        config.host.tenants_of(total),
    )
    known = {engine.model for engine in config.engines}
    models = [model for model in inventory.models(extra) if model.path not in known]
    ports = {config.host.metrics.port, *(engine.port for engine in config.engines)}
    names = {engine.name for engine in config.engines}
    while True:
        proposals, refused = scaffold.propose(
            models, environments, machine, names=names, ports=ports
        )
        # Somebody may listen who is no engine; only the few that are proposed are looked at.
        listening = {one.port for one in proposals if proc.listeners(_ANY, one.port)}
        if not listening:
            break
        ports |= listening
    return Plan(proposals, refused, environments, _errors(sources, proposals, total))


def _chosen(venv: str) -> list[Environment]:
    version = lint_facts.installed_version(Path(venv)) if is_plain_path(venv) else None
    if version is None:
        raise CliError(f"--venv {venv}: no vLLM is installed there", Exit.USAGE)
    return [Environment(venv, version)]


def _existing() -> tuple[list[Source], Config]:
    sources: list[Source] = []
    try:
        if CONFIG_DIRECTORY.is_dir():
            sources = read_sources(CONFIG_DIRECTORY)
        return sources, core_config.load(sources, proc.memory().total)
    except ConfigErrors as refused:
        lines = [*map(str, refused.errors), "correct what is there before you add to it"]
        raise CliError("\n".join(lines), Exit.CONFIG) from None


def _errors(sources: Sequence[Source], proposals: Sequence[Proposal], total: int) -> list[str]:
    """What the checks of apply say about the proposals beside what is there."""
    folder = CONFIG_DIRECTORY / ENGINE_DIRECTORY
    new = [Source(str(folder / f"{one.name}.toml"), one.text, one.name) for one in proposals]
    try:
        core_config.load([*sources, *new], total)
    except ConfigErrors as refused:
        return list(map(str, refused.errors))
    return []


def _outcome(proposal: Proposal, plan: Plan, folder: Path, *, write: bool) -> str:
    obstacle = ""
    if plan.errors:
        obstacle = "`sparkctl apply` would refuse it"
    elif not plan.environments:
        obstacle = "no environment with vLLM was found; name one with --venv"
    path = folder / f"{proposal.name}.toml"
    return engine_file.outcome(path, proposal.text, obstacle=obstacle, write=write)


def _json(plan: Plan, outcomes: Sequence[str]) -> dict[str, Any]:
    return {
        "engines": [
            {
                "name": one.name,
                "model": one.model.path,
                "port": one.port,
                "gpu_memory_utilization": one.utilization,
                "weights_bytes": one.model.checkpoint.weights,
                "kv_cache_bytes": one.kv_cache,
                "max_model_len": one.context,
                "autostart": one.autostart,
                "config": one.text,
                "outcome": outcome,
            }
            for one, outcome in zip(plan.proposals, outcomes, strict=True)
        ],
        "refused": [one._asdict() for one in plan.refused],
        "environments": [one._asdict() for one in plan.environments],
        "errors": list(plan.errors),
    }


def _shown(plan: Plan, outcomes: Sequence[str]) -> Iterator[str]:
    for one in plan.environments:
        yield neutralise(f"environment {one.venv} has vLLM {one.version}")
    for proposal, outcome in zip(plan.proposals, outcomes, strict=True):
        yield neutralise(f"engine {proposal.name} for {proposal.model.path}")
        yield neutralise(f"  {outcome}")
        yield from (neutralise(f"    {line}").rstrip() for line in proposal.text.splitlines())
    for refused in plan.refused:
        yield neutralise(f"no engine for {refused.path}: {refused.reason}")
    yield from map(neutralise, plan.errors)
    if not plan.proposals and not plan.refused:
        yield "no model was found; name folders to look in: sparkctl init DIRECTORY"
    if not plan.environments:
        yield "no environment with vLLM was found; name one with --venv"
