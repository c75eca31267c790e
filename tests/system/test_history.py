# SPDX-License-Identifier: Apache-2.0
"""History and rollback under a real systemd: bytes, TOML, outcomes, and kill -9 on the way."""

import json
from typing import Any

import pytest

from sparkd.core.events import Event
from tests.system.lab import Lab

pytestmark = pytest.mark.system

UNIT = "/etc/systemd/system/vllm-solo.service"
TOML = "/etc/sparkd/engines.d/solo.toml"
KILLED = """
import os, signal, sys
from sparkd.adapters import applying
from sparkd.adapters.systemctl_manager import Systemctl
left = int(sys.argv[1])
def killing(function):
    def wrapped(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapped
for name in ("fsync", "rename", "link", "unlink"):
    setattr(os, name, killing(getattr(os, name)))
for name in ("enable", "disable", "reload", "start"):
    setattr(Systemctl, name, killing(getattr(Systemctl, name)))
applying.rollback(Systemctl(), 1, applying.Flags(prune=True), "root")
"""


def history(lab: Lab) -> list[dict[str, Any]]:
    rows = json.loads(lab.ctl("history", "--json").stdout)
    assert isinstance(rows, list)
    return rows


def test_a_bad_apply_is_taken_back_and_the_engine_never_stops(lab: Lab) -> None:
    lab.engine("solo")
    lab.ctl("apply", "--why", "first")
    lab.ctl("start", "solo", "--wait")
    unit, toml = lab.machine.read(UNIT), lab.machine.read(TOML)
    invocation = lab.one("solo")["invocation_id"]

    lab.engine("solo", order=9, serve="max-model-len = 17")
    lab.engine("extra")
    lab.ctl("apply", "--why", "a bad idea")
    assert lab.machine.read(UNIT) != unit
    done = lab.ctl("rollback", "--why", "it was bad")
    assert "TOML was brought back too" in done.stdout
    assert lab.machine.read(UNIT) == unit
    assert lab.machine.read(TOML) == toml
    show = lab.machine.show("vllm-extra.service", "LoadState")
    assert show == {"LoadState": "not-found"}
    assert lab.machine.show("vllm-solo.service", "NeedDaemonReload") == {"NeedDaemonReload": "no"}
    assert lab.one("solo")["invocation_id"] == invocation
    assert lab.one("solo")["config"] == "current"
    assert "nothing to do" in lab.apply()

    rows = history(lab)
    assert [(row["number"], row["kind"], row["why"]) for row in rows] == [
        (3, "rollback", "it was bad"), (2, "apply", "a bad idea"), (1, "apply", "first"),
    ]  # fmt: skip
    assert rows[2]["author"] == "root"
    diff = lab.ctl("diff", "2").stdout
    assert "+max-model-len = 17" in diff
    assert "+++ b/vllm-extra.service" in diff


def test_the_next_start_is_measured_beside_the_revision(lab: Lab) -> None:
    lab.engine("solo")
    lab.apply()
    lab.ctl("start", "solo", "--wait")

    def measured() -> list[dict[str, Any]]:
        return list(history(lab)[0]["outcomes"])

    rows = lab.machine.wait_until(measured, "the start is recorded beside the revision")
    assert rows[0]["engine"] == "solo"
    assert rows[0]["invocation_id"] == lab.one("solo")["invocation_id"]
    assert rows[0]["figures"]["seconds"] > 0
    lab.engine("solo", order=9)
    lab.apply()
    assert history(lab)[0]["figures_before"]["solo"]["seconds"] == rows[0]["figures"]["seconds"]
    lab.ctl("note", "1", "this was the first")
    lab.ctl("note", "1", "it was not")
    assert [note["text"] for note in history(lab)[1]["notes"]] == [
        "this was the first", "it was not",
    ]  # fmt: skip


def test_a_rollback_killed_at_any_step_is_repaired_by_the_next_daemon(lab: Lab) -> None:
    lab.engine("solo")
    lab.apply()
    old = (lab.machine.read(UNIT), lab.machine.read(TOML))
    lab.engine("solo", order=9)
    lab.apply()
    new = (lab.machine.read(UNIT), lab.machine.read(TOML))
    invocation = ""
    seen = set()
    for step in range(1, 60):
        lab.machine.run("systemctl stop sparkd")
        argv = ["/usr/bin/python3", "-c", KILLED, str(step)]
        done = lab.machine.run(argv, check=False)
        lab.machine.run("systemctl start sparkd")
        now = (lab.machine.read(UNIT), lab.machine.read(TOML))
        assert now in (old, new), step
        show = lab.machine.show("vllm-solo.service", "NeedDaemonReload", "InvocationID")
        assert show == {"NeedDaemonReload": "no", "InvocationID": invocation}
        last = history(lab)[0]
        assert last["state"] in {"applied", "abandoned"}, step
        seen.add((now == old, last["state"]))
        if done.returncode == 0:
            break
        if now == old:
            lab.engine("solo", order=9)
            lab.apply()
    else:
        pytest.fail("the loop did not reach the last step")
    assert {(False, "applied"), (False, "abandoned"), (True, "applied")} <= seen
    said = [entry["MESSAGE"] for entry in lab.machine.journal(f"MESSAGE_ID={Event.APPLIED}")]
    assert any("was cut short and is now complete" in line for line in said)
    assert any("was cut short and is abandoned" in line for line in said)


def test_drift_is_shown_with_its_time_and_owner(lab: Lab) -> None:
    lab.engine("solo")
    lab.apply()
    lab.machine.run(["sed", "-i", "s/^Restart=always/Restart=no/", UNIT])
    said = lab.ctl("diff").stdout
    assert "vllm-solo.service was changed " in said
    assert "it belongs to root" in said
    assert "+Restart=no" in said


def test_a_read_only_etc_leaves_the_old_state_whole(lab: Lab) -> None:
    lab.engine("solo")
    lab.apply()
    before = lab.machine.read(UNIT)
    lab.engine("solo", order=9)
    # In a namespace of its own, so that nothing has to be undone.
    done = lab.machine.run(
        "systemctl stop sparkd; unshare --mount sh -c"
        " 'mount --bind /etc /etc && mount -o remount,bind,ro /etc && sparkctl apply'",
        check=False,
    )
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr
    assert lab.machine.read(UNIT) == before
    assert history(lab)[0]["state"] == "abandoned"
    assert lab.apply()
    assert lab.machine.read(UNIT) != before


def test_the_group_may_read_the_history_and_strangers_may_not(lab: Lab) -> None:
    lab.engine("solo")
    lab.apply()
    lab.machine.run("useradd stranger && useradd --groups sparkd member")
    run = lab.machine.run
    assert "vllm-solo.service" in run(["sparkctl", "history"], user="member").stdout
    for user, words in (("stranger", ["history"]), ("member", ["note", "1", "x"])):
        done = run(["sparkctl", *words], check=False, user=user)
        assert done.returncode == 77, (user, done.stderr)
    assert run(["sparkctl", "rollback"], check=False, user="member").returncode == 77
