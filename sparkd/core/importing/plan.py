# SPDX-License-Identifier: Apache-2.0
"""From sources to a plan: what each source is, the engines it yields, their names and order."""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sparkd.core.config import ConfigErrors, Source, load
from sparkd.core.importing import (
    codes,
    compose,
    engine_name,
    launch_arguments,
    pasted,
    quadlet,
    tenants,
    unit,
)
from sparkd.core.importing.command import follow_script
from sparkd.core.importing.model import (
    Context,
    Findings,
    Launch,
    Note,
    Origin,
    RefusalError,
    Refused,
    Surroundings,
    TenantError,
)
from sparkd.core.importing.proposal import Proposal, propose
from sparkd.core.importing.tenants import TenantProposal
from sparkd.core.importing.unit_text import Fragment
from sparkd.core.importing.vllm_args import ServeTable

_SECTION = re.compile(
    r"^\s*\[(Service|Container|Timer|Pod|Kube|Image|Volume|Network)\]\s*$", re.MULTILINE
)
_OPAQUE = "an opaque wrapper"
_COMMAND = re.compile(
    r"\s*(?:sudo\s+)?(?:\S*/)?(?:docker|podman|nerdctl|docker-compose|podman-compose|vllm)\s"
)

_HOLDS_TEXTS = frozenset({".sh", ".bash", ".md", ".markdown", ".py"})
_NO_LAUNCH_FILE = "a {} file is no launch file that is known"
_BY_SUFFIX = {
    ".yml": "compose", ".yaml": "compose", ".md": "markdown", ".markdown": "markdown",
    ".py": "a Python program is not run to see what it starts: import the `vllm serve` line that"
    " it ends in",
    **{suffix: _NO_LAUNCH_FILE.format(suffix) for suffix in (".json", ".toml", ".ini", ".conf")},
}  # fmt: skip
_TO_SCRIPT: Mapping[str, Callable[[str], str]] = {
    "script": str, "markdown": pasted.markdown, "session": pasted.session,
}  # fmt: skip


class Document(NamedTuple):
    """A source as it was found on disk or on the command line.

    `name` is the unit's name where it is a unit (with its instance); `owner` is the user of a user
    unit or of a script; `is_command` marks a text that was itself given as the source.
    """

    path: str
    text: str
    name: str = ""
    drop_ins: tuple[Fragment, ...] = ()
    owner: str = ""
    is_command: bool = False


@dataclass(slots=True)
class Plan:
    """What the import would do."""

    engines: list[Proposal] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    tenants: list[TenantProposal] = field(default_factory=list)


def make(
    documents: Sequence[Document], surroundings: Surroundings, *, venv: str | None = None,
    existing: Sequence[Source] = (), memory_total: int | None = None,
) -> Plan:  # fmt: skip
    """Return the plan for all sources.

    Args:
        documents: the sources, in the order in which they were named.
        surroundings: the files, users and programs that they refer to.
        venv: the Python environment for engines whose source names none on this host.
        existing: the configuration that is there already.
        memory_total: bytes of physical memory; None leaves the engines' shares unchecked.
    """
    findings = Findings()
    for document in documents:
        before = len(findings.launches)
        try:
            read(document, surroundings, findings)
        except RecursionError:
            findings.refused.append(Refused(document.path, "it nests too deeply"))
        for index in range(before, len(findings.launches)):
            launch = findings.launches[index]
            if not launch.origin.line:
                findings.launches[index] = replace(launch, origin=Origin(launch.origin.source))
    plan = Plan()
    _propose_all(findings, plan, surroundings, venv)
    _check_together(plan, findings, existing, memory_total)
    plan.refused = findings.refused
    plan.tenants = tenants.propose(findings.tenants, existing, memory_total, findings.notebook)
    plan.notes = findings.notebook.notes
    return plan


def read(document: Document, surroundings: Surroundings, findings: Findings) -> None:
    """Add the launches of one source to `findings`."""
    kind = kind_of(document)
    origin = Origin(document.path)
    context = Context(
        origin=origin, notebook=findings.notebook, surroundings=surroundings,
        directory="" if document.is_command else posixpath.dirname(document.path),
    )  # fmt: skip
    fragment = Fragment(document.path, document.text)
    if kind == "unit":
        name = document.name or posixpath.basename(document.path)
        source = unit.Source(name, fragment, document.drop_ins, document.owner)
        unit.read(source, surroundings, findings)
    elif kind == "quadlet":
        home = surroundings.home(document.owner) if document.owner else None
        quadlet.read(fragment, document.drop_ins, surroundings, findings, home)
    elif kind == "compose":
        found = compose.read(document.text, document.path, context)
        findings.launches += found.launches
        findings.refused += found.refused
        findings.tenants += found.tenants
    elif kind in _TO_SCRIPT:
        script = document._replace(text=_TO_SCRIPT[kind](document.text))
        _read_script(script, context, findings)
    else:
        stem = posixpath.splitext(posixpath.basename(document.path))[0]
        error = TenantError(origin, kind) if kind.endswith(_OPAQUE) else RefusalError(origin, kind)
        findings.refuse(error, names=(stem,))


def kind_of(document: Document) -> str:
    """Return what a source is, or the reason why it is nothing that can be imported."""
    suffix = posixpath.splitext(document.path)[1]
    if document.is_command:
        return "script"
    # A script or a README may hold the text of a unit that it writes or shows.
    is_other = document.text.startswith("#!") or suffix in _HOLDS_TEXTS
    kind = "" if is_other else _by_sections(document.text, suffix)
    return kind or _BY_SUFFIX.get(suffix) or _by_text(document.text)


def _by_sections(text: str, suffix: str) -> str:
    sections = set(_SECTION.findall(text))
    if "Timer" in sections or suffix == ".timer":
        return (
            "a timer starts no engine itself: import the service that it starts, and disable a"
            " timer that only keeps vLLM alive"
        )
    if "Container" in sections:
        return "quadlet"
    if "Service" in sections:
        return "unit"
    if sections or suffix in {".kube", ".pod"}:
        return "this quadlet describes no container: import its .container files"
    return "it has no [Service] section" if suffix == ".service" else ""


def _by_text(text: str) -> str:
    if "\0" in text[:4096]:
        return "it is a binary file"
    first = text.lstrip()[:200].split("\n")[0]
    if first.startswith("#!") and not re.search(r"\b(?:ba|da|z|k)?sh\b", first):
        return f"its interpreter is no shell ({first}): {_OPAQUE}"
    if not text.strip():
        return "it is empty"
    return "session" if pasted.is_session(text) else "script"


def is_command(text: str) -> bool:
    """Return whether a SOURCE is a command line and not the name of a file."""
    return bool(_COMMAND.match(text))


def _read_script(document: Document, context: Context, findings: Findings) -> None:
    home = context.surroundings.home(document.owner) if document.owner else None
    stem = posixpath.splitext(posixpath.basename(document.path))[0]
    names = () if document.is_command else (stem,)
    if home and re.search(r"~/|\$\{?HOME\b", document.text):
        text = f"~ and $HOME are taken to be {home}, of {document.owner}, whose script it is"
        findings.notebook.add(Origin(document.path), codes.DERIVED, text)
    context = replace(
        context, home=home, directory="" if document.is_command else context.directory
    )
    try:
        launches = follow_script(document.text, document.path, 1, None, context)
    except RefusalError as error:
        findings.refuse(error, names=() if document.is_command else (stem,))
        if error.origin.source != document.path:
            last = findings.refused[-1]
            findings.refused[-1] = last._replace(source=f"{document.path} ({error.origin})")
        return
    findings.launches += [
        replace(launch, names=(*launch.names, *_last(names))) for launch in launches
    ]


def _last(names: tuple[str, ...]) -> tuple[str, ...]:
    # A script is often called after what it does; what it serves is the better name.
    return tuple(name for name in names if not re.match(r"(?:start|run|serve|launch)\b", name))


def _propose_all(
    findings: Findings, plan: Plan, surroundings: Surroundings, venv: str | None
) -> None:
    taken: set[str] = set()
    ready: list[tuple[Launch, ServeTable, str]] = []
    for launch in findings.launches:
        try:
            table = launch_arguments.read(launch, findings.notebook, surroundings.read)
        except RefusalError as error:
            label = launch.names[0] if launch.names else ""
            findings.refuse(error, label, names=launch.names, unit=_system_unit(launch))
            continue
        name = launch.names[0] if launch.exact else ""
        name = name or engine_name.choose(launch, table, taken, findings.notebook)
        taken.add(name)
        ready.append((launch, table, name))
    orders = _orders(ready, findings)
    for launch, table, name in ready:
        try:
            proposed = propose(
                launch, table, name, findings.notebook, order=orders.get(name), venv=venv,
                matching=surroundings.matching,
            )  # fmt: skip
        except RefusalError as error:
            findings.refuse(error, name, names=(name,), unit=_system_unit(launch))
            continue
        plan.engines.append(proposed)
        if launch.unit == f"vllm-{name}.service" and not launch.exact:
            findings.notebook.add(
                Origin(launch.origin.source), codes.SAME_UNIT,
                f"sparkd will write {launch.unit} too and never overwrites it: before `sparkctl"
                " apply`, disable the old unit and move its file away",
            )  # fmt: skip


def _system_unit(launch: Launch) -> str:
    return "" if launch.is_users else launch.unit


def _orders(
    ready: Sequence[tuple[Launch, ServeTable, str]], findings: Findings
) -> dict[str, tuple[int, str]]:
    """Return an order for each of several engines: dependencies first, else as they were given."""
    movable = [item for item in ready if not item[0].exact]
    if len(movable) < 2:
        return {}
    by_unit = {launch.unit: name for launch, _, name in movable if launch.unit}
    by_unit |= {launch.names[0]: name for launch, _, name in movable if launch.names}
    earlier = {
        name: {by_unit[other] for other in launch.after if other in by_unit} - {name}
        for launch, _, name in movable
    }
    sequence: list[str] = []
    while len(sequence) < len(movable):
        free = [n for _, _, n in movable if n not in sequence and earlier[n] <= set(sequence)]
        rest = [n for _, _, n in movable if n not in sequence]
        sequence.append((free or rest)[0])  # a cycle is cut where it was given first
    orders: dict[str, tuple[int, str]] = {}
    for launch, _, name in movable:
        number = 10 * (sequence.index(name) + 1)
        others = ", ".join(sorted(earlier[name]))
        why = f"after {others}, as today" if others else "in the order of the sources"
        orders[name] = (number, why)
        findings.notebook.add(launch.origin, codes.ORDER, f"{name} gets order {number}: {why}")
    return orders


def _check_together(
    plan: Plan, findings: Findings, existing: Sequence[Source], memory_total: int | None
) -> None:
    """Check the proposals against one another and against the configuration that is there."""
    clashes: dict[str, str] = {}
    ports: dict[int, str] = {}
    served: dict[str, str] = {}
    present = {source.engine for source in existing}
    try:
        for engine in load(list(existing), None).engines:
            ports[engine.port] = engine.name
            served |= dict.fromkeys(engine.served_names, engine.name)
    except ConfigErrors:
        pass  # what is wrong there is `sparkctl apply`'s to say, and no reason to refuse a proposal
    for proposed in plan.engines:
        if proposed.name in present:
            proposed.is_applicable = False
            text = f"{proposed.name}.toml exists already and is not overwritten"
            findings.notebook.add(proposed.origin, codes.EXISTS, text)
            continue
        config = proposed.engine
        if config is None:
            continue
        if other := ports.get(config.port):
            clashes[proposed.name] = f"port {config.port} is that of {other}"
        ports.setdefault(config.port, config.name)
        for name in config.served_names:
            if other := served.get(name):
                clashes[proposed.name] = f"the served name {name} is that of {other}"
            served.setdefault(name, config.name)
    for proposed in plan.engines:
        if reason := clashes.get(proposed.name):
            proposed.is_applicable = False
            findings.notebook.add(proposed.origin, codes.CLASH, f"{proposed.name}: {reason}")
    if memory_total is not None:
        _check_memory(plan, findings, existing, memory_total)


def _check_memory(
    plan: Plan, findings: Findings, existing: Sequence[Source], memory_total: int
) -> None:
    sources = [
        *existing,
        *(
            Source(f"{item.name}.toml", item.config, item.name)
            for item in plan.engines
            if item.is_applicable
        ),
    ]
    try:
        load(sources, memory_total)
    except ConfigErrors as refused:
        for error in refused.errors:
            if "over-commits" in error.rule:
                place = next(
                    (p.origin for p in plan.engines if error.path.startswith(p.name)), None
                )
                findings.notebook.add(place or Origin(error.path), codes.MEMORY, error.rule)
