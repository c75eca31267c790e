# SPDX-License-Identifier: Apache-2.0
"""Arguments, exit statuses and where errors go."""

import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from sparkd import __version__
from sparkd.adapters.bus_client import DaemonError, Kind, Outcome
from sparkd.cli import apply, engines, holding, incidents, lifecycle, logs, times
from sparkd.cli.answers import code_of
from sparkd.cli.exits import CliError, Exit
from sparkd.cli.main import main
from sparkd.cli.terminal import Paint
from sparkd.core import burst

REPOSITORY = Path(__file__).parents[2]
PLAIN = Paint(enabled=False)
NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no verb"),
        (["staus"], "no verb 'staus'; did you mean 'status'?"),
        (["--jsn"], "no option '--jsn'"),
        (["status", "--jsn"], "unrecognized arguments: --jsn; see 'sparkctl status --help'"),
        (["status", "--js"], "unrecognized arguments: --js"),
        (["start"], "name the engines to start, or say --all"),
        (["start", "a", "--all"], "name the engines to start, or say --all"),
        (["stop", "a", "--wait", "--no-block"], "not allowed with"),
        (["logs"], "the following arguments are required: ENGINE"),
        (["logs", "a", "--invocation", "x", "--last-death"], "not allowed with"),
        (["incidents", "--limit", "0"], "--limit '0' is no number from 1 to 10000"),
        (["incidents", "--limit", "٣"], "is no number"),
        (["incidents", "--since", "soon"], "--since 'soon' is no time"),
        (["check", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(argv, message, capsys):
    assert main(argv) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("sparkctl: ")
    assert message in err


def test_help_and_version_go_to_stdout(capsys):
    assert main(["--version"]) == 0
    assert main(["--help"]) == 0
    assert main(["status", "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"sparkctl {__version__}\n" in out
    assert "usage: sparkctl status" in out
    assert err == ""


@pytest.mark.parametrize("verb", ["start", "stop", "restart", "logs", "hold", "release"])
def test_an_unknown_engine_is_4(verb, capsys, monkeypatch):
    monkeypatch.setattr(engines, "names", lambda: ["nemotron"])
    assert main([verb, "nemo\x1b[31m"]) == Exit.NO_SUCH_ENGINE
    err = capsys.readouterr().err
    assert err == "sparkctl: no such engine: 'nemo\\x1b[31m'; there are: nemotron\n"


def test_engines_come_from_file_names(tmp_path):
    for name in ("a.toml", "B.toml", ".hidden.toml", "c.toml~", "a b.toml", "x" * 60 + ".toml"):
        (tmp_path / name).touch()
    (tmp_path / "units").mkdir()
    for name in ("vllm-b.service", "vllm.target", "vllm-c.service.d", "other.service"):
        (tmp_path / "units" / name).touch()
    assert engines.names(str(tmp_path), str(tmp_path / "units")) == ["a", "b"]
    assert engines.names(str(tmp_path / "none"), str(tmp_path / "none")) == []


def test_every_refusal_has_its_exit_status():
    codes = {kind: int(code_of(DaemonError(kind, ""))) for kind in Kind}
    assert codes == {
        Kind.NO_SUCH_ENGINE: 4,
        Kind.NO_SUCH_INCIDENT: 4,
        Kind.NOT_PERMITTED: 77,
        Kind.BUSY: 75,
        Kind.CONFIG: 78,
        Kind.HELD: 1,
        Kind.FAILED: 1,
    }


def outcomes(*found):
    def operate(method, names, *, wait, watch):
        assert watch is None, "nobody watches without a terminal"
        operate.called = (method, list(names), wait)
        yield from found

    return operate


def lifecycle_run(monkeypatch, argv, *found):
    operate = outcomes(*found)
    monkeypatch.setattr(engines, "names", lambda: ["a", "b"])
    monkeypatch.setattr(lifecycle.bus_client, "operate", operate)
    return main(argv), operate.called


def test_each_engine_gets_a_sentence_and_the_first_failure_counts(monkeypatch, capsys):
    done = Outcome("a", reply={"engine": "a", "result": "done", "reason": "", "state": "ready"})
    busy = Outcome("b", error=DaemonError(Kind.BUSY, "a start is under way"))
    code, called = lifecycle_run(monkeypatch, ["restart", "a", "b", "a", "--wait"], done, busy)
    assert code == Exit.BUSY
    assert called == ("Restart", ["a", "b"], True)
    out, err = capsys.readouterr()
    assert out == "a: ready\n"
    assert err == "sparkctl: b: restart failed: a start is under way\n"


@pytest.mark.parametrize(
    ("argv", "wait"),
    [
        (["start", "a"], False),
        (["start", "a", "--wait"], True),
        (["stop", "a"], True),
        (["stop", "a", "--no-block"], False),
        (["restart", "a", "--no-block"], False),
    ],
)
def test_only_a_stop_waits_unasked(monkeypatch, argv, wait):
    queued = Outcome("a", reply={"engine": "a", "result": "queued", "reason": "", "state": None})
    code, called = lifecycle_run(monkeypatch, argv, queued)
    assert code == 0
    assert called[2] is wait


def test_a_failed_wait_is_1_and_says_why(monkeypatch, capsys):
    reply = {"engine": "a", "result": "failed", "reason": "held: no kernel image", "state": "held"}
    code, _ = lifecycle_run(monkeypatch, ["start", "a", "--wait"], Outcome("a", reply=reply))
    assert code == Exit.FAILURE
    assert "a: start failed: held: no kernel image" in capsys.readouterr().err


def engine(name, state):
    return {"name": name, "state": state}


@pytest.mark.parametrize(
    ("verb", "chosen"), [("start", ["s"]), ("stop", ["r", "w"]), ("restart", ["r", "w"])]
)
def test_all_passes_over_what_somebody_decided(monkeypatch, capsys, verb, chosen):
    states = {"r": "ready", "s": "stopped", "h": "held", "w": "waiting"}
    rows = [engine(*row) for row in states.items()]
    monkeypatch.setattr(lifecycle, "fetch", lambda: {"engines": rows})
    code, called = lifecycle_run(monkeypatch, [verb, "--all"])
    assert code == 0
    assert called[1] == chosen
    assert "h: left as it is: held" in capsys.readouterr().err


def test_journalctl_gets_matches_not_a_shell_line():
    plain = logs.argv("nemotron", invocation=None, lines=None, follow=False)
    assert plain == ["journalctl", "--lines=100", "--unit=vllm-nemotron.service"]
    life = logs.argv("nemotron", invocation="a" * 32, lines="all", follow=True)
    assert life == [
        "journalctl", "--lines=all", "--follow", f"_SYSTEMD_INVOCATION_ID={'a' * 32}", "+",
        f"INVOCATION_ID={'a' * 32}", "UNIT=vllm-nemotron.service",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("invocation", "lines"),
    [("A" * 32, "1"), ("a" * 31, "1"), ("-f", "1"), (None, "-1"), (None, "x")],
)
def test_a_malformed_argument_of_logs_is_2(invocation, lines):
    with pytest.raises(CliError) as caught:
        logs.argv("nemotron", invocation=invocation, lines=lines, follow=False)
    assert caught.value.code == Exit.USAGE


def incident(**changes):
    return {
        "time": NOW, "id": "3f2a9c1d", "dark_seconds": 65.0,
        "engine": "nemotron", "class": "engine-core-fatal", "exit_code": 0,
        "signal": None, "result": "success", "requested": False, "evidence": "fatal\x1b[2J error",
        "reason": "the engine core met a fatal error", "action": "restart",
        "action_reason": "death 1 of 3", "hint": "", **changes,
    }  # fmt: skip


def test_incidents_show_cause_and_consequence():
    rows = [incident(), incident(requested=True), incident(action="hold", hint="look at it")]
    lines = incidents.lines(rows, PLAIN)
    assert lines[0].split() == ["TIME", "ID", "ENGINE", "CLASS", "END", "THEN"]
    assert lines[1].endswith("nemotron  engine-core-fatal  exit 0  restarted")
    assert "  3f2a9c1d  nemotron" in lines[1]
    assert lines[2:4] == ["    the engine core met a fatal error", "    fatal error"]
    assert lines[4] == "    dark for 1 min 5 s"
    assert lines[5].endswith("exit 0  requested")
    assert lines[6].endswith("exit 0  held")
    assert lines[-2:] == ["    look at it", "    dark for 1 min 5 s"]


def test_an_engine_that_is_not_back_is_said_to_be_dark_still():
    assert incidents.lines([incident(dark_seconds=None)], PLAIN)[-1] == "    dark: not ready since"


def test_since_reads_spans_and_dates():
    assert times.parse_since("2h", NOW) == NOW - 7200
    midnight = times.parse_since("2026-11-29", NOW)
    assert times.parse_since("2026-11-29 14:00", NOW) - midnight == 50400


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-5, "0 s"),
        (59.6, "1 min"),
        (185, "3 min 5 s"),
        (7200, "2 h"),
        (360000, "4 d 4 h"),
    ],
)
def test_spans(seconds, text):
    assert times.span(seconds) == text


def applied(**changes):
    empty = {"diff": "", "written": [], "removed": [], "enabled": [], "refused": [], "orphans": [],
             "pending": [], "dry_run": False}  # fmt: skip
    return {**empty, **changes}


def test_apply_says_what_happened_to_each_unit():
    answer = applied(
        diff="--- a\n+++ b\n@@ -1 +1 @@\n-old\n+new\x1b[2J\n",
        written=["vllm-a.service"],
        refused=[{"unit": "vllm-b.service", "reason": "edited by hand", "diff": "-x\n"}],
        orphans=["vllm-c.service"],
        pending=["a"],
    )
    lines = apply.lines(answer, PLAIN)
    assert lines[:5] == ["--- a", "+++ b", "@@ -1 +1 @@", "-old", "+new"]
    assert lines[5:8] == [
        "vllm-a.service: written",
        "vllm-b.service: refused: edited by hand",
        "    -x",
    ]
    assert lines[8].startswith("vllm-c.service: its engine is gone from the configuration")
    assert lines[9:] == ["a: config pending: it runs with its old unit until 'sparkctl restart a'"]
    assert apply.lines(applied(written=["u"], dry_run=True), PLAIN) == ["u: would be written"]
    assert apply.lines(applied(), PLAIN)[0].startswith("nothing to do")


def test_a_refused_unit_makes_apply_fail(monkeypatch, capsys):
    refused = applied(refused=[{"unit": "u", "reason": "foreign", "diff": ""}])
    monkeypatch.setattr(apply.bus_client, "apply", lambda **_: refused)
    assert main(["apply"]) == Exit.FAILURE
    assert "u: refused: foreign" in capsys.readouterr().out


def test_configuration_errors_are_a_line_each_and_78(monkeypatch, capsys):
    def refuse(**_):
        raise DaemonError(Kind.CONFIG, "a.toml:1: port: bad\nb.toml:2: model: bad")

    monkeypatch.setattr(apply.bus_client, "apply", refuse)
    assert main(["apply", "--dry-run"]) == Exit.CONFIG
    err = capsys.readouterr().err
    assert err == "sparkctl: a.toml:1: port: bad\nsparkctl: b.toml:2: model: bad\n"


def test_hold_needs_a_reason_and_release_forgets():
    hold = Namespace(verb="hold", engine="a", why="  new\nweights ")
    held, sentence = holding.decide(hold, burst.Ledger(), NOW)
    assert held.held == burst.Hold(
        burst.HeldBy.OPERATOR, "operator", "held by an operator: new weights", NOW
    )
    assert "new weights" in sentence
    with pytest.raises(CliError) as caught:
        holding.decide(Namespace(verb="hold", engine="a", why=" "), held, NOW)
    assert caught.value.code == Exit.USAGE
    released, _ = holding.decide(Namespace(verb="release", engine="a"), held, NOW)
    assert released == burst.Ledger()


def sparkctl(*argv, **options):
    code = "import sys; from sparkd.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv], env=environment, stderr=subprocess.PIPE, **options
    )


def test_a_reader_that_goes_away_ends_it_quietly():
    read, write = os.pipe()
    os.close(read)
    with sparkctl("--help", stdout=write) as process:
        os.close(write)
        _, errors = process.communicate(timeout=30)
    assert errors == b""
    assert process.returncode == -signal.SIGPIPE


def test_a_full_disk_is_an_error():
    with Path("/dev/full").open("wb") as full, sparkctl("--help", stdout=full) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == Exit.FAILURE
    assert errors.startswith(b"sparkctl: ")
    assert b"Traceback" not in errors


def test_status_imports_no_more_than_it_needs():
    code = (
        "import sys; from sparkd.cli.main import main; main(['status', '--names']);"
        "heavy = {'gi', 'pydbus', 'dataclasses', 'subprocess', 'sqlite3', 'pathlib', 'shutil'};"
        "sys.exit(' '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    start = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r});"
    argv = [sys.executable, "-I", "-S", "-c", start + code]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stderr == ""
