# SPDX-License-Identifier: Apache-2.0
"""flood.py LINES: print the log of an engine that floods it, the fatal line in the middle.

The mixture of a bad hour: access lines, statistics, a dump of the scheduler's state, tracebacks.
"""

import sys

ACCESS = (
    '(APIServer pid=400) INFO:     127.0.0.1:{port} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
)
STATS = (
    "(APIServer pid=400) INFO {at} [loggers.py:259] Engine 000: Avg prompt throughput:"
    " {n}.3 tokens/s, Avg generation throughput: 71.2 tokens/s, Running: 4 reqs, Waiting: 0 reqs,"
    " GPU KV cache usage: 12.5%, Prefix cache hit rate: 40.1%"
)
DUMP = "(EngineCore pid=410) ERROR {at} [dump_input.py:79] Dumping scheduler output {n}: {x}"
FRAME = '(APIServer pid=400)   File "/opt/vllm/vllm/v1/engine/async_llm.py", line {n}, in generate'
FATAL = "(EngineCore pid=410) ERROR {at} [core.py:1108] EngineCore encountered a fatal error."
MIXTURE = (*[ACCESS] * 11, *[STATS] * 3, *[DUMP] * 4, *[FRAME] * 2)


def main() -> None:
    """Print it."""
    count = int(sys.argv[1])
    for n in range(count):
        line = FATAL if n == count // 2 else MIXTURE[n % len(MIXTURE)]
        at = f"11-29 {n // 3600 % 24:02}:{n // 60 % 60:02}:{n % 60:02}"
        sys.stdout.write(line.format(n=n, at=at, port=30000 + n % 30000, x="x" * 120) + "\n")


main()
