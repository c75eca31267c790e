# SPDX-License-Identifier: Apache-2.0
"""SPK1xx: starting, becoming ready, restarting."""

from collections.abc import Iterator

from sparkd.core.config_model import Warmup
from sparkd.core.lint.facts import Need
from sparkd.core.lint.model import VLLM, Hit, Rule, Severity, Subject
from sparkd.core.lint.versions import release_of, same_version, version_in_path

# Weights on a DGX Spark's own disk, cold page cache: 25 to 31 s for each shard (measured on 11 and
# 16 shards of 4 to 5 GB).
_SECONDS_PER_SHARD = 25


def _burst_never_trips(subject: Subject) -> Iterator[Hit]:
    restart = subject.whole.host.restart
    budget = subject.engine.ready.budget_seconds
    needed = (restart.burst - 1) * (budget + restart.delay_seconds)
    if needed >= restart.window_seconds:
        sentence = (
            f"an engine that never becomes ready fails every {budget + restart.delay_seconds} s,"
            f" so {restart.burst} failures take {needed} s and never fall into the window of"
            f" {restart.window_seconds} s: it is restarted for ever"
        )
        instead = f'restart.window = "{needed * 2}s" in sparkd.toml, or a shorter ready.budget'
        yield Hit(("ready", "budget"), sentence, instead)


def _budget_below_load(subject: Subject) -> Iterator[Hit]:
    shards = subject.checkpoint.shards
    budget = subject.engine.ready.budget_seconds
    load = shards * _SECONDS_PER_SHARD
    if budget < load:
        sentence = (
            f"{shards} shards of weights take {load} s or more to read from a cold disk, and the"
            f" budget is {budget} s: a start after a reboot fails"
        )
        yield Hit(("ready", "budget"), sentence, f'ready.budget = "{max(1080, load * 3)}s"')


def _no_expected_version(subject: Subject) -> Iterator[Hit]:
    if subject.engine.ready.expect_version is None:
        version = subject.version.partition("+")[0]
        sentence = (
            f"{subject.engine.venv} holds vLLM {subject.version}, and nothing would notice when it"
            " is replaced"
        )
        yield Hit(("ready", "expect-version"), sentence, f'ready.expect-version = "{version}"')


def _other_version(subject: Subject) -> Iterator[Hit]:
    expected = subject.engine.ready.expect_version
    if expected is not None and not same_version(expected, subject.version):
        sentence = (
            f"{expected} is expected and {subject.engine.venv} holds vLLM {subject.version}:"
            " the readiness gate will refuse it"
        )
        yield Hit(("ready", "expect-version"), sentence)


def _misnamed(subject: Subject) -> Iterator[Hit]:
    claimed = version_in_path(subject.engine.venv)
    if claimed is None or same_version(claimed, subject.version):
        return
    known, named = release_of(subject.version), release_of(claimed)
    if known is not None and known == named:
        return
    sentence = f"{subject.engine.venv} is named for {claimed} and holds vLLM {subject.version}"
    yield Hit(("runtime", "venv"), sentence)


def _no_warmup(subject: Subject) -> Iterator[Hit]:
    if subject.engine.ready.warmup is Warmup.NONE:
        sentence = "the engine counts as ready before it has answered a single request"
        yield Hit(("ready", "warmup"), sentence)


RULES = (
    Rule(
        code="SPK101",
        severity=Severity.WARNING,
        title="a burst limit that never trips",
        why="Ends of life are counted in a sliding window. When starting takes so long that the"
        " failures cannot fall into one window, a broken engine is restarted without end, and each"
        " attempt can leave memory behind: 35 blind restarts have frozen a box.",
        instead="a window longer than `burst` times the engine's `ready.budget`",
        reference="https://github.com/eugr/spark-vllm-docker/issues/257",
        engine=_burst_never_trips,
    ),
    Rule(
        code="SPK102",
        severity=Severity.WARNING,
        title="a budget shorter than reading the weights takes",
        why="Reading weights is bound by the disk: 25 to 31 s for each shard on a DGX Spark when"
        " they are not in the page cache, and compiling comes on top.",
        instead='a budget for the cold start, such as ready.budget = "1080s"',
        reference="https://github.com/kserve/kserve/issues/5062",
        needs=(Need.CHECKPOINT,),
        engine=_budget_below_load,
    ),
    Rule(
        code="SPK103",
        severity=Severity.INFO,
        title="no expected version",
        why="The name of a directory or tag is only a claim. An engine tagged 0.25.1 that reported"
        " 0.1.dev18498 decoded 2.6 times slower, without an error anywhere.",
        instead='ready.expect-version = "…", the version that /version reports',
        reference="sparkd.toml(5), ready.expect-version",
        needs=(Need.VERSION,),
        engine=_no_expected_version,
    ),
    Rule(
        code="SPK104",
        severity=Severity.ERROR,
        title="another version is installed than expected",
        why="The readiness gate compares /version with `ready.expect-version` and fails the start"
        " when they differ. Parts after a `+` are not compared here.",
        instead="the version that is installed, after a look at what it changes",
        reference="sparkd.toml(5), ready.expect-version",
        needs=(Need.VERSION,),
        engine=_other_version,
    ),
    Rule(
        code="SPK105",
        severity=Severity.WARNING,
        title="an environment named for another version",
        why="Whoever reads the configuration or the process list believes the name.",
        instead="rename the environment, or install what its name says",
        reference="sparkd.toml(5), runtime.venv",
        needs=(Need.VERSION,),
        engine=_misnamed,
    ),
    Rule(
        code="SPK106",
        severity=Severity.INFO,
        title="ready without an answered request",
        why="Some engines load, report ready and die at the first request; vLLM's /health answers"
        " 200 all the same. The warm-up request finds them before anything depends on them.",
        instead="ready.warmup = true",
        reference=f"{VLLM}/issues/36960",
        engine=_no_warmup,
    ),
)
