# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  log lines keep their length
"""The order of the rules: what cancels what, who asked, whose kernel line it is, what an exit adds."""

import pytest

from sparkd.adapters.catalogue import load_catalogue
from sparkd.core.classify import Classifier, ExitState, classify
from sparkd.core.lines import frame
from sparkd.core.signatures import Answer

CATALOGUE = load_catalogue()
EXIT_0 = ExitState("success", "exited", "0")

BOOT = """\
(APIServer pid=10) INFO 11-29 15:00:32 [api_utils.py:286] non-default args: {'model': './tiny'}
(EngineCore pid=20) INFO 11-29 15:00:39 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x"""
READY = "INFO:     Application startup complete."
FATAL = (
    "(EngineCore pid=20) ERROR 11-29 15:16:49 [core.py:1512] EngineCore encountered a fatal error."
)
WEAK = "(APIServer pid=10) ERROR 11-29 15:14:06 [async_llm.py:906] AsyncLLM output_handler failed."
KILLED = "(APIServer pid=10) WARNING 11-29 15:14:06 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
STOP = "(APIServer pid=10) INFO 11-29 15:42:16 [launcher.py:254] [shutdown] API server: shutdown triggered"
OLD_DIED = "(APIServer pid=10) ERROR 01-12 08:11:09 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."
OLD_STOP = (
    "(APIServer pid=10) INFO 01-12 08:11:09 [launcher.py:110] Shutting down FastAPI HTTP server."
)
CORE_TERM = "(EngineCore pid=20) INFO 11-29 15:20:40 [core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM"
INIT_FAILED = "(EngineCore pid=20) ERROR 11-29 15:20:40 [core.py:1510] EngineCore failed to start."
INTERRUPTED = "KeyboardInterrupt: terminated"
IMA = "(EngineCore pid=20) ERROR 11-29 15:16:49 [core.py:1512] torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
NO_IMAGE = "(EngineCore pid=20) ERROR 11-29 15:16:49 [core.py:1512] torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device"
SHM = "(EngineCore pid=20) INFO 11-29 15:29:59 [shm_broadcast.py:871] No available shared memory broadcast block found in 60 seconds. This"
STALLED = "(APIServer pid=10) INFO 04-02 08:11:09 [loggers.py:248] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs"
MOVING = "(APIServer pid=10) INFO 04-02 08:11:09 [loggers.py:248] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 3.1 tokens/s, Running: 2 reqs, Waiting: 0 reqs"
HEALTH_503 = 'INFO:     127.0.0.1:48804 - "GET /health HTTP/1.1" 503 Service Unavailable'
WAITING = "INFO:     Waiting for connections to close. (CTRL+C to force quit)"
DOWN = "INFO:     Finished server process [10]"
SEGFAULT = "!!!!!!! Segfault encountered !!!!!!!"
K = "Nov 29 15:14:06 spark kernel: "
S = "Nov 29 15:14:06 spark systemd[1]: "


def oom(pid=20, task="VLLM::EngineCor", cgroup="/system.slice/vllm-a.service"):
    return (
        f"{K}oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
        f"task_memcg={cgroup},task={task},pid={pid},uid=998\n"
        f"{K}Out of memory: Killed process {pid} ({task}) total-vm:1kB"
    )


def judge(*texts, exit_state=None, requested=None, **known):
    lines = [line for text in texts for part in text.split("\n") for line in frame(part)]
    return classify(lines, CATALOGUE, exit_state=exit_state, requested=requested, **known)


def told(*texts, **known):
    verdict = judge(*texts, **known)
    return verdict.label, verdict.cls


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # a frame declares a death, and says of which phase
        ([READY, FATAL], ("fatal-runtime", "engine-core-fatal")),
        ([FATAL], ("fatal-runtime", "engine-core-fatal")),
        ([BOOT, FATAL], ("fatal-init", "engine-core-fatal")),
        ([BOOT, KILLED, WEAK], ("fatal-init", "engine-core-killed")),
        ([BOOT, READY, KILLED, WEAK], ("fatal-runtime", "engine-core-killed")),
        # causes say why, and only with a frame
        ([READY, IMA], ("benign", "")),
        ([READY, FATAL, IMA], ("fatal-runtime", "cuda-illegal-memory-access")),
        ([READY, IMA, FATAL], ("fatal-runtime", "cuda-illegal-memory-access")),
        ([BOOT, INIT_FAILED, NO_IMAGE], ("fatal-init", "no-kernel-image")),
        ([IMA, READY, FATAL], ("fatal-runtime", "engine-core-fatal")),
        # stops: before a frame they explain it, after a strong one they do not
        ([READY, STOP, FATAL, WEAK], ("clean-stop", "sigterm-abort-with-enginedead-trace")),
        ([READY, STOP, DOWN], ("clean-stop", "sigterm-abort")),
        ([READY, FATAL, STOP], ("fatal-runtime", "engine-core-fatal")),
        ([READY, KILLED, WEAK, STOP], ("fatal-runtime", "engine-core-killed")),
        # up to 0.17 a stop prints its death first
        ([READY, OLD_DIED, WEAK, OLD_STOP], ("clean-stop", "sigterm-abort-with-enginedead-trace")),
        ([READY, OLD_DIED, OLD_STOP], ("clean-stop", "sigterm-abort")),
        ([READY, OLD_DIED, WEAK, DOWN], ("fatal-runtime", "engine-core-killed")),
        ([READY, OLD_DIED, HEALTH_503, OLD_STOP], ("fatal-runtime", "engine-core-killed")),
        # a signal to EngineCore alone is a death, a signal to the group during the start is a hang
        ([READY, CORE_TERM, KILLED, WEAK], ("fatal-runtime", "engine-core-killed")),
        ([BOOT, CORE_TERM, INIT_FAILED], ("hang", "sigterm-during-init-hang")),
        ([BOOT, CORE_TERM, INIT_FAILED, INTERRUPTED], ("clean-stop", "sigterm-twice-during-init")),
        ([BOOT, INIT_FAILED, NO_IMAGE, INTERRUPTED], ("fatal-init", "no-kernel-image")),
        # stalls
        ([READY, STALLED], ("hang", "frozen-engine-health-200")),
        ([READY, STALLED, MOVING], ("benign", "steady-state-stats")),
        ([READY, SHM], ("hang", "frozen-engine-health-200")),
        ([BOOT, SHM], ("benign", "boot-progress")),
        ([READY, STOP, WAITING], ("hang", "stop-waits-for-connections")),
        ([READY, STOP, WAITING, DOWN], ("clean-stop", "sigterm-abort")),
        ([READY, FATAL, WAITING], ("fatal-runtime", "engine-core-fatal")),
        ([READY, SHM, FATAL], ("fatal-runtime", "hang-then-rpc-timeout")),
        # dead inside, alive outside
        ([READY, KILLED, WEAK, *[HEALTH_503] * 9], ("fatal-runtime", "keep-alive-503")),
        ([READY, KILLED, WEAK, *[HEALTH_503] * 9, DOWN], ("fatal-runtime", "engine-core-killed")),
        # the last word of a process
        ([READY, "terminate called after throwing an instance of 'c10::Error'", KILLED],
         ("fatal-runtime", "engine-core-aborted")),
        ([], ("benign", "")),
    ],
)  # fmt: skip
def test_order_of_rules(texts, expected):
    assert told(*texts) == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([READY, SEGFAULT], ("fatal-runtime", "segmentation-fault")),
        ([READY, SEGFAULT, MOVING], ("benign", "steady-state-stats")),
        ([BOOT, NO_IMAGE], ("fatal-init", "no-kernel-image")),
        (["RuntimeError: No CUDA GPUs are available"], ("fatal-init", "no-gpu")),
        (["This kernel only supports sm120"], ("benign", "")),
        ([NO_IMAGE, BOOT], ("benign", "boot-progress")),
        ([NO_IMAGE, READY], ("benign", "")),
        ([READY, IMA], ("fatal-runtime", "cuda-illegal-memory-access")),
        ([READY, IMA, MOVING], ("benign", "steady-state-stats")),
        (
            [READY, "RuntimeError: CUDA error: an illegal memory access was encountered"],
            ("benign", ""),
        ),
    ],
)
def test_last_words_stand_for_an_end_only_in_a_complete_log(texts, expected):
    assert told(*texts, complete=True) == expected
    assert told(*texts)[0] == "benign"


def test_a_record_of_a_pid_that_never_was_is_forged():
    forged = FATAL.replace("pid=20", "pid=1")
    assert told(BOOT, READY, forged)[0] == "benign"
    assert told(BOOT, READY, FATAL)[0] == "fatal-runtime"


def test_a_command_line_is_not_refused_after_readiness():
    refused = "vllm serve: error: unrecognized arguments: --x"
    assert told(BOOT, READY, refused)[0] == "benign"
    assert told(refused) == ("fatal-init", "bad-flag")


def test_requested_makes_every_line_a_clean_stop():
    for texts in ([READY, FATAL, IMA], [BOOT, INIT_FAILED], [READY, OLD_DIED], []):
        verdict = judge(*texts, exit_state=EXIT_0, requested=True)
        assert (verdict.label, verdict.answer) == ("clean-stop", Answer.NONE)
    timed_out = ExitState("timeout", "killed", "KILL")
    assert told(READY, STOP, exit_state=timed_out, requested=True) == (
        "clean-stop", "stop-timed-out",
    )  # fmt: skip


def test_a_strangers_signal_is_no_clean_stop():
    for texts in ([READY, STOP, DOWN], [READY, STOP, WEAK], [READY, OLD_DIED, OLD_STOP]):
        verdict = judge(*texts, exit_state=EXIT_0, requested=False)
        assert (verdict.label, verdict.cls) == ("fatal-runtime", "external-sigterm")
    assert told(BOOT, INTERRUPTED, requested=False) == ("fatal-init", "external-sigterm")
    killed = ExitState("success", "killed", "TERM")
    assert told(READY, exit_state=killed, requested=False)[1] == "external-sigterm"


@pytest.mark.parametrize(
    ("texts", "exit_state", "expected"),
    [
        ([], EXIT_0, ("fatal-runtime", "exit-without-a-line")),
        ([READY], EXIT_0, ("fatal-runtime", "exit-without-a-line")),
        ([BOOT], EXIT_0, ("fatal-init", "start-failed-unexplained")),
        ([BOOT], ExitState("exit-code", "exited", "1"), ("fatal-init", "start-failed-unexplained")),
        ([], ExitState("exit-code", "exited", "203"), ("fatal-init", "exec-failed")),
        ([], ExitState("exit-code", "exited", "127"), ("fatal-init", "exec-failed")),
        ([], ExitState("resources", "", ""), ("fatal-init", "exec-failed")),
        ([READY], ExitState("signal", "killed", "KILL"), ("fatal-runtime", "main-process-killed")),
        ([READY], ExitState("core-dump", "dumped", "SEGV"), ("fatal-runtime", "main-process-crashed")),
        ([READY], ExitState("oom-kill", "killed", "KILL"), ("fatal-runtime", "kernel-oom-kill")),
        ([BOOT], ExitState("timeout", "killed", "TERM"), ("fatal-init", "start-timed-out")),
        ([READY, IMA], ExitState("exit-code", "exited", "1"), ("fatal-runtime", "cuda-illegal-memory-access")),
        ([READY, IMA], EXIT_0, ("fatal-runtime", "cuda-illegal-memory-access")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("requested", [None, False])
def test_an_exit_that_nobody_asked_for_is_a_death(texts, exit_state, expected, requested):
    assert told(*texts, exit_state=exit_state, requested=requested) == expected


def test_kernel_lines_by_cgroup_and_pid():
    ours = {"cgroup": "/system.slice/vllm-a.service", "pids": frozenset({20})}
    assert told(READY, KILLED, oom(), **ours) == ("fatal-runtime", "kernel-oom-kill")
    assert told(READY, KILLED, oom(pid=99, cgroup="/system.slice/vllm-b.service"), **ours) == (
        "fatal-runtime", "engine-core-killed",
    )  # fmt: skip
    inner = oom(pid=99, cgroup="/system.slice/vllm-a.service/compile")
    assert told(READY, KILLED, inner, **ours) == ("fatal-runtime", "kernel-oom-kill")
    assert told(READY, oom(pid=99, cgroup="/system.slice/vllm-ab.service"), **ours)[0] == "benign"


def test_kernel_lines_of_unknown_origin_count_if_the_task_looks_like_ours():
    assert told(READY, oom()) == ("fatal-runtime", "kernel-oom-kill")
    assert told(READY, oom(task="mysqld", cgroup="/system.slice/mysql.service"))[0] == "benign"
    assert told(READY, oom(task="python3", cgroup="/system.slice/jupyter.service"))[0] == "benign"
    assert told(BOOT, oom(pid=20, task="python3", cgroup="/docker/x")) == (
        "fatal-init", "kernel-oom-kill",
    )  # fmt: skip


def test_oom_kill_and_answer():
    verdict = judge(READY, KILLED, oom())
    assert verdict.answer is Answer.RETRY_AFTER_MEMORY


def test_a_killed_compiler_is_no_dead_engine_until_the_build_fails():
    killed = oom(task="cicc")
    assert told(BOOT, killed)[0] == "benign"
    ninja = "(EngineCore pid=20) ERROR 11-29 15:16:49 [core.py:1512] ninja: build stopped: subcommand failed."
    assert told(BOOT, killed, INIT_FAILED, ninja) == ("fatal-init", "kernel-oom-kill")
    assert told(BOOT, INIT_FAILED, ninja) == ("fatal-init", "jit-build-failed")


@pytest.mark.parametrize(
    ("line", "label", "cls", "answer"),
    [
        ("NVRM: Xid (PCI:000f:01:00): 31, pid=20, name=VLLM::EngineCor, Ch 8", "fatal-runtime", "xid-application", Answer.RETRY),
        ("NVRM: Xid (PCI:000f:01:00): 13, pid=88, name=ollama, Ch 8", "benign", "", Answer.NONE),
        ("NVRM: Xid (PCI:000f:01:00): 79, pid=88, name=ollama, GPU has fallen off the bus.", "fatal-runtime", "xid-hardware", Answer.HOLD_NEEDS_A_HUMAN),
        ("NVRM: Xid (PCI:000f:01:00): 45, pid=20, name=VLLM::EngineCor, Ch 8", "benign", "xid-note", Answer.NONE),
        ("NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x51)", "benign", "nv-err-no-memory", Answer.RETRY_AFTER_MEMORY),
    ],
)  # fmt: skip
def test_driver_lines(line, label, cls, answer):
    verdict = judge(READY, K + line)
    assert (verdict.label, verdict.cls, verdict.answer) == (label, cls, answer)


DUMP = "(EngineCore pid=20) ERROR 11-29 15:16:49 [dump_input.py:79] Dumping scheduler output for model execution: SchedulerOutput(scheduled_new_reqs=[NewRequestData(sampling_params=SamplingParams(stop=['{}']))])"
BAD_ADAPTER = "ValueError: 'x' is not a local folder and is not a valid model identifier"
REFUSED_BODY = "pydantic_core._pydantic_core.ValidationError: 1 validation error for Request"
SHAPE = "(EngineCore pid=20) ERROR 11-29 15:16:49 [core.py:1512] RuntimeError: The size of tensor a (4) must match the size of tensor b (5) at non-singleton dimension 1"


def test_what_a_client_wrote_is_no_cause_where_the_engine_shows_its_last_requests():
    words = (
        "no kernel image is available for execution on the device",
        "CUDA out of memory. ",
        "EngineCore failed to start.",
        "WorkerProc hit an exception.",
        "SafetensorError: ",
    )
    for text in words:
        dump = DUMP.format(text)
        for verdict in (judge(READY, dump, FATAL, IMA), judge(READY, FATAL, dump, IMA)):
            assert (verdict.cls, verdict.answer) == ("cuda-illegal-memory-access", Answer.RETRY)
        assert told(READY, dump) == ("benign", "")


@pytest.mark.parametrize("line", [BAD_ADAPTER, REFUSED_BODY, SHAPE, NO_IMAGE])
def test_what_would_hold_a_start_does_not_hold_an_engine_that_has_served(line):
    killed = ExitState("signal", "killed", "KILL")
    for verdict in (
        judge(BOOT, READY, line, FATAL, exit_state=EXIT_0, requested=False),
        judge(BOOT, READY, line, exit_state=killed, requested=False),
        judge(line, FATAL, exit_state=EXIT_0, requested=False, has_served=True),
    ):
        assert verdict.answer is Answer.RETRY
        assert "started well" in verdict.reason
    assert judge(BOOT, line, INIT_FAILED, exit_state=EXIT_0, requested=False).answer.holds


def test_what_the_kernel_says_of_the_host_holds_also_one_that_has_served():
    error = IMA.replace("an illegal memory access was encountered", "unknown error")
    mismatch = K + "NVRM: API mismatch: the client has the version 580.2"
    verdict = judge(BOOT, READY, error, mismatch, FATAL)
    assert (verdict.cls, verdict.answer) == ("driver-api-mismatch", Answer.HOLD_NEEDS_A_HUMAN)
    lost = judge(BOOT, READY, K + "NVRM: GPU at PCI:000f:01:00 has fallen off the bus", FATAL)
    assert lost.answer is Answer.HOLD_NEEDS_A_HUMAN


def test_hardware_xid_outranks_what_the_engine_saw():
    xid = (
        K
        + "NVRM: Xid (PCI:000f:01:00): 79, pid=20, name=VLLM::EngineCor, GPU has fallen off the bus."
    )
    for texts in ([READY, xid, FATAL, IMA], [READY, FATAL, IMA, xid]):
        assert told(*texts) == ("fatal-runtime", "xid-hardware")


def test_journal_of_the_founding_incident():
    """Status 0, `Deactivated successfully`, no stop job, and vLLM's own log configured away."""
    assert told(READY, f"{S}vllm-a.service: Deactivated successfully.") == (
        "fatal-runtime", "exit-without-a-line",
    )  # fmt: skip
    stopping = f"{S}Stopping vllm-a.service - vLLM engine a..."
    assert told(READY, stopping, f"{S}vllm-a.service: Deactivated successfully.") == (
        "clean-stop", "requested-stop",
    )  # fmt: skip
    other = f"{S}Stopping user@1000.service - User Manager for UID 1000..."
    assert told(READY, other, f"{S}vllm-a.service: Deactivated successfully.")[0] == "fatal-runtime"
    foreign = f"{S}Stopping vllm-b.service - vLLM engine b..."
    done = f"{S}vllm-a.service: Deactivated successfully."
    assert told(READY, foreign, done, unit="vllm-a.service")[0] == "fatal-runtime"


def test_journal_exit_lines_are_read():
    main = f"{S}vllm-a.service: Main process exited, code=killed, status=9/KILL"
    failed = f"{S}vllm-a.service: Failed with result 'signal'."
    assert told(READY, main, failed) == ("fatal-runtime", "main-process-killed")


def test_several_lives_in_one_log():
    again = BOOT.replace("pid=10", "pid=11").replace("pid=20", "pid=21")
    verdict = judge(BOOT, READY, FATAL, IMA, DOWN, again, READY, MOVING)
    assert (verdict.label, verdict.cls) == ("fatal-runtime", "cuda-illegal-memory-access")
    assert "started again" in verdict.reason
    later = FATAL.replace("pid=20", "pid=21")
    assert told(BOOT, READY, STOP, DOWN, again, READY, later)[0] == "fatal-runtime"
    assert told(BOOT, READY, again)[0] == "benign"


def test_multi_api_server_death_precedes_its_own_shutdown():
    died = "(MainProcess pid=5) ERROR 11-29 15:33:00 [utils.py:599] Exception occurred while running API servers: Engine core process EngineCore died unexpectedly."
    stop = STOP.replace("APIServer", "ApiServer_0")
    assert told(READY, died, stop) == ("fatal-runtime", "multi-api-engine-died")
    assert told(READY, stop, died)[0] == "clean-stop"


def test_reason_tells_rule_exception_and_haste():
    error = "(EngineCore pid=20) ERROR 11-29 15:16:49 [core.py:1512] ValueError: head_dim=16"
    verdict = judge(BOOT, READY, FATAL, error)
    assert "rule engine-core-fatal" in verdict.reason
    assert "ValueError: head_dim=16" in verdict.reason
    assert "1 lines after it became ready" in verdict.reason
    assert verdict.reason.endswith(".")
    assert verdict.position == 4


def test_a_flood_hides_nothing_and_costs_no_memory():
    classifier = Classifier(CATALOGUE)
    for number in range(50_000):
        text = IMA if number % 3 else f"PTX .reg .b32 %r<{number}>;"
        for line in frame(FATAL if number == 25_000 else text):
            classifier.feed(line)
    verdict = classifier.verdict()
    assert (verdict.label, verdict.cls) == ("fatal-runtime", "cuda-illegal-memory-access")
    life = classifier._life
    kept = [life.frames, life.causes_before, life.causes_after, life.stops, life.unhealthy]
    assert max(map(len, kept)) <= 32
    assert len(CATALOGUE._buckets) <= CATALOGUE._BUCKETS_CAP
