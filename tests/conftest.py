# SPDX-License-Identifier: Apache-2.0
"""What concerns every test: on which systemd it runs, and what runs beside what."""

import pytest
from hypothesis import HealthCheck, settings

# How long one example takes says something about the machine and nothing about the product.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

HEAVY = ("vm", "vllm")
"""Markers of tests that share one slow machine or much memory: one at a time of each."""
USUAL_SUITE = {"suite": "trixie", "field": "bookworm"}
"""By the fixture that is one for each systemd: a container, a virtual machine."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Offer the whole matrix."""
    parser.addoption(
        "--every-systemd",
        action="store_true",
        help="run every test in a container on every systemd, not only those marked for it",
    )
    parser.addoption("--long", action="store_true", help="run the tests marked long, too")


@pytest.hookimpl(tryfirst=True)  # before a parallel run looks at the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the systemds, begin with the slowest, and run one heavy test of a kind at a time."""
    kept = [item for item in items if config.getoption("every_systemd") or _runs(item)]
    if not config.getoption("long"):
        kept = [item for item in kept if item.get_closest_marker("long") is None]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    for item in kept:
        if mark := _heavy(item):
            item.add_marker(pytest.mark.xdist_group(mark))
    items[:] = sorted(kept, key=lambda item: not _heavy(item))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to run side by side what must not: some versions of pytest ignore xdist's groups."""
    if session.config.getoption("loadgroup", False):
        stray = [item.nodeid for item in session.items if _heavy(item) and "@" not in item.nodeid]
        if stray:
            raise pytest.UsageError(f"xdist's groups do not work with this pytest: {stray[0]}")


def _runs(item: pytest.Item) -> bool:
    """Whether the test runs on its systemd: what differs between versions runs on each of them."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    usual = all(params.get(fixture, suite) == suite for fixture, suite in USUAL_SUITE.items())
    return usual or item.get_closest_marker("each_systemd") is not None


def _heavy(item: pytest.Item) -> str:
    """The marker that makes it heavy; '' for the others."""
    return next((name for name in HEAVY if item.get_closest_marker(name)), "")
