# SPDX-License-Identifier: Apache-2.0
"""Units: drift, drop-ins, dead order, second supervisors, and what a reboot will do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sparkd.core.config_state import UnitFile
from sparkd.core.doctor.model import Finding, finding
from sparkd.core.doctor.origins import DropIn, effect
from sparkd.core.doctor.ports import ports_of, words_of
from sparkd.core.unit_state import unit_of

TARGET = "vllm.target"
# What the promises of sparkd rest on, and values that keep them.
_RELIED_ON: Mapping[str, frozenset[str]] = {
    "Restart": frozenset({"always"}),
    "Type": frozenset({"exec"}),
    "NotifyAccess": frozenset({"all"}),
    "KillMode": frozenset({"mixed"}),
    "ExecStartPre": frozenset(),
    "ExecStartPost": frozenset(),
    "ExecStopPost": frozenset(),
    "SuccessExitStatus": frozenset(),
    "RestartPreventExitStatus": frozenset(),
    "SendSIGKILL": frozenset({"yes", "true", "1", "on"}),
}
_CAPS = frozenset({"MAX_JOBS", "NVCC_THREADS", "FLASHINFER_NVCC_THREADS"})
_ADDS_ONLY = frozenset({"ExecStartPre", "ExecStartPost", "ExecStopPost"})


class Rival(NamedTuple):
    """Something that also starts a server."""

    who: str
    """'docker container x (restart: always)', '/etc/cron.d/y', a unit's path."""
    text: str
    """The unit's text or the command line; it decides about the port."""
    ports: tuple[int, ...] = ()
    """Ports that are known without the text, as a container's published ones."""


class Facts(NamedTuple):
    """One engine's unit; None where it cannot be seen."""

    name: str
    in_config: bool
    """Whether it has a file in engines.d, were it one with errors."""
    autostart: bool
    port: int | None
    file: UnitFile
    file_detail: str
    """Owner and time of the last change, for people."""
    matches: bool | None
    load_state: str
    unit_file_state: str
    need_reload: bool
    after: Sequence[str]
    """Units that its text orders it behind, as written in /etc."""
    held: str
    """Why it is held; '' when it is not."""
    order: int
    drop_ins: Sequence[DropIn]
    active: bool


class Host(NamedTuple):
    """What lies around the engines' units."""

    target_enabled: bool | None
    stale_drop_ins: Sequence[str]
    """Folders `vllm-X.service.d` without such a unit."""
    missing_units: frozenset[str]
    """Of all units named in After=: those that systemd does not find."""
    retired_units: frozenset[str]
    """Of those: somebody's vLLM servers that are disabled or masked."""
    rivals: Sequence[Rival]
    begun: str
    """The revision that was cut short, in words; '' for none."""


def judge(engines: Sequence[Facts], host: Host) -> Iterator[Finding]:
    """Everything that is wrong with the units, engine by engine."""
    if host.begun:
        yield finding("DOC411", "history", host.begun)
    if host.target_enabled is False and engines:
        yield finding("DOC501", TARGET, "it is not wanted by anything at boot")
    for folder in host.stale_drop_ins:
        yield finding("DOC405", folder, "there is no unit that it belongs to")
    for engine in engines:
        yield from _file(engine)
        yield from _state(engine)
        yield from _drop_ins(engine)
        yield from _order(engine, host)
        yield from _rivals(engine, host)


def _file(engine: Facts) -> Iterator[Finding]:
    unit = unit_of(engine.name)
    match engine.file:
        case UnitFile.EDITED:
            yield finding(
                "DOC401", unit, f"it is no longer what sparkd wrote: {engine.file_detail}"
            )
        case UnitFile.FOREIGN if engine.load_state != "masked":
            yield finding("DOC402", unit, f"no marker of sparkd in it: {engine.file_detail}")
        case _:
            pass
    if not engine.in_config and engine.file in {UnitFile.OURS, UnitFile.EDITED}:
        yield finding("DOC408", unit, f"there is no engines.d/{engine.name}.toml")
    elif engine.in_config and engine.file is UnitFile.ABSENT and engine.load_state != "masked":
        yield finding("DOC409", engine.name, "its unit was never written")
    elif engine.file is UnitFile.OURS and engine.matches is False:
        yield finding("DOC409", engine.name, "the configuration differs from the unit")


def _state(engine: Facts) -> Iterator[Finding]:
    unit = unit_of(engine.name)
    if engine.load_state == "masked":
        yield finding("DOC404", unit, "an administrator masked it")
    if engine.need_reload:
        yield finding("DOC407", unit, "its file or a drop-in is newer than what systemd has loaded")
    if engine.held:
        yield finding("DOC503", engine.name, engine.held)
    ours = engine.file in {UnitFile.OURS, UnitFile.EDITED}
    if ours and engine.in_config and engine.autostart and engine.unit_file_state == "disabled":
        yield finding("DOC502", engine.name, f"{unit} is disabled")


def _drop_ins(engine: Facts) -> Iterator[Finding]:
    for drop_in in engine.drop_ins:
        if _takes_away(drop_in):
            place = f"{drop_in.path}:{drop_in.line}"
            yield finding("DOC403", unit_of(engine.name), f"{place}: {effect(drop_in)}")


def _takes_away(drop_in: DropIn) -> bool:
    key, value = drop_in.key, drop_in.value.strip()
    if key == "Environment":
        return any(word.partition("=")[0] in _CAPS for word in words_of(value))
    if key == "UnsetEnvironment":
        return bool(_CAPS & {word.partition("=")[0] for word in words_of(value)})
    if key not in _RELIED_ON:
        return False
    if key in _ADDS_ONLY:
        return not value  # an empty assignment resets the list; another command only adds to it
    return value not in _RELIED_ON[key] and bool(value or _RELIED_ON[key])


def _order(engine: Facts, host: Host) -> Iterator[Finding]:
    # Edges to sparkd's own engines are not meant: the slot keeps those apart, whichever starts.
    for unit in engine.after:
        if unit in host.missing_units:
            yield finding("DOC406", unit_of(engine.name), f"After={unit}, which does not exist")
        elif unit in host.retired_units:
            reason = f"After={unit}, a server that is not started at boot any more"
            yield finding("DOC406", unit_of(engine.name), reason)


def starts_at_boot(engine: Facts) -> bool:
    """Whether systemd will start this engine at the next boot."""
    return (
        engine.load_state not in {"masked", "not-found"}
        and engine.unit_file_state in {"enabled", "enabled-runtime", "linked"}
        and not engine.held
    )


def boot_order(engines: Sequence[Facts]) -> list[Facts]:
    """The engines that start at boot, in the order in which they get the start slot.

    systemd queues all of them at once; After= among them holds back a start job until the one
    before is done or has failed, and the slot lets one through by `order`, then by arrival.
    """
    left = {unit_of(engine.name): engine for engine in engines if starts_at_boot(engine)}
    ordered: list[Facts] = []
    while left:
        free = [
            one for one in left.values() if not set(one.after) & (left.keys() - {unit_of(one.name)})
        ]
        # A cycle: systemd breaks it by dropping a job; whoever comes first by order is shown first.
        chosen = min(free or left.values(), key=lambda one: (one.order, one.name))
        ordered.append(left.pop(unit_of(chosen.name)))
    return ordered


def at_boot(engine: Facts) -> str:
    """What a reboot does to this engine, in a few words."""
    if engine.load_state == "masked":
        return "stays down: masked"
    if engine.load_state == "not-found" or engine.file is UnitFile.ABSENT:
        return "stays down: its unit is not written"
    if engine.held:
        return f"stays down: held: {engine.held}"
    if not starts_at_boot(engine):
        return f"stays down: {engine.unit_file_state or 'not enabled'}"
    return "starts"


def _rivals(engine: Facts, host: Host) -> Iterator[Finding]:
    if engine.port is None or not engine.in_config:
        return
    for rival in host.rivals:
        if engine.port in rival.ports or engine.port in ports_of(rival.text):
            reason = f"{rival.who} starts a server on port {engine.port} too"
            yield finding("DOC410", engine.name, reason)
