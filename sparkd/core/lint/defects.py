# SPDX-License-Identifier: Apache-2.0
"""SPK5xx: defects of vLLM that are open, matched by version, model, machine and flags.

Each has a code of its own, so that one can be ignored without the others. A row leaves the table
when the fix is released: then `until` tells from which version on it no longer applies.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from sparkd.core.lint.facts import Need
from sparkd.core.lint.model import VLLM, Hit, Rule, Severity, Subject
from sparkd.core.lint.versions import Release, release_of

_SPECULATIVE = ("serve", "speculative-config")


class Defect(NamedTuple):
    """One defect. `since` is the first release seen with it, `until` the first without.

    `applies` returns the key that brings it about, or None; with `since` or `until` the version
    must be known, and a development build's is not.
    """

    code: str
    severity: Severity
    issue: str
    title: str
    what: str
    instead: str
    applies: Callable[[Subject], tuple[str, ...] | None]
    needs: tuple[Need, ...] = ()
    since: Release | None = None
    until: Release | None = None


def _mamba2(subject: Subject) -> tuple[str, ...] | None:
    if not subject.host.is_gb10 or not subject.checkpoint.is_mamba2:
        return None
    return None if subject.env.get("CUDA_LAUNCH_BLOCKING") == "1" else ("model",)


def _long_dflash(subject: Subject) -> tuple[str, ...] | None:
    tokens = subject.speculative().get("num_speculative_tokens")
    if (
        subject.host.is_gb10
        and subject.speculative_method() == "dflash"
        and type(tokens) is int
        and tokens >= 10
        and subject.switch("enable-prefix-caching") is not False
    ):
        return _SPECULATIVE
    return None


def _ngram_on_hybrid(subject: Subject) -> tuple[str, ...] | None:
    if subject.checkpoint.is_hybrid and subject.speculative_method() == "ngram":
        # With prefix caching as well it is SPK408.
        return None if subject.switch("enable-prefix-caching") else _SPECULATIVE
    return None


def _ngram_with_tools(subject: Subject) -> tuple[str, ...] | None:
    shortest = subject.speculative().get("prompt_lookup_min", 0)
    if (
        subject.speculative_method() == "ngram"
        and subject.switch("enable-auto-tool-choice")
        and not (type(shortest) is int and shortest >= 8)
    ):
        return _SPECULATIVE
    return None


def _mamba2_prefix_caching(subject: Subject) -> tuple[str, ...] | None:
    if (
        subject.checkpoint.is_mamba2
        and subject.speculative()
        and subject.switch("enable-prefix-caching")
    ):
        return _SPECULATIVE
    return None


def _mtp(subject: Subject) -> tuple[str, ...] | None:
    return _SPECULATIVE if subject.speculative_method() == "mtp" else None


def _mtp_graph_estimate(subject: Subject) -> tuple[str, ...] | None:
    estimates = subject.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "1") != "0"
    profiles = "kv-cache-memory-bytes" not in subject.serve
    eager = subject.switch("enforce-eager")
    if subject.host.is_gb10 and estimates and profiles and not eager:
        return _mtp(subject)
    return None


def _sleep_mode(subject: Subject) -> tuple[str, ...] | None:
    if subject.host.is_gb10 and subject.switch("enable-sleep-mode"):
        return ("serve", "enable-sleep-mode")
    return None


def _on_gb10(subject: Subject) -> tuple[str, ...] | None:
    return ("runtime", "venv") if subject.host.is_gb10 else None


def _speculative_on_hybrid(subject: Subject) -> tuple[str, ...] | None:
    if (
        subject.checkpoint.is_hybrid
        and subject.speculative_method() in {"mtp", "dflash"}
        and subject.switch("enable-prefix-caching")
    ):
        return ("serve", "enable-prefix-caching")
    return None


DEFECTS = (
    Defect(
        "SPK501", Severity.INFO, f"{VLLM}/issues/37431",
        "Mamba-2 kernels die with an illegal instruction on GB10",
        "The engine core dies after hours of parallel decoding; sparkd restarts it."
        " CUDA_LAUNCH_BLOCKING=1 avoids it and is slow",
        'nothing; or CUDA_LAUNCH_BLOCKING = "1" if it comes often',
        _mamba2, (Need.CHECKPOINT, Need.GPU), since=Release(0, 17, 0),
    ),
    Defect(
        "SPK502", Severity.WARNING, f"{VLLM}/issues/42084",
        "ten or more DFlash drafts with prefix caching on GB10",
        "The engine starts and dies at the first request with a device-side assert",
        "num_speculative_tokens below 10, or enable-prefix-caching = false",
        _long_dflash, (Need.GPU,),
    ),
    Defect(
        "SPK503", Severity.WARNING, f"{VLLM}/issues/39273",
        "n-gram drafts on a hybrid model",
        "Rejected drafts corrupt the state of linear-attention layers; output is wrong without an"
        " error",
        "no n-gram speculation on this model",
        _ngram_on_hybrid, (Need.CHECKPOINT,),
    ),
    Defect(
        "SPK504", Severity.WARNING, f"{VLLM}/issues/40875",
        "n-gram drafts with tool calls",
        "Tool calls come back empty or mangled in about half of the requests, with the default"
        " prompt_lookup_min of 2",
        "prompt_lookup_min = 8 at least, or no n-gram speculation",
        _ngram_with_tools,
    ),
    Defect(
        "SPK505", Severity.WARNING, f"{VLLM}/pull/46424",
        "speculation with prefix caching on a Mamba-2 model",
        "A prompt one token longer than a cached prefix fails an assertion now and then, and the"
        " engine core dies",
        "enable-prefix-caching = false, or no speculation",
        _mamba2_prefix_caching, (Need.CHECKPOINT,),
    ),
    Defect(
        "SPK506", Severity.WARNING, f"{VLLM}/issues/49210",
        "MTP with structured output",
        "A request with a JSON schema or grammar can make the engine core spin for ever: /health"
        " stays 200 and no token comes",
        "no MTP, or vLLM 0.24 or 0.28",
        _mtp, (Need.VERSION,), since=Release(0, 25, 0), until=Release(0, 28, 0),
    ),
    Defect(
        "SPK507", Severity.WARNING, f"{VLLM}/issues/44740",
        "MTP makes the estimate of CUDA graph memory negative",
        "The KV cache comes out larger than the share by that amount (10 GiB on a GB10)",
        "kv-cache-memory-bytes beside the share,"
        ' or VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS = "0"',
        _mtp_graph_estimate, (Need.VERSION, Need.GPU), since=Release(0, 21, 0),
    ),
    Defect(
        "SPK508", Severity.WARNING, f"{VLLM}/issues/50011",
        "sleep mode on GB10",
        "Waking an engine kills it, and has taken the whole host down",
        "remove it: stop one engine and start the other",
        _sleep_mode, (Need.GPU,),
    ),
    Defect(
        "SPK509", Severity.WARNING, f"{VLLM}/pull/38126",
        "a vLLM without kernels for GB10",
        "Releases before 0.19 left out every kernel built for sm_121: starts fail with `no kernel"
        " image`, or slow fallbacks are used",
        "vLLM 0.19 or later",
        _on_gb10, (Need.VERSION, Need.GPU), until=Release(0, 19, 0),
    ),
    Defect(
        "SPK510", Severity.INFO, f"{VLLM}/issues/54360",
        "speculation switches prefix caching off on hybrid models",
        "No prefix is ever found in the cache, without a message: long prompts are computed anew",
        "one of the two",
        _speculative_on_hybrid, (Need.CHECKPOINT, Need.VERSION), since=Release(0, 28, 1),
    ),
)  # fmt: skip


def _rule(defect: Defect) -> Rule:
    bounds = defect.since is not None or defect.until is not None
    if bounds and Need.VERSION not in defect.needs:
        defect = defect._replace(needs=(*defect.needs, Need.VERSION))

    def check(subject: Subject) -> Iterator[Hit]:
        if bounds and not _is_affected(defect, subject.version):
            return
        key = defect.applies(subject)
        if key is not None:
            version = f"vLLM {subject.facts.version}: " if subject.facts.version else ""
            what = defect.what[0].lower() + defect.what[1:]
            yield Hit(key, f"{version}{what}")

    return Rule(
        code=defect.code,
        severity=defect.severity,
        title=defect.title,
        why=f"{defect.what}.{_versions(defect)}",
        instead=defect.instead,
        reference=defect.issue,
        needs=defect.needs,
        engine=check,
    )


def _is_affected(defect: Defect, version: str) -> bool:
    release = release_of(version)
    if release is None:
        return False
    after = defect.since is None or release >= defect.since
    return after and (defect.until is None or release < defect.until)


def _versions(defect: Defect) -> str:
    if defect.since is not None and defect.until is not None:
        return f" Versions {_name(defect.since)} up to, not including, {_name(defect.until)}."
    if defect.since is not None:
        return f" Versions from {_name(defect.since)} on."
    if defect.until is not None:
        return f" Versions before {_name(defect.until)}."
    return " No version is known to be free of it."


def _name(release: Release) -> str:
    return f"{release.major}.{release.minor}" + (f".{release.patch}" if release.patch else "")


RULES = tuple(_rule(defect) for defect in DEFECTS)
