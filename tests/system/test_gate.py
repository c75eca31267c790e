# SPDX-License-Identifier: Apache-2.0
"""The readiness gate in its unit: the key, the squatter, the wrong model, the embedding engine."""

import json

import pytest

from tests.system.lab import Lab, unit

pytestmark = [pytest.mark.system, pytest.mark.each_systemd]
CANARY = "canary-7d01-key"
SQUATTER = """\
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"data": [{"id": "nemotron"}], "version": "0.32.0"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_POST = do_GET
http.server.ThreadingHTTPServer(("127.0.0.1", %d), Handler).serve_forever()
"""


def test_the_key_is_used_and_shown_nowhere(lab: Lab) -> None:
    lab.machine.push("/etc/sparkd/secrets/key", CANARY + "\n", mode=0o600)
    lab.engine("locked")
    path = "/etc/sparkd/engines.d/locked.toml"
    secret = '[credentials]\nVLLM_API_KEY = "/etc/sparkd/secrets/key"\n'
    lab.push(path, lab.machine.read(path) + secret)
    lab.apply()
    lab.ctl("start", "locked", "--wait")
    assert lab.one("locked")["state"] == "ready"
    assert not lab.serves("locked"), "without the key it answers 401"
    command_lines = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
    shown = [
        lab.ctl("status", "--json").stdout,
        lab.machine.run(["systemctl", "show", unit("locked")]).stdout,
        lab.machine.run(["systemctl", "cat", unit("locked")]).stdout,
        lab.machine.run(command_lines, check=False).stdout,
        json.dumps(lab.machine.journal()),
        lab.machine.run(["curl", "-sf", "http://127.0.0.1:9837/metrics"]).stdout,
    ]
    assert all(text and CANARY not in text for text in shown)


def test_an_embedding_engine_is_warmed_up_with_an_embedding(lab: Lab) -> None:
    lab.engine("embed", serve='runner = "pooling"\nconvert = "embed"')
    lab.apply()
    lab.ctl("start", "embed", "--wait")
    log = lab.machine.journal(f"--unit={unit('embed')}")
    assert any("POST /v1/embeddings" in entry["MESSAGE"] for entry in log)
    assert lab.one("embed")["ready"] is True


def test_a_squatter_on_the_port_is_never_taken_for_the_engine(lab: Lab) -> None:
    lab.engine("nemotron")
    lab.apply()
    port = lab.ports["nemotron"]
    lab.push("/root/squat.py", SQUATTER % port)
    squatter = lab.machine.start_background(["python3", "/root/squat.py"])
    try:
        lab.machine.wait_until(lambda: lab.serves("nemotron"), "the squatter has the port")
        lab.machine.run(["systemctl", "start", "--no-block", unit("nemotron")])
        waiting = lab.until("nemotron", "waiting", says=f"waiting: port {port} ")
        assert "python3" in waiting["reason"]
        assert waiting["ready"] is False
    finally:
        squatter.kill()
    lab.until("nemotron", "ready")


def test_the_wrong_model_is_held_at_once(lab: Lab) -> None:
    lab.engine("nemotron")
    lab.apply()
    # The unit expects another name than the process serves: as after a mistaken drop-in.
    gate = lab.machine.read("/etc/systemd/system/vllm-nemotron.service")
    words = gate.partition("ExecStartPost=")[2].partition("\nExecStopPost")[0]
    wrong = words.replace("--served-name=nemotron", "--served-name=other")
    lab.push(
        "/etc/systemd/system/vllm-nemotron.service.d/wrong.conf",
        f"[Service]\nExecStartPost=\nExecStartPost={wrong}\n",
    )
    lab.machine.run(["systemctl", "daemon-reload"])
    lab.machine.run(["systemctl", "start", unit("nemotron")], check=False)
    lab.until_dead("nemotron")
    held = lab.until("nemotron", "held")
    assert held["last_death"]["class"] == "wrong-model"
    assert "serves nemotron" in held["reason"]


def test_a_stop_during_the_load_is_repeated_and_clean(lab: Lab) -> None:
    lab.engine("nemotron", life={"load_seconds": 60.0})
    lab.apply()
    lab.machine.run(["systemctl", "start", "--no-block", unit("nemotron")])
    life = lab.until("nemotron", "loading", says="loading weights")["invocation_id"]
    lab.machine.run(["systemctl", "stop", unit("nemotron")])
    assert lab.end_of("nemotron", life)["requested"] is True
    assert lab.until("nemotron", "stopped")["last_death"]["requested"] is True
    said = lab.machine.journal("SYSLOG_IDENTIFIER=await-ready")
    assert any("sending SIGTERM again" in entry["MESSAGE"] for entry in said)
    assert not any(row["signal"] == "KILL" for row in lab.incidents("nemotron"))
