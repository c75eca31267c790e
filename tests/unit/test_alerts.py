# SPDX-License-Identifier: Apache-2.0
"""Which events make which alerts, in what words, and how often somebody is told."""

import json

import pytest

from sparkd.core import alert_events, alert_formats, alert_limits, alert_settings, alerts, darkness
from sparkd.core.alert_limits import Admission, Past
from sparkd.core.alerts import Kind, Policy
from sparkd.core.config import ConfigErrors, Source, load
from sparkd.core.config_model import AlertFormat
from sparkd.core.darkness import Darkness, Stopped
from sparkd.core.projection import Entry, Gap, Stall
from sparkd.core.status import Boot
from sparkd.core.status import build as build_status
from sparkd.core.unit_state import State
from tests.unit.status_facts import NOW, engine, facts, record, unit

EVERYTHING = Policy(frozenset(alerts.SELECTABLE), 600.0, 20)
AT = NOW.wall
TOKEN = "hf_" + "Zz9" * 10


def config(text):
    return load([Source("sparkd.toml", f"[alerts]\n{text}")], None).host.alerts


def made(*rows, dark=None, starts=None, policy=EVERYTHING):
    entries = [Entry(row, "") for row in rows]
    return alert_events.from_events(entries, dark or {}, starts or {}, policy)


# what is told


def test_the_configuration_and_the_core_know_the_same_kinds():
    assert tuple(alert_settings.KINDS) == tuple(alerts.SELECTABLE)


def test_a_death_is_told_with_reason_evidence_and_what_follows():
    (alert,) = made(record(hint="look at dmesg"))
    assert alert.kind is Kind.DEATH
    words = alert_formats.text(alert, "spark-1", alert.time + 1)
    assert alert.title == "a died: engine-core-fatal"
    for part in (
        "the engine core died",
        "Then: death 1 of 3 within 1 h: systemd starts it again.",
        "Log: EngineCore encountered a fatal error",
        "Next: look at dmesg.",
        "More: sparkctl incident 11111111",
        "Host: spark-1",
    ):
        assert part in words.splitlines()
    assert "ago" not in words


def test_a_requested_end_is_told_to_nobody():
    assert made(record(requested=True), Stopped("a", AT)) == []


def test_a_hold_is_one_alert_and_says_how_to_end_it():
    (alert,) = made(record(action="hold", action_reason="3 deaths", hint="fix the flag"))
    assert alert.kind is Kind.HELD
    assert alert.is_urgent
    assert "sparkctl start a starts it again" in alert.next_step
    only_deaths = EVERYTHING._replace(kinds=frozenset({Kind.DEATH}))
    (death,) = made(record(action="hold"), policy=only_deaths)
    assert (death.kind, death.id) == (Kind.DEATH, alert.id)


def test_ready_again_tells_how_long_it_was_dark():
    alert = made(record(time=AT), Boot("a", "2" * 32, AT + 780, 30.0))[-1]
    assert alert.kind is Kind.RECOVERED
    assert alert.reason == "It was not available for 13 min."
    assert made(Boot("a", "2" * 32, AT, 30.0)) == []
    assert made(Boot("b", "2" * 32, AT, 30.0), dark={"a": Darkness(0.0, AT)}) == []


def test_a_stall_and_its_end_are_told():
    first = Stall("a", "1" * 32, AT, "no token for 30 min", is_over=False)
    stalled, again = made(first, first._replace(time=AT + 900, is_over=True))
    assert (stalled.kind, stalled.title) == (Kind.STALLED, "a makes no progress")
    assert stalled.is_urgent
    assert (again.kind, again.title) == (Kind.RECOVERED, "a moves again")


def test_a_gap_in_the_journal_is_told():
    (alert,) = made(Gap(AT, "entries are gone"))
    assert (alert.kind, alert.engine) == (Kind.SPARKD, "")


def test_an_event_makes_the_same_alert_however_often_it_is_read():
    rows = (record(), record(invocation="3" * 32, time=AT), Boot("a", "2" * 32, AT + 5, 9.0))
    first, second = made(*rows), made(*rows)
    assert first == second
    assert len({alert.id for alert in first}) == 3


# what a log says stays data


@pytest.mark.parametrize("where", ["evidence", "reason", "hint", "action_reason", "cls"])
def test_text_from_a_log_can_neither_drive_a_terminal_nor_forge_a_line(where):
    evil = f"x\x1b[2Jy\nHost: elsewhere\u202e {TOKEN} <!channel> & `z`"
    (alert,) = made(record(**{where: evil}))
    words = f"{alert.title}\n{alert_formats.text(alert, 'h', AT)}"
    assert words.count("\nHost: ") == 1
    assert "\x1b" not in words
    assert "\u202e" not in words
    for format_ in AlertFormat:
        request = alert_formats.request(format_, alert, "h", AT)
        assert TOKEN.encode() not in request.body
        for name, value in request.headers:
            assert (name + value).isascii()
            assert value.isprintable()
            assert TOKEN not in value
    slack = json.loads(alert_formats.request(AlertFormat.SLACK, alert, "h", AT).body)["text"]
    assert "<!channel>" not in slack


def test_a_48_kib_line_makes_no_48_kib_alert():
    (alert,) = made(record(evidence="e" * 49152))
    assert len(alert_formats.stdin(alert, "h", AT)) < 4000


def test_json_has_everything_and_an_age():
    (alert,) = made(record(time=AT - 46800))
    value = json.loads(alert_formats.request(AlertFormat.JSON, alert, "h", AT).body)
    assert (value["id"], value["kind"], value["engine"]) == (alert.id, "death", "a")
    assert value["age_seconds"] == 46800
    assert "This happened 13 h ago, at 2027-01-" in value["text"]
    assert alerts.from_json(alert._asdict()) == alert


@pytest.mark.parametrize(
    "broken", [{}, {"kind": "x"}, {"time": "x"}, {"time": True}, {"title": None}, {"engine": 1}]
)
def test_what_another_version_queued_is_left_out(broken):
    value = {**made(record())[0]._asdict(), **broken} if broken else {}
    assert alerts.from_json(value) is None


# slow starts


def test_a_start_is_slow_by_what_earlier_ones_took():
    assert alert_events.start_budget([(600, "warm")] * 2) is None
    assert alert_events.start_budget([(600, "warm")] * 3) == 900
    assert alert_events.start_budget([(10, "")] * 3) == 70
    mixed = [(100, "warm"), (1000, "cold"), (120, "warm"), (110, "warm")]
    assert alert_events.start_budget(mixed) == 1500
    assert alert_events.start_budget(mixed, "warm") == 180
    assert alert_events.start_budget([(9000, "")] + [(100, "")] * 20) == 13500
    assert alert_events.start_budget([(100, "")] * 10 + [(9000, "")]) == 160


def test_a_slow_start_is_one_alert_whether_seen_before_or_after_it_was_ready():
    starts = {"a": [(100.0, "warm")] * 3}
    (after,) = made(Boot("a", "1" * 32, AT, 400.0), starts=starts)
    loading = unit(
        active_state="activating", sub_state="start-post", main_start=AT - 161, main_pid=7
    )
    status = build_status(facts(engine("a", unit=loading)))
    assert status.engines[0].state is State.LOADING
    (before,) = alert_events.from_status(status, starts)
    assert before.id == after.id
    assert alert_events.from_status(status, {"a": starts["a"][:2]}) == []
    early = build_status(facts(engine("a", unit=loading._replace(main_start=AT - 159))))
    assert alert_events.from_status(early, starts) == []
    blind = build_status(facts(engine("a", unit=loading), blind="no bus"))
    assert alert_events.from_status(blind, starts) == []


# how often


def alert(**changes):
    return made(record())[0]._replace(**changes)


def past(one, queued=AT):
    return Past(one.key, one.time, queued)


def test_the_same_within_the_window_is_told_once():
    first = alert(time=AT)
    for later, admission in ((599, Admission.REPEATED), (600, Admission.SEND)):
        again = alert(id="x", time=AT + later)
        assert alert_limits.admit(again, [past(first)], EVERYTHING, AT + later) is admission
    other = alert(id="x", subject="oom", time=AT + 1)
    assert alert_limits.admit(other, [past(first)], EVERYTHING, AT + 1) is Admission.SEND


def test_deaths_hours_apart_that_are_read_together_are_no_repeats():
    first = alert(time=AT - 40000)
    assert (
        alert_limits.admit(alert(id="x", time=AT), [past(first)], EVERYTHING, AT) is Admission.SEND
    )


def test_the_rate_bounds_all_but_what_is_urgent():
    many = [past(alert(subject=str(n))) for n in range(20)]
    assert alert_limits.admit(alert(), many, EVERYTHING, AT + 60) is Admission.LIMITED
    held = alert(kind=Kind.HELD, subject="z")
    assert alert_limits.admit(held, many, EVERYTHING, AT + 60) is Admission.SEND
    assert alert_limits.admit(alert(), many, EVERYTHING, AT + 3600) is Admission.SEND
    urgent = [p._replace(counts=False) for p in many]
    assert alert_limits.admit(alert(), urgent, EVERYTHING, AT + 60) is Admission.SEND


def test_unwanted_kinds_are_not_told():
    nothing = EVERYTHING._replace(kinds=frozenset())
    assert alert_limits.admit(alert(), [], nothing, AT) is Admission.UNWANTED
    test = alerts.of_test(AT, "x")
    assert alert_limits.admit(test, [], nothing, AT) is Admission.SEND


def test_what_was_suppressed_is_summed_up_once():
    rows = [(alert(id=str(n)), AT) for n in range(3)]
    rows.append((alert(id="z", subject="oom", engine="b"), AT + 1))
    assert alert_limits.summary([], EVERYTHING, AT) is None
    assert alert_limits.summary(rows, EVERYTHING, AT + 599) is None
    summed = alert_limits.summary(rows, EVERYTHING, AT + 600)
    assert summed is not None
    assert summed.title == "4 more alerts suppressed"
    assert summed.reason == "3 x death of a (engine-core-fatal); 1 x death of b (oom)."
    assert alert_limits.summary(rows, EVERYTHING, AT + 700) == summed
    # A clock that was set back must not keep it waiting.
    assert alert_limits.summary(rows, EVERYTHING, AT - 86400) is not None


def test_retries_back_off_to_a_cap_with_jitter():
    assert [alert_limits.retry_delay(n, 0.5) for n in (1, 2, 3)] == [5, 10, 20]
    assert alert_limits.retry_delay(10_000, 0.5) == 900
    assert alert_limits.retry_delay(1, 0.0) == 3.75
    assert alert_limits.retry_delay(1, 1.0) == 6.25
    assert alert_limits.retry_delay(1, 0.5, 120) == 120
    assert alert_limits.retry_delay(1, 0.5, 1e9) == 900
    assert alert_limits.retry_delay(9, 1.0) <= 900


def test_an_attempt_is_due_when_its_time_has_come_or_the_clock_was_set_back():
    assert alert_limits.is_due(AT, AT)
    assert not alert_limits.is_due(AT + 1, AT)
    assert not alert_limits.is_due(AT + 900, AT)
    assert alert_limits.is_due(AT + 86400, AT)


# the configuration


def test_nobody_is_told_by_default():
    assert not load([], None).host.alerts.is_on


def test_several_webhooks_and_a_command():
    found = config(
        'webhook = "https://a.example/x"\ncredential = "/etc/s"\ncommand = ["/bin/tell", "me"]\n'
        'more-webhooks = [{ url = "http://127.0.0.1:1/", format = "ntfy" }, { credential = "/c" }]'
    )
    assert [(h.name, h.url, h.format, h.credential) for h in found.webhooks] == [
        ("webhook", "https://a.example/x", "json", "/etc/s"),
        ("webhook-2", "http://127.0.0.1:1/", "ntfy", None),
        ("webhook-3", None, "json", "/c"),
    ]
    assert found.command == ("/bin/tell", "me")


@pytest.mark.parametrize(
    "text",
    [
        'webhook = "ftp://a/"', 'webhook = "https://"', 'webhook = "https://a/#b"',
        'webhook = "https://user:canary@a/"', 'webhook = "https://a b/"', 'webhook = 1',
        'webhook = "https://a:0/"', 'webhook = "https://a:99999/"', 'webhook = "https://a/\\u0007"',
        'webhook = "https://hooks.slack.com/services/canary"',
        'webhook = "https://discord.com/api/webhooks/1/canary"',
        f'webhook = "https://a/{TOKEN}"', 'webhook = "http://a.example/"\ncredential = "/c"',
        'more-webhooks = [{ url = "http://a.example/", credential = "/c" }]',
        'more-webhooks = [{ format = "ntfy" }]', 'more-webhooks = [{ url = "https://a/", x = 1 }]',
        'more-webhooks = [{ url = "https://a/", format = "x" }]', 'more-webhooks = ["https://a/"]',
        'format = "xml"', 'credential = "relative"', 'command = "/bin/tell"', 'command = ["tell"]',
        'command = ["/bin/tell", 1]', f'command = ["/bin/tell", "{TOKEN}"]',
        'command = ["/bin/tell", "a\\nb"]', 'kinds = ["deaths"]', 'kinds = "death"',
        "rate-limit = 0", 'dedup = "10"', 'proxy = "socks5://a"', 'url = "https://a/"',
    ],
)  # fmt: skip
def test_what_is_refused_names_its_key_and_repeats_no_secret(text):
    with pytest.raises(ConfigErrors) as caught:
        config(text)
    assert "sparkd.toml:2: alerts." in str(caught.value)
    assert "canary" not in str(caught.value)
    assert TOKEN not in str(caught.value)


# darkness


def after(*events):
    account = Darkness()
    for event in events:
        account = darkness.after(account, event)
    return account


def death(time):
    return record(time=time)


def ready(time):
    return Boot("a", "2" * 32, time, 10.0)


def test_dark_from_the_first_death_to_ready():
    assert after(death(100), death(150), ready(200)) == Darkness(100, None)
    assert after(death(100), ready(200), death(300), ready(301)) == Darkness(101, None)
    assert after(ready(50), death(100)) == Darkness(0, 100)
    assert after(record(requested=True, time=100)) == Darkness()


@pytest.mark.parametrize("stop", [Stopped("a", 160), record(requested=True, time=160)])
def test_an_operators_stop_ends_it(stop):
    assert after(death(100), stop, ready(900)) == Darkness(60, None)


def test_an_old_order_that_is_read_again_ends_nothing():
    assert after(death(100), Stopped("a", 50)) == Darkness(0, 100)


def test_a_clock_that_was_set_back_takes_nothing_away():
    assert after(death(100), ready(40)) == Darkness(0, None)


def test_the_counter_never_goes_back():
    dark = {"a": Darkness(5, 100)}
    shown = darkness.shown(dark, 160, {})
    assert shown == {"a": 55}
    assert darkness.shown({"a": Darkness(50, None)}, 161, shown) == {"a": 55}
    assert darkness.shown(dark, 90, {}) == {"a": 5}
