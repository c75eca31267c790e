# SPDX-License-Identifier: Apache-2.0
"""A guest's claim: counts until it is ready or its scope is gone, and nobody has to release it."""

import os
import socket

import pytest

from sparkd.adapters import guests, proc
from sparkd.adapters.guests import Guest
from sparkd.core import guest_launch, slot
from sparkd.core.slot import Claim, Phase

UNIT = "vllm-guest-7.scope"
RUNNING = Phase("i1", "running")


def guest(**changes):
    me = os.getpid()
    one = Guest(
        UNIT, "i1", me, proc.start_time(me), "ai", "vllm serve m", "127.0.0.1", 8000, 1, 1.0,
        watcher=me, watcher_started=proc.start_time(me),
    )  # fmt: skip
    return one._replace(**changes)


def counts(folder, seen=RUNNING):
    return slot.claim_counts(Claim(UNIT, "i1"), guests.claim_phase(UNIT, seen, folder))


def test_it_counts_while_it_starts_and_not_when_it_is_ready(tmp_path):
    assert counts(tmp_path), "before its watcher has said anything"
    guests.write(guest(), tmp_path)
    assert counts(tmp_path)
    guests.write(guest(is_ready=True), tmp_path)
    assert not counts(tmp_path)


@pytest.mark.parametrize("state", ["", "dead", "failed"])
def test_it_ends_with_its_scope(tmp_path, state):
    guests.write(guest(), tmp_path)
    assert not counts(tmp_path, Phase("i1", state))


def test_another_scope_of_that_name_is_not_it(tmp_path):
    guests.write(guest(), tmp_path)
    assert not counts(tmp_path, Phase("i2", "running"))
    guests.write(guest(invocation_id="i0", is_ready=True), tmp_path)
    assert counts(tmp_path), "an old file says nothing about this scope"


def test_without_its_watcher_the_kernel_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(guests, "cgroup_of", lambda _: proc.cgroup_of(os.getpid()))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        orphaned = guest(port=server.getsockname()[1], watcher=os.getpid(), watcher_started=1)
        guests.write(orphaned, tmp_path)
        assert counts(tmp_path), "bound is not listening: vLLM binds before its engine starts"
        server.listen()
        assert not counts(tmp_path)
        guests.write(orphaned._replace(port=0), tmp_path)
        assert counts(tmp_path), "an unknown port is not an open one"


def test_a_place_in_the_queue_ends_with_its_process():
    me = guests.identity(os.getpid())
    assert guests.waiting_phase(me).sub_state == "start-pre"
    assert guests.waiting_phase(f"{os.getpid()}:1") == guests.GONE
    assert guests.waiting_phase("") == guests.GONE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"unit": "vllm-guest-7.scope"}'])
def test_a_damaged_file_is_no_guest(tmp_path, text):
    (tmp_path / f"{UNIT}.json").write_text(text)
    assert list(guests.all_noted(tmp_path)) == []


@pytest.mark.parametrize(
    ("words", "port", "host", "utilization", "model"),
    [
        ("vllm serve m", 8000, "127.0.0.1", 0.92, "m"),
        ("vllm serve m --port 8012 --host 0.0.0.0", 8012, "127.0.0.1", 0.92, "m"),
        ("vllm serve --model=/x --port=1 --gpu_memory_utilization=0.3", 1, "127.0.0.1", 0.3, "/x"),
        ("vllm serve m --uds /run/s", 0, "127.0.0.1", 0.92, "m"),
        ("vllm serve m --config c.yaml", 0, "127.0.0.1", 0.92, "m"),
        ("python train.py", 0, "127.0.0.1", 0.0, ""),
    ],
)
def test_what_a_command_line_asks_for(words, port, host, utilization, model):
    seen = guest_launch.read(words.split())
    assert (seen.port, seen.host, seen.utilization, seen.model) == (port, host, utilization, model)


@pytest.mark.parametrize("share", ["x", "1.5", "-1", "nan"])
def test_a_share_that_is_none(share):
    with pytest.raises(ValueError, match=r".*"):
        guest_launch.read(["vllm", "serve", "m", "--gpu-memory-utilization", share])


def test_a_command_line_is_shown_without_its_secrets():
    secret = "hf_" + "a" * 30
    words = ["vllm", "serve", "m", "--api-key", "abc", "--hf-token=xyz", secret, "--port", "1"]
    shown = guest_launch.text(words)
    assert not any(part in shown for part in ("abc", "xyz", secret))
    assert shown.endswith("--port 1")
    assert len(guest_launch.text(["x" * 5000])) == guest_launch.TEXT_MAX
    assert guest_launch.text(["a\n[Scope]", "\udc80", "\x1b[2J"]) == "a?[Scope] ? ?[2J"
