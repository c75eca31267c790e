# SPDX-License-Identifier: Apache-2.0
"""Laws of alerting and of dark time, over any sequence of events."""

from hypothesis import given
from hypothesis import strategies as st

from sparkd.core import alert_formats, alert_limits, alerts, darkness
from sparkd.core.alert_limits import Admission, Past
from sparkd.core.alerts import Alert, Kind, Policy
from sparkd.core.darkness import Darkness, Stopped
from sparkd.core.status import Boot
from tests.unit.status_facts import record

SELECTABLE = st.sampled_from(alerts.SELECTABLE)
arrivals = st.lists(
    st.tuples(
        st.floats(0, 4000, allow_nan=False),  # pause before it is read
        st.floats(0, 90_000, allow_nan=False),  # its age then
        SELECTABLE,
        st.sampled_from("ab"),
        st.sampled_from(["oom", "fatal"]),
    ),
    max_size=60,
)
policies = st.builds(
    Policy,
    st.frozensets(SELECTABLE),
    st.sampled_from([0.0, 60.0, 600.0, 7200.0]),
    st.integers(1, 5),
)


@given(arrivals, policies)
def test_each_wanted_alert_is_sent_or_summed_up_once_and_the_rate_holds(found, policy) -> None:
    now = 1e9
    past: list[Past] = []
    waiting: list[tuple[Alert, float]] = []
    sent: list[tuple[float, Alert]] = []
    summed: list[str] = []

    def look_for_summary() -> None:
        made = alert_limits.summary(waiting, policy, now)
        if made is not None:
            summed.extend(alert.id for alert, _ in waiting)
            assert made.title.startswith(f"{len(waiting)} more alert")
            waiting.clear()

    wanted = set()
    for number, (pause, age, kind, engine, subject) in enumerate(found):
        now += pause
        look_for_summary()
        alert = Alert(str(number), kind, engine, subject, now - age, "t", "r")
        admission = alert_limits.admit(alert, past, policy, now)
        assert (admission is Admission.UNWANTED) == (kind not in policy.kinds)
        if admission is Admission.UNWANTED:
            continue
        wanted.add(alert.id)
        if admission is Admission.SEND:
            sent.append((now, alert))
            past.append(Past(alert.key, alert.time, now, not alert.is_urgent))
        else:
            assert not (alert.is_urgent and admission is Admission.LIMITED)
            waiting.append((alert, now))
    now += 8000
    look_for_summary()
    assert not waiting, "nothing waits for ever"
    ids = [alert.id for _, alert in sent] + summed
    assert len(ids) == len(set(ids))
    assert set(ids) == wanted
    calm = [at for at, alert in sent if not alert.is_urgent]
    for at in calm:
        assert sum(at <= other < at + alert_limits.HOUR_S for other in calm) <= policy.limit
    for number, (_, one) in enumerate(sent):
        for _, other in sent[:number]:
            assert one.key != other.key or abs(one.time - other.time) >= policy.dedup_s


@given(st.integers(1, 10**9), st.floats(-1, 2), st.none() | st.floats(0, 1e12))
def test_a_retry_is_never_at_once_and_never_later_than_the_cap(failures, jitter, asked) -> None:
    delay = alert_limits.retry_delay(failures, jitter, asked)
    assert 3.75 <= delay <= alert_limits.RETRY_CAP_S


@given(st.text(max_size=2000), st.text(max_size=2000))
def test_no_text_of_a_log_makes_another_line(evidence, reason) -> None:
    dead = record(evidence=evidence, reason=reason or "x")
    alert = alerts.of_death(dead, Policy(frozenset({Kind.DEATH}), 0, 1))
    assert alert is not None
    words = alert_formats.text(alert, "spark", alert.time)
    assert len(words.split("\n")) <= 6
    assert all(line.isprintable() for line in words.split("\n"))
    assert alerts.from_json(alert._asdict()) == alert


events = st.lists(
    st.tuples(st.floats(0.001, 5000, allow_nan=False), st.sampled_from(["death", "ready", "stop"])),
    max_size=40,
)


@given(events, st.floats(0, 1e4))
def test_dark_time_is_the_time_from_deaths_to_what_ends_them(found, rest) -> None:
    now, account, expected, since = 1e6, Darkness(), 0.0, None
    shown: dict[str, float] = {}
    for pause, kind in found:
        now += pause
        if kind == "death":
            since = now if since is None else since
            event = record(time=now)
        else:
            expected += 0.0 if since is None else now - since
            since = None
            event = Boot("a", "1" * 32, now, 1.0) if kind == "ready" else Stopped("a", now)
        account = darkness.after(account, event)
        before = dict(shown)
        shown = darkness.shown({"a": account}, now, shown)
        assert shown["a"] >= before.get("a", 0.0)
    assert abs(account.total - expected) < 1e-3
    assert account.since == since
    now += rest
    true = expected + (0.0 if since is None else now - since)
    assert account.at(now) <= true + 1e-3
