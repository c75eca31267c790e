# SPDX-License-Identifier: Apache-2.0
"""The plan of memory: what is promised to whom, and what that leaves."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from sparkd.core.config_model import Config, Tenant
from sparkd.core.doctor.model import Finding, finding
from sparkd.core.quantities import format_size
from sparkd.core.unit_state import UnitFacts

_AT_BOOT = frozenset({"enabled", "enabled-runtime", "static", "indirect", "generated"})


class Claim(NamedTuple):
    """One part of the plan."""

    who: str
    """'host.reserve', 'engine x', 'tenant y'."""
    bytes: int
    counted: bool
    """False of an engine that is started in place of others."""
    note: str


class Plan(NamedTuple):
    """All of it; bytes."""

    total: int
    claims: Sequence[Claim]

    @property
    def left(self) -> int:
        """What nobody is promised; negative when the engines do not fit together."""
        return self.total - sum(claim.bytes for claim in self.claims if claim.counted)


def plan(config: Config, total: int, units: Mapping[str, UnitFacts]) -> Plan:
    """The plan of a configuration on a host with so many bytes of memory.

    Args:
        config: with the engines and the tenants.
        total: MemTotal.
        units: the tenants' units by name; one that could not be looked at is missing.
    """
    claims = [Claim("host.reserve", config.host.reserve.of(total), counted=True, note="")]
    for tenant in config.host.tenants:
        size, note = tenant.memory.of(total), _seen(tenant, units)
        claims.append(Claim(f"tenant {tenant.name}", size, counted=True, note=note))
    for engine in config.engines:
        share = engine.memory_utilization
        note = f"{share:g} of all" if engine.autostart else f"{share:g} of all, in place of others"
        claims.append(Claim(f"engine {engine.name}", int(share * total), engine.autostart, note))
    return Plan(total, claims)


def _seen(tenant: Tenant, units: Mapping[str, UnitFacts]) -> str:
    if tenant.unit is None:
        return "no unit is named"
    seen = units.get(tenant.unit)
    if seen is None:
        return f"{tenant.unit} could not be looked at"
    if seen.load_state == "not-found":
        return f"{tenant.unit} does not exist"
    runs = seen.active_state in {"active", "activating", "reloading", "deactivating"}
    starts = seen.unit_file_state in _AT_BOOT
    boot = "may start at boot" if starts else "does not start at boot"
    return f"{tenant.unit} {'runs' if runs else 'does not run now'}, {boot}"


def judge(tenants: Sequence[Tenant], units: Mapping[str, UnitFacts]) -> Iterator[Finding]:
    """Tenants whose unit is not there."""
    for tenant in tenants:
        seen = units.get(tenant.unit or "")
        if seen is not None and seen.load_state == "not-found":
            yield finding("DOC412", f"tenant {tenant.name}", f"there is no {tenant.unit}")


def to_json(shown: Plan | None) -> Mapping[str, object] | None:
    """The plan in `sparkctl doctor --json`; None while the configuration is refused."""
    if shown is None:
        return None
    return {
        "total_bytes": shown.total,
        "claims": [claim._asdict() for claim in shown.claims],
        "left_bytes": shown.left,
    }


def lines(shown: Plan) -> Iterator[str]:
    """The plan for a person, a line each."""
    for claim in shown.claims:
        note = f" ({claim.note})" if claim.note else ""
        yield f"{claim.who} {format_size(claim.bytes)}{note}"
    yield f"left of {format_size(shown.total)}: {format_size(max(0, shown.left))}"
