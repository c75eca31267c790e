# SPDX-License-Identifier: Apache-2.0
"""Puts the simulated engine where a real one would be: `VENV/bin/vllm`."""

import sys
from pathlib import Path

_MARKER = "# A simulated engine, installed by sparkd-sim-engine."


def install(venv: Path) -> Path:
    """Write `venv/bin/vllm` and return its path.

    Raises FileExistsError if a file that this function did not write is there, OSError if the
    file cannot be written.
    """
    target = venv / "bin" / "vllm"
    if target.exists() and _MARKER not in target.read_text(errors="replace"):
        raise FileExistsError(f"{target}: is not a simulated engine, and is left as it is")
    package_parent = Path(__file__).resolve().parents[2]
    target.parent.mkdir(parents=True, exist_ok=True)
    # Isolated and without site: only the standard library is needed, and it starts faster.
    target.write_text(
        f"#!{sys.executable} -IS\n"
        f"{_MARKER}\n"
        "import sys\n"
        f"sys.path.insert(0, {str(package_parent)!r})\n"
        "from sparkd.sim.engine import main\n"
        "sys.exit(main())\n"
    )
    target.chmod(0o755)
    return target
