# SPDX-License-Identifier: Apache-2.0
"""What a launch by hand (`sparkctl run -- vllm serve …`) asks for, read from its command line."""

from collections.abc import Sequence
from typing import NamedTuple

from sparkd.core import launch
from sparkd.core.secrecy import is_secret_name, redact

DEFAULT_UTILIZATION = 0.92
"""vLLM 0.32's; older ones had 0.9, and the larger share is the safe one to plan with."""
TEXT_MAX = 300


class Launch(NamedTuple):
    """What a command line says."""

    is_vllm: bool
    """Whether it is a `vllm serve`."""
    model: str
    utilization: float
    """0 where it is no `vllm serve`."""
    host: str
    """Address at which it will answer."""
    port: int
    """0 where that cannot be known."""


def read(argv: Sequence[str]) -> Launch:
    """Read the options that matter before a start.

    Raises:
        ValueError: the utilization is not a number from 0 to 1.
    """
    if "serve" not in argv:
        return Launch(is_vllm=False, model="", utilization=0.0, host="127.0.0.1", port=0)
    options = list(argv[argv.index("serve") + 1 :])
    # `--config` may name another port, `--uds` none.
    known = None if _has(options, "--config", "--uds") else launch.address(argv)
    host, port = known or ("127.0.0.1", 0)
    text = value_of(options, "--gpu-memory-utilization")
    utilization = float(text) if text else DEFAULT_UTILIZATION
    if not 0 <= utilization <= 1:
        raise ValueError(text)
    named = value_of(options, "--model")
    model = named or (options[0] if options and not options[0].startswith("-") else "")
    return Launch(True, model, utilization, host, port)


def value_of(options: Sequence[str], name: str) -> str:
    """The value of an option that is given as two words or with `=`; the last one counts.

    vLLM takes an underscore for a dash in the names of its options.
    """
    found = ""
    for index, word in enumerate(options):
        key, equals, value = word.partition("=")
        if key.replace("_", "-") != name:
            continue
        if equals:
            found = value
        elif index + 1 < len(options):
            found = options[index + 1]
    return found


def _has(options: Sequence[str], *names: str) -> bool:
    return any(word.partition("=")[0].replace("_", "-") in names for word in options)


def text(argv: Sequence[str]) -> str:
    """The command line for people: printable, without secrets, and not longer than fits."""
    shown = []
    hide = False
    for word in argv:
        key, equals, _ = word.partition("=")
        secret = key.startswith("--") and is_secret_name(key.lstrip("-"))
        if hide:
            shown.append("***")
        elif secret and equals:
            shown.append(f"{key}=***")
        else:
            shown.append(redact(word))
        hide = secret and not equals
    line = "".join(c if c.isprintable() else "?" for c in " ".join(shown))
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"
