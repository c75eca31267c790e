# SPDX-License-Identifier: Apache-2.0
"""Launch files as editors and people spoil them: nothing is guessed, shown or run."""

import json

import pytest
from test_import_fixtures import FIXTURES, archive, run

from sparkd.cli.import_ import as_json

SOURCE = ["source /s/a.sh"]
REAL = [path for path in FIXTURES if path.stem.startswith("spark-")]


def outcome(files, expectations):
    result = as_json(run(files, expectations))
    engines = [(e["name"], e["argv"], e["environment"]) for e in result["engines"]]
    return engines, [refused["reason"] for refused in result["refused"]], result["notes"]


@pytest.mark.parametrize("fixture", REAL, ids=lambda path: path.stem)
def test_line_ends_of_another_system_change_no_engine(fixture):
    files, expectations = archive(fixture.read_text(encoding="utf-8"))
    engines, reasons, _ = outcome(files, expectations)
    spoilt = {path: text.replace("\n", "\r\n") for path, text in files.items()}
    again, reasons_again, notes = outcome(spoilt, expectations)
    assert again == engines
    assert reasons_again == reasons
    marked = {note["source"] for note in notes if "CR LF" in note["text"]}
    scripts = {path for path, text in files.items() if text.startswith("#!")}
    read = {path for path in scripts if not path.endswith(".py")}
    assert read <= marked


@pytest.mark.parametrize("fixture", REAL, ids=lambda path: path.stem)
def test_a_byte_order_mark_changes_no_engine_or_ends_it(fixture):
    files, expectations = archive(fixture.read_text(encoding="utf-8"))
    engines, _, _ = outcome(files, expectations)
    for path in files:
        again, reasons, notes = outcome({**files, path: "\ufeff" + files[path]}, expectations)
        if again != engines:  # systemd and shells take it for a part of the first word
            assert reasons or any("\\ufeff" in note["text"] for note in notes), path


TAKEN = "/opt/v/bin/vllm serve Qwen/a --port 8001"
QUADLET = "[Container]\nImage=vllm/vllm-openai:x\nExec=--model m\n"
COMPOSE = "services:\n  llm:\n    image: vllm/vllm-openai:v0.11.2\n    command: "


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("/s/a.sh", "vllm serve Qwen/a \u2013port 8001\n", "vLLM refuses '\\u2013port' after"),
        ("/s/a.sh", "vllm serve Qwen/a\u00a0--port 8001\n", "'8001' after 'Qwen/a\\xa0--port'"),
        ("/s/a.sh", 'vllm serve Qwen/a --port "8001\n', 'quotation mark " is never closed'),
        ("/s/a.sh", "vllm serve Qwen/a \\ \n --port 8001\n", "a single blank"),
        ("/s/a.sh", "vllm serve Qwen/a --port 8001\0\n", "binary"),
        ("/s/a.sh", "vllm serve $MODEL\n", "$MODEL is set by nothing"),
        ("/s/a.service", f"[Service]\nExecstart={TAKEN}\n", "line 2: Execstart= in [Service]"),
        ("/s/a.service", f"[Unit]\nExecStart={TAKEN}\n[Service]\n", "ExecStart= in [Unit] is not"),
        ("/s/a.service", f"ExecStart={TAKEN}\n", "no [Service] section"),
        ("/s/a.service", f"[Service]\nExecStart={TAKEN}\nExecStart={TAKEN}\n", "(lines 2, 3)"),
        ("/s/compose.yml", f"{COMPOSE}--model m\n\tports: [1]\n", "line 5"),
        ("/s/compose.yml", f"{COMPOSE}--model m\n    command: x\n", "line 5: a key stands twice"),
        ("/s/compose.yml", f"{COMPOSE}!!python/name:os.system x\n", "line 4: a tag is not"),
        ("/s/compose.yml", f"{COMPOSE}--model ${{M:?set M first}}\n", "$M is set neither in .env"),
        ("/s/compose.yml", f"{COMPOSE}--model m\n---\nservices: {{}}\n", "another document"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(path, text, reason):
    engines, reasons, _ = outcome({path: text}, [f"source {path}"])
    assert engines == []
    assert len(reasons) == 1
    assert reason in reasons[0]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/s/a.sh", "vllm serve --config /etc/shadow\n"),
        ("/s/a.sh", ". /etc/shadow\nvllm serve Qwen/a\n"),
        ("/s/a.sh", "if x; then . /etc/shadow; fi\nvllm serve Qwen/a\n"),
        ("/s/a.sh", "exec bash /etc/shadow\n"),
        ("/s/a.service", "[Service]\nExecStart=/bin/bash /etc/shadow\n"),
        ("/s/a.service", "[Service]\nExecStart=/etc/shadow serve\n"),
        ("/s/a.sh", "docker compose -f /etc/shadow up\n"),
        ("/s/a.sh", "docker run --env-file /etc/shadow vllm/vllm-openai:x --model m\n"),
        ("/s/a.service", f"[Service]\nEnvironmentFile=/etc/shadow\nExecStart={TAKEN}\n"),
        ("/s/compose.yml", f"{COMPOSE}--model m\n    env_file: /etc/shadow\n"),
        ("/s/compose.yml", f"{COMPOSE}--model m\n    extends: {{service: x, file: /etc/shadow}}\n"),
        ("/s/a.container", f"{QUADLET}EnvironmentFile=/etc/shadow\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "shadow",
    [
        "root:$y$j9T$Cv0kq/Canary:20000::::\n",
        "root:Canary: x: y\n",
        "- Canary\n",
        "Canary:x\n",
        "key: *Canary\n",
        "key: !Canary!x y\n",
        "key: !Canary y\n",
        "services:\n  x: {Canary: 1, Canary: 2}\n",
        "%YAML 1.1 Canary\n",
        'key: "\\xCanary"\n',
        "a: &Canary 1\nb: &Canary 2\nc: *Canari\n",
        "key: @Canary\n",
        "!<Canary {> x\n",
    ],
)
def test_a_file_that_a_source_merely_names_is_not_shown(path, text, shadow):
    """Root imports what others wrote, and passes the report on."""
    plan = run({path: text, "/etc/shadow": shadow}, [f"source {path}"])
    assert "Canary" not in json.dumps(as_json(plan))


@pytest.mark.parametrize(
    ("named", "other", "reason"),
    [
        ("{service: x, file: [a]}", "", "what `extends` names cannot be told"),
        ("{service: [x]}", "", "what `extends` names cannot be told"),
        (
            "{service: x, file: sub/o.yml}",
            "services:\n  x:\n",
            "x, which is no table in /s/sub/o.yml",
        ),
        ("{service: x, file: sub/o.yml}", "services:\n  x: [1]\n", "x, which is no table"),
        ("{service: x, file: o.yml}", "services:\n  x: text\n", "x, which is no table in /s/o.yml"),
    ],
)
def test_what_no_service_can_extend_is_said(named, other, reason):
    files = {"/s/compose.yml": f"{COMPOSE}--model m\n    extends: {named}\n"}
    files |= dict.fromkeys(("/s/o.yml", "/s/sub/o.yml"), other) if other else {}
    engines, reasons, _ = outcome(files, ["source /s/compose.yml"])
    assert engines == []
    assert len(reasons) == 1
    assert reason in reasons[0]


@pytest.mark.parametrize(
    "before",
    [
        'while read -r line; do export "$line"; done < .env',
        "for pair in $(cat .env); do export $pair; done",
        'declare "$n=$v"',
        'n=MODEL; printf -v "$n" other',
        'n=MODEL; read "$n"',
        "declare -n r=MODEL; r=other",
        '[ -f /s/x.env ] && export "MODEL=other"',
    ],
)
def test_a_name_that_only_a_shell_can_tell_may_be_any(before):
    engines, reasons, _ = outcome({"/s/a.sh": f"{before}\nvllm serve ${{MODEL:-wrong}}\n"}, SOURCE)
    assert engines == []
    assert "an argument of vllm cannot be known" in reasons[0]


@pytest.mark.parametrize(
    ("before", "model"),
    [
        ('export "MODEL=a b"', "a b"),
        ("n=MODEL; declare $n=other", "other"),
        ("[ -f /s/x.env ] && . /s/x.env", "from-the-file"),
    ],
)
def test_what_a_declaration_sets_is_followed(before, model):
    files = {
        "/s/a.sh": f'{before}\nvllm serve "${{MODEL:-wrong}}"\n',
        "/s/x.env": "MODEL=from-the-file\n",
    }
    ((_, argv, _),), _, _ = outcome(files, SOURCE)
    assert argv[2] == model


def test_a_file_is_not_taken_for_sourced_that_is_sourced_only_when_it_is_not_there():
    files = {
        "/s/a.sh": "[ -f /s/x.env ] || . /s/x.env\nvllm serve ${MODEL:-wrong}\n",
        "/s/x.env": "MODEL=from-the-file\n",
    }
    engines, reasons, _ = outcome(files, SOURCE)
    assert engines == []
    assert "MODEL is set under a condition" in reasons[0]


@pytest.mark.parametrize(
    "before", ["cd -", "cd", "popd", "pushd", "cd -P -", "f() { cd /b; }; cd /a; f"]
)
def test_where_only_a_shell_knows_to_be_is_nowhere(before):
    files = {"/s/a.sh": f"cd /a\n{before}\nvllm serve ./m\n"}
    ((_, argv, _),), _, notes = outcome(files, SOURCE)
    assert argv[2] == "./m"
    assert any("a working directory that is not known" in note["text"] for note in notes)


def test_nothing_is_executed(tmp_path):
    mark = tmp_path / "mark"
    touch = f"touch {mark}"
    hostile = {
        "/s/a.sh": f"$({touch})\n`{touch}`\n{touch}\nX=$({touch}) vllm serve m --a $(({touch}))\n",
        "/s/b.sh": f"source <({touch})\neval '{touch}'\nvllm serve m \"${{A[$({touch})]}}\"\n",
        "/s/c.sh": f". /s/c.env\nvllm serve --config /s/c.yaml --seed ${{S:-$({touch})}}\n",
        "/s/c.env": f"S=$({touch})\n",
        "/s/c.yaml": f'model: !!python/object/apply:os.system ["{touch}"]\n',
        "/s/d.service": f"[Service]\nExecStartPre=/bin/sh -c '{touch}'\nExecStart=/bin/sh -c"
                        f" '{touch}; exec vllm serve m --x $({touch})'\n",
        "/s/compose.yml": f'{COMPOSE}!!python/object/apply:os.system ["{touch}"]\n',
    }  # fmt: skip
    sources = [f"source {path}" for path in hostile if not path.endswith((".env", ".yaml"))]
    plan = run(hostile, sources)
    assert not mark.exists()
    assert not any(str(mark) in word for engine in plan.engines for word in engine.argv)
