# SPDX-License-Identifier: Apache-2.0
"""What the package ships agrees with the code, and is what the format's own checkers accept."""

import ast
import configparser
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import reference
from beds import rootfs

from sparkd.cli import completion
from sparkd.cli.verbs import VERBS
from sparkd.core import bus_contract
from sparkd.core.config import load
from sparkd.core.config_reader import Source
from sparkd.core.events import Event
from sparkd.core.schema import HOST, SETTINGS

REPO = Path(__file__).resolve().parents[2]
PACKAGING = REPO / "packaging"
MANUALS = sorted(PACKAGING.glob("man/*.in"))


def needs(tool: str) -> str:
    found = shutil.which(tool)
    assert found, f"{tool} is not installed: run the tests with scripts/test"
    return found


# the default configuration and the examples


def examples() -> list[Source]:
    files = sorted((PACKAGING / "examples/engines.d").glob("*.toml"))
    assert len(files) >= 3
    return [Source(str(path), path.read_bytes(), path.stem) for path in files]


def test_the_default_configuration_is_accepted_and_changes_nothing() -> None:
    text = reference.default_host_config()
    assert load([Source("sparkd.toml", text)], 0) == load([], 0)
    # With the comment signs removed it must still be accepted, and must name every key.
    awake = re.sub(r"(?m)^#(?=[a-z_-]+ = |\[)", "", text)
    load([Source("sparkd.toml", awake)], 128 << 30)
    for setting in SETTINGS:
        if setting.file == HOST:
            assert f"\n#{setting.key} = " in text


def test_the_examples_are_accepted_together() -> None:
    config = load(examples(), 128 << 30)
    assert [engine.name for engine in config.engines] == ["chat", "embedding", "drill"]


# the journal's catalog


def test_the_catalog_explains_every_event_and_no_other() -> None:
    text = (PACKAGING / "catalog/sparkd.catalog").read_text()
    identifiers = re.findall(r"(?m)^-- ([0-9a-f]{32})$", text)
    assert len(identifiers) == len(set(identifiers))
    assert set(identifiers) == {str(event) for event in Event}
    for entry in re.split(r"(?m)^-- [0-9a-f]{32}$", text)[1:]:
        head, _, body = entry.strip().partition("\n\n")
        assert head.startswith("Subject: ")
        assert "\nDefined-By: sparkd" in head
        assert len(body.split()) > 8


def test_journalctl_compiles_the_catalog(tmp_path: Path) -> None:
    place = tmp_path / "usr/lib/systemd/catalog"
    place.mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    shutil.copy(PACKAGING / "catalog/sparkd.catalog", place)
    root = f"--root={tmp_path}"
    journalctl = needs("journalctl")
    subprocess.run([journalctl, root, "--update-catalog"], check=True)
    listed = subprocess.run(
        [journalctl, root, "--list-catalog"], check=True, capture_output=True, text=True
    ).stdout
    assert all(str(event) in listed for event in Event)


# bus and polkit


def test_the_bus_files_name_what_the_daemon_serves() -> None:
    policy = ET.parse(PACKAGING / f"dbus-1/{bus_contract.NAME}.conf").getroot()
    rules = [
        (tuple(block.attrib.items()), rule.tag, *rule.attrib.items())
        for block in policy
        for rule in block
    ]
    name = bus_contract.NAME
    assert rules == [
        ((("context", "default"),), "deny", ("own", name)),
        ((("context", "default"),), "deny", ("send_destination", name)),
        ((("user", "root"),), "allow", ("own", name)),
        ((("user", "root"),), "allow", ("send_destination", name)),
        ((("group", "sparkd"),), "allow", ("send_destination", name)),
    ]
    activation = configparser.ConfigParser()
    activation.read(PACKAGING / f"dbus-1/{name}.service")
    assert activation["D-BUS Service"]["Name"] == name
    assert activation["D-BUS Service"]["SystemdService"] == "sparkd.service"


def test_polkit_knows_exactly_the_actions_that_the_daemon_asks_for() -> None:
    policy = ET.parse(PACKAGING / "polkit-1/io.github.sparkd.policy").getroot()
    actions = {action.attrib["id"]: action for action in policy.iter("action")}
    assert set(actions) == {bus_contract.MANAGE_ENGINES, bus_contract.APPLY_CONFIG}
    for action in actions.values():
        for case in ("allow_any", "allow_inactive", "allow_active"):
            assert action.findtext(f"defaults/{case}", "").startswith("auth_admin")


# manual pages and completion


@pytest.mark.parametrize("template", MANUALS, ids=lambda path: path.stem)
def test_the_manual_pages_are_clean(template: Path, tmp_path: Path) -> None:
    page = tmp_path / template.stem
    page.write_text(reference.man_page(template, "1.0", "2026-01-01"))
    done = subprocess.run(
        [needs("groff"), "-man", "-Kutf8", "-Tutf8", "-ww", "-z", str(page)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"@[A-Z_]+@", page.read_text())


def test_a_manual_page_is_there_for_each_thing() -> None:
    names = {path.name.removesuffix(".in") for path in MANUALS}
    assert {"sparkctl.1", "sparkd.8", "sparkd.toml.5", "sparkd-sim-engine.1"} <= names
    shipped = (PACKAGING / "debian/sparkd.manpages").read_text().split()
    assert {Path(path).name for path in shipped} == names


def test_the_manual_page_of_sparkctl_has_every_verb_and_option() -> None:
    page = reference.man_page(PACKAGING / "man/sparkctl.1.in", "1.0", "2026-01-01")
    plain = page.replace("\\-", "-")
    for verb in VERBS:
        assert f".SS \\fB{verb.name}\\fR" in plain
        for option in verb.options:
            assert all(flag in plain for flag in option.flags)


def test_the_completion_is_current() -> None:
    shipped = (PACKAGING / "completions/sparkctl").read_text()
    assert shipped == completion.bash()
    done = subprocess.run(
        [needs("shellcheck"), "--shell=bash", "-"],
        input=shipped,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# the unit and the package's parts


def test_the_unit_is_as_closed_as_promised() -> None:
    unit = str(REPO / "units/sparkd.service")
    done = subprocess.run(
        [needs("systemd-analyze"), "security", "--offline=true", "--threshold=20", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


def test_the_package_depends_on_what_the_code_imports_and_on_no_more() -> None:
    control = (PACKAGING / "debian/control").read_text()
    imported = set()
    for path in (REPO / "sparkd").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    foreign = imported - set(sys.stdlib_module_names) - {"sparkd"}
    packages = {
        "dotenv": "python3-dotenv",
        "gi": "python3-gi",
        "httpx": "python3-httpx",
        "prometheus_client": "python3-prometheus-client",
        "psutil": "python3-psutil",
        "pydbus": "python3-pydbus",
        "structlog": "python3-structlog",
        "systemd": "python3-systemd",
        "tomli_w": "python3-tomli-w",
        "yaml": "python3-yaml",
    }
    assert foreign == packages.keys(), "each module has its package, and each package its use"
    for module in foreign:
        assert f" {packages[module]},\n" in control
        assert packages[module] in rootfs.PACKAGES.split(), "the beds would not have it"


def test_everything_in_the_units_folder_is_shipped() -> None:
    installed = (PACKAGING / "debian/sparkd.install").read_text()
    for path in (REPO / "units").iterdir():
        # scripts/build-deb hands sparkd.service to debhelper, which enables and starts it.
        assert path.name == "sparkd.service" or f"units/{path.name} " in installed


def test_nobody_owns_the_unit_of_another_program() -> None:
    names = [path.name for path in REPO.rglob("*.service*") if ".git" not in path.parts]
    assert not [name for name in names if name.startswith("sparkctl")]
