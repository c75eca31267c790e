# SPDX-License-Identifier: Apache-2.0
"""Every rule, by code."""

from collections.abc import Mapping
from typing import Final

from sparkd.core.lint import defects, features, flags, life, memory
from sparkd.core.lint.model import Rule, Severity

UNUSED_IGNORE: Final = Rule(
    code="SPK901",
    severity=Severity.WARNING,
    title="an ignore that ignores nothing",
    why="It would hide the finding on the day it comes true for another reason. Reported only where"
    " the facts that the ignored rule needs are known.",
    instead="remove it from [lint] ignore",
    reference="sparkd.toml(5), lint.ignore",
)

RULES: Final = (
    *life.RULES, *memory.RULES, *flags.RULES, *features.RULES, *defects.RULES, UNUSED_IGNORE,
)  # fmt: skip

BY_CODE: Final[Mapping[str, Rule]] = {rule.code: rule for rule in RULES}
