# SPDX-License-Identifier: Apache-2.0
"""Programs beside the kernel that kill when memory is short, and what they say when they do.

Their word counts when it names a process of the engine, or its control group.
"""

import re
from collections.abc import Callable, Iterable, Mapping

from sparkd.core.end_of_life import Finding

UNITS: Mapping[str, str] = {"earlyoom.service": "earlyoom", "systemd-oomd.service": "systemd-oomd"}
"""Whose lines are read, and what the program is called."""
CLASSES: Mapping[str, str] = {name: f"killed-by-{name}" for name in UNITS.values()}

# earlyoom 1.7: sending SIGTERM to process 812 uid 995 "VLLM::EngineCor": badness 930, VmRSS 99 MiB
_EARLYOOM = re.compile(r"sending SIG[A-Z]+ to process (\d{1,10}) ")
# systemd 252 to 257: Killed /vllm.slice/vllm-a.service due to memory pressure for /vllm.slice ...
_OOMD = re.compile(r"Killed (/\S{1,512}) due to ")


def find(
    lines: Iterable[tuple[str, str]], is_ours: Callable[[int], bool], cgroup: str
) -> Finding | None:
    """What one of them says about this engine.

    Args:
        lines: unit and message of what these programs logged since the engine was started.
        is_ours: whether a process number is one of this engine's.
        cgroup: the engine's control group; '' when it is not known.
    """
    for unit, message in lines:
        name = UNITS.get(unit, "")
        process, group = _EARLYOOM.search(message), _OOMD.search(message)
        ours = (name == "earlyoom" and process is not None and is_ours(int(process[1]))) or (
            name == "systemd-oomd" and group is not None and bool(cgroup) and group[1] == cgroup
        )
        if ours:
            reason = f"{name} killed it because memory was short: {message[:300]}"
            return Finding(name, CLASSES[name], reason, permanent=False)
    return None
