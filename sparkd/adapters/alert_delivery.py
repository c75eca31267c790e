# SPDX-License-Identifier: Apache-2.0
"""Hands one alert to one destination: a webhook or a command, each within a wall-clock deadline.

httpx is imported with this module, so whoever has no webhook must not import it before it needs to
(22 MB that stay resident, measured).
"""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from typing import Any, NamedTuple

from sparkd import __version__
from sparkd.core import alert_formats, alert_settings
from sparkd.core.alerts import Alert
from sparkd.core.config_model import Webhook
from sparkd.core.lines import neutralise
from sparkd.core.secrecy import redact

DEADLINE_S = 15.0
"""Wall clock for one attempt, from connecting to the answer's status."""
STEP_S = 5.0
"""And for each step of it."""
COMMAND_S = 30.0
CREDENTIAL_MAX = 8192
_ALWAYS_REFUSED = frozenset({400, 413, 415, 422})
"""The receiver will not take this very alert; asking again changes nothing."""
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "HOME": "/root",
}


class Outcome(NamedTuple):
    """What became of an attempt."""

    taken: bool
    detail: str
    """One sentence without anything secret."""
    refused: bool = False
    """Whether another attempt with the same alert is pointless."""
    retry_after: float | None = None
    """Seconds that the receiver asked for."""


class _SecretError(Exception):
    """A credential cannot be used; the message does not hold it."""


def post(hook: Webhook, alert: Alert, host: str, now: float, proxy: str | None) -> Outcome:
    """Post to a webhook. Redirects are not followed, and the environment names no proxy."""
    try:
        url, authorization = _where(hook)
    except _SecretError as error:
        return Outcome(taken=False, detail=str(error))
    request = alert_formats.request(hook.format, alert, host, now)
    headers = {**dict(request.headers), "User-Agent": f"sparkd/{__version__}"}
    if authorization:
        headers["Authorization"] = authorization
    return _exchange(url, headers, request.body, proxy)


def _where(hook: Webhook) -> tuple[str, str]:
    """The address and the Authorization header.

    Raises:
        _SecretError: the credential's file cannot be used.
    """
    if hook.credential is None:
        return hook.url or "", ""
    secret = _credential(hook.credential)
    if hook.url is not None:
        return hook.url, secret
    try:
        target = alert_settings.address(secret)
    except ValueError:
        raise _SecretError(f"{hook.credential} must hold one http or https address") from None
    if not alert_settings.is_private_link(target):
        raise _SecretError(f"{hook.credential} must hold an https address")
    return secret, ""


def _credential(path: str) -> str:
    """The only line of a file that nobody but its owner can read.

    Raises:
        _SecretError: it cannot be read, or others can, or it is no single line.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise _SecretError(f"{path} cannot be read: {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid not in {0, os.geteuid()}:
            raise _SecretError(f"{path} must be a regular file of root")
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise _SecretError(f"{path} must be for its owner only: chmod 0600 it")
        raw = os.read(fd, CREDENTIAL_MAX + 1)
    except OSError as error:
        raise _SecretError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    text = raw.decode("ascii", "replace").strip()
    if not text or len(raw) > CREDENTIAL_MAX or not text.isprintable() or not text.isascii():
        raise _SecretError(f"{path} must hold one line of printable ASCII")
    return text


class _Deadline:
    """Ends an exchange from outside: httpx bounds each step, and a receiver can make many."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._socket: Any = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Learn which socket is used: the trace extension of httpx."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            stream = info.get("return_value")
            self._socket = stream.get_extra_info("socket") if stream is not None else None
            if self.passed:
                self._end()

    def cancel(self) -> None:
        """It is over."""
        self._timer.cancel()

    def _end(self) -> None:
        self.passed = True
        if self._socket is not None:
            with contextlib.suppress(OSError, ValueError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _exchange(url: str, headers: dict[str, str], body: bytes, proxy: str | None) -> Outcome:
    httpx = load_http()
    deadline = _Deadline(DEADLINE_S)
    try:
        transport = httpx.HTTPTransport(
            verify=_authorities(url),
            trust_env=False,
            retries=0,
            proxy=None if proxy is None else httpx.Proxy(proxy),
        )
        with (
            httpx.Client(
                transport=transport, trust_env=False, follow_redirects=False, timeout=STEP_S
            ) as client,
            client.stream(
                "POST", url, content=body, headers=headers, extensions={"trace": deadline.trace}
            ) as answer,
        ):
            # The answer's body is not needed: what the receiver says there is not for our log.
            return _judged(answer.status_code, answer.headers.get("Retry-After"))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError, ValueError) as error:
        if deadline.passed:
            return Outcome(taken=False, detail=f"no answer within {DEADLINE_S:.0f} s")
        return Outcome(taken=False, detail=_told(error))
    finally:
        deadline.cancel()


def _authorities(url: str) -> Any:  # noqa: ANN401  (an ssl.SSLContext, where it is needed)
    """Whose certificates are trusted: the host's, where update-ca-certificates(8) puts them.

    httpx would ask certifi, which is that only where the distribution has seen to it.
    """
    if not url.startswith("https:"):
        return True
    import ssl  # noqa: PLC0415  (httpx has it; whoever has no webhook needs neither)

    return ssl.create_default_context()


def load_http() -> Any:  # noqa: ANN401  (a module)
    """Import httpx now, rather than in the middle of an upgrade."""
    # Without this httpx brings its command line along when python3-rich is installed (7 MB).
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # None: "cannot be imported"
    import httpx  # noqa: PLC0415  (see the module's docstring)

    return httpx


def _judged(status: int, retry_after: str | None) -> Outcome:
    if 200 <= status < 300:
        return Outcome(taken=True, detail=f"HTTP {status}")
    if 300 <= status < 400:
        detail = f"HTTP {status}: it redirects, and redirects are not followed: name the address"
        return Outcome(taken=False, detail=detail)
    asked = float(retry_after) if retry_after and retry_after.isdecimal() else None
    refused = status in _ALWAYS_REFUSED
    return Outcome(taken=False, detail=f"HTTP {status}", refused=refused, retry_after=asked)


def _told(error: Exception) -> str:
    """The error in a sentence; an address, which may be the secret, is not repeated."""
    cause = error.__cause__ or error.__context__
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    doubt = getattr(cause, "verify_message", "")  # of an ssl.SSLCertVerificationError
    if doubt:
        return (
            f"its certificate is not trusted: {neutralise(doubt, 200)}; a private authority's goes"
            " to /usr/local/share/ca-certificates, then run update-ca-certificates"
        )
    if isinstance(cause, OSError) and cause.strerror:
        return f"cannot be reached: {neutralise(cause.strerror, 200)}"
    name = type(error).__name__
    return {
        "ReadTimeout": f"no answer within {STEP_S:.0f} s",
        "ConnectTimeout": f"no connection within {STEP_S:.0f} s",
        "RemoteProtocolError": "its answer is no HTTP, or it hung up",
    }.get(name, f"cannot be reached: {name}")


def run(command: tuple[str, ...], alert: Alert, host: str, now: float) -> Outcome:
    """Run a program with the alert as JSON on its standard input; its output is thrown away."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=_ENVIRONMENT,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(taken=False, detail=f"{command[0]} cannot be run: {error.strerror}")
    try:
        process.communicate(alert_formats.stdin(alert, host, now), timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        # The leader has not been waited for, so its group's number is still its own.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        detail = f"{command[0]} did not end within {COMMAND_S:.0f} s and was killed"
        return Outcome(taken=False, detail=detail)
    if process.returncode == 0:
        return Outcome(taken=True, detail="exit status 0")
    how = f"exit status {process.returncode}"
    if process.returncode < 0:
        how = f"killed by signal {-process.returncode}"
    return Outcome(taken=False, detail=redact(f"{command[0]}: {how}"))
