# SPDX-License-Identifier: Apache-2.0
"""Finding sources on a disk, and writing proposals to one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.adapters import launch_files
from sparkd.adapters.launch_files import HostSurroundings, SourceError, documents
from sparkd.cli import import_
from sparkd.cli.exits import Exit
from sparkd.core.config import ConfigErrors, Source, load

UNIT = """[Service]
User=vllm
ExecStart=/opt/vllm/bin/vllm serve /models/m --host 127.0.0.1 --port 8100 {extra}
Restart=always
"""


@pytest.fixture
def unit(tmp_path):
    path = tmp_path / "fast.service"
    path.write_text(UNIT.format(extra="--served-model-name fast"))
    return path


def run(capsys, *words):
    code = import_.main([*map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_without_write_nothing_is_written(unit, tmp_path, capsys):
    directory = tmp_path / "engines.d"
    code, result = run(capsys, unit, "--config-dir", directory)
    assert code == Exit.OK
    assert result.keys() == {"engines", "tenants", "refused", "notes"}
    assert result["engines"][0].keys() == {"name", "config", "argv", "environment"}
    assert not directory.exists()


def test_write_creates_what_the_loader_accepts(unit, tmp_path, capsys):
    directory = tmp_path / "engines.d"
    code, result = run(capsys, unit, "--config-dir", directory, "--write")
    assert code == Exit.OK
    written = directory / "fast.toml"
    assert [path.name for path in directory.iterdir()] == ["fast.toml"]
    assert written.stat().st_mode & 0o777 == 0o644
    config = load([Source("fast.toml", written.read_bytes(), "fast")], None)
    assert result["engines"][0]["argv"][0] == config.engines[0].executable


def test_an_existing_file_stays_as_it_is(unit, tmp_path, capsys):
    directory = tmp_path / "engines.d"
    directory.mkdir()
    (directory / "fast.toml").write_text("mine")
    code, result = run(capsys, unit, "--config-dir", directory, "--write")
    assert code == Exit.FAILURE
    assert (directory / "fast.toml").read_text() == "mine"
    assert "SPI407" in {note["code"] for note in result["notes"]}


def test_a_port_that_is_taken_is_not_written(unit, tmp_path, capsys):
    directory = tmp_path / "engines.d"
    directory.mkdir()
    other = 'model = "/m"\nport = 8100\n[runtime]\nvenv = "/opt/vllm"\n'
    (directory / "other.toml").write_text(other)
    code, result = run(capsys, unit, "--config-dir", directory, "--write")
    assert code == Exit.FAILURE
    assert "SPI405" in {note["code"] for note in result["notes"]}
    assert not (directory / "fast.toml").exists()


def test_a_container_is_proposed_and_not_written(tmp_path, capsys):
    line = "docker run --gpus all vllm/vllm-openai:v0.12.0 --model /m"
    code, result = run(capsys, line, "--config-dir", tmp_path / "e", "--write")
    assert code == Exit.FAILURE
    assert result["engines"][0]["argv"] == ["vllm", "serve", "/m"]
    assert not (tmp_path / "e").exists()


OLLAMA = "[Service]\nExecStart=/usr/local/bin/ollama serve\n"
SGLANG = (
    "[Service]\nExecStart=/opt/sg/bin/python3 -m sglang.launch_server --model-path /m"
    " --mem-fraction-static 0.2\n"
)


@pytest.fixture
def host(tmp_path):
    """A sparkd.toml with the folder of engines beside it, and two units that import refuses."""
    (tmp_path / "etc/engines.d").mkdir(parents=True)
    (tmp_path / "ollama.service").write_text(OLLAMA)
    (tmp_path / "sglang.service").write_text(SGLANG)
    return tmp_path / "etc/sparkd.toml"


def keep(host, *words):
    folder = host.parent.parent
    units = [str(folder / "ollama.service"), str(folder / "sglang.service")]
    return import_.main([*units, "--config-dir", str(host.parent / "engines.d"), *words])


def test_what_is_refused_is_kept_as_a_tenant_of_sparkd_toml(host, capsys):
    before = '# mine\n[host]\nreserve = "10%"  # and this\n'
    host.write_text(before)
    host.chmod(0o640)
    assert keep(host) == Exit.FAILURE
    assert host.read_text() == before, "nothing is written without --write"
    assert f"would be appended to {host} with --write" in capsys.readouterr().out
    assert keep(host, "--write") == Exit.FAILURE, "it is refused as an engine all the same"
    text = host.read_text()
    assert text.startswith(before)
    assert '#[tenants.ollama]\n#memory = ""\n#unit = "ollama.service"\n' in text
    assert host.stat().st_mode & 0o777 == 0o640
    (tenant,) = load([Source("sparkd.toml", text)], None).host.tenants
    assert (tenant.name, tenant.memory.percent, tenant.unit) == ("sglang", 20, "sglang.service")
    assert [file.name for file in host.parent.iterdir() if file.name != "engines.d"] == [host.name]
    capsys.readouterr()
    keep(host, "--write")
    assert host.read_text() == text, "a second time adds nothing"
    said = capsys.readouterr().out
    assert "counted already, as tenants.sglang" in said
    assert "has a table for it already, or the comment with one" in said


def test_tenants_are_in_the_json_too(host, capsys):
    keep(host, "--json")
    ollama, sglang = json.loads(capsys.readouterr().out)["tenants"]
    assert (ollama["name"], ollama["is_known"], ollama["obstacle"]) == ("ollama", False, "")
    assert (sglang["name"], sglang["is_known"], sglang["obstacle"]) == ("sglang", True, "")
    assert '[tenants.sglang]\nmemory = "20%"' in sglang["text"]


def test_without_a_sparkd_toml_one_is_made(host):
    keep(host, "--write")
    assert len(load([Source("sparkd.toml", host.read_bytes())], None).host.tenants) == 1
    assert host.stat().st_mode & 0o777 == 0o644


def test_the_line_ends_of_a_sparkd_toml_stay_as_they_are(host):
    before = b'# mine\r\n[host]\r\nreserve = "10%"\r\n'
    host.write_bytes(before)
    keep(host, "--write")
    assert host.read_bytes().startswith(before)
    assert len(load([Source("sparkd.toml", host.read_bytes())], None).host.tenants) == 1


def test_a_tenant_that_does_not_fit_is_not_written(host, capsys):
    text = '[tenants.other]\nmemory = "70%"\n'
    host.write_text(text)
    keep(host, "--write")
    assert host.read_text().startswith(text)
    assert load([Source("sparkd.toml", host.read_text())], None).host.tenants[-1].name == "other"
    assert "not written: the loader would say:" in capsys.readouterr().out


def test_a_sparkd_toml_that_cannot_be_parsed_stays_as_it_is(host, capsys):
    host.write_text("[host\n")
    keep(host, "--write")
    assert host.read_text() == "[host\n"
    assert f"not written: to be mended first: {host}:1" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["tenants = {}\n", "[tenants]\nsglang = 3\n"])
def test_a_sparkd_toml_that_cannot_take_it_stays_loadable_or_as_it_was(host, text):
    host.write_text(text)

    def errors():
        try:
            load([Source("sparkd.toml", host.read_text())], None)
        except ConfigErrors as refused:
            return [str(error) for error in refused.errors]
        return []

    before = errors()
    keep(host, "--write")
    assert host.read_text().startswith(text)
    assert errors() == before


def test_a_linked_sparkd_toml_is_left_alone(host, capsys):
    host.with_name("real.toml").write_text("")
    host.symlink_to("real.toml")
    keep(host, "--write")
    assert host.is_symlink()
    assert host.read_text() == ""
    assert "it is a link" in capsys.readouterr().out


NEIGHBOUR = """services:
  comfy:
    image: ghcr.io/someone/comfyui:1
    gpus: all
  llm:
    image: vllm/vllm-openai:v0.11.2
    command: --model Qwen/a --gpu-memory-utilization 0.3
    ports: ["8000:8000"]
"""


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_tenant_beside_an_engine_that_is_not_written_is_a_failure(host, is_linked):
    file = host.parent.parent / "compose.yaml"
    file.write_text(NEIGHBOUR)
    if is_linked:
        host.symlink_to("real.toml")
    words = [str(file), "--venv", "/opt/vllm", "--config-dir", str(host.parent / "engines.d")]
    code = import_.main([*words, "--write"])
    assert (host.parent / "engines.d/a.toml").exists(), "the engine itself is written"
    assert code == (Exit.FAILURE if is_linked else Exit.OK)


def test_a_failed_write_leaves_no_rest(unit, tmp_path, capsys, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(import_.os, "fsync", full)
    code, _ = run(capsys, unit, "--config-dir", tmp_path / "e", "--write")
    assert code == Exit.FAILURE
    assert list((tmp_path / "e").iterdir()) == []


def test_a_proposal_shows_no_secret_and_cannot_drive_the_terminal(tmp_path, capsys):
    path = tmp_path / "s.service"
    path.write_text(UNIT.format(extra="--api-key hunter2hunter2 --x '\\x1b[2J'"))
    import_.main([str(path), "--config-dir", str(tmp_path / "e")])
    shown = capsys.readouterr().out
    assert "hunter2" not in shown
    assert "\x1b" not in shown
    assert "SPI301" in shown


def test_the_module_runs_by_itself(unit, tmp_path):
    command = [sys.executable, "-m", "sparkd.cli.import_", unit, "--config-dir", tmp_path / "e"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == Exit.OK, result.stderr
    assert "engine fast" in result.stdout


def test_drop_ins_stand_beside_the_unit(unit):
    folder = unit.with_name("fast.service.d")
    folder.mkdir()
    (folder / "b.conf").write_text("[Service]\nEnvironment=B=1\n")
    (folder / "a.conf").write_text("[Service]\nEnvironment=A=1\n")
    (folder / "c.txt").write_text("not a drop-in")
    (document,) = documents(str(unit))
    assert [part.path.rpartition("/")[2] for part in document.drop_ins] == ["a.conf", "b.conf"]


def test_an_instance_is_read_from_its_template(tmp_path):
    (tmp_path / "vllm@.service").write_text(UNIT)
    for folder, names in (("vllm@.service.d", "xy"), ("vllm@a.service.d", "xz")):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.conf").write_text("[Service]\n")
    (document,) = documents(str(tmp_path / "vllm@a.service"))
    assert document.name == "vllm@a.service"
    assert document.path.endswith("/vllm@.service")
    found = {Path(part.path).relative_to(tmp_path).as_posix() for part in document.drop_ins}
    assert found == {"vllm@a.service.d/x.conf", "vllm@.service.d/y.conf", "vllm@a.service.d/z.conf"}


def test_drop_ins_of_the_prefix_and_of_all_services_count(tmp_path):
    unit = tmp_path / "vllm-a-b.service"
    unit.write_text(UNIT)
    for folder in ("service.d", "vllm-.service.d", "vllm-a-.service.d", "vllm.service.d"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.conf").write_text("[Service]\n")
    (document,) = documents(str(unit))
    found = [Path(part.path).parent.name for part in document.drop_ins]
    assert found == ["service.d", "vllm-.service.d", "vllm-a-.service.d"]


def test_drop_ins_of_several_folders_count_in_the_order_of_their_names(tmp_path):
    unit = tmp_path / "vllm-a.service"
    unit.write_text(UNIT)
    for folder, name in (
        ("vllm-a.service.d", "10"),
        ("vllm-.service.d", "20"),
        ("service.d", "05"),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.conf").write_text("[Service]\n")
    (document,) = documents(str(unit))
    found = [Path(part.path).stem for part in document.drop_ins]
    assert found == ["05", "10", "20"]


def test_a_masked_drop_in_is_none(unit):
    for folder in ("service.d", "fast.service.d"):
        unit.with_name(folder).mkdir()
    unit.with_name("service.d").joinpath("a.conf").write_text("[Service]\nEnvironment=A=1\n")
    unit.with_name("fast.service.d").joinpath("a.conf").symlink_to("/dev/null")
    (document,) = documents(str(unit))
    assert document.drop_ins == ()


def test_a_template_yields_its_instances(tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "b.env").write_text("PORT=1\n")
    text = f"[Service]\nEnvironmentFile={tmp_path}/env/%i.env\nExecStart=/x\n"
    (tmp_path / "vllm@.service").write_text(text)
    wants = tmp_path / "multi-user.target.wants"
    wants.mkdir()
    (wants / "vllm@a.service").symlink_to("../vllm@.service")
    names = [document.name for document in documents(str(tmp_path / "vllm@.service"))]
    assert names == ["vllm@a.service", "vllm@b.service"]


def test_a_template_without_instances_asks_for_one(tmp_path):
    (tmp_path / "vllm@.service").write_text("[Service]\nExecStart=/x\n")
    with pytest.raises(SourceError, match="name one"):
        documents(str(tmp_path / "vllm@.service"))


@pytest.mark.parametrize("name", ["missing.service", "sub"])
def test_what_is_not_there_is_said(tmp_path, name, capsys):
    (tmp_path / "sub").mkdir()
    code, result = run(capsys, tmp_path / name, "--config-dir", tmp_path / "e")
    assert code == Exit.FAILURE
    assert result["refused"][0]["source"].endswith(name)


def test_a_fifo_cannot_hang_the_import(tmp_path, capsys):
    os.mkfifo(tmp_path / "x.sh")
    code, result = run(capsys, tmp_path / "x.sh", "--config-dir", tmp_path / "e")
    assert code == Exit.FAILURE
    assert "no regular file" in result["refused"][0]["reason"]
    assert HostSurroundings().read(str(tmp_path / "x.sh")) is None


def test_a_huge_file_is_refused(tmp_path, capsys):
    (tmp_path / "x.sh").write_bytes(b"#" * ((1 << 20) + 1))
    _, result = run(capsys, tmp_path / "x.sh", "--config-dir", tmp_path / "e")
    assert "larger than" in result["refused"][0]["reason"]


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"\x7fELF\0\0", b"", b"\xc3("])
def test_any_bytes_are_refused_and_nothing_breaks(tmp_path, capsys, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    code, result = run(capsys, path, "--config-dir", tmp_path / "e")
    assert code == Exit.FAILURE
    assert len(result["refused"]) == 1


def test_every_code_is_documented():
    page = Path(__file__).parents[2] / "docs" / "import.md"
    from sparkd.core.importing.codes import MEANINGS

    rows = dict(
        line.strip("| \n").split(" | ", 1)
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("| SPI")
    )
    assert rows == {code: meaning.replace("|", "\\|") for code, meaning in MEANINGS.items()}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl -H 'Authorization: Bearer abc' x", "curl -H 'Authorization: Bearer (hidden) x"),
        ("API_KEY=abc is gone", "API_KEY=(hidden) is gone"),
        ('export HF_TOKEN="a b" c', "export HF_TOKEN=(hidden) c"),
        ("vllm --api-key hunter2 --port 1", "vllm --api-key (hidden) --port 1"),
        ("see hf_0123456789abcdefghij.", "see (hidden)"),
        ("HF_TOKEN is a secret, --port 8000", "HF_TOKEN is a secret, --port 8000"),
    ],
)
def test_messages_hide_secrets(text, shown):
    from sparkd.core.importing.model import without_secrets

    assert without_secrets(text) == shown


def test_a_loaded_unit_is_asked_from_systemctl(tmp_path, monkeypatch):
    """A program in the place of systemctl prints what `systemctl cat` of 252 to 257 prints."""
    program = tmp_path / "systemctl"
    program.write_text(
        "#!/bin/sh\n"
        "printf '# /nowhere/q.service\\n[Service]\\nExecStart=/a\\n\\n"
        "# /nowhere/q.service.d/b.conf\\n[Service]\\n# a comment\\nNice=1\\n'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (document,) = launch_files.documents("q")
    assert (document.name, document.path) == ("q.service", "/nowhere/q.service")
    assert [part.path for part in document.drop_ins] == ["/nowhere/q.service.d/b.conf"]
    assert "# a comment\nNice=1" in document.drop_ins[0].text
