# SPDX-License-Identifier: Apache-2.0
"""The simulated EngineCore process: it loads, generates tokens step by step, and fails."""

import mmap
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from sparkd.sim import processes, texts
from sparkd.sim.life import KINDS, Actor, Kind, Life
from sparkd.sim.logs import Log
from sparkd.sim.loop import Loop
from sparkd.sim.options import Options
from sparkd.sim.processes import Link

_MIB = 1 << 20
_IDS_PER_MESSAGE = 1000
_WORKER_KINDS = (Kind.WORKER_DIED, Kind.WORKER_SEGFAULT)


class Worker(NamedTuple):
    """A worker process as its EngineCore sees it."""

    name: str
    pid: int
    link: Link


class Sequence:
    """A request in the engine: tokens still to make, and whether its prompt was processed."""

    def __init__(self, prompt: int, tokens: int) -> None:
        self.prompt = prompt
        self.remaining = tokens
        self.made = 0


def worker_count(options: Options, life: Life) -> int:
    """How many worker processes there are: as in CUDA builds none for one GPU, unless asked."""
    if life.workers is not None:
        return life.workers
    if options.tensor_parallel_size > 1:
        return options.tensor_parallel_size
    return 1 if life.death in _WORKER_KINDS else 0


class EngineCore:
    """State and behaviour of one EngineCore; `run` is the whole process."""

    def __init__(self, options: Options, life: Life, link: Link) -> None:
        self._options = options
        self._life = life
        self._link = link
        self._log = Log("EngineCore", as_json=options.json_log)
        self._serving = False
        self._hung = False
        self._stopping = False
        self._draining = False
        self._stepping = False
        self._running: dict[int, Sequence] = {}
        self._waiting: dict[int, Sequence] = {}
        self._memory: list[mmap.mmap] = []
        self._passing: list[mmap.mmap] = []
        self._workers: list[Worker] = []

    def run(self) -> int:
        """Live; returns the exit status."""
        processes.set_title("VLLM::EngineCore")
        for rank in range(worker_count(self._options, self._life)):
            self._workers.append(self._start_worker(rank))
        self._loop = Loop()
        if self._life.deaf:
            _ignore_stop_signals()
        else:
            self._loop.on_signals((signal.SIGTERM, signal.SIGINT), self._asked_to_stop)
        self._loop.watch(self._link.sock, self._receive)
        for worker in self._workers:
            self._loop.watch(worker.link.sock, partial(self._worker_gone, worker))
        self._schedule_load()
        return self._loop.run()

    # Load

    def _schedule_load(self) -> None:
        seconds = self._life.load_seconds
        fraction = self._life.load_fraction()
        if fraction is not None and KINDS[self._life.death].actor is Actor.CORE:
            self._loop.call_later(
                seconds * fraction, partial(self._die, self._life.death, self._life)
            )
        for line in texts.load(self._options, self._life):
            self._loop.call_later(seconds * line.at, partial(self._say, line))
        if self._life.memory_mib and self._life.death is not Kind.EAT_MEMORY:
            shards = self._life.shards
            for shard in range(shards):
                share = self._life.memory_mib * (shard + 1) // shards
                share -= self._life.memory_mib * shard // shards
                at = seconds * (0.1 + 0.45 * (shard + 0.5) / shards)
                self._loop.call_later(at, partial(self._allocate, share))
        # As in a real load: what profiling and compiling take comes on top of the weights.
        self._loop.call_later(seconds * 0.6, self._reach_peak)
        self._loop.call_later(seconds, self._loaded)

    def _say(self, line: texts.Line) -> None:
        if self._hung:
            return
        if line.where:
            self._log.record(line.level, line.where, line.text)
        else:
            self._log.bare(line.text)

    def _allocate(self, mib: int) -> None:
        if not self._hung:
            self._memory += _touched(mib)

    def _reach_peak(self) -> None:
        if not self._hung:
            self._passing = _touched(self._life.peak_mib)

    def _loaded(self) -> None:
        self._passing.clear()
        if self._hung or self._stopping:
            return
        self._serving = True
        self._link.send({"op": "ready"})

    # Messages from the API server

    def _receive(self) -> None:
        message, descriptors = self._link.receive()
        if message is None:
            # The API server is gone. A real engine survives it by about a second.
            self._loop.forget(self._link.sock)
            self._loop.call_later(1.0, partial(self._loop.stop, 0))
            return
        if self._hung:
            return
        match message["op"]:
            case "add":
                self._waiting[message["id"]] = Sequence(message["prompt"], message["tokens"])
                self._schedule_step()
            case "abort":
                self._running.pop(message["id"], None)
                self._waiting.pop(message["id"], None)
            case "die":
                life = Life(**message["life"])._replace(death=Kind(message["life"]["death"]))
                self._die(life.death, life, descriptors)

    # Steps

    def _schedule_step(self) -> None:
        if not self._stepping:
            self._stepping = True
            self._loop.call_later(1 / self._life.tokens_per_second, self._step)

    def _step(self) -> None:
        self._stepping = False
        if self._hung:
            return
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            number = next(iter(self._waiting))
            self._running[number] = self._waiting.pop(number)
        advanced, finished, prompt = [], [], 0
        for number, sequence in self._running.items():
            prompt += sequence.prompt if sequence.made == 0 else 0
            if sequence.remaining > 0:
                advanced.append(number)
                sequence.remaining -= 1
            sequence.made += 1
            if sequence.remaining <= 0:
                finished.append(number)
        for number in finished:
            del self._running[number]
        self._report(advanced, finished, prompt)
        if self._running or self._waiting:
            self._schedule_step()
        elif self._draining:
            self._tear_down()

    def _report(self, advanced: list[int], finished: list[int], prompt: int) -> None:
        used = sum(sequence.prompt + sequence.made for sequence in self._running.values())
        state = {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "kv": min(1.0, used / self._life.kv_cache_tokens),
        }
        for start in range(0, max(len(advanced), len(finished), 1), _IDS_PER_MESSAGE):
            part = slice(start, start + _IDS_PER_MESSAGE)
            self._link.send(
                {
                    "op": "step",
                    "prompt": prompt if start == 0 else 0,
                    "advanced": advanced[part],
                    "finished": finished[part],
                    **state,
                }
            )

    # Stop

    def _asked_to_stop(self, number: int) -> None:
        if self._hung:
            return
        name = signal.Signals(number).name
        self._log.info("core.py:1454", f"[shutdown] EngineCore: trigger received signal={name}")
        if self._stopping:
            return
        self._stopping = True
        if not self._serving:
            self._stopped_in_load()
            return
        timeout = self._options.shutdown_timeout
        mode = "drain" if timeout else "abort"
        self._log.info(
            "core.py:1635", f"[shutdown] EngineCore: start mode={mode} timeout={timeout}s"
        )
        busy = len(self._running) + len(self._waiting)
        if timeout and busy:
            self._log.info(
                "core.py:1655",
                f"[shutdown] EngineCore: draining in-flight requests count={busy} "
                f"timeout={timeout}s",
            )
            self._draining = True
            self._loop.call_later(timeout, self._tear_down)
        else:
            self._tear_down()

    def _tear_down(self) -> None:
        self._draining = False
        self._log.info(
            "core.py:1666",
            "[shutdown] EngineCore: request processing complete; starting resource teardown",
        )
        self._log.info("core.py:1499", "[shutdown] EngineCore: exiting busy loop")
        self._release_workers()
        # The API server learns of a stop of the whole group in these milliseconds.
        self._loop.call_later(0.05, partial(self._loop.stop, 0))

    def _stopped_in_load(self) -> None:
        self._release_workers()
        self._fail_start(texts.WORKER_START_FAILED)

    def _release_workers(self) -> None:
        if self._workers:
            self._log.info(
                "multiproc_executor.py:479",
                f"[shutdown] Executor: waiting for worker exit count={len(self._workers)}",
            )
        for worker in self._workers:
            self._loop.forget(worker.link.sock)
            worker.link.close()

    # Death

    def _die(self, kind: Kind, life: Life, descriptors: list[int] | None = None) -> None:
        self._log.flood("dump_input.py:79", life.flood_before)
        match kind:
            case Kind.HANG:
                self._hung = True
                # A process stuck in the driver runs no Python, so no signal handler either.
                _ignore_stop_signals()
            case Kind.CORE_KILLED | Kind.KEEP_ALIVE:
                os.kill(os.getpid(), signal.SIGKILL)
            case Kind.CORE_ABORT:
                self._log.bare(texts.ABORT)
                os.abort()
            case Kind.WORKER_DIED:
                processes.kill(self._workers[0].pid, signal.SIGKILL)
            case Kind.WORKER_SEGFAULT:
                processes.kill(self._workers[0].pid, signal.SIGSEGV)
            case Kind.EAT_MEMORY:
                self._allocate(life.memory_mib)
            case Kind.ORPHAN | Kind.PORT_KEPT:
                self._fail_step(kind, life)
                self._linger(life.linger_seconds, keep=descriptors or [])
            case _ if self._serving:
                self._fail_step(kind, life)
            case _:
                self._fail_start(
                    texts.start_failed(kind, texts.cause(kind, self._options, self._life))
                )

    def _fail_start(self, trace: str) -> None:
        self._log.error("core.py:1510", f"EngineCore failed to start.\n{trace}")
        self._log.bare(texts.process_traceback(trace))
        self._loop.stop(1)

    def _fail_step(self, kind: Kind, life: Life) -> None:
        if self._running or self._waiting:
            self._dump_step()
        self._fail(texts.step_failed(texts.cause(kind, self._options, life)))

    def _dump_step(self) -> None:
        count = len(self._running) + len(self._waiting)
        config = texts.engine_config(self._options)
        for where, text in texts.dump(self._life.version, config, count):
            self._log.error(where, text)

    def _fail(self, trace: str) -> None:
        self._log.error("core.py:1512", f"EngineCore encountered a fatal error.\n{trace}")
        self._release_workers()
        self._link.send({"op": "dead"})
        self._log.bare(texts.process_traceback(trace))
        self._loop.stop(1)

    def _linger(self, seconds: float, keep: list[int]) -> None:
        """Stay behind, deaf, in another session, holding the descriptors in `keep`."""
        os.setsid()
        _ignore_stop_signals()
        # The output must not stay open: whoever reads it would wait for this process.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        self._link.close()
        time.sleep(seconds)
        for descriptor in keep:
            os.close(descriptor)

    # Workers

    def _start_worker(self, rank: int) -> Worker:
        ours, theirs = Link.pair()
        name = f"Worker_TP{rank}" if self._options.tensor_parallel_size > 1 else "Worker"

        def body() -> int:
            ours.close()
            self._link.close()
            return _run_worker(name, theirs.sock)

        pid = processes.fork(body)
        theirs.close()
        return Worker(f"VllmWorker-{rank}", pid, ours)

    def _worker_gone(self, worker: Worker) -> None:
        self._loop.forget(worker.link.sock)
        code = processes.reap(worker.pid)
        self._workers.remove(worker)
        if self._stopping:
            return
        self._log.error(
            "multiproc_executor.py:315",
            f"Worker proc {worker.name} died unexpectedly (exit code: {code}), "
            "shutting down executor.",
        )
        count = len(self._workers)
        self._log.info(
            "multiproc_executor.py:479",
            f"[shutdown] Executor: waiting for worker exit count={count}",
        )
        self._log.info(
            "multiproc_executor.py:486", "[shutdown] Executor: all workers exited gracefully"
        )
        if not self._serving:
            self._fail_start(texts.WORKER_START_FAILED)
            return
        busy = bool(self._running or self._waiting)
        if busy:
            self._dump_step()
        self._fail(texts.executor_failed(under_load=busy))


def _touched(mib: int) -> list[mmap.mmap]:
    """So much memory, in blocks that can be given back."""
    blocks = [mmap.mmap(-1, _MIB) for _ in range(mib)]
    for block in blocks:
        # One byte in each page is enough for the kernel to count the page.
        block[:: mmap.PAGESIZE] = b"\x01" * (_MIB // mmap.PAGESIZE)
    return blocks


def _ignore_stop_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run_worker(name: str, sock: socket.socket) -> int:
    processes.set_title(f"VLLM::{name}")

    def leave(_number: int, _frame: object) -> None:
        # Not before EngineCore, which gets the same signal, knows that it was a stop.
        time.sleep(0.1)
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock.setblocking(True)
    while sock.recv(4096):
        pass
    Log(name).info("multiproc_executor.py:843", "Parent process exited, terminating worker queues")
    return 0


def start(options: Options, life: Life, *, close_in_child: Callable[[], None]) -> tuple[int, Link]:
    """Fork an EngineCore; returns its PID and this side of the link to it.

    `close_in_child` releases what the child must not inherit, such as the bound port.
    """
    ours, theirs = Link.pair()

    def body() -> int:
        ours.close()
        close_in_child()
        return EngineCore(options, life, theirs).run()

    pid = processes.fork(body)
    theirs.close()
    return pid, ours
