# SPDX-License-Identifier: Apache-2.0
"""current, pending, drifted, unmanaged: each by the first thing that differs."""

import pytest

from sparkd.core.config_state import ConfigFacts, ConfigState, UnitFile, judge

ALL_WELL = ConfigFacts(
    in_config=True, file=UnitFile.OURS, matches=True, hash_on_disk="x", hash_running="x"
)


@pytest.mark.parametrize(
    ("facts", "expected", "word"),
    [
        (ALL_WELL, ConfigState.CURRENT, ""),
        (ALL_WELL._replace(hash_running=None), ConfigState.CURRENT, ""),
        (ALL_WELL._replace(hash_running="y"), ConfigState.PENDING, "sparkctl restart e"),
        (ALL_WELL._replace(matches=False), ConfigState.PENDING, "sparkctl apply"),
        (ALL_WELL._replace(file=UnitFile.ABSENT), ConfigState.PENDING, "sparkctl apply"),
        (ALL_WELL._replace(in_config=False), ConfigState.PENDING, "--prune"),
        (ALL_WELL._replace(file=UnitFile.EDITED), ConfigState.DRIFTED, "--force"),
        (ALL_WELL._replace(file=UnitFile.FOREIGN), ConfigState.UNMANAGED, "not written by sparkd"),
        # A hand-edited unit stays drifted even when its text or its TOML is gone.
        (
            ALL_WELL._replace(file=UnitFile.EDITED, matches=False, in_config=False),
            ConfigState.DRIFTED,
            "--force",
        ),
        # What could not be seen is not claimed to differ.
        (ConfigFacts(None, None, None), ConfigState.CURRENT, ""),
        (ALL_WELL._replace(in_config=None, matches=None), ConfigState.CURRENT, ""),
    ],
)
def test_what_differs_first_decides(facts: ConfigFacts, expected: ConfigState, word: str) -> None:
    state, reason = judge(facts, "e")
    assert state is expected
    assert word in reason
    assert bool(reason) is (expected is not ConfigState.CURRENT)
