# SPDX-License-Identifier: Apache-2.0
"""The status as lines for a person: pure, from the values that `--json` prints.

The layout is for people and may change; scripts read the JSON.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sparkd.cli.terminal import STATE_COLOURS, Paint, columns, neutralise
from sparkd.cli.times import ago, clock, span, stamp

Json = Mapping[str, Any]

_HEAD = ("ENGINE", "STATE", "SINCE", "PORT", "PID", "RESTARTS", "BOOT", "CONFIG")
_STATE_COLUMN = 1
_RIGHT = frozenset({3, 4, 5, 6})
_QUIET_PRESSURE = 0.01
"""Percent below which memory pressure is not worth a word."""


def overview(status: Json, now: float, paint: Paint, own_version: str) -> list[str]:
    """Every engine in a row, why each is as it is, then the slot, the host and the daemon."""
    engines: Sequence[Json] = status["engines"]
    lines = _table(engines, now, paint) if engines else ["no engines are configured"]
    lines += _reasons(engines, paint)
    lines += _guests(status.get("guests") or [], now)
    lines += ["", f"slot    {_slot(status['slot'])}", f"host    {_host(status['host'])}"]
    lines.append(f"daemon  {_daemon(status, own_version)}")
    lines += _remarks(status, paint)
    return lines


def _table(engines: Sequence[Json], now: float, paint: Paint) -> list[str]:
    rows = [_HEAD, *(_row(engine, now) for engine in engines)]
    plain = columns(rows, right=_RIGHT)
    start = max(len(row[0]) for row in rows) + 2
    shown = [paint("bold", plain[0])]
    for engine, line in zip(engines, plain[1:], strict=True):
        end = start + len(_text(engine["state"]))
        colour = STATE_COLOURS.get(str(engine["state"]), "")
        shown.append(line[:start] + paint(colour, line[start:end]) + line[end:])
    return shown


def _row(engine: Json, now: float) -> tuple[str, ...]:
    restarts, boot = engine["restarts"], engine.get("boot")
    return (
        _text(engine["name"]),
        _text(engine["state"]),
        "-" if engine["since"] is None else ago(float(engine["since"]), now),
        _or_dash(engine["port"]),
        _or_dash(engine["pid"]),
        f"{restarts['used']}/{restarts['limit']}",
        "-" if boot is None else f"{float(boot['seconds']):.0f} s",
        _text(engine["config"]),
    )


def _reasons(engines: Sequence[Json], paint: Paint) -> Iterator[str]:
    if not engines:
        return
    yield ""
    width = max(len(_text(engine["name"])) for engine in engines)
    for engine in engines:
        colour = "red" if engine["state"] in {"held", "stalled"} else ""
        name = _text(engine["name"]).ljust(width)
        yield f"{name}  {paint(colour, _text(engine['reason']))}"
        if engine["config"] != "current" and engine.get("config_reason"):
            yield f"{' ' * width}  config: {_text(engine['config_reason'])}"


def _guests(guests: Sequence[Json], now: float) -> Iterator[str]:
    if not guests:
        return
    rows = [("GUEST", "STATE", "SINCE", "PORT", "USER", "MEMORY", "COMMAND")]
    for guest in guests:
        memory = guest["memory_bytes"]
        rows.append(
            (
                _or_dash(guest["pid"]),
                _text(guest["state"]),
                "-" if guest["since"] is None else ago(float(guest["since"]), now),
                _or_dash(guest["port"]),
                _or_dash(guest["user"]),
                "-" if memory is None else size(float(memory)),
                _or_dash(guest["command"] or guest["reason"]),
            )
        )
    yield ""
    yield from columns(rows, right=frozenset({3}))


def _slot(slot: Json) -> str:
    holder = "free" if slot["holder"] is None else f"{_text(slot['holder'])} is starting"
    if not slot["waiting"]:
        return holder
    return f"{holder}; waiting: {', '.join(_text(name) for name in slot['waiting'])}"


def _host(host: Json) -> str:
    parts = [
        f"{size(host['memory_available_bytes'])} of {size(host['memory_total_bytes'])} available"
    ]
    pressure = host["pressure_memory_full_avg10"]
    if pressure is None:
        parts.append("memory pressure unknown (no PSI)")
    elif pressure < _QUIET_PRESSURE:
        parts.append("no memory pressure")
    else:
        parts.append(f"memory pressure {pressure:.2f} %")
    compilers = host["compilers"]
    if compilers["count"]:
        noun = "compiler" if compilers["count"] == 1 else "compilers"
        parts.append(f"{compilers['count']} {noun} with {size(compilers['rss_bytes'])}")
    else:
        parts.append("no compilers")
    return ", ".join(parts)


def _daemon(status: Json, own_version: str) -> str:
    if status["daemon"] != "running":
        return "absent: shown from systemd and the database"
    if status["version"] != own_version:
        return (
            f"running {_text(status['version'])}, while this sparkctl is {own_version}:"
            " 'systemctl restart sparkd' (the engines run on)"
        )
    return "running"


def _remarks(status: Json, paint: Paint) -> list[str]:
    lines = []
    if status.get("stale"):
        reason = status.get("stale_reason") or "systemd cannot be seen"
        lines.append(paint("red", f"stale   {_text(reason)}"))
    lines += [f"note    {_text(note)}" for note in status.get("notes") or []]
    errors = status.get("config_errors") or []
    lines += [paint("red", f"config  {_text(error)}") for error in errors]
    return lines


def details(engine: Json, now: float, paint: Paint) -> list[str]:
    """One engine, a fact per line."""
    state = str(engine["state"])
    facts = [
        ("State", paint(STATE_COLOURS.get(state, ""), _text(state)) + _since(engine["since"], now)),
        ("Reason", _text(engine["reason"])),
        ("Model", _or_dash(engine.get("model"))),
        ("Port", _or_dash(engine["port"])),
        ("PID", _or_dash(engine["pid"])),
        ("Invocation", _or_dash(engine["invocation_id"])),
        ("Config", _with(engine["config"], engine.get("config_reason"))),
        ("Boot", _boot(engine.get("boot"))),
        ("Progress", _progress(engine.get("progress"), now)),
        ("Restarts", _restarts(engine["restarts"], now)),
        ("Last end", _last(engine.get("last_death"), now)),
    ]
    facts += _why(engine.get("last_death"))
    if engine.get("drop_ins"):
        facts.append(("Drop-ins", ", ".join(_text(path) for path in engine["drop_ins"])))
    facts.append(("Log", f"sparkctl logs {_text(engine['name'])}"))
    width = max(len(name) for name, _ in facts)
    head = paint("bold", f"{_text(engine['name'])} - {_text(engine['unit'])}")
    return [head, *(f"  {name.rjust(width)}: {value}" for name, value in facts)]


_DEATH_FACTS = (
    ("Why", "reason"), ("Evidence", "evidence"), ("Then", "action_reason"), ("Hint", "hint"),
)  # fmt: skip


def _why(death: Json | None) -> Iterator[tuple[str, str]]:
    if death is None or death["requested"]:
        return
    said = set()
    for name, key in _DEATH_FACTS:
        text = death.get(key)
        if text and text not in said:
            said.add(text)
            yield name, _text(text)


def _since(moment: float | None, now: float) -> str:
    return "" if moment is None else f" since {stamp(moment)} ({ago(moment, now)} ago)"


def _with(value: object, reason: object) -> str:
    return f"{_text(value)}: {_text(reason)}" if reason else _text(value)


def _boot(boot: Json | None) -> str:
    if boot is None:
        return "-"
    parts = [f"ready after {span(float(boot['seconds']))}"]
    if boot.get("kind") is not None:
        why = f" ({_text(boot['kind_reason'])})" if boot.get("kind_reason") else ""
        parts.append(f"a {_text(boot['kind'])} start{why}")
    if boot.get("memory_peak_bytes") is not None:
        parts.append(f"{size(float(boot['memory_peak_bytes']))} at its peak")
    if boot["vllm_version"] is not None:
        parts.append(f"vLLM {_text(boot['vllm_version'])}")
    if boot["kv_cache_tokens"] is not None:
        parts.append(f"KV cache {boot['kv_cache_tokens']:,} tokens")
    if boot["max_concurrency"] is not None:
        parts.append(f"concurrency {boot['max_concurrency']:.2f}")
    return ", ".join(parts)


def _restarts(restarts: Json, now: float) -> str:
    """The window's arithmetic: how many ends are left, and when there is one more."""
    text = f"{restarts['used']} of {restarts['limit']} starts used"
    frees_at = restarts.get("frees_at")
    if frees_at is not None:
        window = span(restarts["window_seconds"])
        text += f"; the window of {window} frees one at {clock(frees_at, now)}"
    in_a_row = restarts.get("in_a_row")
    if in_a_row:
        text += f"; {in_a_row} in a row without having served for 10 min in between"
    return text


def _progress(progress: Json | None, now: float) -> str:
    """When tokens last flowed, and what is known of its stalls."""
    if progress is None or not progress["last_progress"]:
        return "-"
    parts = [f"last seen {ago(progress['last_progress'], now)} ago"]
    if progress["excuse"]:
        parts.append(_text(progress["excuse"]))
    longest = progress["longest_recovered_stall_seconds"]
    if longest:
        parts.append(f"longest stall that ended by itself {span(longest)}")
    return ", ".join(parts)


def _last(death: Json | None, now: float) -> str:
    if death is None:
        return "none recorded"
    when = f"{stamp(float(death['time']))} ({ago(float(death['time']), now)} ago)"
    if death["requested"]:
        return f"{when}, requested"
    return f"{when}, {_text(death['class'])}, {end_text(death)}"


def end_text(death: Json) -> str:
    """How the main process ended: 'exit 0', 'signal KILL', or what systemd calls it."""
    if death.get("signal"):
        return f"signal {_text(death['signal'])}"
    if death.get("exit_code") is not None:
        return f"exit {death['exit_code']}"
    return _text(death.get("result") or "unknown")


def size(count: float) -> str:
    """Bytes for people, in GiB or MiB."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"


def _text(value: object) -> str:
    return neutralise(str(value))


def _or_dash(value: object) -> str:
    return "-" if value is None else _text(value)
