# SPDX-License-Identifier: Apache-2.0
"""Which compilers run in a storm: by example, and as laws over whole simulated storms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkd.core import storm
from sparkd.core.storm import Compiler, Key, Policy, State, decide

MIB = 1 << 20
POLICY = Policy(max_jobs=4, job_memory=100 * MIB, room=10_000 * MIB)


def compiler(pid, **changes):
    key = Key(pid, pid)
    made = Compiler(key, "cicc", "vllm-a.service", key, 50 * MIB, cpu=pid, stopped=False)
    return made._replace(**changes)


def pids(compilers):
    return [c.key.pid for c in compilers]


def as_done(seen, decision):
    """What /proc shows after a decision has been carried out."""
    frozen = decision.state.frozen
    return [c._replace(stopped=c.key in frozen, cpu=c.cpu + (c.key not in frozen)) for c in seen]


def test_as_many_as_may_run_are_left_alone():
    decision = decide(State(), [compiler(n) for n in range(1, 5)], POLICY, 0.0)
    assert (decision.freeze, decision.thaw, decision.reason) == ((), (), "")


def test_the_younger_ones_are_frozen():
    decision = decide(State(), [compiler(n) for n in range(1, 8)], POLICY, 0.0)
    assert pids(decision.freeze) == [5, 6, 7]
    assert decision.reason == "7 compilers, 4 run at a time: compile.max_jobs is 4"


def test_the_next_goes_on_when_one_has_ended():
    seen = [compiler(n) for n in range(1, 8)]
    decision = decide(State(), seen, POLICY, 0.0)
    after = decide(decision.state, as_done(seen, decision)[1:], POLICY, 1.0)
    assert (pids(after.thaw), after.freeze) == ([5], ())


def test_what_is_no_compilation_is_never_touched():
    seen = [compiler(n, attributed=n < 3) for n in range(1, 20)]
    decision = decide(State(), seen, POLICY, 0.0)
    assert decision.freeze == ()
    drivers = [compiler(n, name="ninja") for n in range(1, 20)]
    assert decide(State(), drivers, POLICY, 0.0).freeze == ()


def test_what_somebody_else_stopped_is_neither_counted_nor_continued():
    seen = [compiler(n, stopped=n <= 3) for n in range(1, 8)]
    decision = decide(State(), seen, POLICY, 0.0)
    assert (decision.freeze, decision.thaw) == ((), ())


def test_what_somebody_else_continued_is_left_alone():
    seen = [compiler(n) for n in range(1, 7)]
    decision = decide(State(), seen, POLICY, 0.0)
    seen = [c._replace(stopped=c.key.pid == 6) for c in seen]
    after = decide(decision.state, seen, POLICY, 5.0)
    assert 5 not in pids(after.freeze)
    again = decide(after.state, seen, POLICY, 10.0)
    assert 5 not in pids(again.freeze)


def test_what_the_kernel_keeps_waiting_was_not_continued_by_anybody():
    """Memory is what a storm waits for, and a stop takes effect only when it has been given."""
    seen = [compiler(n) for n in range(1, 7)]
    decision = decide(State(), seen, POLICY, 0.0)
    seen = [c._replace(waits=c.key.pid in {5, 6}) for c in seen]
    for now in (3.0, 10.0):
        decision = decide(decision.state, seen, POLICY, now)
        assert (decision.thaw, decision.state.exempt) == ((), frozenset())
    decision = decide(decision.state, as_done(seen, decision), POLICY, 11.0)
    assert pids(c for c in seen if c.key in decision.state.frozen) == [5, 6]
    assert decision.state.exempt == frozenset()


def test_a_stopped_one_that_was_interrupted_goes_on_to_end():
    seen = [compiler(n) for n in range(1, 7)]
    decision = decide(State(), seen, POLICY, 0.0)
    seen = [c._replace(dying=c.key.pid == 6) for c in as_done(seen, decision)]
    assert pids(decide(decision.state, seen, POLICY, 0.2).thaw) == [6]


def test_a_stage_of_a_job_that_has_begun_is_not_the_youngest():
    """nvcc runs cicc, then ptxas: a new process, but the oldest job."""
    seen = [compiler(n, job=Key(n, n)) for n in range(10, 16)]
    decision = decide(State(), seen, POLICY, 0.0)
    ptxas = compiler(99, name="ptxas", job=Key(10, 10))
    after = decide(decision.state, [ptxas, *as_done(seen, decision)[1:]], POLICY, 1.0)
    assert (after.freeze, after.thaw) == ((), ())


def test_a_job_keeps_its_turn_between_two_stages():
    seen = [compiler(n, job=Key(n - 10, n - 10)) for n in range(20, 26)]
    decision = decide(State(), seen, POLICY, 0.0)
    seen = as_done(seen, decision)[1:]
    soon = decide(decision.state, seen, POLICY, 1.0)
    assert soon.thaw == ()
    later = decide(soon.state, as_done(seen, soon), POLICY, 1.0 + storm.LINGER_S * 2)
    assert pids(later.thaw) == [24]


def test_one_nvcc_that_starts_a_compiler_for_each_architecture_is_a_storm_too():
    """`nvcc --threads`: all of one job, and its turn is no leave for all of them at once."""
    nvcc = Key(1, 1)
    seen = [compiler(n, job=nvcc) for n in range(10, 42)]
    decision = decide(State(), seen, POLICY, 0.0)
    assert pids(decision.freeze) == list(range(14, 42))
    assert decision.reason == "32 compilers, 4 run at a time: compile.max_jobs is 4"
    after = decide(decision.state, as_done(seen, decision)[2:], POLICY, 1.0)
    assert (pids(after.thaw), after.freeze) == ([14, 15], ())
    squeezed = decide(after.state, as_done(seen, after)[2:], POLICY._replace(squeezed=True), 2.0)
    assert pids(squeezed.freeze) == [13, 14, 15]
    short = POLICY._replace(room=-500 * MIB)
    assert len(decide(State(), seen, short, 0.0).freeze) == 31


def test_a_compiler_that_waits_for_a_frozen_one_of_its_own_job_lends_it_the_turn():
    seen = [compiler(n, job=Key(1, 1)) for n in range(10, 15)]
    decision = decide(State(), seen, POLICY._replace(max_jobs=2), 0.0)
    assert pids(decision.freeze) == [12, 13, 14]
    still = [c._replace(stopped=c.key in decision.state.frozen) for c in seen]
    for second in range(1, 20):
        decision = decide(decision.state, still, POLICY._replace(max_jobs=2), float(second))
        if decision.thaw:
            break
    assert pids(decision.thaw) == [12, 13]
    assert second > storm.STALL_S


def test_another_owner_need_not_wait_for_the_whole_of_a_long_build():
    long = [compiler(n) for n in range(1, 10)]
    decision = decide(State(), long, POLICY, 0.0)
    other = compiler(50, owner="login session 3 of uid 1000")
    seen = [*as_done(long, decision), other]
    decision = decide(decision.state, seen, POLICY, 1.0)
    assert pids(decision.freeze) == [50]
    seen = as_done(seen, decision)[1:]
    assert pids(decide(decision.state, seen, POLICY, 2.0).thaw) == [50]


def test_host_compilers_are_free_while_memory_is():
    seen = [compiler(n, name="cc1plus") for n in range(1, 20)]
    assert decide(State(), seen, POLICY, 0.0).freeze == ()
    short = POLICY._replace(room=500 * MIB)
    assert len(decide(State(), seen, short, 0.0).freeze) == 15


def test_memory_bounds_how_many_begin():
    seen = [compiler(n, rss=0) for n in range(1, 20)]
    short = POLICY._replace(room=250 * MIB)
    decision = decide(State(), seen, short, 0.0)
    assert len(decision.freeze) == 17
    assert "left for them" in decision.reason


def test_one_always_runs():
    seen = [compiler(n) for n in range(1, 20)]
    none = POLICY._replace(room=-500 * MIB)
    assert len(decide(State(), seen, none, 0.0).freeze) == 18


def test_one_at_a_time_when_memory_is_short():
    seen = [compiler(n) for n in range(1, 4)]
    decision = decide(State(), seen, POLICY._replace(squeezed=True), 0.0)
    assert pids(decision.freeze) == [2, 3]


def test_who_waits_for_a_frozen_one_lends_it_a_turn():
    seen = [compiler(n) for n in range(1, 7)]
    decision = decide(State(), seen, POLICY, 0.0)
    still = [c._replace(stopped=c.key in decision.state.frozen) for c in seen]
    for second in range(1, 20):
        decision = decide(decision.state, still, POLICY, float(second))
        if decision.thaw:
            break
    assert pids(decision.thaw) == [5, 6]
    assert second > storm.STALL_S


def test_one_that_never_ends_gives_way():
    seen = [compiler(n) for n in range(1, 6)]
    decision = decide(State(), seen, POLICY, 0.0)
    now, ran = 0.0, set()
    while now < 5 * storm.QUANTUM_S:
        now += 1.0
        seen = as_done(seen, decision)
        decision = decide(decision.state, seen, POLICY, now)
        ran |= {c.key.pid for c in decision.thaw}
    assert 5 in ran


@settings(max_examples=150, deadline=None)
@given(
    works=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    arrivals=st.lists(st.integers(0, 30), min_size=30, max_size=30),
    owners=st.lists(st.sampled_from(["a", "b", "c"]), min_size=30, max_size=30),
    jobs=st.integers(1, 6),
    room=st.integers(-200, 3000),
    drivers=st.lists(st.integers(0, 3), min_size=30, max_size=30),
)
def test_all_finish_and_never_too_many_run(works, arrivals, owners, jobs, room, drivers):
    """A whole storm: each needs some seconds of running; nothing is lost, nothing starves."""
    left = dict(enumerate(works, start=1))
    state = State()
    policy = POLICY._replace(max_jobs=jobs, room=room * MIB)
    for now in range(20 * sum(works) + 600):
        here = {n for n in left if arrivals[n - 1] <= now}
        if not left:
            break
        seen = [
            compiler(
                n, owner=owners[n - 1], cpu=works[n - 1] - left[n],
                stopped=Key(n, n) in state.frozen,
                job=Key(100 + drivers[n - 1], 0) if drivers[n - 1] else Key(n, n),
            )
            for n in sorted(here)
        ]  # fmt: skip
        decision = decide(state, seen, policy, float(now))
        state = decision.state
        running = [n for n in here if Key(n, n) not in state.frozen]
        assert set(state.frozen) <= {Key(n, n) for n in here}
        assert not {c.key for c in decision.freeze} & {c.key for c in decision.thaw}
        assert len(running) <= jobs
        between = set(state.turns) - {c.job for c in seen}
        assert running or not here or between
        for n in running:
            left[n] -= 1
            if not left[n]:
                del left[n]
    assert not left


@pytest.mark.parametrize(
    ("cgroup", "owner"),
    [
        ("/vllm.slice/vllm-a.service", "vllm-a.service"),
        ("/user.slice/user-1000.slice/session-3.scope", "login session 3 of uid 1000"),
        ("/system.slice/docker-" + "a1" * 32 + ".scope", "container a1a1a1a1a1a1"),
        ("/vllm.slice/vllm-guest-12.scope", "vllm-guest-12.scope"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/build.service",
            "build.service of uid 1000",
        ),
        ("/", "no unit"),
        ("", "no unit"),
    ],
)
def test_owners(cgroup, owner):
    assert storm.owner_of(cgroup) == owner


@pytest.mark.parametrize(
    ("ancestors", "arguments", "is_one"),
    [
        (["sh", "nvcc", "sh", "ninja", "python3"], [], True),
        (["bash", "sshd"], [], False),
        (["python3"], ["--gpu-name=sm_121a", "/tmp/t.ptx", "-o", "/tmp/t.cubin"], True),
        (["bash"], ["--file.c"], False),
        (["ninja", "bash"], ["100"], True),
    ],
)
def test_attribution(ancestors, arguments, is_one):
    assert storm.is_attributed(ancestors, arguments) is is_one


def test_names_are_as_the_kernel_shows_them():
    names = storm.COMPILERS | storm.DRIVERS | storm.BUILDERS | storm.SHELLS
    assert max(len(name) for name in names) <= 15, "comm is cut there"


def test_the_job_is_the_uppermost_driver():
    own, nvcc, cpp = Key(9, 9), Key(5, 5), Key(4, 4)
    above = [("sh", Key(8, 8)), ("nvcc", nvcc), ("sh", Key(2, 2)), ("ninja", Key(1, 1))]
    assert storm.job_of(own, above) == nvcc
    assert storm.job_of(own, [("ninja", Key(1, 1))]) == own
    assert storm.job_of(own, [("g++", nvcc), ("ccache", cpp), ("ninja", Key(1, 1))]) == cpp
