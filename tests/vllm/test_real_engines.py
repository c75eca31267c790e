# SPDX-License-Identifier: Apache-2.0
"""The founding incident, live: a real vLLM (CPU build), a real systemd, and sparkd between."""

import json
import time

import pytest

from tests.system.lab import overlaps
from tests.vllm.real_lab import RealLab

pytestmark = pytest.mark.vllm


def test_the_crash_that_exits_0(real_lab: RealLab) -> None:
    lab = real_lab
    lab.real_engine("healthy", order=10)
    # The default dtype, and heads of a size that this build's attention does not support: the
    # engine gets ready, and without the warm-up the operator's first request is what kills it.
    lab.real_engine("doomed", order=20, dtype="", warmup=False, checkpoint=lab.doomed)
    lab.apply()
    lab.ctl("start", "healthy", "doomed", "--wait", limit=1200)
    neighbour = lab.one("healthy")["invocation_id"]
    boot = lab.boot("healthy")
    assert boot["vllm_version"].startswith("0.32")
    assert boot["kv_cache_tokens"] > 0
    assert boot["max_concurrency"] > 1
    assert boot["seconds"] > 1

    for count in (1, 2, 3):
        life = lab.until("doomed", "ready", limit=600)["invocation_id"]
        lab.complete("doomed", check=False)
        deaths = lab.until_dead("doomed", count, limit=300)
        death = deaths[0]
        assert len(deaths) == count
        assert death["invocation_id"] == life
        assert death["exit_code"] == 0
        assert death["result"] == "success"
        assert death["requested"] is False
        assert death["class"] not in {"", "unknown"}
        assert death["evidence"]
        assert lab.one("healthy")["invocation_id"] == neighbour
        assert lab.one("healthy")["ready"] is True
        assert death["action"] == ("restart" if count < 3 else "hold")

    held = lab.until("doomed", "held")
    assert "3" in held["reason"]
    lab.ctl("restart", "doomed", "--wait", limit=900)
    assert lab.one("doomed")["state"] == "ready"
    assert lab.one("doomed")["restarts"]["used"] == 0

    lab.machine.run(["systemctl", "stop", "vllm-healthy.service"])
    lab.end_of("healthy", neighbour)
    stopped = lab.until("healthy", "stopped")
    assert stopped["last_death"]["requested"] is True
    assert stopped["last_death"]["exit_code"] == 0
    time.sleep(7)
    assert lab.one("healthy")["state"] == "stopped"
    assert len(lab.incidents("doomed")) == 3


def test_two_real_and_three_simulated_start_one_at_a_time(real_lab: RealLab) -> None:
    lab = real_lab
    for at, name in enumerate(["real-a", "real-b"]):
        lab.real_engine(name, order=10 * at)
    for name in ["sim-a", "sim-b", "sim-c"]:
        lab.engine(name, order=15)
    names = ["real-a", "real-b", "sim-a", "sim-b", "sim-c"]
    lab.apply()
    lab.start_all(*names)
    for name in names:
        lab.until(name, "ready", limit=900)
    lab.machine.reboot()
    for name in names:
        lab.until(name, "ready", limit=900)
    intervals = lab.intervals()
    assert len(intervals) == 10
    assert not overlaps(intervals)


def test_an_engine_with_a_key_and_an_embedding_engine(real_lab: RealLab) -> None:
    lab = real_lab
    canary = "canary-3f1c9e-key"
    lab.machine.push("/etc/sparkd/secrets/key", canary, mode=0o600)
    lab.real_engine("locked", order=1, credentials={"VLLM_API_KEY": "/etc/sparkd/secrets/key"})
    lab.real_engine("embedder", order=2, serve='runner = "pooling"\nconvert = "embed"')
    lab.apply()
    lab.ctl("start", "locked", "embedder", "--wait", limit=1200)
    assert lab.one("locked")["state"] == "ready"
    assert lab.one("embedder")["state"] == "ready"
    assert lab.complete("locked", check=False).stdout.startswith("401")
    shown = [
        lab.ctl("status", "--json").stdout,
        lab.machine.run(["systemctl", "show", "vllm-locked.service"]).stdout,
        lab.machine.run(["systemctl", "cat", "vllm-locked.service"]).stdout,
        lab.machine.run("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '", check=False).stdout,
        json.dumps(lab.machine.journal()),
        lab.machine.run(["curl", "-sf", "http://127.0.0.1:9837/metrics"]).stdout,
    ]
    assert all(text and canary not in text for text in shown)
