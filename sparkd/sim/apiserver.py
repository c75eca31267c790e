# SPDX-License-Identifier: Apache-2.0
"""The main process of a simulated engine: starts the core, serves HTTP, stops, sees it die."""

import hmac
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from sparkd.sim import api, core, processes, texts
from sparkd.sim.life import KINDS, Actor, Kind, Life, LifeError, amended
from sparkd.sim.logs import Log, throughput
from sparkd.sim.loop import Loop
from sparkd.sim.metrics import Metrics
from sparkd.sim.options import Options
from sparkd.sim.web import Connection, Request, Server

# vLLM's wait for an engine that says nothing (VLLM_ENGINE_READY_TIMEOUT_S).
_CORE_READY_TIMEOUT_SECONDS = 600.0
# A client that waited that long without one engine step waits for a frozen engine.
_FROZEN_SECONDS = 1.0
_LOOPBACK = ("127.", "::1", "::ffff:127.")
_PLAIN_PATHS = ("/health", "/ping", "/version", "/v1/models", "/metrics", "/load")


class Phase(Enum):
    """Where the main process is in its life."""

    LOADING = auto()
    SERVING = auto()
    STOPPING = auto()


class InFlight:
    """A job that the core works on."""

    def __init__(self, job: api.Job, connection: Connection) -> None:
        self.job = job
        self.connection = connection
        self.made = 0
        self.started = time.monotonic()
        self.last_token = self.started


class ApiServer:
    """State and behaviour of the main process; `run` is what is left of its life."""

    def __init__(self, options: Options, life: Life, sock: socket.socket, log: Log) -> None:
        self._options = options
        self._life = life
        self._log = log
        self._socket = sock
        self._phase = Phase.LOADING
        self._sigterms = 0
        self._core_dead = False
        self._keep_alive = bool(int(os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH") or 0))
        self._flood_after = life.flood_after
        self._requests = 0
        self._in_flight: dict[int, InFlight] = {}
        self._last_step = time.monotonic()
        self._started = time.time()
        self._metrics = Metrics(options.served_model_names[0])
        self._reported = (0, 0, 0.0, 0.0)

    def run(self) -> int:
        """Load, serve and end; returns the exit status (negative: die by that signal)."""
        self._core_pid, self._link = core.start(
            self._options, self._life, close_in_child=self._socket.close
        )
        self._loop = Loop()
        self._server = Server(self._loop, self._log, self._handle, self._answered)
        stop_signals = (signal.SIGTERM, signal.SIGINT)
        if self._life.deaf:
            for number in stop_signals:
                signal.signal(number, signal.SIG_IGN)
        else:
            self._loop.on_signals(stop_signals, self._asked_to_stop)
        self._loop.watch(self._link.sock, self._receive)
        fraction = self._life.load_fraction()
        if fraction is not None and KINDS[self._life.death].actor is Actor.MAIN:
            self._loop.call_later(
                self._life.load_seconds * fraction, partial(self._die, self._life)
            )
        return self._loop.run()

    # Core

    def _receive(self) -> None:
        message, _descriptors = self._link.receive()
        if message is None:
            self._loop.forget(self._link.sock)
            self._core_gone()
            return
        match message["op"]:
            case "ready":
                self._ready()
            case "dead":
                # It may linger, so nobody waits for its process.
                self._loop.forget(self._link.sock)
                self._engine_dead()
            case "step":
                self._step(
                    message["advanced"],
                    message["finished"],
                    message["prompt"],
                    (message["running"], message["waiting"], message["kv"]),
                )

    def _core_gone(self) -> None:
        if self._phase is Phase.STOPPING or self._core_dead:
            return
        if self._phase is Phase.SERVING:
            self._engine_dead(by_signal=True)
            return
        if self._sigterms:
            # vLLM 0.32 does not notice: the core stays a zombie and this process goes on waiting.
            self._loop.call_later(_CORE_READY_TIMEOUT_SECONDS, self._start_timed_out)
            return
        code = processes.reap(self._core_pid)
        failed = {} if code is None else {"EngineCore": code}
        self._log.bare(texts.start_failed_main(failed))
        self._log.flood("dump_input.py:79", self._flood_after)
        self._loop.stop(1)

    def _start_timed_out(self) -> None:
        self._log.bare(texts.START_TIMED_OUT)
        self._loop.stop(1)

    def _engine_dead(self, *, by_signal: bool = False) -> None:
        self._core_dead = True
        if self._phase is Phase.STOPPING:
            return
        if by_signal:
            self._log.warning(
                "core_client.py:817",
                "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            )
            self._log_client_shutdown("default")
        self._log.error("async_llm.py:906", texts.OUTPUT_HANDLER_FAILED)
        self._log.flood("dump_input.py:79", self._flood_after)
        if self._in_flight:
            self._fail_in_flight()
            self._engine_errored()

    def _log_client_shutdown(self, timeout: str) -> None:
        for line, text in (
            (770, f"start timeout={timeout}"),
            (772, "stopping engine manager"),
            (774, "engine manager stopped"),
            (775, "cleaning up background resources"),
            (777, "complete"),
        ):
            self._log.info(f"core_client.py:{line}", f"[shutdown] MPClient: {text}")

    def _fail_in_flight(self) -> None:
        error = api.encode(api.error_body(500, "Internal Server Error", texts.ENGINE_DEAD))
        flights, self._in_flight = self._in_flight, {}
        for flight in flights.values():
            self._metrics.finished["error"] += 1
            flight.connection.on_gone = None
            if flight.job.stream:
                flight.connection.event(error.decode())
                flight.connection.event("[DONE]")
                flight.connection.end_stream()
            else:
                flight.connection.reply(500, error)

    def _engine_errored(self) -> None:
        """What vLLM does when a request or its watchdog meets a dead engine."""
        if self._core_dead and not self._keep_alive and self._phase is Phase.SERVING:
            self._phase = Phase.STOPPING
            self._shut_down(self._end_after_engine_death)

    def _watchdog(self) -> None:
        self._engine_errored()
        self._loop.call_later(self._life.watchdog_seconds, self._watchdog)

    def _end_after_engine_death(self) -> None:
        self._log.uvicorn("Waiting for application shutdown.")
        self._log.uvicorn("Application shutdown complete.")
        self._log.uvicorn(f"Finished server process [{os.getpid()}]")
        self._loop.stop(0)

    def _shut_down(self, done: Callable[[], None]) -> None:
        self._log.uvicorn("Shutting down")
        if self._server.shut_down(done):
            self._log.uvicorn("Waiting for connections to close. (CTRL+C to force quit)")

    # Ready

    def _ready(self) -> None:
        if self._phase is not Phase.LOADING:
            return
        options = self._options
        self._log.info("entry.py:136", f"Supported tasks: ['{options.runner}']")
        url = f"http://{options.host}:{self._socket.getsockname()[1]}"
        self._log.info("entry.py:140", f"Starting vLLM server on {url}")
        self._log.info("launcher.py:186", "Available routes are:")
        for path in [
            *_PLAIN_PATHS,
            *(p for p, task in api.TASKS.items() if task == options.runner),
        ]:
            methods = "GET" if path in _PLAIN_PATHS else "POST"
            self._log.info("launcher.py:195", f"Route: {path}, Methods: {methods}")
        self._log.uvicorn(f"Started server process [{os.getpid()}]")
        self._log.uvicorn("Waiting for application startup.")
        try:
            self._server.listen(self._socket)
        except OSError as error:
            # Two sockets may be bound to one port as long as neither listens.
            self._log.bare(texts.bind_failed(error))
            processes.kill(self._core_pid, signal.SIGKILL)
            self._loop.stop(1)
            return
        self._log.uvicorn("Application startup complete.")
        self._phase = Phase.SERVING
        self._loop.call_later(self._life.watchdog_seconds, self._watchdog)
        if options.log_stats:
            self._loop.call_later(self._life.stats_seconds, self._log_stats)
        if self._life.death_after_seconds is not None and self._life.death is not Kind.NONE:
            self._loop.call_later(self._life.death_after_seconds, partial(self._die, self._life))

    def _log_stats(self) -> None:
        prompt_before, generated_before, *rates_before = self._reported
        metrics, seconds = self._metrics, self._life.stats_seconds
        prompt = (metrics.prompt_tokens - prompt_before) / seconds
        generation = (metrics.generation_tokens - generated_before) / seconds
        self._reported = (metrics.prompt_tokens, metrics.generation_tokens, prompt, generation)
        # vLLM drops the line to DEBUG when this interval and the last had no token.
        if any((prompt, generation, *rates_before)):
            self._log.info(
                "loggers.py:335",
                throughput(
                    prompt=prompt,
                    generation=generation,
                    running=metrics.running,
                    waiting=metrics.waiting,
                    kv_usage=metrics.kv_usage,
                ),
            )
        self._loop.call_later(seconds, self._log_stats)

    # Requests

    def _answered(self, request: Request, status_line: str, status: int) -> None:
        known = request.path in _PLAIN_PATHS or request.path in api.TASKS
        self._metrics.http(request.path if known else "none", request.method, status)
        if self._options.access_log:
            self._log.access(request.client, f"{request.method} {request.target}", status_line)

    def _handle(self, request: Request, connection: Connection) -> None:
        if not self._authorized(request):
            connection.reply(401, b'{"error":"Unauthorized"}')
            return
        try:
            self._route(request, connection)
        except api.ApiError as error:
            body = api.error_body(error.status, error.kind, str(error), error.param)
            connection.reply(error.status, api.encode(body))

    def _authorized(self, request: Request) -> bool:
        keys = self._options.api_keys
        if not keys or not request.path.startswith("/v1"):
            return True
        scheme, _space, key = request.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and any(
            hmac.compare_digest(key.encode(), known.encode()) for known in keys
        )

    def _route(self, request: Request, connection: Connection) -> None:
        path = request.path
        match path:
            case "/health" | "/ping":
                _allow(request, "GET", *(("POST",) if path == "/ping" else ()))
                connection.reply(503 if self._core_dead else 200, b"")
            case "/version":
                _allow(request, "GET")
                connection.reply(200, api.encode({"version": self._life.version}))
            case "/v1/models":
                _allow(request, "GET")
                connection.reply(200, api.encode(api.models(self._options, self._started)))
            case "/metrics":
                _allow(request, "GET")
                content_type = "text/plain; version=0.0.4; charset=utf-8"
                connection.reply(200, self._metrics.text().encode(), content_type)
            case "/load":
                _allow(request, "GET")
                connection.reply(200, api.encode({"server_load": len(self._in_flight)}))
            case "/sim/die":
                _allow(request, "POST")
                self._control(request, connection)
            case _ if api.TASKS.get(path) == self._options.runner:
                _allow(request, "POST")
                self._infer(request, connection)
            case _:
                raise api.ApiError(404, "Not Found", "Not Found")

    def _infer(self, request: Request, connection: Connection) -> None:
        job = api.read_job(request.path, request.body, self._options)
        if self._core_dead:
            raise_dead = api.error_body(500, "Internal Server Error", texts.ENGINE_DEAD)
            connection.reply(500, api.encode(raise_dead))
            self._engine_errored()
            return
        self._requests += 1
        number = self._requests
        if not self._in_flight:
            self._last_step = time.monotonic()
        self._in_flight[number] = InFlight(job, connection)
        connection.on_gone = partial(self._client_gone, number)
        self._link.send(
            {"op": "add", "id": number, "prompt": job.prompt_tokens, "tokens": job.max_tokens}
        )
        if job.stream:
            connection.start_stream()
        if number == self._life.death_at_request:
            self._die(self._life)

    def _client_gone(self, number: int) -> None:
        if self._in_flight.pop(number, None) is not None:
            self._metrics.finished["abort"] += 1
            self._link.send({"op": "abort", "id": number})

    def _step(
        self, advanced: list[int], finished: list[int], prompt: int, state: tuple[int, int, float]
    ) -> None:
        self._last_step = time.monotonic()
        running, waiting, kv_usage = state
        self._metrics.step(
            prompt=prompt,
            generated=len(advanced),
            running=running,
            waiting=waiting,
            kv_usage=kv_usage,
        )
        for number in advanced:
            if flight := self._in_flight.get(number):
                self._token(number, flight)
        for number in finished:
            if flight := self._in_flight.pop(number, None):
                self._finish(number, flight)

    def _token(self, number: int, flight: InFlight) -> None:
        now = time.monotonic()
        first = flight.made == 0
        histogram = (
            self._metrics.time_to_first_token if first else self._metrics.inter_token_latency
        )
        histogram.observe(now - flight.last_token)
        flight.made += 1
        flight.last_token = now
        if flight.job.stream:
            last = flight.made >= flight.job.max_tokens
            flight.connection.event(api.chunk(flight.job, number, last=last))

    def _finish(self, number: int, flight: InFlight) -> None:
        reason = "length" if flight.job.max_tokens else "stop"
        self._metrics.finished[reason] += 1
        self._metrics.request_latency.observe(time.monotonic() - flight.started)
        flight.connection.on_gone = None
        if flight.job.stream:
            if flight.job.include_usage:
                flight.connection.event(api.usage_chunk(flight.job, number, flight.made))
            flight.connection.event("[DONE]")
            flight.connection.end_stream()
        else:
            body = api.answer(flight.job, number, flight.made)
            flight.connection.reply(200, api.encode(body))

    # Death

    def _control(self, request: Request, connection: Connection) -> None:
        if not request.client_address.startswith(_LOOPBACK):
            raise api.ApiError(403, "Forbidden", "/sim/die answers only to this machine")
        if self._core_dead:
            raise api.ApiError(409, "Conflict", "the engine is dead already")
        life = self._ordered_life(request.body)
        connection.reply(202, api.encode({"dying": life.death}))
        self._die(life)

    def _ordered_life(self, raw: bytes) -> Life:
        try:
            order = json.loads(raw or b"{}")
        except ValueError as error:
            raise api.ApiError(400, "BadRequestError", f"not JSON: {error}") from None
        if not isinstance(order, dict) or "kind" not in order:
            what = 'send a JSON object with "kind", the kind of death'
            raise api.ApiError(400, "BadRequestError", what)
        changes = {"death" if key == "kind" else key: value for key, value in order.items()}
        try:
            life = amended(self._life, changes)
        except LifeError as error:
            raise api.ApiError(400, "BadRequestError", "; ".join(error.problems)) from None
        if not KINDS[life.death].in_service or life.death is Kind.NONE:
            raise api.ApiError(400, "BadRequestError", f"{life.death} is no death in service")
        if life.death in {Kind.WORKER_DIED, Kind.WORKER_SEGFAULT} and not core.worker_count(
            self._options, self._life
        ):
            raise api.ApiError(409, "Conflict", "there is no worker process: start with workers=1")
        return life

    def _die(self, life: Life) -> None:
        if self._core_dead or self._phase is Phase.STOPPING:
            return
        self._flood_after = life.flood_after
        if KINDS[life.death].actor is Actor.CORE:
            self._keep_alive = self._keep_alive or life.death is Kind.KEEP_ALIVE
            kept = [self._socket.fileno()] if life.death is Kind.PORT_KEPT else []
            self._link.send({"op": "die", "life": life._asdict()}, kept)
            return
        self._log.flood("dump_input.py:79", life.flood_before)
        match life.death:
            case Kind.MAIN_KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            case Kind.SEGFAULT:
                os.kill(os.getpid(), signal.SIGSEGV)
            case Kind.SILENT_EXIT_0:
                self._end_core(0)
            case _:
                self._end_core(life.exit_status)

    def _end_core(self, status: int) -> None:
        processes.kill(self._core_pid, signal.SIGKILL)
        self._loop.stop(status)

    # Stop

    def _asked_to_stop(self, _number: int) -> None:
        self._sigterms += 1
        if self._phase is Phase.LOADING:
            if self._sigterms > 1 or not self._life.lose_first_sigterm:
                self._log.bare(texts.INTERRUPTED)
                processes.kill(self._core_pid, signal.SIGKILL)
                self._loop.stop(-signal.SIGINT)
            return
        if self._phase is not Phase.SERVING:
            return
        self._phase = Phase.STOPPING
        timeout = self._options.shutdown_timeout
        mode = "drain" if timeout else "abort"
        self._log.info("launcher.py:254", "[shutdown] API server: shutdown triggered")
        self._log.info(
            "launcher.py:270",
            f"[shutdown] API server: stopping engine client mode={mode} timeout={timeout}s",
        )
        self._log.info("core_client.py:770", f"[shutdown] MPClient: start timeout={timeout}s")
        self._log.info("core_client.py:772", "[shutdown] MPClient: stopping engine manager")
        self._log.info(
            "utils.py:628", "[shutdown] Process manager: send sigterm to process EngineCore"
        )
        processes.kill(self._core_pid, signal.SIGTERM)
        if timeout:
            self._drain(time.monotonic() + timeout)
        else:
            self._log.warning(
                "utils.py:648",
                "[shutdown] Process manager: force killing remaining processes count=1",
            )
            self._log.warning(
                "utils.py:653",
                "[shutdown] Process manager: force killing remaining process EngineCore "
                f"pid {self._core_pid}",
            )
            self._loop.call_later(max(0.02, self._life.stop_seconds), self._stop_engine)

    def _drain(self, deadline: float) -> None:
        if self._in_flight and time.monotonic() < deadline:
            self._loop.call_later(0.05, partial(self._drain, deadline))
        else:
            self._loop.call_later(self._life.stop_seconds, self._stop_engine)

    def _stop_engine(self) -> None:
        processes.kill(self._core_pid, signal.SIGKILL)
        for line, text in (
            (774, "engine manager stopped"),
            (775, "cleaning up background resources"),
            (777, "complete"),
        ):
            self._log.info(f"core_client.py:{line}", f"[shutdown] MPClient: {text}")
        frozen = time.monotonic() - self._last_step > _FROZEN_SECONDS
        if self._in_flight and not frozen:
            # A clean stop says this too, and must not be taken for a death.
            self._log.error("async_llm.py:906", texts.OUTPUT_HANDLER_FAILED)
            self._fail_in_flight()
        self._log.info("launcher.py:279", "[shutdown] API server: engine client stopped")
        self._log.info("launcher.py:282", "[shutdown] API server: signalling HTTP server shutdown")
        self._log.info(
            "launcher.py:304", "[shutdown] API server: shutting down FastAPI HTTP server"
        )
        self._shut_down(self._end_after_stop)

    def _end_after_stop(self) -> None:
        self._log.uvicorn("Waiting for application shutdown.")
        self._log.uvicorn("Application shutdown complete.")
        self._loop.stop(0)


def _allow(request: Request, *methods: str) -> None:
    if request.method not in methods:
        raise api.ApiError(405, "Method Not Allowed", "Method Not Allowed")
