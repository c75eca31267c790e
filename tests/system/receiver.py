# SPDX-License-Identifier: Apache-2.0
"""Somebody who is told: a webhook's receiver that is well, slow, ill or away."""

import json
from typing import Any

from tests.system.lab import Lab

PORT = 8999
URL = f"http://127.0.0.1:{PORT}/alerts"
RECEIVER = f"""\
import http.server, json, os, ssl, time
class H(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        mode = open("/run/receiver.mode").read().split()
        if mode[0] == "slow":
            time.sleep(float(mode[1]))
        status = int(mode[1]) if mode[0] == "status" else 200
        if status == 200:
            with open("/run/receiver.log", "ab") as log:
                log.write(json.dumps({{"auth": self.headers["Authorization"],
                                       "body": json.loads(body)}}).encode() + b"\\n")
                log.flush()
                os.fsync(log.fileno())
        self.send_response(status)
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", {PORT}), H)
if os.path.exists("/etc/receiver.crt"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("/etc/receiver.crt", "/etc/receiver.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""
UNIT = """\
[Service]
ExecStart=/usr/bin/python3 -I /etc/receiver.py
[Install]
WantedBy=multi-user.target
"""


class Receiver:
    """A webhook's receiver in the guest."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        lab.push("/etc/receiver.py", RECEIVER)
        lab.push("/etc/systemd/system/receiver.service", UNIT)
        self.behave("ok")
        self.up()

    def behave(self, mode: str) -> None:
        self.lab.push("/run/receiver.mode", mode)

    def up(self) -> None:
        self.lab.machine.run(["systemctl", "start", "receiver"])
        self.lab.machine.wait_until(
            lambda: self.lab.machine.run(
                ["curl", "-s", "-o", "/dev/null", "-m", "5", URL], check=False
            ).returncode in {0, 52},
            "the receiver listens",
        )  # fmt: skip

    def down(self) -> None:
        self.lab.machine.run(["systemctl", "stop", "receiver"])

    def requests(self) -> list[dict[str, Any]]:
        text = self.lab.machine.out("cat /run/receiver.log 2>/dev/null || true")
        return [json.loads(line) for line in text.splitlines()]

    def seen(self, kind: str = "") -> list[dict[str, Any]]:
        bodies = [request["body"] for request in self.requests()]
        return [body for body in bodies if kind in {"", body["kind"]}]

    def until(self, kind: str, count: int = 1, limit: float = 240.0) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = []

        def there() -> list[dict[str, Any]] | None:
            seen[:] = self.seen()
            found = [body for body in seen if kind in {"", body["kind"]}]
            return found if len(found) >= count else None

        def what() -> str:
            return f"{count} alerts of {kind}; at last there were {[b['title'] for b in seen]}"

        found = self.lab.machine.wait_until(there, what, limit=limit)
        # Two destinations may be the same receiver; then only one of them has a credential.
        ids = [(request["auth"], request["body"]["id"]) for request in self.requests()]
        assert len(ids) == len(set(ids)), "none comes twice"
        return list(found)
