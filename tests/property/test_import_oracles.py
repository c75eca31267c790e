# SPDX-License-Identifier: Apache-2.0
"""What importing reads, against the programs that read it in earnest: systemd and bash."""

import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_units_oracle import Oracle, block, command, needs_systemd, oracle

from sparkd.core.importing.model import Notebook, Origin, RefusalError, Word
from sparkd.core.importing.shell import Shell
from sparkd.core.importing.shell_state import Array, State
from sparkd.core.importing.unit_text import Fragment, merge
from sparkd.core.importing.unit_words import commands, environment_file, specifiers

__all__ = ["oracle"]

GENERATOR = Path("/usr/lib/systemd/user-environment-generators/30-systemd-environment-d-generator")
BASH = Path("/bin/bash")
RELAXED = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

PIECES = st.sampled_from(
    [
        "a",
        "--b=c",
        " ",
        "  ",
        "\t",
        "'",
        '"',
        "\\\n",
        "\\\n# c\n",
        "\\\n ; d\n",
        "\\n",
        "\\x41",
        "\\101",
        "\\s",
        "\\\\",
        "\\'",
        '\\"',
        "\\q",
        "\\u00e9",
        "%%",
        "%n",
        "%p",
        "$A",
        "${B}",
        "$$",
        ";",
        "\\;",
        " ; ",
        "{",
        "}",
        "=",
        "#",
        "é",
        "漢",
        "'x y'",
        '"x  y"',
        "\\\r",
    ]
)


@needs_systemd
@RELAXED
@given(lines=st.lists(st.lists(PIECES, min_size=1, max_size=12).map("".join), min_size=20,
                      max_size=20))  # fmt: skip
def test_command_lines_are_split_as_systemd_splits_them(oracle: Oracle, lines: list[str]) -> None:
    units = {
        f"u{number}.service": f"[Service]\nExecStart=/bin/echo {line}\nType=exec\n"
        for number, line in enumerate(lines)
    }
    dump, complaints = oracle.read(units)
    compared = 0
    for name, text in units.items():
        if name in complaints or f"Unit {name}:" not in dump:
            continue  # systemd ignores the line, or a part of it
        unit = merge(name, Fragment(name, text), ())
        known = specifiers(name, "/root", "root", is_user_unit=False)
        (setting,) = unit.all("Service", "ExecStart")
        (mine,) = commands(setting, known)
        theirs = [as_bytes(word) for word in command(block(dump, name), "ExecStart")]
        assert [word.text.encode() for word in mine.words] == theirs, text
        compared += 1
    assert compared


def as_bytes(word: str) -> bytes:
    """Octal escapes in systemd's dump are bytes, and the helper decodes each to one character."""
    return b"".join(
        bytes([ord(c)]) if 0x7F < ord(c) < 0x100 and c != "é" else c.encode() for c in word
    )


@needs_systemd
def test_drop_ins_merge_as_systemd_merges_them(oracle: Oracle) -> None:
    name = "m.service"
    main = "[Service]\nEnvironment=A=1 B=2\nExecStart=/bin/echo one\n"
    parts = {
        "10-a.conf": "[Service]\nEnvironment=B=3\n",
        "20-b.conf": "[Service]\nExecStart=\nExecStart=/bin/echo two\nEnvironment=\n",
        "15-c.conf": "[Service]\nEnvironment=C=4\n",
        "30-d.conf": "[Service]\nEnvironment=D=5 'E=a b'\n",
    }
    folder = oracle.units / f"{name}.d"
    try:
        oracle.read({name: main})  # empties the directory first
        folder.mkdir()
        for part, text in parts.items():
            (folder / part).write_text(text)
        dump = read_again(oracle)
    finally:
        for part in folder.iterdir():
            part.unlink()
        folder.rmdir()
    text = block(dump, name)
    unit = merge(name, Fragment(name, main), [Fragment(f"/d/{k}", v) for k, v in parts.items()])
    known = specifiers(name, "/root", "root", is_user_unit=False)
    (setting,) = unit.all("Service", "ExecStart")
    (mine,) = commands(setting, known)
    assert [word.text for word in mine.words] == command(text, "ExecStart") == ["/bin/echo", "two"]
    assert [s.value for s in unit.all("Service", "Environment")] == ["D=5 'E=a b'"]
    assert [line.strip() for line in text.split("\n") if "\tEnvironment: " in line] == [
        "Environment: D=5",
        "Environment: E=a b",
    ]


def read_again(oracle: Oracle) -> str:
    """Read the directory as it is: `Oracle.read` would empty it."""
    as_nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    result = subprocess.run(
        ["/lib/systemd/systemd", "--test", "--user", "--no-pager", "--unit=oracle.target"],
        env={
            "HOME": str(oracle.home),
            "XDG_RUNTIME_DIR": str(oracle.home),
            "SYSTEMD_UNIT_PATH": f"{oracle.units}:/usr/lib/systemd/user",
            "SYSTEMD_LOG_TARGET": "console",
        },
        capture_output=True,
        timeout=60,
        check=True,
        **as_nobody,
    )
    return result.stdout.decode()


FILE_PIECES = st.sampled_from(
    [
        "A=",
        "B=",
        "C =",
        " D=",
        "\n",
        "\n",
        "x",
        " ",
        "\t",
        "'",
        '"',
        "\\",
        "\\\n",
        "#",
        ";",
        "=",
        "y z",
        "\\n",
        '\\"',
        "é",
        '{"a": 1}',
        "'q'",
        "--f",
    ]
)


@pytest.mark.skipif(not GENERATOR.exists(), reason=f"no {GENERATOR} on this machine")
@settings(max_examples=300, deadline=None)
@given(text=st.lists(FILE_PIECES, max_size=25).map("".join))
def test_environment_files_are_read_as_systemd_reads_them(text: str) -> None:
    if re.search(r"[#;][^\n]*\\\n", text):
        return  # before 254 a backslash continued a comment; since then it does not
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base) / "environment.d"
        folder.mkdir()
        (folder / "x.conf").write_text(text)
        result = subprocess.run(
            [GENERATOR], env={"XDG_CONFIG_HOME": base, "HOME": base}, capture_output=True,
            text=True, timeout=20, check=False,
        )  # fmt: skip
    theirs = {}
    for line in shlex.split(result.stdout.replace("$'", "'")):
        name, equals, value = line.partition("=")
        if equals:
            theirs[name] = value
    # In environment.d an empty value unsets the variable; in EnvironmentFile= it is empty.
    mine = {name: word.text for name, word in environment_file(text, "x.conf") if word.text}
    if any("\n" in value or "\t" in value for value in mine.values()):
        return  # the generator prints these in another quoting
    assert mine == {name: theirs.get(name) for name in mine}, text
    assert {"A", "B", "C", "D"} & theirs.keys() <= mine.keys(), text


WORD_PIECES = st.sampled_from(
    [
        "a",
        "b c",
        " ",
        " ",
        "'q r'",
        '"s t"',
        '"',
        "'",
        "\\",
        "\\ ",
        "$A",
        '"$A"',
        "${A}",
        "$B",
        '"$B"',
        '"${L[@]}"',
        "${L[@]}",
        '"${L[*]}"',
        "${U:-d e}",
        '"${U:-d e}"',
        "${U-}",
        "${A:+z}",
        "${U:+z}",
        '"x$A"',
        "x$B.y",
        '""',
        "''",
        "=",
        "--f=",
        "\\\n",
        "#",
        "${L[1]}",
        '"${U:-$A}"',
        "'$A'",
        "\\$A",
        '"\\$A"',
        '"\\x"',
        '\\"',
        "é",
        "V=1",
        "V='2 3'",
        '"${E[@]}"',
        "${E[@]}",
        '"${U:-"n m"}"',
        '${U:-"n m"}',
        "${U:- o p }",
        "${U:-~/h}",
        '"${U:-~/h}"',
        '"${U:-{"j":1}}"',
        '"${A:-{"j":1}}"',
        "${A:-{k}}",
        '"${U:-it\'s}"',
        '"${U:-a\\b\\"c}"',
        "${U:-'q r' $B}",
    ]
)
PREAMBLE = "A=one\nB='two  three'\nL=(first 'second item' \"$A\")\nL+=(last)\nE=()\n"


@settings(max_examples=400, deadline=None)
@given(text=st.lists(WORD_PIECES, min_size=1, max_size=10).map("".join))
def test_words_expand_as_bash_expands_them(text: str) -> None:
    script = f"{PREAMBLE}program {text}\n"
    notebook = Notebook()
    state = State("/s.sh", notebook, NoHost())
    try:
        Shell(state).run(script)
    except RefusalError:
        return  # a quotation mark or bracket is not closed
    if len(state.invocations) != 1:
        return  # a newline was escaped away from the end of a word
    result = subprocess.run(
        [BASH, "--noprofile", "--norc", "-c", f"program() {{ printf '%s\\0' \"$@\"; }}\n{script}"],
        env={"LC_ALL": "C.UTF-8"}, capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    (invocation,) = state.invocations
    if result.returncode or any(word.problem for word in invocation.argv):
        return
    theirs = result.stdout.decode().split("\0")[:-1]
    mine = [word.text for word in invocation.argv[1:]]
    assert (mine or [""]) == theirs, script  # printf prints one field even without arguments


STATEMENTS = st.sampled_from(
    [
        "A=new", "A+=more", "B=$A", "L=(x y)", "L+=(z)", "L[1]=w", "L=([1]=p [0]=q)", "unset A",
        "unset L[0]", "declare -A M=([k]=v [l]=w)", "M[k]=u", "i=1", "A=${L[$i]}", "A=${L[-1]}",
        "A=${L[i]}", "A=${M[k]}", "A=${L}", "((i++))", "((i = 2))", "let i+=1", "let A=3",
        "((i == 2))", "(( (i + 1) > 2 ))", "read -r A", "read -p x A B <<< 'q r'", "mapfile L",
        "printf -v A %d 7", "printf '%s' A >&2", "( A=inner; L+=(inner) )", "(cd /; B=$PWD)",
        "{ A=group; }", "f() { A=function; }", "f", "g() { local A=local; B=global; }", "g",
        "function h { L+=(h); }", "h", "for A in 1 2; do :; done",
        "for ((i=0; i<3; i++)); do :; done",
        "while read -r B; do :; done", "set -- one 'two three'", "set -e one", "set -o pipefail",
        "set -a", "set +a", "shift", 'B="$*"', "A=$1", "if true; then A=if; fi",
        "if false; then unset B; fi", "true && A=and", "false && A=and", "true || A=or",
        "if true; then set -- x; fi", "if false; then shift; fi", "eval 'A=eval'",
        "export A=exported", "export $(echo B=words)", "export $(echo A=${A:-d})", "IFS=,",
        "A=a,b", "IFS=' '", "case x in x) A=case;; esac", "source <(echo A=sourced)",
        "A=old; A=prefix :", "A=back & wait",
        "[ -f /dev/null/x ] && A=tested", "B=$((i + 1))", "A=`echo y`",
        "{ A=one & } 2>/dev/null; wait", "echo z | read A", "A=$(echo z)", "readonly C=3", "A=$C",
        "let A++ B=2", ': "${V:=set}"', "false && : ${V:=never}", "B=${W:=a b}", ": ${A:=x}",
        "if true; then : ${W:=if}; fi", "( : ${V:=inner} )", ": ${V:=piped} | cat",
        "until true; do A=until; done", "getopts ab B", "echo A; echo B",
    ]
)  # fmt: skip
QUESTIONS = st.sampled_from(
    ['"$A"', "$A", '"$B"', "$B", '"${L[@]}"', "${L[*]}", '"${L[1]}"', '"$1"', '"$@"', "$*", "$i",
     '"${A:-d}"', '"${M[k]}"', "${L[0]}", '"${U:-u}"', "$C", '"${L[$i]}"', '"$V"', "$V",
     "$W"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    statements=st.lists(STATEMENTS, max_size=8),
    questions=st.lists(QUESTIONS, min_size=1, max_size=4),
)
def test_what_is_known_of_a_script_is_what_bash_does(
    statements: list[str], questions: list[str]
) -> None:
    """Whatever a script does in between: a word that is known is the word that bash passes."""
    script = "\n".join([PREAMBLE.strip(), *statements, f"program {' '.join(questions)}", ""])
    state = State("/s.sh", Notebook(), NoHost())
    Shell(state).run(script)
    (invocation,) = [i for i in state.invocations if i.argv[0].text == "program"]
    head = "program() { printf '%s\\0' \"$@\"; }\n"
    result = subprocess.run(
        [BASH, "--noprofile", "--norc", "-c", head + script], stdin=subprocess.DEVNULL, cwd="/",
        env={"LC_ALL": "C.UTF-8"}, capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    if "\0" not in result.stdout.decode() or any(word.problem for word in invocation.argv):
        return  # bash gave up before, or the importer says that it cannot know
    theirs = result.stdout.decode().rpartition("\n")[2].split("\0")[:-1]
    mine = [word.text for word in invocation.argv[1:]]
    assert (mine or [""]) == theirs, script


class NoHost:
    def read(self, path: str) -> None:
        del path

    def home(self, user: str) -> None:
        del user

    def is_executable(self, path: str) -> bool:
        return not path

    def matching(self, pattern: str) -> list[str]:
        return [] if pattern else [""]


def test_the_shell_comparison_compares_something() -> None:
    state = State("/s.sh", Notebook(), NoHost())
    Shell(state).run(PREAMBLE + 'program "${L[@]}" $B\n')
    assert isinstance(state.variables["L"], Array)
    assert [word.text for word in state.invocations[0].argv] == [
        "program", "first", "second item", "one", "last", "two", "three",
    ]  # fmt: skip
    assert state.invocations[0].argv[0] == Word("program", Origin("/s.sh", 6))
