# SPDX-License-Identifier: Apache-2.0
"""From the `[serve]` table to the arguments of `vllm serve`.

vLLM's own flag names pass through unseen, so that a flag which appears in tomorrow's vLLM needs no
new sparkd. What is known here is how vLLM's parser (0.11 to 0.33) reads each TOML type:

* most booleans are argparse.BooleanOptionalAction: `--flag` and `--no-flag`; a few know only
  `--flag`, and for those `false` means to leave the flag out;
* lists are `nargs="+"`: `--flag a b`; the exceptions are in the tables below;
* an argument that begins with `-` is taken for an option (and one with a dot in it is rewritten by
  vLLM as a dotted JSON option), so a scalar of that kind is written `--flag=value`.
"""

import json
import math
import re
from collections.abc import Mapping

from sparkd.core.escape import UnitTextError, check_encodable
from sparkd.core.secrecy import contains_secret, is_secret_name
from sparkd.core.text import has_control_character

# vLLM 0.32's default; 0.11's was 0.9, and the larger share is the safe one to plan with.
DEFAULT_MEMORY_UTILIZATION = 0.92

# One argument of a Linux process holds at most 128 KiB (MAX_ARG_STRLEN); escaping can quadruple it
# and systemd's longest line is 1 MiB.
MAX_VALUE_BYTES = 32 * 1024
MAX_TOTAL_BYTES = 192 * 1024

_FLAG_NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*\Z")

# Flags that sparkd writes or must not meet; the value says what to do instead.
_OWNED = {
    "model": "write it as `model` at the top of the file",
    "port": "write it as `port` at the top of the file",
    "host": "write it as `host` at the top of the file",
    "uds": "sparkd's readiness gate needs TCP: use `host` and `port`",
    "grpc": "sparkd's readiness gate needs vLLM's HTTP server",
    "headless": "a headless engine serves nothing that could be proven ready",
    "config": "it would hide flags from sparkd: write them in [serve]",
    "ssl-keyfile": "sparkd probes plain HTTP: let a proxy in front terminate TLS",
    "ssl-certfile": "sparkd probes plain HTTP: let a proxy in front terminate TLS",
    "api-key": "a command line is readable by every local user:"
    ' write VLLM_API_KEY = "/path/to/file" in [credentials]',
    "hf-token": "a command line is readable by every local user:"
    ' write HF_TOKEN = "/path/to/file" in [credentials]',
    "help": "it would print and exit",
    "version": "it would print and exit",
}
# Flags with action="store_true": they have no `--no-` form.
_ONLY_TRUE = frozenset(
    {
        "aggregate-engine-logging",
        "data-parallel-multi-port-external-lb",
        "disable-log-requests",
        "disable-log-stats",
    }
)
_REPEATED = frozenset({"middleware"})
_COMMA_JOINED = frozenset({"disable-access-log-for-endpoints", "tool-server"})
_JSON_LISTS = frozenset({"allowed-headers", "allowed-methods", "allowed-origins"})


class ServeError(ValueError):
    """A flag or value that must not, or cannot, reach `vllm serve`; the text is the rule."""


def check_flag_name(name: str) -> None:
    """Refuse a name that is no vLLM flag, or one that sparkd writes itself.

    Raises:
        ServeError: with the rule and what to write instead.
    """
    if not _FLAG_NAME.match(name):
        dashed = name.replace("_", "-").lower().lstrip("-")
        hint = f": write {dashed}" if _FLAG_NAME.match(dashed) else ""
        raise ServeError(f"must be vLLM's flag name without the leading dashes{hint}")
    if reason := _OWNED.get(name):
        raise ServeError(f"cannot be set in [serve]: {reason}")
    if is_secret_name(name):
        raise ServeError("looks like a secret on a command line: use [credentials]")
    for owned in _OWNED:
        # argparse accepts any unambiguous prefix of a flag.
        if owned.startswith(name):
            raise ServeError(f"abbreviates --{owned}, which cannot be set in [serve]")


def flag_arguments(name: str, value: object) -> tuple[str, ...]:
    """Return the arguments for one flag.

    Args:
        name: the flag without dashes, accepted by `check_flag_name`.
        value: what tomllib read: str, bool, int, float, list or dict.

    Raises:
        ServeError: `value` cannot be passed unchanged.
    """
    if contains_secret(value):
        raise ServeError("looks like a secret on a command line: use [credentials]")
    arguments = _arguments(name, value)
    for argument in arguments:
        try:
            check_encodable(argument)
        except UnitTextError as error:
            raise ServeError(str(error)) from None
        if len(argument.encode()) > MAX_VALUE_BYTES:
            raise ServeError(f"must not be longer than {MAX_VALUE_BYTES} bytes")
    return arguments


def _arguments(name: str, value: object) -> tuple[str, ...]:
    flag = f"--{name}"
    if value is True:
        return (flag,)
    if value is False:
        return () if name in _ONLY_TRUE else (f"--no-{name}",)
    if isinstance(value, list):
        return _list_arguments(name, value)
    text = _text(value)
    return (f"{flag}={text}",) if text.startswith("-") else (flag, text)


def _list_arguments(name: str, items: list[object]) -> tuple[str, ...]:
    flag = f"--{name}"
    if name in _JSON_LISTS:
        return (flag, _json(items))
    if not items:
        raise ServeError("must not be an empty list: leave the flag out")
    texts = [_text(item) for item in items]
    if name in _REPEATED:
        return tuple(f"{flag}={text}" for text in texts)
    if name in _COMMA_JOINED:
        if any("," in text for text in texts):
            raise ServeError("must not hold a comma in an item: vLLM joins the items by commas")
        return (f"{flag}={','.join(texts)}",)
    if any(text.startswith("-") for text in texts):
        raise ServeError("must not hold an item that begins with '-': vLLM would read a flag")
    return (flag, *texts)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _json(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ServeError("must be a finite number")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return repr(value)
    raise ServeError(
        "must be a string, number, boolean, table, or a list of strings, numbers or tables"
    )


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        raise ServeError("must hold only what JSON can: no dates, nan or inf") from None


def served_names(model: str, flags: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names under which vLLM will list the model: the model itself by default.

    Raises:
        ServeError: `served-model-name` is neither a name nor a list of names.
    """
    value = flags.get("served-model-name")
    names = [value] if isinstance(value, str) else value
    if names is None:
        return (model,)
    if (
        not isinstance(names, list)
        or not names
        or not all(isinstance(item, str) and _is_name(item) for item in names)
    ):
        raise ServeError(
            "must be a name or a list of names, without control characters,"
            " not empty and not beginning with '-'"
        )
    if len(set(names)) != len(names):
        raise ServeError("must not name the same model twice")
    return tuple(names)


def _is_name(text: str) -> bool:
    return bool(text.strip()) and not text.startswith("-") and not has_control_character(text)


def memory_utilization(flags: Mapping[str, object]) -> float:
    """Return the share of the machine's memory (0 to 1) that vLLM will claim at start.

    Raises:
        ServeError: `gpu-memory-utilization` is no number in that range.
    """
    value = flags.get("gpu-memory-utilization", DEFAULT_MEMORY_UTILIZATION)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ServeError("must be a number greater than 0 and at most 1")
    return float(value)
