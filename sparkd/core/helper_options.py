# SPDX-License-Identifier: Apache-2.0
"""The command lines of the helpers in an engine's unit: the one place that knows their options."""

from sparkd.core.config_model import EngineConfig, HostConfig, RestartPolicy

API_KEY_VARIABLE = "VLLM_API_KEY"


class Expanded(str):
    """An argument in which systemd is meant to expand variables."""

    __slots__ = ()


def await_slot_argv(engine: EngineConfig, host: HostConfig) -> list[str]:
    """Return the options of await-slot (ExecStartPre=)."""
    return [
        f"--engine={engine.name}",
        f"--unit={engine.unit}",
        f"--order={engine.order}",
        f"--host={engine.host}",
        f"--port={engine.port}",
        f"--executable={engine.executable}",
        f"--model={engine.model}",
        f"--user={engine.user}",
        f"--memory-utilization={engine.memory_utilization!r}",
        f"--reserve={host.reserve}",
        f"--floor={host.guards.floor}",
        f"--max-jobs={host.compile.max_jobs}",
        f"--job-memory={host.guards.job_memory}",
        f"--burst={host.restart.burst}",
        f"--window={host.restart.window_seconds}",
    ]


def await_ready_argv(engine: EngineConfig) -> list[str]:
    """Return the options of await-ready (ExecStartPost=)."""
    ready = engine.ready
    argv = [
        f"--engine={engine.name}",
        f"--unit={engine.unit}",
        # With braces: a bare $MAINPID vanishes from the arguments when the process is dead.
        Expanded("--pid=${MAINPID}"),
        f"--host={engine.probe_host}",
        f"--port={engine.port}",
        *(f"--served-name={name}" for name in engine.served_names),
        f"--budget={ready.budget_seconds}",
        f"--cold-budget={ready.cold_budget_seconds}",
        f"--warmup={ready.warmup}",
    ]
    if ready.expect_version is not None:
        argv.append(f"--expect-version={ready.expect_version}")
    if any(credential.name == API_KEY_VARIABLE for credential in engine.credentials):
        argv.append(f"--api-key-credential={API_KEY_VARIABLE}")
    return argv


def post_mortem_argv(engine: EngineConfig, restart: RestartPolicy) -> list[str]:
    """Return the options of post-mortem (ExecStopPost=)."""
    return [
        f"--engine={engine.name}",
        f"--unit={engine.unit}",
        f"--burst={restart.burst}",
        f"--window={restart.window_seconds}",
    ]


def with_credentials_argv(engine: EngineConfig) -> list[str]:
    """Return the options of with-credentials, up to the command that it runs."""
    return [*(f"--export={credential.name}" for credential in engine.credentials), "--"]
