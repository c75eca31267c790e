# SPDX-License-Identifier: Apache-2.0
"""What concerns every test: what runs beside what."""

import pytest

HEAVY = ("vm", "vllm")
"""Markers of tests that share one slow machine or need most of the processor: one at a time."""


@pytest.hookimpl(tryfirst=True)  # before the parallel run looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slowest, and keep each kind of heavy test on one worker of a parallel run."""
    for item in items:
        for name in HEAVY:
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.xdist_group(name))
    items.sort(key=lambda item: 0 if any(map(item.get_closest_marker, HEAVY)) else 1)
