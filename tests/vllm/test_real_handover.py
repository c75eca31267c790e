# SPDX-License-Identifier: Apache-2.0
"""A unit of somebody's that runs a real vLLM is imported while it serves; nothing restarts."""

import json

import pytest

from tests.vllm.real_lab import RealLab

pytestmark = [pytest.mark.vllm, pytest.mark.long]

PORT = 8190


def test_a_real_engine_serves_on_through_the_hand_over(real_lab: RealLab) -> None:
    lab = real_lab
    lab.ports["mine"] = PORT
    # What the lab gives its own engines, as an operator would have written it by hand.
    lab.real_engine("mine")
    lab.apply()
    text = lab.machine.read("/etc/systemd/system/vllm-mine.service")
    kept = [line for line in text.split("\n") if line.startswith(("Environment=", "User="))]
    kept = [line for line in kept if "LAUNCH_HASH" not in line]
    start = text.partition("ExecStart=")[2].partition("ExecStartPost=")[0].rstrip()
    lab.machine.run("rm /etc/sparkd/engines.d/mine.toml")
    lab.ctl("apply", "--prune")
    unit = "\n".join(
        ["[Service]", f"ExecStart={start}", *kept, "WorkingDirectory=/var/cache/vllm/mine",
         "Restart=on-failure", "[Install]", "WantedBy=multi-user.target", ""]
    )  # fmt: skip
    lab.machine.run("install -d -o vllm -g vllm /var/cache/vllm/mine")
    lab.push("/etc/systemd/system/mine.service", unit)
    lab.machine.run("systemctl daemon-reload && systemctl enable --now mine.service")
    lab.machine.wait_until(lambda: lab.serves("mine"), "the old unit serves", limit=900)
    pid = lab.machine.show("mine.service", "MainPID")["MainPID"]

    lab.ctl("import", "--replace", "--adopt-running", "mine.service")
    shown = lab.machine.show("mine.service", "MainPID", "NRestarts", "ActiveState")
    assert shown == {"MainPID": pid, "NRestarts": "0", "ActiveState": "active"}
    assert lab.complete("mine").stdout.startswith("200")

    lab.ctl("restart", "mine", "--wait", limit=900)
    assert lab.one("mine")["state"] == "ready"
    assert lab.machine.show("mine.service", "ActiveState") == {"ActiveState": "inactive"}
    assert lab.complete("mine").stdout.startswith("200")

    # What the start showed stands beside the revision that brought it.
    def measured() -> list[dict[str, object]]:
        return list(json.loads(lab.ctl("history", "--json").stdout)[0]["outcomes"])

    figures = lab.machine.wait_until(measured, "the start is measured")[0]["figures"]
    assert figures["kv_cache_tokens"] > 0
    assert figures["max_concurrency"] > 1
