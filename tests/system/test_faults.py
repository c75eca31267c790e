# SPDX-License-Identifier: Apache-2.0
"""Faults of docs/faults.md that only a real systemd can show, and what attackers may not do."""

import json

import pytest

from sparkd.core.events import Event
from sparkd.helpers import await_ready
from tests.system.lab import HOST, Lab, unit

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]

KEY = "canary-key-7f3a91c2"
TOKEN = "hf_canaryTOKEN00112233445566"
SECRETS = """\
[credentials]
VLLM_API_KEY = "/etc/sparkd/secrets/key"
HF_TOKEN = "/etc/sparkd/secrets/token"
"""
EVERYTHING_ANYBODY_COULD_BE_SHOWN = r"""
exec 2>&1
systemctl show vllm-locked.service; systemctl cat vllm-locked.service sparkd.service
systemctl status --lines=1000 vllm-locked.service
journalctl --output=export --all
sparkctl status --json; sparkctl status locked; sparkctl incidents --json; sparkctl check
sparkctl incident $(sparkctl incidents --json | grep -om1 "[0-9a-f]\{32\}")
sparkctl logs locked --lines=all; sparkctl apply --dry-run
busctl --system call io.github.sparkd.Manager1 /io/github/sparkd/Manager1 \
    io.github.sparkd.Manager1 Status
busctl --system introspect org.freedesktop.systemd1 \
    /org/freedesktop/systemd1/unit/vllm_2dlocked_2eservice --full
curl -s http://127.0.0.1:9837/metrics
cat /var/lib/sparkd/evidence/*
for file in /proc/[0-9]*/cmdline; do tr '\0' ' ' <$file; done
"""
FILES = (
    "/var/lib/sparkd /run/sparkd /etc/systemd /run/systemd/system /var/log /var/cache /tmp"
    " /etc/sparkd/sparkd.toml /etc/sparkd/engines.d"
)


def test_a_secret_shows_nowhere(lab: Lab) -> None:
    machine = lab.machine
    for name, text in (("key", KEY), ("token", TOKEN)):
        machine.push(f"/etc/sparkd/secrets/{name}", text + "\n", mode=0o600)
    lab.engine("locked", extra=SECRETS, life={"load_seconds": 0.5})
    lab.apply()
    lab.ctl("start", "locked", "--wait")
    pid = lab.show("locked", "MainPID")["MainPID"]
    environment = machine.read(f"/proc/{pid}/environ")
    assert KEY in environment, "the engine has them"
    assert TOKEN in environment
    asked = f"curl -s -o /dev/null -w '%{{http_code}}' http://127.0.0.1:{lab.ports['locked']}"
    assert machine.out(f"{asked}/v1/models") == "401", "the key is in force, and the gate knew it"
    machine.run(["systemctl", "start", "sparkd-evidence@locked.service"])
    lab.die("locked", "cuda-illegal-instruction")
    death = lab.until_dead("locked")[0]
    assert "illegal-instruction" in death["class"], "its log is read for all that"
    lab.until("locked", "ready")
    # A slip that shows a secret: sparkd says which key is wrong, and not what is in it.
    machine.push(
        "/etc/sparkd/engines.d/slip.toml",
        f'model = "/m"\nport = 8999\n[env]\nHF_TOKEN = "{TOKEN}"\nX = "{TOKEN}"\n',
    )
    refused = lab.ctl("apply", check=False)
    assert refused.returncode == 78
    machine.run(["systemctl", "reload", "sparkd"])
    shown = refused.stdout + refused.stderr
    shown += machine.run(EVERYTHING_ANYBODY_COULD_BE_SHOWN, check=False).stdout
    assert "vllm:num_requests_running" in shown, "the evidence was among it"
    assert "sparkd_engine_ready" in shown
    assert "slip.toml:4: env.HF_TOKEN" in shown
    machine.run(["rm", "/etc/sparkd/engines.d/slip.toml"])
    assert [row for row in shown.splitlines() if KEY in row or TOKEN in row] == []
    found = machine.out(f"grep -rlaE '{KEY}|{TOKEN}' {FILES}", check=False)
    assert found == ""
    assert machine.run(["cat", f"/proc/{pid}/environ"], user="nobody", check=False).returncode


def test_what_is_installed_is_closed_to_others(lab: Lab) -> None:
    machine = lab.machine
    lab.engine("solo", life={"load_seconds": 0.3})
    lab.apply()
    lab.ctl("start", "solo", "--wait")
    lab.die("solo", "core-killed")
    lab.until_dead("solo")
    lab.until("solo", "ready")
    state = "/run/sparkd /var/lib/sparkd"
    assert machine.out(f"find {state} -perm /o+rwx ! -type l") == "", "others have no right at all"
    assert machine.out(f"find {state} -perm /g+w ! -type l") == ""
    assert machine.out(f"find {state} ! -user root") == ""
    assert machine.out("stat -c '%a %U' /etc/sparkd/secrets") == "700 root"
    for user in ("nobody", "vllm"):
        for folder in state.split():
            assert machine.run(["ls", folder], user=user, check=False).returncode
            assert machine.run(["touch", f"{folder}/x"], user=user, check=False).returncode
    units = machine.out(
        "stat -c '%a %U:%G' /etc/systemd/system/vllm*.{service,slice,target}"
    ).splitlines()
    assert set(units) == {"644 root:root"}
    assert machine.out("stat -c '%a %U' /var/cache/vllm /var/cache/vllm/solo").splitlines() == [
        "755 root", "750 vllm",
    ]  # fmt: skip


ROGUE = """\
#!/usr/bin/python3
import os, socket, sys, time
os.chdir(os.environ["HOME"])
if not os.fork():
    while True:
        for text in ("STATUS=all is well", f"MAINPID={os.getpid()}",
                     "EXTEND_TIMEOUT_USEC=600000000", "RELOADING=1", "STOPPING=1"):
            peer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                peer.connect("/run/systemd/notify")
                peer.send(text.encode())
                said = "sent"
            except OSError as error:
                said = error.strerror
            with open("notify.log", "a") as log:
                print(said, file=log)
        time.sleep(0.1)
os.execv("/usr/libexec/sparkd/sim/bin/vllm", ["vllm", *sys.argv[1:]])
"""
TRAP = '#!/bin/sh\nid -un >>/tmp/trapped; exec /usr/bin/{} "$@"\n'


def test_a_rogue_engine_rules_nothing_but_itself(lab: Lab) -> None:
    """What its user can write: its virtual environment, its HOME and caches, and its own words."""
    machine = lab.machine
    lab.engine("rogue", life={"load_seconds": 1.0, "deaf": True}, extra='user = "vllm"')
    path = "/etc/sparkd/engines.d/rogue.toml"
    text = machine.read(path).replace("/usr/libexec/sparkd/sim", "/opt/rogue")
    lab.push(path, text.replace("[env]", '[env]\nLD_PRELOAD = "/opt/rogue/rogue.so"'))
    machine.push("/opt/rogue/bin/vllm", ROGUE, mode=0o755, owner="vllm")
    for program in ("systemctl", "journalctl", "env", "python3", "sh"):
        machine.push(f"/opt/rogue/bin/{program}", TRAP.format(program), mode=0o755, owner="vllm")
    lab.apply()
    home = "/var/cache/vllm/rogue"
    machine.run(f"install -d -o root /root/prize && install -d -m 750 -o vllm -g vllm {home}")
    site = f"{home}/.local/lib/python3.{machine.out('ls /usr/lib/python3.* -d | tail -c3')}"
    for name in ("usercustomize", "sitecustomize"):
        code = "import os; os.system('id -un >>/tmp/trapped')\n"
        machine.push(f"{site}/site-packages/{name}.py", code, owner="vllm")
    machine.run(f"cd {home} && ln -s /root/prize .cache && ln -s /root/prize .triton", user="vllm")
    drop_in = f"/etc/systemd/system/{unit('rogue')}.d/t.conf"
    lab.push(drop_in, "[Service]\nTimeoutStopSec=20\n")
    machine.run(["systemctl", "daemon-reload"])

    lab.ctl("start", "rogue", "--wait")
    main = lab.show("rogue", "MainPID")["MainPID"]
    tried = ["grep", "-q", ".", f"{home}/notify.log"]
    machine.wait_until(lambda: machine.run(tried, check=False).returncode == 0, "it has tried")
    shown = lab.show("rogue", "MainPID", "StatusText", "SubState")
    assert (shown["MainPID"], shown["SubState"]) == (main, "running")
    assert shown["StatusText"].startswith("ready after"), (
        "the helpers' words arrive, its own do not"
    )
    assert set(machine.read(f"{home}/notify.log").split("\n")) == {"Permission denied", ""}

    machine.run(["systemctl", "stop", unit("rogue")])
    last = machine.wait_until(lambda: lab.one("rogue")["last_death"], "the stop is recorded")
    assert (last["requested"], last["result"]) == (True, "timeout")
    lab.until("rogue", "stopped")
    lab.ctl("start", "rogue", "--wait")
    machine.run(["kill", "-KILL", lab.show("rogue", "MainPID")["MainPID"]])
    lab.until_dead("rogue")
    lab.until("rogue", "ready")

    assert machine.run(["test", "-e", "/tmp/trapped"], check=False).returncode == 1
    assert machine.out("find /root/prize -mindepth 1; stat -c %U /root/prize") == "root"
    preloaded = [e for e in machine.journal() if "LD_PRELOAD" in e.get("MESSAGE", "")]
    assert {e["_UID"] for e in preloaded} == {machine.out("id -u vllm")}, "its own program heeds it"


FORGE = """\
import json, sys
from systemd import journal
invocation, unit, pid, text = sys.argv[1:]
for line in text.split("|"):
    journal.send(line, INVOCATION_ID=invocation, UNIT=unit, SYSLOG_IDENTIFIER="vllm",
                 SYSLOG_PID=pid, OBJECT_PID=pid, _SYSTEMD_UNIT=unit,
                 _SYSTEMD_INVOCATION_ID=invocation)
"""
FATAL = (
    "(EngineCore pid={0}) ERROR 11-29 10:00:00 [core.py:1] EngineCore failed to start."
    "|(EngineCore pid={0}) ERROR 11-29 10:00:00 [core.py:1] torch.AcceleratorError: CUDA error: no"
    " kernel image is available for execution on the device"
    "|vllm-solo.service: Main process exited, code=exited, status=2/INVALIDARGUMENT"
)


def test_a_strangers_lines_about_an_engine_count_for_nothing(lab: Lab) -> None:
    """Anybody can read an invocation's id and send any field; the gate and post-mortem must not."""
    # Longer than the gate waits when it believes a fatal line.
    lab.engine("solo", life={"load_seconds": 2 * await_ready.LINGER_S})
    lab.apply()
    lab.start_all("solo")
    lab.until("solo", "loading")
    shown = lab.show("solo", "InvocationID", "MainPID")
    lab.push("/tmp/forge.py", FORGE)
    forge = ["python3", "/tmp/forge.py", shown["InvocationID"], unit("solo"), shown["MainPID"]]
    lab.machine.run([*forge, FATAL.format(shown["MainPID"])], user="nobody")
    sent = lab.machine.journal(f"INVOCATION_ID={shown['InvocationID']}", "SYSLOG_IDENTIFIER=vllm")
    assert len(sent) == 3
    assert lab.until("solo", "ready", "held")["state"] == "ready"
    lab.machine.run([*forge, FATAL.format(shown["MainPID"])], user="nobody")
    lab.die("solo", "core-killed")
    death = lab.until_dead("solo")[0]
    assert (death["exit_code"], death["action"]) == (0, "restart")
    assert "core" in death["class"]


def test_a_port_that_somebody_holds_is_never_ready_and_names_him(lab: Lab) -> None:
    """An engine started by hand that serves the same name on the same port."""
    lab.engine("solo", life={"load_seconds": 0.3})
    lab.apply()
    port = str(lab.ports["solo"])
    by_hand = ["serve", "/models/solo", "--port", port, "--served-model-name", "solo"]
    run = ["systemd-run", "--unit=by-hand", "--quiet", "sparkd-sim-engine", *by_hand]
    lab.machine.run(run)
    lab.machine.wait_until(lambda: lab.serves("solo"), "the other one serves")
    lab.start_all("solo")
    reason = lab.until("solo", "waiting", says=port)["reason"]
    assert "by-hand.service" in reason
    assert lab.machine.show("by-hand", "MainPID")["MainPID"] in reason
    assert lab.one("solo")["ready"] is False
    lab.machine.run(["systemctl", "stop", "by-hand"])
    lab.until("solo", "ready")


def test_no_child_outlives_its_engine_and_a_shutdown_is_no_death(lab: Lab) -> None:
    lab.engine("solo", life={"load_seconds": 0.3, "linger_seconds": 600})
    lab.apply()
    lab.ctl("start", "solo", "--wait")
    children = "pgrep -c '^VLLM::' || true"
    before = lab.machine.out(children)
    # Its EngineCore leaves the session, is deaf to SIGTERM, and holds the port.
    lab.die("solo", "port-kept")
    lab.until_dead("solo")
    lab.until("solo", "ready")
    assert lab.machine.out(children) == before, "nothing is left behind"
    lab.machine.reboot()
    lab.until("solo", "ready")
    ends = lab.incidents("solo")
    assert [row["requested"] for row in ends] == [True, False], "newest first"
    assert lab.one("solo")["restarts"]["used"] == 1


def test_exit_137_is_no_kill_and_a_fast_loop_is_held(lab: Lab) -> None:
    lab.push("/etc/sparkd/sparkd.toml", HOST.replace("burst = 3", "burst = 2"))
    lab.engine("solo", life={"death": "exit", "death_at_load": 0.1, "exit_status": 137})
    lab.apply()
    lab.start_all("solo")
    deaths = lab.until_dead("solo", 2)
    assert "the limit is 2" in lab.until("solo", "held")["reason"]
    assert {(d["exit_code"], d["signal"], d["result"]) for d in deaths} == {
        (137, None, "exit-code")
    }
    assert not [d for d in deaths if "oom" in d["class"]]
    assert [d["action"] for d in deaths] == ["hold", "restart"], "newest first"


def test_what_an_administrator_did_to_a_unit_stays(lab: Lab) -> None:
    machine = lab.machine
    for name in ("dropped", "masked", "linked", "gone"):
        lab.engine(name, life={"load_seconds": 0.3})
    lab.apply()
    folder = "/etc/systemd/system"
    drop_in = f"{folder}/{unit('dropped')}.d/mine.conf"
    lab.push(drop_in, "[Service]\nNice=7\n")
    machine.run(
        f"cd {folder} && rm {unit('masked')} && systemctl mask {unit('masked')}"
        f" && mv {unit('linked')} /root/ && ln -s /root/{unit('linked')} {unit('linked')}"
        " && rm /etc/sparkd/engines.d/gone.toml && systemctl daemon-reload"
    )
    for name in ("dropped", "masked", "linked"):
        lab.engine(name, life={"load_seconds": 0.3}, serve="max-num-seqs = 3")
    done = lab.ctl("apply", "--force", check=False)
    assert done.returncode == 1
    assert "masked by an administrator" in done.stdout
    assert f"{unit('linked')} is a symbolic link to /root/{unit('linked')}" in done.stdout
    assert f"{unit('gone')}: its engine is gone" in done.stdout
    assert machine.out(f"readlink {folder}/{unit('masked')}") == "/dev/null"
    assert "max-num-seqs" not in machine.read(f"/root/{unit('linked')}")
    assert machine.read(drop_in).endswith("Nice=7\n")
    assert lab.show("dropped", "Nice", "DropInPaths") == {"Nice": "7", "DropInPaths": drop_in}
    assert "masked" in lab.one("masked")["reason"]
    started = lab.ctl("start", "masked", check=False)
    assert started.returncode != 0
    assert "masked" in started.stderr + started.stdout
    assert machine.show(unit("masked"), "LoadState")["LoadState"] == "masked"


def test_a_disk_that_is_full_or_read_only_stops_the_apply_and_nothing_else(lab: Lab) -> None:
    machine = lab.machine
    lab.engine("solo", life={"load_seconds": 0.3})
    lab.apply()
    lab.ctl("start", "solo", "--wait")
    before = lab.show("solo", "MainPID", "InvocationID")
    folder = "/etc/systemd/system"
    old = machine.read(f"{folder}/{unit('solo')}")
    machine.run(
        "mkdir /root/units && mount -t tmpfs -o size=400k,mode=755 none /root/units"
        f" && cp -a {folder}/. /root/units/ && mount --bind /root/units {folder}"
        f" && dd if=/dev/zero of={folder}/full bs=4k 2>/dev/null || true"
    )
    machine.run(["systemctl", "restart", "sparkd"])
    lab.engine("solo", life={"load_seconds": 0.3}, serve="max-num-seqs = 3")
    lab.engine("more")
    done = lab.ctl("apply", check=False)
    assert done.returncode == 1
    assert f"{folder}/vllm-" in done.stderr
    assert "No space left on device" in done.stderr
    machine.run(["mount", "-o", "remount,bind,ro", folder])
    machine.run(["systemctl", "restart", "sparkd"])
    done = lab.ctl("apply", check=False)
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr
    assert f"ReadWritePaths={folder}" in done.stderr
    assert "+" in lab.apply("--dry-run")
    assert machine.read(f"{folder}/{unit('solo')}") == old
    assert machine.out(f"ls -A {folder} | grep -c sparkd-", check=False) == "0"
    assert lab.show("solo", "MainPID", "InvocationID") == before
    assert lab.one("solo")["state"] == "ready"


def ends_unasked(lab: Lab) -> list[str]:
    """What followed each end of life that nobody had asked for."""
    ends = lab.machine.journal(f"MESSAGE_ID={Event.END_OF_LIFE}")
    records = [json.loads(e["SPARKD_RECORD"]) for e in ends]
    return [r["action"] for r in records if not r["requested"]]


def test_a_full_run_folder_refuses_a_start_with_its_reason(lab: Lab) -> None:
    """Without its claim no start is the only one; the end is counted all the same."""
    machine = lab.machine
    lab.engine("solo", life={"load_seconds": 0.3})
    lab.apply()
    lab.ctl("start", "solo", "--wait")
    machine.run(
        "systemctl stop sparkd vllm-solo && mount -t tmpfs -o size=16k,mode=750 none /run/sparkd"
        " && dd if=/dev/zero of=/run/sparkd/full bs=4k 2>/dev/null || true"
    )
    assert machine.run(["systemctl", "start", unit("solo")], check=False).returncode == 1
    # Between two of its starts a unit has failed as well, on some versions of systemd.
    machine.wait_until(
        lambda: (
            len(ends_unasked(lab)) == 3
            and lab.show("solo", "ActiveState")["ActiveState"] == "failed"
        ),
        lambda: f"it is given up: {ends_unasked(lab)}",
    )
    said = [e["MESSAGE"] for e in machine.journal(f"--unit={unit('solo')}")]
    assert any("No space left on device" in row and "/run/sparkd" in row for row in said)
    assert ends_unasked(lab) == ["restart", "restart", "hold"]
    machine.run("umount /run/sparkd && systemctl start sparkd")
    assert lab.until("solo", "held")["restarts"]["used"] == 3
    lab.ctl("restart", "solo", "--wait")


def test_many_reloads_at_once_are_one_more_and_end_ready(lab: Lab) -> None:
    machine = lab.machine
    lab.engine("solo")
    pid = machine.show("sparkd.service", "MainPID")["MainPID"]
    machine.run(f"for i in $(seq 200); do kill -HUP {pid}; done")

    def settled() -> bool:
        shown = machine.show("sparkd.service", "ActiveState", "SubState", "MainPID")
        return shown == {"ActiveState": "active", "SubState": "running", "MainPID": pid}

    machine.wait_until(lambda: lab.show("solo", "LoadState")["LoadState"] == "loaded", "applied")
    machine.wait_until(settled, "it is ready again")
    machine.run(["systemctl", "reload", "sparkd"])
    machine.wait_until(settled, "a reload still works")
    assert len(machine.journal(f"MESSAGE_ID={Event.APPLIED}")) == 1


HUGE = """\
import sys
from systemd import journal
journal.send("x" * (int(sys.argv[1]) << 20), MESSAGE_ID=sys.argv[2], SPARKD_ENGINE="solo",
             SPARKD_UNIT="vllm-solo.service")
"""


def test_an_entry_of_any_size_and_of_anybody_costs_the_daemon_nothing(lab: Lab) -> None:
    machine = lab.machine
    lab.engine("solo", life={"load_seconds": 0.3})
    lab.apply()
    lab.ctl("start", "solo", "--wait")
    lab.push("/tmp/huge.py", HUGE)
    machine.run(["python3", "/tmp/huge.py", "24", Event.END_OF_LIFE], user="nobody")
    # The engine's own: a process that systemd counts to its unit, and that speaks to journald.
    group = lab.show("solo", "ControlGroup")["ControlGroup"]
    places = "/sys/fs/cgroup /sys/fs/cgroup/unified /sys/fs/cgroup/systemd"
    join = f"for d in {places}; do [ -d $d{group} ] && echo $$ >$d{group}/cgroup.procs; done"
    machine.run(f"{join}; exec runuser -u vllm -- python3 /tmp/huge.py 24 {Event.SLOT_WAIT}")
    sizes = "journalctl --sync; journalctl --all -o cat --output-fields=MESSAGE | wc -L"
    assert int(machine.out(sizes)) == 24 << 20, "they are in the journal"
    lab.die("solo", "core-killed")
    lab.until_dead("solo")
    lab.until("solo", "ready")
    pid = machine.show("sparkd.service", "MainPID")["MainPID"]
    status = machine.read(f"/proc/{pid}/status").splitlines()
    peak = next(int(row.split()[1]) for row in status if row.startswith("RssAnon:"))
    assert peak < 40_000, f"{peak} kB"
    found = machine.journal(f"MESSAGE_ID={Event.END_OF_LIFE}", "_UID=0", "--output-fields=MESSAGE")
    assert len(found) == 1


FLOOD = """\
import sys, time
from gi.repository import Gio, GLib
con = Gio.bus_get_sync(Gio.BusType.SYSTEM, None)
name, path = "io.github.sparkd.Manager1", "/io/github/sparkd/Manager1"
loop, end, count = GLib.MainLoop(), time.monotonic() + 15, 0
def answered(con, result):
    global count
    try:
        con.call_finish(result)
        sys.exit("it was allowed")
    except GLib.GError:
        count += 1
    call() if time.monotonic() < end else loop.quit()
def call():
    con.call(name, path, name, "Restart", GLib.Variant("(sb)", ("solo", False)), None, 0, 60000,
             None, answered)
for _ in range(120):
    call()
loop.run()
print(count)
"""


def test_a_flood_of_orders_that_nobody_permits_blinds_nobody(lab: Lab) -> None:
    machine = lab.machine
    lab.engine("solo", life={"load_seconds": 0.3})
    lab.apply()
    lab.ctl("start", "solo", "--wait")
    before = lab.one("solo")["invocation_id"]
    machine.run(["useradd", "--groups=sparkd", "member"])
    lab.push("/tmp/flood.py", FLOOD)
    floods = [machine.start_background(["python3", "/tmp/flood.py"], user="member") for _ in "ab"]
    machine.run(["sleep", "3"])
    while any(flood.running() for flood in floods):
        seen = lab.status()
        assert (seen["stale"], seen["engines"][0]["state"]) == (False, "ready")
    assert all(int(flood.output()) > 120 for flood in floods), "they were answered, with a refusal"
    assert lab.one("solo")["invocation_id"] == before
    lab.ctl("restart", "solo", "--wait")
