# SPDX-License-Identifier: Apache-2.0
"""A lab whose guest also has a real vLLM."""

from typing import Any

from tests.system.lab import Lab


class RealLab(Lab):
    """`Lab` with engines that are a real vLLM serving a tiny checkpoint on the CPU."""

    def __init__(self, machine: Any, venv: str, checkpoint: str, doomed: str) -> None:
        super().__init__(machine)
        self.venv = venv
        self.checkpoint = checkpoint
        self.doomed = doomed

    def real_engine(
        self,
        name: str,
        *,
        order: int = 50,
        dtype: str = "float32",
        warmup: bool = True,
        serve: str = "",
        credentials: dict[str, str] | None = None,
        checkpoint: str = "",
        extra: str = "",
    ) -> None:
        port = self.ports.setdefault(name, 8100 + len(self.ports))
        pairs = "\n".join(f'{key} = "{path}"' for key, path in (credentials or {}).items())
        self.push(
            f"/etc/sparkd/engines.d/{name}.toml",
            f"""\
model = "{checkpoint or self.checkpoint}"
port = {port}
order = {order}
{extra}
[runtime]
venv = "{self.venv}"
[serve]
gpu-memory-utilization = 0.2
served-model-name = ["{name}"]
max-model-len = 1024
enforce-eager = true
{f'dtype = "{dtype}"' if dtype else ""}
{serve}
[env]
VLLM_CPU_KVCACHE_SPACE = "1"
HF_HUB_OFFLINE = "1"
VLLM_NO_USAGE_STATS = "1"
[credentials]
{pairs}
[ready]
budget = "600s"
warmup = {str(warmup).lower()}
""",
        )

    def complete(self, name: str, *, check: bool = True) -> Any:
        """One completion; stdout begins with the HTTP status."""
        url = f"http://127.0.0.1:{self.ports[name]}/v1/completions"
        body = f'{{"model": "{name}", "prompt": "the quick", "max_tokens": 4}}'
        head = "Content-Type: application/json"
        argv = ["curl", "-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}"]
        return self.machine.run([*argv, "-H", head, "-d", body, url], check=check)
