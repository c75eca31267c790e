# SPDX-License-Identifier: Apache-2.0
"""The renderer against its real consumer: systemd's own unit parser.

`systemd --test --user`, run as an ordinary user, loads units and dumps what it understood. Whatever
an operator writes into a model name, a flag or a variable must come back byte for byte.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkd.core.config import Config, Source, load
from sparkd.core.engine_environment import engine_environment
from sparkd.core.escape import UnitTextError, check_encodable
from sparkd.core.helper_options import await_ready_argv, await_slot_argv, with_credentials_argv
from sparkd.core.marker import launch_hash
from sparkd.core.text import has_control_character
from sparkd.core.units import HostFacts, render

SYSTEMD = Path("/lib/systemd/systemd")
NOBODY = 65534
LIBEXEC = "/usr/libexec/sparkd"

needs_systemd = pytest.mark.skipif(not SYSTEMD.exists(), reason=f"no {SYSTEMD} on this machine")


class Oracle:
    """A directory of units and systemd's reading of it."""

    def __init__(self, base: Path) -> None:
        self.units = base / "units"
        self.home = base / "home"
        for path in (base, self.units, self.home):
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(self.home, NOBODY, NOBODY)

    def read(self, units: Mapping[str, str]) -> tuple[str, str]:
        """Return systemd's dump of the units and what it complained about."""
        for old in self.units.iterdir():
            old.unlink()
        wanted = " ".join(name for name in units if name.endswith(".service"))
        everything = {**units, "oracle.target": f"[Unit]\nWants={wanted}\n"}
        for name, text in everything.items():
            (self.units / name).write_bytes(text.encode())
            (self.units / name).chmod(0o644)
        as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        result = subprocess.run(
            [SYSTEMD, "--test", "--user", "--no-pager", "--unit=oracle.target"],
            env={
                "HOME": str(self.home),
                "XDG_RUNTIME_DIR": str(self.home),
                "SYSTEMD_UNIT_PATH": f"{self.units}:/usr/lib/systemd/user",
                "SYSTEMD_LOG_TARGET": "console",
            },
            capture_output=True,
            timeout=60,
            check=True,
            **(as_nobody if os.geteuid() == 0 else {}),  # type: ignore[call-overload]
        )
        complaints = [
            line
            for line in result.stderr.decode().splitlines()
            if not line.startswith("Loaded units and determined initial transaction")
        ]
        return result.stdout.decode(), "\n".join(complaints)


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    # Not tmp_path: pytest keeps that from other users, and systemd must run as one.
    with tempfile.TemporaryDirectory(prefix="sparkd-oracle-") as base:
        yield Oracle(Path(base))


# systemd 257 prints either, 252 only the first.
ARROW = "(?:->|→)"


def block(dump: str, unit: str) -> str:
    """Return the part of the dump that describes one unit."""
    found = re.search(rf"^\t{ARROW} Unit {re.escape(unit)}:\n", dump, re.MULTILINE)
    assert found, f"systemd did not load {unit}"
    end = re.compile(rf"^\t{ARROW} Unit |^-> By jobs:", re.MULTILINE).search(dump, found.end())
    return dump[found.start() : end.start() if end else len(dump)]


def command(text: str, setting: str) -> list[str]:
    """Return the words of the only command of a setting, decoded from systemd's quoting."""
    (line,) = re.findall(rf"^\t\t{ARROW} {setting}:\n\t\t\tCommand Line: (.*)$", text, re.MULTILINE)
    return [unquote(word) for word in words(line)]


def words(line: str) -> list[str]:
    # A quoted word holds no bare quotation mark, so this finds the ends.
    found = re.findall(r'"(?:[^"\\]|\\.)*"|[^ "]+', line)
    assert " ".join(found) == line
    return found


ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def unquote(word: str) -> str:
    if not word.startswith('"'):
        return word

    def character(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape, 8)) if len(escape) == 3 else ESCAPES.get(escape, escape)

    return re.sub(r"\\([0-7]{3}|.)", character, word[1:-1], flags=re.DOTALL)


def unexpanded(argv: Sequence[str]) -> list[str]:
    """Write arguments as systemd keeps them until it runs the command: with `$` doubled."""
    return [argument.replace("$", "$$") for argument in argv]


def toml(text: str) -> str:
    return '"' + "".join(f"\\U{ord(character):08x}" for character in text) + '"'


def configuration(engines: Sequence[Mapping[str, object]]) -> Config:
    sources = []
    for index, engine in enumerate(engines):
        name, items, variables = engine["name"], engine["items"], engine["env"]
        assert isinstance(items, list)
        assert isinstance(variables, list)
        unique = toml(f"e{index} {name}")
        lines = [
            f"model = {toml(str(engine['model']))}",
            f"port = {8001 + index}",
            "[runtime]",
            'venv = "/opt/vllm"',
            "[serve]",
            f'served-model-name = ["e{index}", {unique}]',
            f"text-flag = {toml(str(engine['flag']))}",
            f"list-flag = [{', '.join(map(toml, items))}]",
            f"json-flag = {{ {toml('k')} = {toml(str(engine['flag']))} }}",
            "[env]",
            *(f"V{number} = {toml(value)}" for number, value in enumerate(variables)),
            "[credentials]",
            'HF_TOKEN = "/etc/sparkd/secrets/hf_token"',
        ]
        sources.append(Source(f"e{index}.toml", "\n".join(lines), f"e{index}"))
    return load(sources, None)


def can_be_carried(text: str) -> bool:
    try:
        check_encodable(text)
    except UnitTextError:
        return False
    return True


# Heavy on what unit files, shells and terminals treat as special.
SPECIAL = "\\\"'$%;#@:+!-=/{}[]()&|<>*?~`^., \t\n\r\x01\x1b\x7f\x85\u2028é漢😀aZ09_"
CHARACTERS = st.one_of(
    st.sampled_from(SPECIAL),
    st.characters(blacklist_categories=["Cs"]).filter(can_be_carried),
)
TEXT = st.text(CHARACTERS, max_size=30)
SEEN = st.text(CHARACTERS.filter(lambda c: not has_control_character(c)), max_size=30)
# "m": a model that is not refused for its beginning; the rest of it is free.
ENGINE = st.fixed_dictionaries(
    {
        "model": SEEN.map(lambda text: f"m{text}"),
        "name": SEEN,
        "flag": TEXT,
        "items": st.lists(TEXT.filter(lambda t: not t.startswith("-")), min_size=1, max_size=3),
        "env": st.lists(TEXT, max_size=4),
    }
)


@needs_systemd
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(engines=st.lists(ENGINE, min_size=1, max_size=8))
def test_everything_comes_back_byte_for_byte(
    oracle: Oracle, engines: list[dict[str, object]]
) -> None:
    config = configuration(engines)
    units = render(config, HostFacts(has_swap=True))
    dump, complaints = oracle.read(units)
    assert complaints == ""
    for engine in config.engines:
        text = block(dump, engine.unit)
        assert command(text, "ExecStart") == [
            f"{LIBEXEC}/with-credentials",
            *with_credentials_argv(engine),
            *unexpanded(
                ["/opt/vllm/bin/vllm", "serve", engine.model, "--host", "127.0.0.1", "--port",
                 str(engine.port), *engine.serve]
            ),
        ]  # fmt: skip
        assert command(text, "ExecStartPre") == [
            f"{LIBEXEC}/await-slot",
            *unexpanded(await_slot_argv(engine, config.host)),
        ]
        # ${MAINPID} alone is left for systemd to expand.
        assert command(text, "ExecStartPost") == [
            f"{LIBEXEC}/await-ready",
            *(
                argument if argument == "--pid=${MAINPID}" else argument.replace("$", "$$")
                for argument in await_ready_argv(engine)
            ),
        ]
        environment = engine_environment(engine, config.host.compile)
        environment["SPARKD_LAUNCH_HASH"] = launch_hash(units[engine.unit]) or ""
        expected = "".join(f"\t\tEnvironment: {k}={v}\n" for k, v in environment.items())
        first, last = text.index("\t\tEnvironment: "), text.index("\t\tRuntimeDirectoryPreserve: ")
        assert text[first:last] == expected


@needs_systemd
def test_systemd_accepts_every_line_and_reads_the_settings_that_matter(oracle: Oracle) -> None:
    engine = {"model": "org/m", "name": "n", "flag": "f", "items": ["i"], "env": ["1"]}
    units = render(configuration([engine]), HostFacts(has_swap=True))
    dump, complaints = oracle.read(units)
    assert complaints == ""
    text = block(dump, "vllm-e0.service")
    for line in (
        "Type: exec",
        "NotifyAccess: all",
        "Restart: always",
        "RestartSec: 5s",
        "TimeoutStartSec: 39min 36s",
        "TimeoutStopSec: 1min",
        "KillMode: mixed",
        "OOMPolicy: kill",
        "OOMScoreAdjust: -100",
        "PrivateDevices: no",
        "MemoryDenyWriteExecute: no",
        "Slice: vllm.slice",
        "LimitNOFILE: 1048576",
        "LimitMEMLOCK: 18446744073709551615",
    ):
        assert f"\t\t{line}\n" in text, line


@needs_systemd
def test_the_sandbox_does_not_erode(oracle: Oracle) -> None:
    """The number is systemd's exposure score times ten; an unhardened engine has 96."""
    engine = {"model": "org/m", "name": "n", "flag": "f", "items": ["i"], "env": []}
    unit = oracle.units / "vllm-e0.service"
    unit.write_text(render(configuration([engine]), HostFacts(has_swap=False))[unit.name])
    result = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=40", unit],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stdout


@needs_systemd
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Restart=always", "Restart=perhaps"),
        ("MAX_JOBS=4", "MAX_JOBS=%z"),
        ("KillMode=mixed", "KilMode=mixed"),
    ],
)
def test_the_oracle_complains_about_what_systemd_ignores(
    oracle: Oracle, old: str, new: str
) -> None:
    """Otherwise empty complaints would prove nothing."""
    engine = {"model": "org/m", "name": "n", "flag": "f", "items": ["i"], "env": []}
    units = render(configuration([engine]), HostFacts(has_swap=False))
    assert old in units["vllm-e0.service"]
    units["vllm-e0.service"] = units["vllm-e0.service"].replace(old, new)
    _, complaints = oracle.read(units)
    assert "vllm-e0.service" in complaints
