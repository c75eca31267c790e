# SPDX-License-Identifier: Apache-2.0
"""The verb table, the parsers, the completion and the man pages say the same."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparkd.cli import completion
from sparkd.cli.exits import MEANINGS, Exit
from sparkd.cli.main import overview, parser
from sparkd.cli.verbs import VERBS
from sparkd.core.bus_contract import INTROSPECTION
from sparkd.core.schema import FREE_SECTIONS, SETTINGS
from sparkd.core.unit_state import State

REPOSITORY = Path(__file__).parents[2]
MAN = REPOSITORY / "packaging/man"
COMPLETION = REPOSITORY / "packaging/completions/sparkctl"

sys.path.insert(0, str(REPOSITORY / "scripts"))

import reference  # noqa: E402

PAGES = sorted(path.name for path in MAN.glob("*.in"))


def page(name):
    return reference.man_page(MAN / name, "1.2.3", "01 Jan 2026")


def plain(name):
    return re.sub(r"\\f[BIR]", "", page(name).replace("\\-", "-"))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_parser_takes_exactly_what_the_table_says(verb):
    help_text = parser(verb).format_help()
    shown = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_text.partition("options:")[2]))
    flags = {flag for option in verb.options for flag in option.flags}
    assert flags | {"-h", "--help"} <= shown
    usage = help_text.partition("\n\n")[0]
    for flag in re.findall(r"--?[a-z][a-z-]*", usage):
        assert flag in flags | {"-h"}
    if verb.argument:
        assert verb.argument.metavar in usage


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_the_manual_has_every_verb_and_option(verb):
    text = plain("sparkctl.1.in")
    _, _, section = text.partition(f".SS {verb.name}")
    section = re.split(r"\n\.S[SH] ", section)[0]
    for option in verb.options:
        for flag in option.flags:
            assert flag in section


def test_overview_has_every_verb():
    for verb in VERBS:
        assert re.search(rf"^  {verb.name} +{re.escape(verb.summary)}$", overview(), re.MULTILINE)


def test_the_manual_has_every_state_and_exit_status():
    text = plain("sparkctl.1.in")
    states = re.findall(r"\.B (\w+)\n", text.partition(".SH STATES")[2].partition(".SH")[0])
    assert states == [str(state) for state in State]
    assert set(MEANINGS) == set(Exit)
    for code in Exit:
        assert f".TP\n{int(code)}\n" in text


def test_the_manual_has_every_configuration_key_once():
    text = plain("sparkd.toml.5.in")
    listed = re.findall(r"^\.TP\n([a-z_-]+) \(", text, re.MULTILINE)
    assert sorted(listed) == sorted(setting.key for setting in SETTINGS)
    for free in FREE_SECTIONS:
        assert f".SS [{free.name}]" in text


def test_the_manual_has_every_bus_method():
    text = plain("sparkd.8.in")
    for method in re.findall(r'<method name="(\w+)">', INTROSPECTION):
        assert re.search(rf"^\.BR {method} ", text, re.MULTILINE)


@pytest.mark.skipif(not shutil.which("man"), reason="man is missing")
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", ["60", "80", "120"])
def test_every_page_renders_without_a_warning(name, width, tmp_path):
    file = tmp_path / name.removesuffix(".in")
    file.write_text(page(name))
    done = subprocess.run(
        ["man", "--warnings", "--encoding=UTF-8", "--local-file", str(file)],
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": width, "MANROFFSEQ": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert not re.search("@[A-Z_]+@", done.stdout)


def test_the_completion_is_what_the_table_gives():
    assert COMPLETION.read_text() == completion.bash(), (
        "write it again: python3 -m sparkd.cli.completion >packaging/completions/sparkctl"
    )


def complete(*words):
    """What bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    script = f"""
        sparkctl() {{ printf 'nemotron\\nqwen\\n'; }}
        source '{COMPLETION}'
        COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}
        compopt() {{ :; }}
        _sparkctl
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-eu", "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("sparkctl", "sta"), ["status", "start"]),
        (("sparkctl", "restart", "nemotron", ""), ["nemotron", "qwen"]),
        (("sparkctl", "restart", "--w"), ["--wait"]),
        (("sparkctl", "logs", "n"), ["nemotron"]),
        (("sparkctl", "incidents", "--engine", "q"), ["qwen"]),
        (("sparkctl", "incidents", "--limit", ""), []),
        (("sparkctl", "incidents", ""), []),
        (("sparkctl", "apply", "--pr"), ["--prune"]),
        (("sparkctl", "nonsense", ""), []),
    ],
)
def test_bash_completes(words, offered):
    assert complete(*words) == offered
