# SPDX-License-Identifier: Apache-2.0
"""Whatever a source holds, the answer is a plan: engines that load, refusals, notes."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparkd.cli.import_ import as_json
from sparkd.core.config import Source, load
from sparkd.core.importing import plan as planning
from sparkd.core.importing.codes import MEANINGS
from sparkd.core.importing.tenants import appended

CANARY = "hf_" + "Canary" * 4
PIECES = st.sampled_from(
    ["[Service]\n", "[Container]\n", "ExecStart=", "Exec=", "Image=", "vllm/vllm-openai:x",
     "\n", " ", "/opt/v/bin/vllm", "vllm", " serve ", "m", " --port 8000", " --x", "=", "'",
     '"', "\\", "$A", "${", "}", "${A:-b}", "$(", ")", "`", "services:\n", "  a:\n",
     "    image: ", "    command: ", "[", "]", "if ", "then\n", "fi\n", "while true; do\n",
     "done\n", "A=", "L=(", "L+=(x)\n", '"${L[@]}"', "{", "{{", " -tp 2", "docker run ",
     "--gpus all ", "bash -c ", "env ", "&&", "|", "&", ">", "<<E\n", "E\n", "#", "%", "%i",
     "%z", "\t", "\0", "é", "\x1b", "source ", "/f", "export ", "--config ", "*a", "&a ",
     f" --api-key {CANARY}", f"HF_TOKEN={CANARY}\n", "- ", "python3 -m ", "sudo -u x ",
     "conda run -n e "]
)  # fmt: skip
TEXT = st.one_of(st.lists(PIECES, max_size=25).map("".join), st.text(max_size=60))
NAMES = st.sampled_from(
    ["/s/a.service", "/s/a@b.service", "/s/a.container", "/s/compose.yml", "/s/a.sh", "/s/a"]
)


class Host:
    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, path: str) -> str | None:
        return self.text if path == "/f" else None

    def home(self, user: str) -> str | None:
        return "/home/x" if user == "x" else None

    def is_executable(self, path: str) -> bool:
        return path.startswith("/usr/local")

    def matching(self, pattern: str) -> list[str]:
        return [] if pattern else [""]


@settings(max_examples=400, deadline=None)
@example("/s/compose.yml", f"[Service]\nExecStart= --api-key {CANARY}", "", "headed")
@given(path=NAMES, text=TEXT, included=TEXT, shape=st.sampled_from(["bare", "headed", "command"]))
def test_any_text_yields_a_plan(path: str, text: str, included: str, shape: str) -> None:
    if shape == "headed":
        text = {"service": "[Service]\nExecStart=", "container": "[Container]\nImage=",
                "yml": "services:\n  a:\n    image: vllm/vllm-openai\n    command: "}.get(
            path.rpartition(".")[2], "vllm serve m ") + text  # fmt: skip
    document = planning.Document(path, text, owner="x", is_command=shape == "command")
    plan = planning.make([document], Host(included), memory_total=1 << 37)
    json.dumps(as_json(plan))
    assert plan.engines or plan.refused
    assert {note.code for note in plan.notes} <= MEANINGS.keys()
    for engine in plan.engines:
        assert "Canary" not in engine.config
        assert "Canary" not in " ".join(engine.argv)
        if engine.is_applicable:
            load([Source("x.toml", engine.config, engine.name)], None)
    for note in plan.notes:
        assert "Canary" not in note.text, note
    for tenant in plan.tenants:
        assert "Canary" not in tenant.text
    fitting = [tenant for tenant in plan.tenants if not tenant.obstacle]
    load([Source("sparkd.toml", appended("", fitting))], 1 << 37)
    for refused in plan.refused:
        assert "Canary" not in refused.reason, refused


@settings(max_examples=4, deadline=None)
@given(count=st.integers(30, 60))
def test_what_doubles_does_not_fill_the_memory(count: int) -> None:
    script = "A=xx\n" + "A=$A$A\n" * count + "vllm serve $A\n"
    arrays = "L=(a b)\n" + 'L+=("${L[@]}")\n' * count + 'vllm serve "${L[@]}"\n'
    nested = "vllm serve " + "${A:-" * 2000 + "x" + "}" * 2000 + "\n"
    for text in (script, arrays, nested):
        plan = planning.make([planning.Document("/s/a.sh", text)], Host(""))
        assert not plan.engines
        assert len(plan.refused) == 1
