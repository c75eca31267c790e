# SPDX-License-Identifier: Apache-2.0
"""What an engine started by hand leaves behind is found and ended; what is somebody's is not."""

import json
from typing import Any

import pytest

from tests.system.lab import Lab

pytestmark = pytest.mark.system
VLLM = "/usr/libexec/sparkd/sim/bin/vllm"


@pytest.fixture
def by_hand(lab: Lab) -> Lab:
    """A `vllm serve` in a shell, as before there was sparkd."""
    lab.ports["hand"] = 8300
    lab.machine.run(["mkdir", "-p", "/models/hand"])
    lab.life("hand", load_seconds=0.5, linger_seconds=300.0)
    serve = f"{VLLM} serve /models/hand --port 8300 --served-model-name hand"
    lab.machine.start_background(
        ["env", "SPARKD_SIM_LIFE_FILE=/etc/sparkd-sim/hand.json", "bash", "-c", f"{serve}; true"]
    )
    lab.machine.wait_until(lambda: lab.serves("hand"), "it serves")
    return lab


def orphans(lab: Lab) -> list[dict[str, Any]]:
    return list(json.loads(lab.ctl("orphans", "--json").stdout))


def test_an_engine_in_a_shell_is_shown_and_left_alone(by_hand: Lab) -> None:
    seen = orphans(by_hand)
    assert {"VLLM::EngineCor"} <= {row["name"] for row in seen}
    assert not any(row["left_behind"] for row in seen)
    by_hand.ctl("orphans", "--kill", "--yes")
    assert by_hand.serves("hand")


def test_an_engine_core_without_its_server_is_found_and_ended(by_hand: Lab) -> None:
    by_hand.die("hand", "orphan")
    machine = by_hand.machine

    def left() -> list[dict[str, Any]]:
        return [row for row in orphans(by_hand) if row["left_behind"]]

    (core,) = machine.wait_until(left, "the engine core is left behind")
    assert core["name"] == "VLLM::EngineCor"
    assert core["rss_bytes"] > 0
    refused = by_hand.ctl("orphans", "--kill", check=False)
    assert refused.returncode == 2, "nobody to ask"
    assert left()
    assert "ended 1 of 1" in by_hand.ctl("orphans", "--kill", "--yes").stderr
    assert orphans(by_hand) == []


def test_nothing_in_a_unit_is_an_orphan(lab: Lab) -> None:
    lab.engine("one", life={"load_seconds": 0.5})
    lab.apply()
    lab.ctl("start", "one", "--wait")
    assert orphans(lab) == []
    assert lab.status()["host"]["orphans"] == 0
    lab.ctl("orphans", "--kill", "--yes")
    assert lab.one("one")["state"] == "ready"
