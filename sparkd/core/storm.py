# SPDX-License-Identifier: Apache-2.0
"""The compile storm: which compilers may run, and which wait, frozen, until it is their turn.

A cold kernel cache makes ninja run one cicc per core, and each takes 3 to 8 GiB. Whoever started
it, only `max_jobs` of them run at a time: the younger ones are frozen before they have grown. A job
that has begun runs to its end, for only its end gives its memory back; so the jobs take turns one
after the other, not in slices, but for one that has run for very long while another waits.

A *compiler* is a process that does the work and takes the memory. What drives it (nvcc, ninja, a
shell) is never frozen: it takes little, and a frozen driver would never hand out the next job.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

CUDA = frozenset({"cicc", "ptxas", "ptxas-blackwell", "cudafe++", "nvlink"})
"""The memory-heavy stages of nvcc, and Triton's own assembler for GB10 (since 3.6, #10331)."""
HOST = frozenset({"cc1plus", "cc1", "lto1"})
"""GCC's; torch's and FlashInfer's C++ takes 1 to 2 GiB, most other code far less."""
COMPILERS = CUDA | HOST
DRIVERS = frozenset({
    "nvcc", "gcc", "g++", "cc", "c++", "clang", "clang++", "ccache", "sccache", "fatbinary",
    "x86_64-linux-gn", "aarch64-linux-g",
})  # fmt: skip
"""What runs a compiler for one file; the last two are how the kernel cuts off GCC's full names."""
BUILDERS = frozenset({"ninja", "make", "gmake", "cmake", "samu"})
SHELLS = frozenset({"sh", "bash", "dash"})
_SOURCES = (
    ".cu", ".ptx", ".cubin", ".gpu", ".ii", ".i", ".cpp", ".cc", ".cxx", ".c", ".o", ".stub.c",
)  # fmt: skip

STALL_S = 15.0
"""A running compiler without CPU time for so long waits for something, perhaps for a frozen one."""
QUANTUM_S = 120.0
"""How long a job waits, and another runs, before they change places."""
LINGER_S = 2.0
"""A job that nvcc drives keeps its turn between two stages."""
SETTLE_S = 2.0
"""A signal needs a moment to stop a process; only then does 'not stopped' mean anything."""
GIB = 1024**3


class Mode(StrEnum):
    """What sparkd does about a compile storm."""

    OFF = "off"
    OBSERVE = "observe"
    THROTTLE = "throttle"


class Key(NamedTuple):
    """A process for good: its number and when it started, in clock ticks since boot."""

    pid: int
    start: int


class Compiler(NamedTuple):
    """One compiler process as seen in /proc."""

    key: Key
    name: str
    owner: str
    """Who to name: a unit, a login session, a container."""
    job: Key
    """The driver of the compilation that it is a stage of; itself when there is none."""
    rss: int
    """Resident bytes."""
    cpu: int
    """Clock ticks of CPU time so far."""
    stopped: bool
    """Stopped by a signal, whoever sent it."""
    dying: bool = False
    """A signal that will end it is waiting for it to run again."""
    waits: bool = False
    """It cannot be interrupted now, as where the kernel gets memory for it: it stops after that."""
    attributed: bool = True
    """There is proof that it compiles something: a driver above it, or its arguments."""


class Policy(NamedTuple):
    """What is allowed."""

    max_jobs: int
    job_memory: int
    """Bytes that a compiler is expected to grow to, before this storm has shown otherwise."""
    room: int
    """Bytes of available memory that compilers may still take; negative when there are too few."""
    squeezed: bool = False
    """The memory guard asks for as little as possible: one job."""


class State(NamedTuple):
    """What is remembered between two looks."""

    turns: Mapping[Key, float] = {}
    """Jobs whose turn it is, and since when."""
    seen: Mapping[Key, float] = {}
    """When a job that something drives last had a compiler."""
    frozen: Mapping[Key, float] = {}
    """Compilers that are to be frozen, and since when."""
    exempt: frozenset[Key] = frozenset()
    """Compilers that somebody else continued, or that are ending: left alone from then on."""
    progress: Mapping[Key, tuple[int, float]] = {}
    """CPU time of each running compiler, and when it last moved."""
    peak: int = 0
    """The largest compiler of this storm."""


class Decision(NamedTuple):
    """What to do: `thaw` first, then `freeze`."""

    state: State
    freeze: tuple[Compiler, ...] = ()
    thaw: tuple[Compiler, ...] = ()
    reason: str = ""
    """Why something is frozen, in one sentence; '' when nothing is."""


class _Job(NamedTuple):
    key: Key
    owner: str
    compilers: tuple[Compiler, ...]

    @property
    def age(self) -> tuple[int, int]:
        return (self.key.start, self.key.pid)


def decide(state: State, compilers: Sequence[Compiler], policy: Policy, now: float) -> Decision:
    """Say who runs. `now` is in seconds on any clock that only goes forward."""
    mine = [c for c in compilers if c.attributed and c.name in COMPILERS]
    state = _remember(state, mine, now)
    # What somebody else stopped does not grow, and is not ours to continue.
    active = [c for c in mine if c.key in state.frozen or not c.stopped]
    jobs = _jobs(active, state)
    turns, reason = _turns(jobs, state, policy, now)
    begun = [job for job in jobs if job.key in turns]
    held = bool(reason)
    runs = {c.key for job in begun for c in _parts(job, state, policy, now, held=held)}
    runs |= state.exempt
    freeze = [c for c in active if c.key not in runs and c.key not in state.frozen]
    thaw = [c for c in active if c.key in runs and c.key in state.frozen]
    gone = {c.key for c in thaw}
    frozen = {key: since for key, since in state.frozen.items() if key not in gone}
    frozen.update({c.key: now for c in freeze})
    state = state._replace(turns=turns, frozen=frozen)
    return Decision(state, tuple(freeze), tuple(thaw), reason if frozen else "")


def _remember(state: State, compilers: Sequence[Compiler], now: float) -> State:
    """Take in what the processes have done since the last look."""
    here = {c.key: c for c in compilers}
    exempt = set(state.exempt & here.keys())
    for key, since in state.frozen.items():
        compiler = here.get(key)
        if compiler is None:
            continue
        is_running = not compiler.stopped and not compiler.waits
        continued = is_running and now - since > SETTLE_S
        if compiler.dying or continued:
            exempt.add(key)
    progress = {}
    for key, compiler in here.items():
        cpu, moved = state.progress.get(key, (-1, now))
        still = compiler.cpu == cpu and key not in state.frozen
        progress[key] = (compiler.cpu, moved if still else now)
    # An exempt one that is still marked as frozen is thawed by this decision.
    return state._replace(
        frozen={key: since for key, since in state.frozen.items() if key in here},
        exempt=frozenset(exempt),
        progress=progress,
        peak=max([state.peak, *(c.rss for c in compilers)]) if compilers else 0,
        seen={
            **{job: at for job, at in state.seen.items() if now - at <= LINGER_S},
            **{c.job: now for c in compilers if c.job != c.key},
        },
    )


def _jobs(compilers: Iterable[Compiler], state: State) -> list[_Job]:
    """The compilers by the job they belong to, and the jobs that are between two stages."""
    found: dict[Key, list[Compiler]] = {}
    for compiler in compilers:
        found.setdefault(compiler.job, []).append(compiler)
    jobs = [_Job(key, parts[0].owner, tuple(parts)) for key, parts in found.items()]
    between = [_Job(key, "", ()) for key in state.turns if key not in found and key in state.seen]
    return jobs + between


def _turns(
    jobs: Sequence[_Job], state: State, policy: Policy, now: float
) -> tuple[dict[Key, float], str]:
    """The jobs whose turn it is, since when, and why the others wait."""
    limit = _limit(policy)
    total = sum(max(1, len(job.compilers)) for job in jobs)
    cuda = any(c.name in CUDA for job in jobs for c in job.compilers)
    need = sum(_growth(job.compilers, state, policy) for job in jobs)
    if total <= limit or (not cuda and not policy.squeezed and need <= policy.room):
        return {job.key: state.turns.get(job.key, now) for job in jobs}, ""
    turns: dict[Key, float] = {}
    used = lent = growth = 0
    short = False
    for job in _in_order(jobs, state, policy, now):
        parts = _parts(job, state, policy, now)
        weight = max(1, len(parts))
        if lent < limit and _stalls(job, state, now):
            lent += weight
            weight = 0
        if turns and used + weight > limit:
            continue
        more = _growth(parts, state, policy)
        # One that runs is stopped only when memory is short; one that waits, before it would be.
        fits = policy.room > 0 if job.key in state.turns else growth + more <= policy.room
        if turns and not fits:
            short = True
            continue
        used, growth = used + weight, growth + more
        turns[job.key] = state.turns.get(job.key, now)
    return turns, _why(total, used, policy, short=short)


def _in_order(jobs: Sequence[_Job], state: State, policy: Policy, now: float) -> list[_Job]:
    """Jobs that have begun, oldest first; then the others, the owners in turn."""
    begun = sorted((job for job in jobs if job.key in state.turns), key=lambda job: job.age)
    waiting = sorted((job for job in jobs if job.key not in state.turns), key=lambda job: job.age)
    rank: dict[str, int] = {}
    for job in begun:
        rank[job.owner] = rank.get(job.owner, 0) + 1
    ranked = []
    for job in waiting:
        ranked.append((rank.get(job.owner, 0), job.age, job))
        rank[job.owner] = rank.get(job.owner, 0) + 1
    queue = [job for *_, job in sorted(ranked, key=lambda entry: entry[:2])]
    if queue and begun and not policy.squeezed and _is_overdue(queue[0], state, now):
        longest = min(begun, key=lambda job: state.turns[job.key])
        parts = _parts(queue[0], state, policy, now)
        fits = _growth(parts, state, policy) <= policy.room
        if fits and now - state.turns[longest.key] >= QUANTUM_S:
            begun = [job for job in begun if job is not longest]
            return [*begun, queue[0], *queue[1:], longest]
    return [*begun, *queue]


def _is_overdue(job: _Job, state: State, now: float) -> bool:
    since = [state.frozen[c.key] for c in job.compilers if c.key in state.frozen]
    return bool(since) and now - min(since) >= QUANTUM_S


def _limit(policy: Policy) -> int:
    return 1 if policy.squeezed else policy.max_jobs


def _parts(
    job: _Job, state: State, policy: Policy, now: float, *, held: bool = True
) -> list[Compiler]:
    """The compilers of a job that run when it is its turn; all of them while nothing is `held`.

    `nvcc --threads` starts one for each architecture, all of one job: those beyond the limit wait
    for each other as jobs do. They do not wait for the frozen ones among them, but should one that
    runs stall all the same, it does not count.
    """
    if not held:
        return list(job.compilers)
    in_order = sorted(job.compilers, key=lambda c: (c.key in state.frozen, c.key.start, c.key.pid))
    chosen: list[Compiler] = []
    stalled = 0
    for compiler in in_order:
        begun = job.key in state.turns and compiler.key not in state.frozen
        if begun and stalled < _limit(policy) and _is_still(compiler, state, now):
            stalled += 1
        elif len(chosen) - stalled >= _limit(policy):
            continue
        fits = (
            policy.room > 0 if begun else _growth([*chosen, compiler], state, policy) <= policy.room
        )
        if not chosen or fits:
            chosen.append(compiler)
    return chosen


def _is_still(compiler: Compiler, state: State, now: float) -> bool:
    return now - state.progress[compiler.key][1] > STALL_S


def _stalls(job: _Job, state: State, now: float) -> bool:
    """Whether a job that may run does nothing: then its turn is lent to another."""
    running = [c for c in job.compilers if c.key not in state.frozen]
    if job.key not in state.turns or not running:
        return False
    return all(_is_still(c, state, now) for c in running)


def _growth(compilers: Iterable[Compiler], state: State, policy: Policy) -> int:
    """Bytes that compilers are still expected to take."""
    expected = max(policy.job_memory, state.peak)
    return sum(max(expected - c.rss, c.rss // 4) for c in compilers)


def _why(total: int, running: int, policy: Policy, *, short: bool) -> str:
    if policy.squeezed:
        cause = "memory is short"
    elif short:
        cause = f"{max(policy.room, 0) / GIB:.1f} GiB is left for them above memory.floor"
    else:
        cause = f"compile.max_jobs is {policy.max_jobs}"
    return f"{total} compilers, {running} run at a time: {cause}"


def is_attributed(ancestors: Sequence[str], arguments: Sequence[str]) -> bool:
    """Whether a process with a compiler's name is one.

    Args:
        ancestors: process names from the parent up.
        arguments: its command line, without the program.
    """
    if any(name in DRIVERS or name in BUILDERS for name in ancestors):
        return True
    return any(word.endswith(_SOURCES) and not word.startswith("-") for word in arguments)


def job_of(own: Key, ancestors: Sequence[tuple[str, Key]]) -> Key:
    """The driver of one compilation: the uppermost one below ninja, make or whatever builds."""
    job = own
    for name, key in ancestors:
        if name in DRIVERS:
            job = key
        elif name not in SHELLS:
            break
    return job


def owner_of(cgroup: str) -> str:
    """Who to name for a process in this control group."""
    parts = [part for part in cgroup.split("/") if part]
    user = next((p[5:-6] for p in parts if p.startswith("user-") and p.endswith(".slice")), "")
    for part in reversed(parts):
        if part.endswith(".scope"):
            for engine in ("docker-", "libpod-", "cri-containerd-"):
                if part.startswith(engine):
                    return f"container {part.removeprefix(engine).removesuffix('.scope')[:12]}"
            if part.startswith("session-"):
                session = part.removeprefix("session-").removesuffix(".scope")
                return f"login session {session} of uid {user}" if user else part
            if part != "init.scope":
                return part
        elif part.endswith(".service"):
            return f"{part} of uid {user}" if user and not part.startswith("user@") else part
    return cgroup if cgroup not in {"", "/"} else "no unit"
