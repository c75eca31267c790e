# SPDX-License-Identifier: Apache-2.0
"""Whether an engine runs what its configuration says, and if not, what to do about it."""

from enum import StrEnum
from typing import NamedTuple


class ConfigState(StrEnum):
    """The public names; scripts depend on them."""

    CURRENT = "current"
    PENDING = "pending"
    DRIFTED = "drifted"
    UNMANAGED = "unmanaged"


class UnitFile(StrEnum):
    """Whose text the unit file holds."""

    ABSENT = "absent"
    FOREIGN = "foreign"
    """It carries no marker of sparkd's."""
    EDITED = "edited"
    """It carries the marker, but its text is no longer what sparkd wrote."""
    OURS = "ours"


class ConfigFacts(NamedTuple):
    """What is compared; None means that it could not be seen, and then nothing is claimed."""

    in_config: bool | None
    file: UnitFile | None
    matches: bool | None
    """Whether the unit file is exactly what the configuration renders to."""
    hash_on_disk: str | None = None
    """Launch hash that the unit file would give the next start."""
    hash_running: str | None = None
    """Launch hash that the running invocation was started with."""


class ConfigJudgement(NamedTuple):
    """A state and why; the reason is empty only for `current`."""

    state: ConfigState
    reason: str


def judge(facts: ConfigFacts, engine: str) -> ConfigJudgement:
    """Compare configuration, unit file and running process, in the order in which they flow."""
    if facts.file is UnitFile.FOREIGN:
        return ConfigJudgement(ConfigState.UNMANAGED, "the unit was not written by sparkd")
    if facts.file is UnitFile.EDITED:
        fix = "`sparkctl apply --dry-run` shows the difference, `--force` takes it back"
        return ConfigJudgement(ConfigState.DRIFTED, f"the unit file was edited by hand; {fix}")
    if facts.in_config is False:
        fix = "`sparkctl apply --prune` removes its unit"
        return ConfigJudgement(ConfigState.PENDING, f"gone from the configuration; {fix}")
    if facts.file is UnitFile.ABSENT:
        why = "not applied yet; `sparkctl apply` writes its unit"
        return ConfigJudgement(ConfigState.PENDING, why)
    if facts.matches is False:
        why = "the configuration differs from the unit; `sparkctl apply` writes it"
        return ConfigJudgement(ConfigState.PENDING, why)
    if _runs_another(facts):
        fix = f"`sparkctl restart {engine}` uses it"
        return ConfigJudgement(ConfigState.PENDING, f"runs with an earlier configuration; {fix}")
    return ConfigJudgement(ConfigState.CURRENT, "")


def _runs_another(facts: ConfigFacts) -> bool:
    known = bool(facts.hash_running) and bool(facts.hash_on_disk)
    return known and facts.hash_running != facts.hash_on_disk
