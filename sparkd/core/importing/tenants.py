# SPDX-License-Identifier: Apache-2.0
"""What is refused as an engine and takes memory all the same: its table for sparkd.toml."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparkd.core.config import ConfigErrors, Source, load
from sparkd.core.config_reader import parse
from sparkd.core.importing import codes, toml_text
from sparkd.core.importing.model import Notebook, Origin, TenantError, without_secrets
from sparkd.core.schema import ENGINE_NAME

_UNKNOWN = (
    "# What it takes of the memory is not known from there: compare MemAvailable with and without"
    "\n# it, write that, and remove the comment signs."
)


@dataclass(slots=True)
class TenantProposal:
    """One tenant as proposed. `obstacle` says why it cannot be written; '' when it can."""

    name: str
    text: str
    """The lines for sparkd.toml; commented out while the memory is not known."""
    origin: Origin
    is_known: bool
    obstacle: str = ""


def propose(
    found: Sequence[TenantError], existing: Sequence[Source], memory_total: int | None,
    notebook: Notebook,
) -> list[TenantProposal]:  # fmt: skip
    """Return a proposal for each of `found`, but for those that are counted already.

    Args:
        found: what was refused.
        existing: the configuration that is there, as texts.
        memory_total: bytes of physical memory; None leaves the sum unchecked.
        notebook: where notes go.
    """
    host = next((source for source in existing if source.engine is None), Source("sparkd.toml", ""))
    document = parse(host)
    broken = f"to be mended first: {document.errors[0]}" if document.unreadable else ""
    counted = document.section("tenants")
    units = {
        unit: name
        for name, table in counted.items()
        if isinstance(table, dict) and isinstance(unit := table.get("unit"), str)
    }
    taken = set(counted)
    proposals: list[TenantProposal] = []
    for error in found:
        name = _name(error.names, taken)
        if other := units.get(error.unit):
            text = f"it is counted already, as tenants.{other} in sparkd.toml"
            notebook.add(error.origin, codes.TENANT, text)
            continue
        if _head(error) in str(host.data).split("\n"):
            text = "sparkd.toml has a table for it already, or the comment with one"
            notebook.add(error.origin, codes.TENANT, text)
            continue
        taken.add(name)
        proposal = TenantProposal(
            name, _text(name, error), error.origin, is_known=error.share is not None
        )
        proposals.append(proposal)
        proposal.obstacle = broken or _obstacle(proposals, host, existing, memory_total)
        notebook.add(error.origin, codes.TENANT, _note(proposal, error))
    return proposals


def appended(text: str, proposals: Sequence[TenantProposal]) -> str:
    """sparkd.toml with the tables of proposals at its end; what is there stays as it is."""
    parts = [text.rstrip("\n") + "\n" if text.strip() else text.strip()]
    parts += [proposal.text for proposal in proposals]
    return "\n".join(part for part in parts if part)


def _name(names: Sequence[str], taken: set[str]) -> str:
    slugs = [re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") for name in names]
    name = next((slug for slug in slugs if ENGINE_NAME.match(slug)), "tenant")
    number = 2
    free = name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free


def _text(name: str, error: TenantError) -> str:
    share = error.share
    lines = [
        f"[tenants.{name}]",
        toml_text.assignment("memory", f"{share.percent}%", share.why) if share else 'memory = ""',
    ]
    if error.unit:
        lines.append(toml_text.assignment("unit", error.unit))
    head = [_head(error)]
    if share is None:
        head.append(_UNKNOWN)
        lines = [f"#{line}" for line in lines]
    return "\n".join([*head, *lines]) + "\n"


def _head(error: TenantError) -> str:
    """The comment by which a table is known again."""
    text = without_secrets(f"From {error.origin}: {error.reason}")
    return "# " + "".join(c if c.isprintable() else "?" for c in text)


def _note(proposal: TenantProposal, error: TenantError) -> str:
    if error.share is None:
        text = (
            "sparkd does not run it; to have its memory counted, find out how much it takes and"
            f" write [tenants.{proposal.name}] in sparkd.toml"
        )
    else:
        text = (
            f"sparkd does not run it; with [tenants.{proposal.name}] memory ="
            f' "{error.share.percent}%" in sparkd.toml it is counted ({error.share.why})'
        )
    return f"{text}; {proposal.obstacle}" if proposal.obstacle else text


def _obstacle(
    proposals: Sequence[TenantProposal], host: Source, existing: Sequence[Source],
    memory_total: int | None,
) -> str:  # fmt: skip
    """Why the last of the proposals cannot stand in sparkd.toml; '' when it can."""
    last = proposals[-1]
    old = str(host.data)
    before = [other for other in proposals[:-1] if not other.obstacle]
    engines = [source for source in existing if source.engine is not None]
    known = _errors(host, appended(old, before), engines, memory_total)
    new = _errors(host, appended(old, [*before, last]), engines, memory_total)
    return next((f"the loader would say: {error}" for error in new if error not in known), "")


def _errors(
    host: Source, text: str, engines: Sequence[Source], memory_total: int | None
) -> list[str]:
    try:
        load([Source(host.path, text), *engines], memory_total)
    except ConfigErrors as refused:
        return [str(error) for error in refused.errors]
    return []
