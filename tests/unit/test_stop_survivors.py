# SPDX-License-Identifier: Apache-2.0
"""Who was killed because it did not stop in time, from systemd's lines."""

import pytest

from sparkd.core.lines import Source, frame
from sparkd.core.stop_survivors import NAMED_MAX, StopSurvivors

OVER = "vllm-a.service: State 'stop-sigterm' timed out. Killing."
MAIN = "vllm-a.service: Killing process 10 (vllm) with signal SIGKILL."
WORKER = "vllm-a.service: Killing process 812 (VLLM::Worker) with signal SIGKILL."


def survivors(*messages: str, source: Source = Source.SYSTEMD) -> StopSurvivors:
    found = StopSurvivors(main_pid=10)
    for message in messages:
        for line in frame(message, source):
            found.feed(line)
    return found


def test_a_deaf_child_is_named_before_the_main_process_that_waits_for_it() -> None:
    found = survivors("vllm-a.service: Stopping vLLM.", OVER, MAIN, WORKER, WORKER)
    assert found.reason == (
        "processes VLLM::Worker (PID 812), vllm (PID 10, the main process) had not ended after"
        " SIGTERM when TimeoutStopSec= was over"
    )


def test_one_process_is_one() -> None:
    text = (
        "process VLLM::Worker (PID 812) had not ended after SIGTERM when TimeoutStopSec= was over"
    )
    assert survivors(OVER, WORKER).reason == text


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [OVER],
        # KillMode=mixed: what the main process leaves is killed at once, and was never asked.
        [WORKER],
        [WORKER, OVER],
        [OVER, "vllm-a.service: Sent signal SIGTERM to main process 10 (vllm) on client request."],
        [OVER, "vllm-a.service: Killing process 812 (VLLM::Worker) with signal SIGTERM."],
        ["a prompt says State 'stop-sigterm' timed out. Killing.", WORKER],
    ],
)
def test_nobody_is_blamed_without_reason(lines: list[str]) -> None:
    assert survivors(*lines).reason == ""


@pytest.mark.parametrize("source", [Source.ENGINE, Source.KERNEL, Source.OTHER])
def test_only_systemd_tells(source: Source) -> None:
    assert survivors(OVER, WORKER, source=source).reason == ""


def test_a_name_that_a_process_chose_is_harmless_and_many_are_counted() -> None:
    odd = WORKER.replace("VLLM::Worker", "a) with \x1b[2J\n(b")
    (one,) = survivors(OVER, odd.replace("\n", " ")).found
    assert one.name.isprintable()
    many = [WORKER.replace("812", str(pid)) for pid in range(1000, 2000)]
    reason = survivors(OVER, *many).reason
    assert reason.count("PID") == NAMED_MAX
    assert "250 more" in reason
