# SPDX-License-Identifier: Apache-2.0
"""The environment of an engine: compile caps, CUDA, caches, then the operator's own variables."""

from collections.abc import Mapping

from sparkd.core.config_model import CompileCaps, EngineConfig

_CAP = "it is a cap of the host: set it in [compile] of sparkd.toml"
_SYSTEMD = "systemd sets it"

# Variables that [env] cannot set, and what to do instead.
OWNED_VARIABLES: Mapping[str, str] = {
    "MAX_JOBS": _CAP,
    "NVCC_THREADS": _CAP,
    "FLASHINFER_NVCC_THREADS": _CAP,
    "TORCHINDUCTOR_COMPILE_THREADS": _CAP,
    "CMAKE_BUILD_PARALLEL_LEVEL": _CAP,
    "PATH": "use runtime.path-extra",
    "CUDA_HOME": "use runtime.cuda_home",
    "PYTHONUNBUFFERED": "without it a killed engine's last lines are lost",
    "CREDENTIALS_DIRECTORY": _SYSTEMD,
    "INVOCATION_ID": _SYSTEMD,
    "JOURNAL_STREAM": _SYSTEMD,
    "MAINPID": _SYSTEMD,
    "NOTIFY_SOCKET": _SYSTEMD,
}

_LOADER = ("LD_", "GLIBC_TUNABLES", "GCONV_PATH")

_SYSTEM_PATH = (
    "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin",
)  # fmt: skip


def is_for_loader(name: str) -> bool:
    """Return whether a variable has the dynamic loader load code into every program.

    The helpers run as root with the unit's environment, and a folder of libraries often belongs to
    the engine's user: such a variable is given to the engine's command alone.
    """
    return name.startswith(_LOADER)


def engine_environment(engine: EngineConfig, caps: CompileCaps) -> dict[str, str]:
    """Return every variable that the engine gets, in the order in which the unit has them."""
    return {
        # A killed Python loses the lines still in its buffer, the fatal one among them.
        "PYTHONUNBUFFERED": "1",
        **compile_caps(caps),
        "CUDA_HOME": engine.cuda_home,
        "PATH": _path(engine),
        **_caches(engine.cache),
        **dict(engine.env),
    }


def compile_caps(caps: CompileCaps) -> dict[str, str]:
    """Return the variables that bound how much is compiled at a time, on whatever launch path."""
    return {
        # ninja -j, for FlashInfer's and torch's run-time builds; unset means one job per core + 2.
        "MAX_JOBS": str(caps.max_jobs),
        # nvcc --threads: each thread is another compiler of the same size.
        "NVCC_THREADS": str(caps.nvcc_threads),
        "FLASHINFER_NVCC_THREADS": str(caps.nvcc_threads),
        # vLLM 0.11 to 0.33 overwrites this with 1 at import; it binds torch outside vLLM.
        "TORCHINDUCTOR_COMPILE_THREADS": str(caps.inductor_threads),
        # TileLang and TVM build through CMake.
        "CMAKE_BUILD_PARALLEL_LEVEL": str(caps.max_jobs),
    }


def _path(engine: EngineConfig) -> str:
    # CUDA first: an engine that works by hand and fails as a unit most often lacks nvcc here.
    directories = (
        f"{engine.cuda_home}/bin", *engine.path_extra, f"{engine.venv}/bin", *_SYSTEM_PATH,
    )  # fmt: skip
    return ":".join(directories)


def _caches(cache: str) -> dict[str, str]:
    # Every compiler's cache in one directory that the engine's user can write and that survives
    # reboots: a lost cache is a cold start. HF_HOME is the operator's: weights are often shared.
    return {
        "HOME": cache,
        "XDG_CACHE_HOME": f"{cache}/.cache",
        "XDG_CONFIG_HOME": f"{cache}/.config",
        "VLLM_CACHE_ROOT": f"{cache}/.cache/vllm",
        # FlashInfer appends .cache/flashinfer.
        "FLASHINFER_WORKSPACE_BASE": cache,
        "TRITON_CACHE_DIR": f"{cache}/.triton/cache",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/.cache/torchinductor",
        "TORCH_EXTENSIONS_DIR": f"{cache}/.cache/torch_extensions",
        "CUDA_CACHE_PATH": f"{cache}/.nv/ComputeCache",
        "TILELANG_CACHE_DIR": f"{cache}/.tilelang/cache",
        "DG_JIT_CACHE_DIR": f"{cache}/.cache/deep_gemm",
        "CUTE_DSL_CACHE_DIR": f"{cache}/.cache/cute_dsl",
    }
