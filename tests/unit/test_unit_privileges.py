# SPDX-License-Identifier: Apache-2.0
"""What runs as root beside an engine takes no code and no word from the engine's user."""

import re
from pathlib import Path

import pytest
from test_units import service, value, values

ROOT = Path(__file__).resolve().parents[2]
LOADER = 'LD_LIBRARY_PATH = "/home/ai/venv/lib"\nLD_PRELOAD = "/opt/x/lib j.so"\n'


def test_what_the_loader_heeds_reaches_the_engine_alone() -> None:
    text = service(rest=f'[env]\n{LOADER}KEPT = "1"\n')
    environment = values(text, "Service", "Environment")
    assert "KEPT=1" in environment
    assert not [row for row in environment if row.startswith("LD_")]
    assert value(text, "Service", "ExecStart").startswith(
        "/usr/bin/env LD_LIBRARY_PATH=/home/ai/venv/lib"
        ' "LD_PRELOAD=/opt/x/lib j.so" /opt/vllm/bin/vllm serve '
    )


def test_credentials_are_handed_on_by_a_program_that_heeds_none_of_it() -> None:
    text = service(rest=f'[env]\n{LOADER}[credentials]\nHF_TOKEN = "/etc/s/hf"\n')
    start = value(text, "Service", "ExecStart")
    assert start.startswith(
        "/usr/libexec/sparkd/with-credentials --export=HF_TOKEN -- /usr/bin/env"
    )


@pytest.mark.parametrize("name", ["GLIBC_TUNABLES", "LD_AUDIT", "GCONV_PATH"])
def test_every_variable_of_the_loader(name: str) -> None:
    text = service(rest=f'[env]\n{name} = "x"\n')
    assert f"Environment={name}" not in text
    assert f"/usr/bin/env {name}=x " in text


def test_the_engine_cannot_speak_for_its_unit() -> None:
    assert value(service(), "Service", "InaccessiblePaths") == "-/run/systemd/notify"


def test_root_starts_no_program_by_its_name() -> None:
    """PATH is the engine's: it begins with folders that the engine's user may be able to write."""
    on_start_path = [*(ROOT / "sparkd/helpers").glob("*.py")]
    on_start_path += [ROOT / f"sparkd/adapters/{name}.py" for name in ("systemctl", "journal")]
    by_name = re.compile(r"""\[\s*["'](systemctl|journalctl|py-spy|busctl|sh|env)["']""")
    assert by_name.search('["systemctl", "show"]')
    assert [path.name for path in on_start_path if by_name.search(path.read_text())] == []


@pytest.mark.parametrize("helper", ["await-slot", "await-ready", "post-mortem"])
def test_the_environment_chooses_no_python_code(helper: str) -> None:
    script = (ROOT / "scripts/build-deb").read_text()
    (flags,) = re.findall(rf'"libexec/{helper}": \("[\w.]+", "(-\w+)"\)', script)
    assert "I" in flags, "no PYTHONPATH, no current folder, no user's site-packages"
