# SPDX-License-Identifier: Apache-2.0
"""`sparkctl run -- vllm serve …`: launch an engine by hand, as well guarded as a unit's start.

It waits or refuses like `await-slot`, takes the start slot, moves into a scope of its own below
vllm.slice, exports the compile caps, gives up root and becomes the program. So the terminal, every
signal and the exit status are the program's own.
"""

import os
import pwd
import shutil
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import NamedTuple, NoReturn

from sparkd.adapters import config_view, guests, proc, scope, start_hold, start_slot, starts
from sparkd.adapters.service_manager import BusError
from sparkd.adapters.state_files import StateFiles
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.terminal import neutralise
from sparkd.core import admission, guest_launch, preflight, slot
from sparkd.core.config import Config, ConfigErrors
from sparkd.core.engine_environment import compile_caps
from sparkd.core.quantities import parse_size
from sparkd.core.start_limit import STOP_TIMEOUT_SECONDS

POLL_S = 0.5
ORDER = 1000
"""After every engine: theirs end at 999."""
OOM_SCORE = "200"
"""The kernel is to choose a guest before a serving engine, which has -100."""


class Plan(NamedTuple):
    """What is to be launched, as whom, on what."""

    argv: list[str]
    executable: str
    user: pwd.struct_passwd
    launch: guest_launch.Launch
    need: admission.Need
    config: Config


def run(args: Namespace) -> int:
    """Launch it.

    Returns:
        Never, when it could be launched: this process is the program then.

    Raises:
        CliError: BUSY when it cannot be launched now, FAILURE when never.
    """
    if os.geteuid() != 0:
        raise CliError(
            "only root may take the start slot and open a scope in vllm.slice; the program itself"
            " runs as you: sudo sparkctl run …",
            Exit.NOT_PERMITTED,
        )
    plan = _plan(args)
    files = StateFiles()
    unit = guests.unit_of(os.getpid())
    try:
        invocation = _wait_for_turn(plan, files, unit, wait=args.wait)
    finally:
        files.drop_waiter(unit)
    _launch(plan, unit, invocation)


def _plan(args: Namespace) -> Plan:
    argv = list(args.command)
    try:
        launch = guest_launch.read(argv)
    except ValueError as error:
        raise CliError(f"--gpu-memory-utilization {error}: not a share", Exit.USAGE) from None
    try:
        config = config_view.load(config_view.Paths().config)
    except ConfigErrors as refused:
        raise CliError("\n".join(map(str, refused.errors)), Exit.CONFIG) from None
    user = _user(args.user)
    executable = shutil.which(argv[0]) or ""
    if not executable or not proc.usable_by(user.pw_name, executable, os.X_OK):
        raise CliError(
            f"{executable or argv[0]} is not a program that user {user.pw_name!r} can run (sudo"
            " sets a PATH of its own: give the absolute path)",
            Exit.USAGE,
        )
    return Plan(argv, executable, user, launch, _need(args, config, launch, user), config)


def _user(named: str | None) -> pwd.struct_passwd:
    """Whom the program runs as: who is named, or who called sudo, or root."""
    name = named or os.environ.get("SUDO_USER") or "root"
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise CliError(f"there is no user {name!r}", Exit.USAGE) from None


def _need(
    args: Namespace, config: Config, launch: guest_launch.Launch, user: pwd.struct_passwd
) -> admission.Need:
    total = proc.memory().total
    if args.memory:
        try:
            size = parse_size(args.memory)
        except ValueError:
            raise CliError(f"--memory {args.memory}: not a size such as 60G", Exit.USAGE) from None
        return admission.Need(size, size, "as --memory says")
    host = config.host
    utilization, model, home = launch.utilization, launch.model, user.pw_dir
    if args.engine:
        engine = next((e for e in config.engines if e.name == args.engine), None)
        if engine is None:
            raise CliError(f"no engine named {args.engine!r}", Exit.NO_SUCH_ENGINE)
        utilization, model, home = engine.memory_utilization, engine.model, engine.cache
    elif not launch.is_vllm:
        raise CliError(
            "this is no `vllm serve`: say with --memory what it may take, or with --engine which"
            " engine it is like",
            Exit.USAGE,
        )
    compilers = host.compile.max_jobs * host.guards.job_memory.of(total)
    here = Path(model)
    weights = starts.weights(str(here.resolve()) if model and here.is_dir() else model, home)
    estimate = admission.Estimate(utilization, total, weights, compilers)
    if not starts.can_compile(os.environ.get("CUDA_HOME", "/usr/local/cuda")):
        estimate = estimate._replace(compilers=0)
    guess = admission.estimated(admission.Kind.COLD, estimate)
    peak = min(admission.most(starts.known(args.engine)), total) if args.engine else 0
    if not peak:
        return guess
    return admission.learned(peak, guess, f"the most that a start of {args.engine} took")


def _wait_for_turn(plan: Plan, files: StateFiles, unit: str, *, wait: bool) -> str:
    """Wait until the slot is ours; then this process is in its scope.

    Returns:
        The scope's invocation.
    """
    pid = os.getpid()
    me = slot.Waiter(unit, guests.identity(pid), ORDER, time.clock_gettime(time.CLOCK_BOOTTIME))
    patience = preflight.Patience(preflight.OBSTACLE_LIMIT_S)
    said = ""
    while True:
        obstacle, now = preflight.obstacle(_look(plan)), time.monotonic()
        patience = patience.seeing(obstacle, now)
        if obstacle is not None and obstacle.permanent:
            raise CliError(f"not launched: {obstacle.reason}")
        passes = obstacle is not None and obstacle.passable and patience.is_over(obstacle, now)
        if passes:
            obstacle = None
        me = me._replace(blocked="" if obstacle is None else f"waiting: {obstacle.reason}")
        decision = _try_to_take(plan, files, me)
        if decision.take:
            if passes:
                _say(admission.on_the_estimate(plan.need))
            claim = files.claim()
            return "" if claim is None else claim.invocation_id
        if not wait:
            reason = decision.reason.removeprefix("waiting: ")
            raise CliError(f"not launched: {reason} (--wait waits for it)", Exit.BUSY)
        if decision.reason != said:
            said = decision.reason
            _say(said)
        time.sleep(POLL_S)


def _say(text: str) -> None:
    print(f"sparkctl: {neutralise(text)}", file=sys.stderr, flush=True)


def _try_to_take(plan: Plan, files: StateFiles, me: slot.Waiter) -> slot.Decision:
    def enter_scope() -> slot.Claim:
        host, total = plan.config.host, proc.memory().total
        high = None
        if config_view.host_facts().has_swap and host.memory_high is not None:
            high = host.memory_high.of(total)
        limits = scope.Limits(host.memory_max.of(total), high, STOP_TIMEOUT_SECONDS)
        what = f"Guest: {guest_launch.text(plan.argv)}"
        return slot.Claim(me.unit, scope.create(me.unit, guests.SLICE, what, os.getpid(), limits))

    try:
        return start_slot.try_to_take(files, me, enter_scope)
    except BusError as error:
        raise CliError(f"not launched: systemd: {error}") from None


def _look(plan: Plan) -> preflight.Facts:
    memory = proc.memory()
    launch = plan.launch
    inodes = proc.listeners(launch.host, launch.port) if launch.port else set()
    holders = tuple(map(str, proc.owners_of(inodes)))
    if inodes and not holders:
        holders = ("a process out of sight",)
    seen = preflight.Facts(
        executable=plan.executable,
        executable_usable=True,
        model=launch.model,
        model_usable=True,
        user=plan.user.pw_name,
        port=launch.port,
        utilization=launch.utilization,
        port_holders=holders,
        starts_held=start_hold.reason(),
        memory_total=memory.total,
        memory_available=memory.available,
        need=plan.need,
        reserve=plan.config.host.reserve.of(memory.total),
        floor=plan.config.host.guards.floor.of(memory.total),
    )
    short = preflight.is_short(seen)
    return seen._replace(memory_holders=start_slot.memory_holders()) if short else seen


def _launch(plan: Plan, unit: str, invocation: str) -> NoReturn:
    from sparkd.helpers import guest_watch  # noqa: PLC0415  (the journal's library is for it)

    pid = os.getpid()
    guest = guests.Guest(
        unit=unit,
        invocation_id=invocation,
        pid=pid,
        started=proc.start_time(pid) or 0,
        user=plan.user.pw_name,
        command=guest_launch.text(plan.argv),
        host=plan.launch.host,
        port=plan.launch.port,
        peak=plan.need.peak,
        since=time.time(),
    )
    guest_watch.spawn(guest)
    environment = _environment(plan)
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")
    _give_up_root(plan.user)
    try:
        os.execve(plan.executable, plan.argv, environment)  # noqa: S606  (no shell is the point)
    except OSError as error:
        raise CliError(f"cannot execute {plan.executable}: {error.strerror}") from None


def _environment(plan: Plan) -> dict[str, str]:
    """The caller's, with the caps; and the user's own home where sudo has left root's."""
    user = plan.user
    own = {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    return {**os.environ, **own, **compile_caps(plan.config.host.compile)}


def _give_up_root(user: pwd.struct_passwd) -> None:
    if user.pw_uid == 0:
        return
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
