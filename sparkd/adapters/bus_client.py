# SPDX-License-Identifier: Apache-2.0
"""The daemon as sparkctl sees it: its methods on the system bus, every one with a deadline.

JSON texts carry the answers. The daemon is never started by a call, and losing it is an answer
too: the engines do not depend on it.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from sparkd.adapters.sd_bus import Bus, BusUnavailableError, MethodError
from sparkd.core.bus_contract import ERROR_PREFIX, INTERFACE, NAME, PATH

TARGET = (NAME, PATH, INTERFACE)

READ_TIMEOUT_S = 5.0
"""The daemon answers from a snapshot, within milliseconds."""
TEST_TIMEOUT_S = 300.0
"""Every destination may take its whole deadline, after what is under way has taken its own."""
CHANGE_TIMEOUT_S = 120.0
"""Long enough for a person to authenticate to polkit."""

WATCH_S = 1.0
"""How often somebody who watches a wait is told how it goes."""

Watch = Callable[[Mapping[str, str]], None]
"""Told which engines are waited for and what each is doing."""

_ABSENT = frozenset(
    {
        "org.freedesktop.DBus.Error.ServiceUnknown",
        "org.freedesktop.DBus.Error.NameHasNoOwner",
    }
)
_LOST = frozenset(
    {
        "org.freedesktop.DBus.Error.NoReply",
        "org.freedesktop.DBus.Error.Disconnected",
    }
)
_DENIED = frozenset(
    {
        "org.freedesktop.DBus.Error.AccessDenied",
        "org.freedesktop.DBus.Error.AuthFailed",
        "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
    }
)


class Kind(StrEnum):
    """Why the daemon refused; the last part of its D-Bus error name."""

    NO_SUCH_ENGINE = "NoSuchEngine"
    NOT_PERMITTED = "NotPermitted"
    BUSY = "Busy"
    CONFIG = "Config"
    HELD = "Held"
    NO_SUCH_INCIDENT = "NoSuchIncident"
    FAILED = "Failed"


class DaemonError(Exception):
    """The daemon answered, and the answer is no."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class DaemonAbsentError(Exception):
    """The daemon does not answer: not running, no bus, or hung."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        """It may have begun to act on the call."""


class Outcome(NamedTuple):
    """What became of one engine's operation; exactly one member is set."""

    engine: str
    reply: dict[str, Any] | None = None
    error: DaemonError | None = None
    absent: DaemonAbsentError | None = None


def status() -> dict[str, Any]:
    """The status of everything, as `sparkctl status --json` prints it.

    Raises:
        DaemonAbsentError: nobody answers.
        DaemonError: the caller may not ask.
    """
    value = _ask("Status", (), READ_TIMEOUT_S)
    if not isinstance(value, dict):
        raise DaemonError(Kind.FAILED, "sparkd's status is no JSON object")
    return value


def incidents(limit: int, engine: str) -> list[dict[str, Any]]:
    """The last ends of life, newest first; of one engine, or of all when `engine` is ''.

    Raises:
        DaemonAbsentError: nobody answers.
        DaemonError: the caller may not ask, or there is no such engine.
    """
    value = _ask("Incidents", (limit, engine), READ_TIMEOUT_S)
    if not isinstance(value, list):
        raise DaemonError(Kind.FAILED, "sparkd's incidents are no JSON array")
    return value


def incident(identity: str) -> dict[str, Any]:
    """One end of life, by the beginning of its invocation or its number.

    Raises:
        DaemonAbsentError: nobody answers.
        DaemonError: there is no such incident, or more than one.
    """
    return _object(_ask("Incident", (identity,), READ_TIMEOUT_S))


def alerts(limit: int) -> list[dict[str, Any]]:
    """The newest alerts and what became of them.

    Raises:
        DaemonAbsentError: nobody answers.
        DaemonError: the caller may not ask.
    """
    value = _ask("Alerts", (limit,), READ_TIMEOUT_S)
    if not isinstance(value, list):
        raise DaemonError(Kind.FAILED, "sparkd's alerts are no JSON array")
    return value


def test_alert() -> list[dict[str, Any]]:
    """Have a test alert sent everywhere now; what each destination did.

    Raises:
        DaemonAbsentError: nobody answers.
        DaemonError: nobody is configured, or the caller may not.
    """
    value = _ask("TestAlert", (), TEST_TIMEOUT_S)
    if not isinstance(value, list):
        raise DaemonError(Kind.FAILED, "sparkd's answer is no JSON array")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DaemonError(Kind.FAILED, "sparkd's answer is no JSON object")
    return value


def apply(*, dry_run: bool, force: bool, prune: bool, why: str = "") -> dict[str, Any]:
    """Have the daemon write units from the configuration, or say what it would write.

    Raises:
        DaemonAbsentError: nobody answers.
        DaemonError: with every configuration error on a line of its own, or another refusal.
    """
    value = _ask("Apply", (dry_run, force, prune, why), CHANGE_TIMEOUT_S)
    if not isinstance(value, dict):
        raise DaemonError(Kind.FAILED, "sparkd's answer is no JSON object")
    return value


def operate(
    method: str, engines: Sequence[str], *, wait: bool, watch: Watch | None = None
) -> Iterator[Outcome]:
    """Call Start, Stop or Restart for each engine at once, and yield the answers as they come.

    With `wait` an answer may take as long as an engine takes to load: then there is no deadline,
    but a daemon that goes away ends every wait at once. `watch` is told meanwhile how it goes.
    """
    try:
        bus = Bus()
    except (BusUnavailableError, OSError) as error:
        for engine in engines:
            yield Outcome(engine, absent=DaemonAbsentError(str(error)))
        return
    waiting: dict[int, str] = {}
    left = list(engines)
    called: set[str] = set()
    try:
        for engine in engines:
            waiting[bus.call(TARGET, method, (engine, wait))] = engine
            called.add(engine)
        deadline = None if wait else time.monotonic() + CHANGE_TIMEOUT_S
        while waiting:
            ticket = bus.wait(list(waiting), _patience(deadline, watch))
            if ticket is None and deadline is None and watch is not None:
                _tell(bus, list(waiting.values()), watch)
                continue
            if ticket is None:
                break
            engine = waiting.pop(ticket)
            left.remove(engine)
            yield _outcome(bus, ticket, engine)
        lost = f"sparkd did not answer within {CHANGE_TIMEOUT_S:.0f} s"
    except BusUnavailableError as error:
        lost = str(error)
    finally:
        bus.close()
    for engine in left:
        yield Outcome(engine, absent=DaemonAbsentError(lost, sent=engine in called))


def _patience(deadline: float | None, watch: Watch | None) -> float | None:
    if deadline is not None:
        return deadline - time.monotonic()
    return None if watch is None else WATCH_S


def _tell(bus: Bus, engines: Sequence[str], watch: Watch) -> None:
    ticket = bus.call(TARGET, "Status", ())
    if bus.wait([ticket], READ_TIMEOUT_S) is None:
        return
    try:
        seen = _decode(bus, ticket)["engines"]
    except (DaemonError, DaemonAbsentError):
        return  # the answer that is waited for will tell
    watch({row["name"]: str(row["reason"]) for row in seen if row["name"] in engines})


def _outcome(bus: Bus, ticket: int, engine: str) -> Outcome:
    try:
        value = _decode(bus, ticket)
    except DaemonError as error:
        return Outcome(engine, error=error)
    except DaemonAbsentError as error:
        return Outcome(engine, absent=error)
    return Outcome(engine, reply=value if isinstance(value, dict) else {"engine": engine})


def _ask(method: str, arguments: Sequence[str | bool | int], timeout_s: float) -> Any:  # noqa: ANN401
    try:
        bus = Bus()
    except (BusUnavailableError, OSError) as error:
        raise DaemonAbsentError(str(error)) from None
    try:
        ticket = bus.call(TARGET, method, arguments)
        if bus.wait([ticket], timeout_s) is None:
            raise DaemonAbsentError(f"sparkd did not answer within {timeout_s:.0f} s", sent=True)
        return _decode(bus, ticket)
    except BusUnavailableError as error:
        raise DaemonAbsentError(str(error)) from None
    finally:
        bus.close()


def _decode(bus: Bus, ticket: int) -> Any:  # noqa: ANN401  (JSON)
    try:
        return json.loads(bus.answer(ticket))
    except MethodError as error:
        raise _translated(error) from None
    except ValueError:
        raise DaemonError(Kind.FAILED, "sparkd's answer is no JSON") from None


def _translated(error: MethodError) -> DaemonError | DaemonAbsentError:
    if error.name in _ABSENT:
        return DaemonAbsentError("sparkd is not running")
    if error.name in _LOST:
        return DaemonAbsentError("sparkd went away before it answered", sent=True)
    if error.name in _DENIED:
        return DaemonError(
            Kind.NOT_PERMITTED,
            "the system bus does not let you talk to sparkd; use sudo, or have root add you to"
            " the group sparkd",
        )
    name = error.name.removeprefix(ERROR_PREFIX)
    kind = Kind(name) if name in set(Kind) else Kind.FAILED
    return DaemonError(kind, error.message or error.name)
