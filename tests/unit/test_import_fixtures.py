# SPDX-License-Identifier: Apache-2.0
"""Every file in tests/fixtures/import is a launch configuration that carries its expectations.

Each file is an archive: `--- PATH` begins a file of the imagined host, `--- expect` the rest:

    source PATH [owner=USER]    import this (a template's instance by its full name)
    command TEXT                import this command line
    venv DIRECTORY              the --venv option
    home USER DIRECTORY         a user of the imagined host
    executable PATH             a program of the imagined host
    engine NAME                 the lines below are about this engine
    argv WORDS                  its command line, in shell quoting
    env NAME=VALUE, noenv NAME  its environment
    config TEXT                 a part of its TOML
    refused TEXT                a refusal whose reason contains TEXT
    tenant NAME TEXT            a table [tenants.NAME] for sparkd.toml that contains TEXT
    note CODE LINE [TEXT]       a note of this code at this line of some file, containing TEXT
    secret TEXT                 appears nowhere in the plan
    codes CODES                 the codes of all notes
"""

import json
import re
import shlex
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import pytest

from sparkd.cli.import_ import as_json
from sparkd.core.config import Source, load
from sparkd.core.importing import plan as planning
from sparkd.core.importing.tenants import appended
from sparkd.core.importing.unit_text import Fragment

FIXTURES = sorted((Path(__file__).parent.parent / "fixtures" / "import").glob("*.txt"))


@dataclass
class Host:
    files: dict[str, str] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    programs: set[str] = field(default_factory=set)

    def read(self, path):
        return self.files.get(path)

    def home(self, user):
        return self.homes.get(user)

    def is_executable(self, path):
        return path in self.programs

    def matching(self, pattern):
        return sorted(path for path in self.files if fnmatch(path, pattern))


def archive(text):
    files, name, lines = {}, None, []
    for line in [*text.split("\n"), "--- "]:
        if line.startswith("--- "):
            if name is not None:
                files[name] = "\n".join(lines) + "\n"
            name, lines = line[4:].strip(), []
        else:
            lines.append(line)
    return files, files.pop("expect").split("\n")


def document(path, files, owner):
    """Find the file or the template, and its drop-ins, as the adapter does on a disk."""
    folder, name = path.rsplit("/", 1)
    prefix, at, _ = name.partition("@")
    template = f"{folder}/{prefix}@.{name.rsplit('.', 1)[1]}"
    real = path if path in files or not at else template
    folders = [f"{template}.d/"] if at else []
    folders.append(f"{path}.d/")
    drop_ins = tuple(
        Fragment(other, files[other])
        for wanted in folders
        for other in files
        if other.startswith(wanted)
    )
    return planning.Document(real, files[real], name, drop_ins, owner)


def run(files, expectations):
    host, documents, venv = Host(files), [], None
    for line in expectations:
        verb, _, rest = line.partition(" ")
        if verb == "source":
            path, _, owner = rest.partition(" owner=")
            documents.append(document(path, files, owner))
        elif verb == "command":
            documents.append(planning.Document("command line", rest, is_command=True))
        elif verb == "venv":
            venv = rest
        elif verb == "home":
            user, home = rest.split(" ")
            host.homes[user] = home
        elif verb == "executable":
            host.programs.add(rest)
    return planning.make(documents, host, venv=venv)


SETUP = {"source", "command", "venv", "home", "executable", ""}


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_fixture(fixture):
    files, expectations = archive(fixture.read_text(encoding="utf-8"))
    plan = run(files, expectations)
    result = as_json(plan)
    engines = {engine["name"]: engine for engine in result["engines"]}
    expected_engines, refusals, engine, tenants = [], 0, None, set()
    for line in expectations:
        verb, _, rest = line.partition(" ")
        context = f"{fixture.name}: {line}\n{json.dumps(result, indent=1)}"
        if verb == "engine":
            assert rest in engines, context
            engine = engines[rest]
            expected_engines.append(rest)
        elif verb == "argv":
            assert engine["argv"] == shlex.split(rest), context
        elif verb == "env":
            name, _, value = rest.partition("=")
            assert engine["environment"].get(name) == value, context
        elif verb == "noenv":
            assert rest not in engine["environment"], context
        elif verb == "config":
            assert rest in engine["config"], context
        elif verb == "refused":
            refusals += 1
            assert any(rest in refused["reason"] for refused in result["refused"]), context
        elif verb == "tenant":
            name, _, text = rest.partition(" ")
            tenants.add(name)
            assert any(one.name == name and text in one.text for one in plan.tenants), context
        elif verb == "note":
            code, number, *words = rest.split(" ")
            text = " ".join(words)
            assert any(
                note["code"] == code and note["line"] == int(number) and text in note["text"]
                for note in result["notes"]
            ), context
        elif verb == "secret":
            assert rest not in json.dumps(result), context
            assert all(rest not in one.text for one in plan.tenants), context
        elif verb == "codes":
            assert sorted({note["code"] for note in result["notes"]}) == rest.split(" "), context
        else:
            assert verb in SETUP, f"{fixture.name}: no such expectation: {line}"
    assert list(engines) == expected_engines, json.dumps(result, indent=1)
    assert {one.name for one in plan.tenants} == tenants, plan.tenants
    assert len(result["refused"]) == refusals, json.dumps(result, indent=1)
    assert engine is not None or refusals, f"{fixture.name} expects nothing"


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_every_proposal_is_toml_and_applicable_ones_load(fixture):
    files, expectations = archive(fixture.read_text(encoding="utf-8"))
    for engine in run(files, expectations).engines:
        assert tomllib.loads(engine.config)["model"]
        if engine.is_applicable:
            assert load([Source("x.toml", engine.config, engine.name)], None).engines


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda path: path.stem)
def test_every_tenant_is_a_table_that_loads(fixture):
    files, expectations = archive(fixture.read_text(encoding="utf-8"))
    found = run(files, expectations).tenants
    fitting = [one for one in found if not one.obstacle]
    for before in ("", '[host]\nreserve = "20G"', "# only a comment\n\n"):
        text = appended(before, fitting)
        assert text.startswith(before.rstrip("\n"))
        config = load([Source("sparkd.toml", text)], None)
        known = [one.name for one in fitting if one.is_known]
        assert [tenant.name for tenant in config.host.tenants] == known
        # What is not known is a comment that becomes a table when its signs are taken away.
        awake = re.sub(r"(?m)^#(?=\[|memory|unit)", "", text).replace(
            'memory = ""', 'memory = "1G"'
        )
        assert len(load([Source("sparkd.toml", awake)], None).host.tenants) == len(fitting)
