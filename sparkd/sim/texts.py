# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501 - lines of vLLM are quoted whole
"""What vLLM 0.32 says at each turn of its life.

Lines that a CPU build prints were copied from captures; lines that need a GPU follow vLLM's format
strings. Line numbers differ between builds of vLLM: nothing may match on them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from sparkd.sim.life import Kind, Life
from sparkd.sim.logs import traceback
from sparkd.sim.options import Options

_SITE = "/opt/vllm/lib/python3.12/site-packages"
_PYTHON = "/usr/lib/python3.12"
_CORE = f"{_SITE}/vllm/v1/engine/core.py"
_CLIENT = f"{_SITE}/vllm/v1/engine/core_client.py"
_ASYNC = f"{_SITE}/vllm/v1/engine/async_llm.py"
_UTILS = f"{_SITE}/vllm/v1/engine/utils.py"
_ENTRY = f"{_SITE}/vllm/entrypoints/launchers/api_server/entry.py"
_LAUNCHER = f"{_SITE}/vllm/entrypoints/launchers/launcher.py"
_MULTIPROC = f"{_SITE}/vllm/v1/executor/multiproc_executor.py"
_UNIPROC = f"{_SITE}/vllm/v1/executor/uniproc_executor.py"
_RUNNER = f"{_SITE}/vllm/v1/worker/gpu_model_runner.py"
_WORKER = f"{_SITE}/vllm/v1/worker/gpu_worker.py"
_PROCESS = f"{_PYTHON}/multiprocessing/process.py"

Frame = tuple[str, int, str, str]

ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

_START: list[Frame] = [
    (_CORE, 1482, "run_engine_core", "engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)"),
    (_CORE, 1194, "__init__", "super().__init__("),
]  # fmt: skip
_EXECUTOR: Frame = (_CORE, 144, "__init__", "self.model_executor = executor_class(vllm_config)")
_KV_CACHES: Frame = (_CORE, 157, "__init__", "kv_cache_config = self._initialize_kv_caches(vllm_config)")  # fmt: skip
_BUSY: list[Frame] = [
    (_CORE, 1496, "run_engine_core", "engine_core.run_busy_loop()"),
    (f"{_SITE}/vllm/v1/fault_tolerance/engine_core_sentinel.py", 178, "run_with_fault_tolerance", "busy_loop_func(self)"),
]  # fmt: skip
_STEP: list[Frame] = [
    (_CORE, 1555, "run_busy_loop", "self._process_engine_step()"),
    (_CORE, 1606, "_process_engine_step", "outputs, model_executed = self.step_fn()"),
    (_CORE, 674, "step", "model_output = future.result()"),
]
_INPUT: list[Frame] = [
    (_CORE, 1551, "run_busy_loop", "self._process_input_queue()"),
    (_CORE, 1589, "_process_input_queue", "self._handle_client_request(*req)"),
    (_CORE, 1702, "_handle_client_request", 'raise RuntimeError("Executor failed.")'),
]
_BOOTSTRAP: list[Frame] = [
    (_PROCESS, 314, "_bootstrap", "self.run()"),
    (_PROCESS, 108, "run", "self._target(*self._args, **self._kwargs)"),
]
_MAIN: list[Frame] = [
    ("/opt/vllm/bin/vllm", 8, "<module>", "sys.exit(main())"),
    (f"{_SITE}/vllm/entrypoints/cli/main.py", 120, "main", "args.dispatch_function(args)"),
    (f"{_SITE}/vllm/entrypoints/cli/serve.py", 156, "cmd", "uvloop.run(run_server(args))"),
    (f"{_SITE}/uvloop/__init__.py", 92, "run", "return runner.run(wrapper())"),
    (f"{_PYTHON}/asyncio/runners.py", 118, "run", "return self._loop.run_until_complete(task)"),
    ("uvloop/loop.pyx", 1515, "uvloop.loop.Loop.run_until_complete", ""),
    (f"{_SITE}/uvloop/__init__.py", 48, "wrapper", "return await main"),
]
_SERVE: list[Frame] = [
    (_ENTRY, 177, "run_server", "await run_server_worker(listen_address, sock, args, **uvicorn_kwargs)"),
    (_ENTRY, 195, "run_server_worker", "async with build_async_engine_client("),
]  # fmt: skip
_ENGINE_CLIENT: list[Frame] = [
    (_ENTRY, 95, "build_async_engine_client_from_engine_args", "async_llm = AsyncLLM.from_vllm_config("),
    (_ASYNC, 255, "from_vllm_config", "return cls("),
    (_ASYNC, 184, "__init__", "self.engine_core = EngineCoreClient.make_async_mp_client("),
    (_CLIENT, 167, "make_async_mp_client", "return AsyncMPClient("),
]  # fmt: skip

_CUDA_NOTE = (
    "Search for `{name}' in https://docs.nvidia.com/cuda/cuda-runtime-api/"
    "group__CUDART__TYPES.html for more information.\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total "
    "capacity of 119.64 GiB of which 1.21 GiB is free. Including non-PyTorch memory, this process "
    "has 31.77 GiB memory in use. Of the allocated memory 29.80 GiB is allocated by PyTorch, and "
    "612.40 MiB is reserved by PyTorch but unallocated."
)


def _cuda(sentence: str, name: str) -> str:
    return f"torch.AcceleratorError: CUDA error: {sentence}\n{_CUDA_NOTE.format(name=name)}"


def cause(kind: Kind, options: Options, life: Life) -> str:
    """The last line or lines of the traceback that ends an EngineCore."""
    match kind:
        case Kind.CUDA_ILLEGAL_INSTRUCTION:
            return _cuda("an illegal instruction was encountered", "cudaErrorIllegalInstruction")
        case Kind.CUDA_OOM:
            return _OOM
        case Kind.NO_KERNEL_IMAGE:
            return _cuda(
                "no kernel image is available for execution on the device",
                "cudaErrorNoKernelImageForDevice",
            )
        case Kind.KV_CACHE_TOO_SMALL:
            length = options.max_model_len
            fits = max(16, length // 4 // 16 * 16)
            return (
                "ValueError: To serve at least one request with the model's max seq len "
                f"({length}), ({length / 16384:.2f} GiB KV cache is needed, which is larger than "
                f"the available KV cache memory ({length / 65536:.2f} GiB). Based on the available "
                f"memory, the estimated maximum model length is {fits}. Try increasing "
                "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the "
                "engine. See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for "
                "more details."
            )
        case Kind.NO_KV_CACHE_MEMORY:
            return (
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when initializing the engine (this flag also controls "
                "CPU memory reservation on the CPU backend, despite its name). See "
                "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
            )
        case Kind.FREE_MEMORY:
            share = options.given.get("gpu_memory_utilization", 0.9)
            return (
                "ValueError: Free memory on device cuda:0 (21.37/119.64 GiB) on startup is less "
                f"than desired GPU memory utilization ({share}, 107.68 GiB). Decrease GPU memory "
                "utilization or reduce GPU memory used by other processes."
            )
        case Kind.MAMBA_BLOCKS:
            return (
                f"ValueError: max_num_seqs ({options.max_num_seqs}) exceeds available Mamba cache "
                f"blocks ({max(1, options.max_num_seqs // 3)}). Each decode sequence requires one "
                "Mamba cache block, so CUDA graph capture cannot proceed. Please lower "
                "max_num_seqs or increase gpu_memory_utilization."
            )
        case Kind.INIT_FAILED:
            return f"RuntimeError: simulated failure of the start of vLLM {life.version}"
        case _:
            return _cuda("an illegal memory access was encountered", "cudaErrorIllegalAddress")


def step_failed(error: str) -> str:
    """The traceback of an engine whose step failed."""
    return traceback(
        [
            *_BUSY,
            *_STEP,
            (_UNIPROC, 92, "collective_rpc", "result = run_method(self.driver_worker, method, args, kwargs)"),
            (_RUNNER, 290, "get_output", "self.async_copy_ready_event.synchronize()"),
        ],
        error,
    )  # fmt: skip


def executor_failed(*, under_load: bool) -> str:
    """The traceback of an engine whose worker is gone."""
    if not under_load:
        return traceback([*_BUSY, *_INPUT], "RuntimeError: Executor failed.")
    frames: list[Frame] = [
        *_BUSY,
        *_STEP,
        (_MULTIPROC, 440, "get_response", "status, result = mq.dequeue(timeout=dequeue_timeout)"),
    ]
    return traceback(frames, "RuntimeError: cancelled")


def start_failed(kind: Kind, error: str) -> str:
    """The traceback of an engine that could not start."""
    where: list[Frame]
    match kind:
        case Kind.KV_CACHE_TOO_SMALL | Kind.NO_KV_CACHE_MEMORY:
            where = [
                _KV_CACHES,
                (_CORE, 326, "_initialize_kv_caches", "kv_cache_configs = get_kv_cache_configs("),
                (f"{_SITE}/vllm/v1/core/kv_cache_utils.py", 1010, "_check_enough_kv_cache_memory", "raise ValueError("),
            ]  # fmt: skip
        case Kind.MAMBA_BLOCKS:
            where = [_KV_CACHES, (_WORKER, 620, "compile_or_warm_up_model", "raise ValueError(")]
        case Kind.FREE_MEMORY:
            where = [_EXECUTOR, (_WORKER, 261, "init_device", "raise ValueError(")]
        case _:
            where = [_EXECUTOR, (_WORKER, 388, "load_model", "self.model_runner.load_model()")]
    return traceback([*_START, *where], error)


WORKER_START_FAILED = traceback(
    [
        *_START,
        _EXECUTOR,
        (_MULTIPROC, 215, "_init_executor", "self.workers = WorkerProc.wait_for_ready(unready_workers)"),
        (_MULTIPROC, 815, "wait_for_ready", "raise e from None"),
    ],
    "Exception: WorkerProc initialization failed due to an exception in a background process. "
    "See stack trace for root cause.",
)  # fmt: skip


def process_traceback(record: str) -> str:
    """What multiprocessing prints, bare, when EngineCore's main function raises."""
    header, _newline, rest = record.partition("\n")
    raised: Frame = (_CORE, 1514, "run_engine_core", "raise e")
    start = traceback([*_BOOTSTRAP, raised], rest).partition("\n")[2]
    return f"Process EngineCore:\n{header}\n{start}"


OUTPUT_HANDLER_FAILED = "AsyncLLM output_handler failed.\n" + traceback(
    [
        (_ASYNC, 849, "output_handler", "outputs = await engine_core.get_output_async()"),
        (_CLIENT, 1235, "get_output_async", "raise self._format_exception(outputs) from None"),
    ],
    f"vllm.v1.engine.exceptions.EngineDeadError: {ENGINE_DEAD}",
)


def start_failed_main(failed: dict[str, int]) -> str:
    """The end of the main process after its engine failed to start."""
    return traceback(
        [
            *_MAIN,
            *_SERVE,
            *_ENGINE_CLIENT,
            (_CLIENT, 682, "__init__", "with launch_core_engines("),
            (_UTILS, 1351, "launch_core_engines", "wait_for_engine_startup("),
            (_UTILS, 1431, "wait_for_engine_startup", "raise RuntimeError("),
        ],
        "RuntimeError: Engine core initialization failed. See root cause above. "
        f"Failed core proc(s): {failed}",
    )


START_TIMED_OUT = traceback(
    [*_MAIN, *_SERVE, *_ENGINE_CLIENT, (_CLIENT, 741, "__init__", "raise TimeoutError(")],
    "TimeoutError: Timed out waiting for engine core processes to start.",
)

INTERRUPTED = traceback(
    [
        *_MAIN,
        *_SERVE,
        *_ENGINE_CLIENT,
        (_CLIENT, 739, "__init__", "if not sync_input_socket.poll("),
        (_ENTRY, 172, "_interrupt_init", 'raise KeyboardInterrupt("terminated")'),
    ],
    "KeyboardInterrupt: terminated",
)


def bind_failed(error: OSError) -> str:
    """The end of the main process that cannot have its port."""
    return traceback(
        [
            *_MAIN,
            (_ENTRY, 176, "run_server", "listen_address, sock = setup_server(args, reuse_port=False)"),
            (_LAUNCHER, 398, "setup_server", "sock = create_server_socket(sock_addr, reuse_port=reuse_port)"),
            (_LAUNCHER, 348, "create_server_socket", "sock.bind(addr)"),
        ],
        f"{type(error).__name__}: {error}",
    )  # fmt: skip


def model_missing(model: str) -> str:
    """The end of the main process that finds no model."""
    validators = f"{_SITE}/huggingface_hub/utils/_validators.py"
    return traceback(
        [
            *_MAIN,
            *_SERVE,
            (_ENTRY, 53, "build_async_engine_client", "engine_args = AsyncEngineArgs.from_cli_args(args)"),
            (f"{_SITE}/vllm/transformers_utils/repo_utils.py", 301, "get_model_path", "return hf_api().snapshot_download("),
            (validators, 139, "validate_repo_id", "raise HFValidationError("),
        ],
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
        f"'namespace/repo_name': '{model}'. Use `repo_type` argument if needed.",
    )  # fmt: skip


ABORT = "terminate called after throwing an instance of 'c10::Error'\n  what():  simulated abort"


def dump(version: str, config: str, requests: int) -> Iterator[tuple[str, str]]:
    """What is printed of a step that failed, as (`file.py:line`, text)."""
    output = f"SchedulerOutput(scheduled_new_reqs=[], total_num_scheduled_tokens={requests})"
    stats = f"SchedulerStats(num_running_reqs={requests}, num_waiting_reqs=0, step_counter=0)"
    yield (
        "dump_input.py:72",
        f"Dumping input data for V1 LLM engine (v{version}) with config: {config}, ",
    )
    yield "dump_input.py:79", f"Dumping scheduler output for model execution: {output}"
    yield "dump_input.py:81", f"Dumping scheduler stats: {stats}"


class Line(NamedTuple):
    """A line of the load: when (0 to 1 of the load), level, `file.py:line` and text.

    An empty `where` is a bare line.
    """

    at: float
    level: str
    where: str
    text: str


def banner(options: Options, version: str) -> Iterator[Line]:
    """What the API server prints before it has an engine."""
    banner_lines = (
        "",
        "       █     █     █▄   ▄█",
        f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
        f"  █▄█▀ █     █     █     █  model   {options.model}",
        "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
        "",
    )
    for text in banner_lines:
        yield Line(0, "INFO", "api_utils.py:347", text)
    yield Line(0, "INFO", "api_utils.py:286", f"non-default args: {options.given}")


def configuration(options: Options) -> Iterator[Line]:
    """What the API server prints once it has the port and reads the model's configuration."""
    architecture = "LlamaForCausalLM" if options.runner == "generate" else "BertModel"
    yield Line(0, "INFO", "model.py:733", f"Resolved architecture: {architecture}")
    yield Line(0, "INFO", "model.py:2152", f"Using max model len {options.max_model_len}")
    yield Line(
        0,
        "INFO",
        "scheduler.py:307",
        "Chunked prefill is enabled with max_num_batched_tokens=2048.",
    )


def engine_config(options: Options) -> str:
    """The part of the engine's configuration that its first line and a crash dump show."""
    return (
        f"model={options.model!r}, speculative_config=None, tokenizer={options.model!r}, "
        "skip_tokenizer_init=False, tokenizer_mode=auto, revision=None, tokenizer_revision=None, "
        f"trust_remote_code=False, dtype=torch.bfloat16, max_seq_len={options.max_model_len}, "
        "download_dir=None, load_format=auto, "
        f"tensor_parallel_size={options.tensor_parallel_size}, pipeline_parallel_size=1, "
        "data_parallel_size=1, decode_context_parallel_size=1, dcp_comm_backend=ag_rs, "
        f"quantization={options.given.get('quantization')}, "
        f"served_model_name={options.served_model_names[0]}, enable_prefix_caching=True"
    )


def load(options: Options, life: Life) -> Iterator[Line]:
    """What EngineCore prints while it loads, in order."""
    seconds = life.load_seconds
    yield Line(
        0.0,
        "INFO",
        "core.py:133",
        f"Initializing a V1 LLM engine (v{life.version}) with config: {engine_config(options)}",
    )
    yield Line(
        0.02,
        "INFO",
        "parallel_state.py:1906",
        f"world_size={options.tensor_parallel_size} rank=0 local_rank=0 "
        "distributed_init_method=tcp://127.0.0.1:45871 backend=nccl",
    )
    yield Line(
        0.03,
        "INFO",
        "parallel_state.py:2350",
        f"rank 0 in world size {options.tensor_parallel_size} is assigned as DP rank 0, PP rank 0, "
        "PCP rank 0, TP rank 0, ETP rank 0, EP rank N/A, EPLB rank N/A",
    )
    yield Line(
        0.05, "INFO", "gpu_model_runner.py:5061", f"Starting to load model {options.model}..."
    )
    yield Line(
        0.06,
        "INFO",
        "cuda.py:405",
        "Using FLASHINFER attention backend out of potential backends: "
        "['FLASHINFER', 'FLASH_ATTN', 'TRITON_ATTN']",
    )
    if options.given.get("quantization"):
        yield Line(0.07, "INFO", "nvfp4.py:259", "Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend")
    for shard in range(life.shards + 1):
        percent = 100 * shard // life.shards
        pace = "00:00<?, ?it/s" if shard == 0 else f"00:{shard % 60:02d}<00:00, 1.10it/s"
        bar = f"{percent:3d}% Completed | {shard}/{life.shards} [{pace}]"
        text = f"\nLoading safetensors checkpoint shards: {bar}\n"
        yield Line(0.1 + 0.45 * shard / life.shards, "", "", text)
    yield Line(
        0.56, "INFO", "default_loader.py:501", f"Loading weights took {seconds * 0.46:.2f} seconds"
    )
    yield Line(
        0.57,
        "INFO",
        "gpu_model_runner.py:5165",
        f"Model loading took {life.weights_gib:.2f} GiB memory and {seconds * 0.52:.6f} seconds",
    )
    yield Line(
        0.6,
        "INFO",
        "backends.py:1069",
        "Using cache directory: /var/cache/vllm/torch_compile_cache/0123456789/rank_0_0/backbone "
        "for vLLM's torch.compile",
    )
    yield Line(
        0.65,
        "INFO",
        "backends.py:1128",
        f"Dynamo bytecode transform time: {seconds * 0.05:.2f} s",
    )
    yield Line(0.7, "INFO", "monitor.py:53", f"torch.compile took {seconds * 0.1:.2f} s in total")
    kv_gib = life.kv_cache_tokens / 65_536
    yield Line(0.75, "INFO", "gpu_worker.py:472", f"Available KV cache memory: {kv_gib:.2f} GiB")
    concurrency = life.kv_cache_tokens / options.max_model_len
    yield Line(
        0.77,
        "INFO",
        "kv_cache_utils.py:2327",
        f"GPU KV cache size: {life.kv_cache_tokens:,} tokens, Maximum concurrency for "
        f"{options.max_model_len:,} tokens per request: {concurrency:.2f}x",
    )
    yield Line(
        0.9,
        "",
        "",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|██████████| 35/35 "
        "[00:02<00:00, 15.80it/s]",
    )
    yield Line(
        0.95,
        "INFO",
        "gpu_model_runner.py:6243",
        f"Graph capturing finished in {max(1, round(seconds * 0.1))} secs, took 0.54 GiB",
    )
    yield Line(
        0.98,
        "INFO",
        "core.py:402",
        f"init engine (profile, create kv cache, warmup model) took {seconds * 0.4:.2f} s "
        f"(compilation: {seconds * 0.1:.2f} s)",
    )
