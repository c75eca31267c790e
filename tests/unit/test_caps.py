# SPDX-License-Identifier: Apache-2.0
"""The compile caps on other launch paths: what is written, and what is left alone."""

import subprocess

import pytest

from sparkd.adapters import caps_files
from sparkd.adapters.unit_files import ApplyError
from sparkd.core import caps
from sparkd.core.caps import FILES, Found, State
from sparkd.core.config_model import CompileCaps
from sparkd.core.engine_environment import compile_caps

CAPS = CompileCaps(4, 1, 2)
WANTED = caps.render(CAPS)
PROFILE = FILES[0].path


def apply(root, wanted, *, force=False):
    plan = caps.plan(wanted, caps_files.read(root), force=force)
    caps_files.carry_out(plan, root)
    return plan


def at(root, path):
    return root / path.lstrip("/")


def test_every_file_is_written_once_and_then_left(tmp_path):
    assert {c.path for c in apply(tmp_path, WANTED).changes} == {file.path for file in FILES}
    assert apply(tmp_path, WANTED) == caps.Plan()
    assert at(tmp_path, PROFILE).stat().st_mode & 0o777 == 0o644


def test_new_values_replace_the_old_ones_and_off_removes_them(tmp_path):
    apply(tmp_path, WANTED)
    apply(tmp_path, caps.render(CompileCaps(9, 1, 2)))
    assert "MAX_JOBS:=9" in at(tmp_path, PROFILE).read_text()
    apply(tmp_path, caps.render(CompileCaps(9, 1, 2, everywhere=False)))
    assert [file.path for file in FILES if at(tmp_path, file.path).exists()] == []


@pytest.mark.parametrize("text", ["", "export MAX_JOBS=20\n", "# sparkd-content: sha256:1\n"])
def test_a_foreign_file_is_never_touched(tmp_path, text):
    path = at(tmp_path, PROFILE)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    for force in (False, True):
        plan = apply(tmp_path, WANTED, force=force)
        assert [r.path for r in plan.refused] == [PROFILE]
        assert path.read_text() == text
    assert apply(tmp_path, {}, force=True).refused == ()
    assert path.read_text() == text


def test_a_link_is_never_followed(tmp_path):
    target = tmp_path / "elsewhere"
    target.write_text("x")
    path = at(tmp_path, PROFILE)
    path.parent.mkdir(parents=True)
    path.symlink_to(target)
    assert [r.path for r in apply(tmp_path, WANTED).refused] == [PROFILE]
    assert target.read_text() == "x"


@pytest.mark.parametrize("edit", [("MAX_JOBS:=4", "MAX_JOBS:=40"), ("# Written", "# Wrote")])
def test_a_hand_edit_is_kept_unless_forced(tmp_path, edit):
    apply(tmp_path, WANTED)
    path = at(tmp_path, PROFILE)
    path.write_text(path.read_text().replace(*edit))
    assert "edited by hand" in apply(tmp_path, WANTED).refused[0].reason
    apply(tmp_path, WANTED, force=True)
    assert path.read_text() == WANTED[PROFILE]


def test_a_file_that_changed_meanwhile_stops_it(tmp_path):
    plan = caps.plan(WANTED, caps_files.read(tmp_path))
    path = at(tmp_path, PROFILE)
    path.parent.mkdir(parents=True)
    path.write_text("somebody's")
    with pytest.raises(ApplyError, match="changed since"):
        caps_files.carry_out(plan, tmp_path)
    assert path.read_text() == "somebody's"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_sets_what_is_not_set(tmp_path, shell):
    apply(tmp_path, WANTED)
    script = f". {at(tmp_path, PROFILE)}; env"
    environment = {"PATH": "/usr/bin:/bin", "MAX_JOBS": "2"}
    out = subprocess.run(
        [shell, "-euc", script], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert "MAX_JOBS=2" in out
    assert "NVCC_THREADS=1" in out
    assert "TORCHINDUCTOR_COMPILE_THREADS=2" in out


def test_states():
    text = WANTED[PROFILE]
    assert caps.state_of(Found(text), text) is State.CURRENT
    assert caps.state_of(Found(text), None) is State.STALE
    assert caps.state_of(Found(None), text) is State.ABSENT
    assert caps.state_of(Found(None, is_regular=False), text) is State.FOREIGN


def test_what_the_administrators_file_lacks_is_named():
    variables = compile_caps(CAPS)
    text = 'MAX_JOBS="4"\nexport NVCC_THREADS=1 # x\nFLASHINFER_NVCC_THREADS=8\n'
    lacking = caps.missing_in(text, variables)
    assert "FLASHINFER_NVCC_THREADS=1" in lacking
    assert not any(word.startswith(("MAX_JOBS", "NVCC")) for word in lacking)
    assert caps.missing_in("\n".join(f"{k}={v}" for k, v in variables.items()), variables) == []
