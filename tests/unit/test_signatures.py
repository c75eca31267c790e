# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E501  log lines keep their length
"""The gates of the signature catalogue: each rule has a sample, claims only its own, and is bounded."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from sparkd.adapters.catalogue import load_catalogue, read_tables
from sparkd.core import classify
from sparkd.core.exit_state import EXIT_CLASSES
from sparkd.core.lines import frame
from sparkd.core.patterns import LITERAL_MIN, lint, literal_of
from sparkd.core.signatures import (
    Answer,
    CatalogueError,
    Label,
    Match,
    Role,
    Signature,
    parse_catalogue,
    tier,
)

CORPUS = Path(__file__).parent.parent / "corpus"
CATALOGUE = load_catalogue()
BY_ID = {signature.id: signature for signature in CATALOGUE.signatures}


class Sample(NamedTuple):
    number: int
    signature: str
    positive: bool
    text: str


def read_samples() -> list[Sample]:
    samples, section = [], ""
    for number, text in enumerate((CORPUS / "samples.txt").read_text().splitlines(), 1):
        if text.startswith("["):
            section, _, provenance = text[1:].partition("]")
            assert provenance.strip(), f"samples.txt:{number}: where do these lines come from?"
        elif text.startswith(("+ ", "- ")):
            samples.append(Sample(number, section, text[0] == "+", text[2:]))
        else:
            assert not text or text.startswith("#"), f"samples.txt:{number}: {text!r}"
    return samples


SAMPLES = read_samples()


def claims(text: str) -> list[Signature]:
    return [match.signature for line in frame(text) for match in CATALOGUE.claims(line)]


def where(sample: Sample) -> str:
    return f"samples.txt:{sample.number} [{sample.signature}]"


def missing_samples(ids: set[str], samples: list[Sample]) -> set[str]:
    return ids - {sample.signature for sample in samples if sample.positive}


def rivals(found: list[Signature]) -> list[str]:
    """Signatures of one tier that claim one line together."""
    if len(found) < 2 or tier(found[0]) != tier(found[1]):
        return []
    return [one.id for one in found if tier(one) == tier(found[0])]


def test_every_signature_has_a_positive_sample_and_every_sample_a_signature():
    assert missing_samples(set(BY_ID), SAMPLES) == set()
    assert {sample.signature for sample in SAMPLES} <= set(BY_ID)


def test_a_signature_without_a_sample_is_found():
    assert missing_samples({"engine-core-fatal", "brand-new"}, SAMPLES) == {"brand-new"}


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.positive], ids=where)
def test_positive_sample_is_claimed_by_its_signature(sample):
    found = claims(sample.text)
    assert sample.signature in {one.id for one in found}, f"{where(sample)}: {sample.text}"
    assert BY_ID[sample.signature].literal in "\n".join(line.message for line in frame(sample.text))


@pytest.mark.parametrize("sample", [s for s in SAMPLES if not s.positive], ids=where)
def test_negative_sample_is_not_claimed(sample):
    assert sample.signature not in {one.id for one in claims(sample.text)}


@pytest.mark.parametrize("sample", SAMPLES, ids=where)
def test_no_two_signatures_claim_one_sample(sample):
    assert rivals(claims(sample.text)) == [], f"{where(sample)}: {sample.text}"


@pytest.mark.parametrize("path", sorted((CORPUS / "captures").glob("*.txt")), ids=lambda p: p.name)
def test_no_two_signatures_claim_one_line_of_a_capture(path):
    for number, raw in enumerate(path.read_bytes().split(b"\n"), 1):
        for line in frame(raw):
            found = [match.signature for match in CATALOGUE.claims(line)]
            assert rivals(found) == [], f"{path.name}:{number}: {line.raw}"


def test_two_rivals_are_found():
    twice = [BY_ID["engine-core-fatal"], BY_ID["rpc-timeout"]]
    assert rivals(twice) == ["engine-core-fatal", "rpc-timeout"]
    assert rivals([BY_ID["echo-fatal"], BY_ID["request-param-error"]]) == []


@pytest.mark.parametrize("signature", CATALOGUE.signatures, ids=lambda s: s.id)
def test_pattern_is_bounded_and_has_a_literal(signature):
    assert lint(signature.pattern) == []
    assert len(signature.literal) >= LITERAL_MIN


@pytest.mark.parametrize("cls", CATALOGUE.classes.values(), ids=lambda c: c.name)
def test_class_has_a_documented_answer(cls):
    assert cls.hint.endswith("."), "a hint is a sentence"
    assert len(cls.hint) <= 200
    document = (CORPUS.parent.parent / "docs" / "signatures.md").read_text()
    assert f"| `{cls.name}` | {cls.answer.value} | {cls.hint} |" in document


def test_harmless_classes_and_stops_have_no_consequence():
    for cls in CATALOGUE.classes.values():
        if cls.label is Label.CLEAN_STOP:
            assert cls.answer is Answer.NONE, cls.name
        if cls.label in (Label.FATAL_RUNTIME, Label.FATAL_INIT):
            assert cls.answer is not Answer.NONE, cls.name


def test_answers_of_the_classes_that_must_not_be_retried():
    answers = {cls.name: cls.answer for cls in CATALOGUE.classes.values()}
    hold = {
        "no-kernel-image", "bad-flag", "model-missing", "quantization-mismatch", "arch-unsupported",
        "unsupported-model", "max-model-len", "weights-missing", "weights-corrupt",
    }  # fmt: skip
    human = {"xid-hardware", "driver-library-mismatch", "driver-api-mismatch"}
    memory = {"gpu-free-memory", "kernel-oom-kill", "cuda-out-of-memory", "memory-profiling-race"}
    assert {answers[name] for name in hold} == {Answer.HOLD_WILL_FAIL_AGAIN}
    assert {answers[name] for name in human} == {Answer.HOLD_NEEDS_A_HUMAN}
    assert {answers[name] for name in memory} == {Answer.RETRY_AFTER_MEMORY}


def test_classes_that_the_code_names_exist():
    named = {
        classify.KEEP_ALIVE, classify.EXTERNAL_STOP, classify.FROZEN, classify.INIT_STOP_HANG,
        classify.REQUESTED_STOP, classify.STOP_ABORT, classify.STOP_TIMED_OUT,
        classify.STOP_WITH_TRACE, *EXIT_CLASSES, *classify._HARMLESS_ORDER,
    }  # fmt: skip
    assert named <= set(CATALOGUE.classes)


def test_harmless_classes_are_all_ranked():
    harmless = {
        one.cls
        for one in CATALOGUE.signatures
        if one.role in (Role.LIFE, Role.BOOT, Role.MOVING, Role.IDLE, Role.PROBE, Role.ECHO,
                        Role.REQUEST, Role.NOISE) and one.anchor.sources != {"systemd"}
    }  # fmt: skip
    assert harmless <= set(classify._HARMLESS_ORDER)


def test_no_frame_listens_to_clients():
    for signature in CATALOGUE.signatures:
        if signature.role in (Role.FRAME, Role.WEAK):
            levels = signature.anchor.levels
            assert not levels & {"INFO", "DEBUG"}, signature.id


CARRIERS = [
    "(APIServer pid=1) INFO 11-29 15:40:42 [request_logger.py:65] Received request x: prompt: '{}'",
    "(APIServer pid=1) INFO 10-02 15:40:42 [logger.py:41] Received request x: prompt: '{}'",
    "(APIServer pid=1) DEBUG 11-29 15:40:42 [entrypoints/.../utils/request_logger.py:74] JSON body: {}",
    "(APIServer pid=1) INFO 11-29 15:41:20 [async_llm.py:795] {}",
    "(APIServer pid=1) ERROR 11-29 15:41:20 [validation.py:151] {}",
    "(APIServer pid=1) ERROR 11-29 15:41:20 [exception.py:16] {}",
    "(APIServer pid=1) ERROR 11-29 15:41:20 [serving_chat.py:932] {}",
]


@pytest.mark.parametrize("carrier", CARRIERS, ids=range(len(CARRIERS)))
def test_text_of_clients_never_counts(carrier):
    """Whatever line of the corpus a client quotes, whole or only its message."""
    quiet = {Role.ECHO, Role.REQUEST, Role.NOISE}
    for sample in SAMPLES:
        for quoted in (sample.text, frame(sample.text)[-1].message):
            roles = {match.signature.role for match in claims_with(carrier.format(quoted))}
            assert roles <= quiet, f"{where(sample)}: {roles}"


def claims_with(text: str) -> list[Match]:
    return [match for line in frame(text) for match in CATALOGUE.claims(line)]


def test_bare_lines_declare_no_run_time_death():
    allowed = {"main-traceback", "main-module-traceback", "engine-input-thread-died"}
    for signature in CATALOGUE.signatures:
        if signature.role is Role.FRAME and signature.anchor.bare:
            assert signature.label is Label.FATAL_INIT, signature.id
        if signature.role is Role.WEAK and signature.anchor.bare:
            assert signature.label is Label.FATAL_INIT or signature.id in allowed, signature.id


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("Error.*Error.*Error.*xxxx", "more than one unbounded wildcard"),
        (r"(\w+\s?)+: failed", "backtrack exponentially"),
        (r"(?:ab)* failed", "backtrack exponentially"),
        (r"(?:ab){2,9} failed", "backtrack exponentially"),
        (".*CUDA memory", "leading repetition"),
        (r"\w+ CUDA memory", "leading repetition"),
        ("CUDA|memory", "outside a group"),
        (r"(fatal) \1 error", "back reference"),
        (r"(?P<a>fatal) (?P=a) error", "back reference"),
        ("(?i)fatal error", "only (?:...)"),
        (r"\d+", "no literal"),
        ("(?:fatal|error)", "no literal"),
        ("fatal (", "not a regular expression"),
    ],
)
def test_lint_refuses(pattern, complaint):
    assert any(complaint in problem for problem in lint(pattern))


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (r"Worker proc \S+ died unexpectedly", " died unexpectedly"),
        (r"models?'s max", "'s max"),
        (r"^\[Errno 98\] in use", "[Errno 98] in use"),
        (r"GPU (?:KV|kv) cache size", " cache size"),
        (r"fail(?:ed)? to start", " to start"),
        (r"fatal[ _]error here", "error here"),
        (r"ab+cdef", "cdef"),
        (r"ab{0,2}cdefg\.", "cdefg."),
        (r"is an (?!odd )even number", "even number"),
    ],
)
def test_literal_is_derived(pattern, literal):
    assert literal_of(pattern) == literal


def test_problems_are_listed_all_at_once():
    tables = {
        "a.toml": {
            "class": {"x": {"label": "odd", "answer": "retry", "hint": "", "colour": "red"}},
            "anchor": {
                "core": {"process": ["EngineCore"]},
                "bad": {"source": "mars", "bare": True},
            },
            "signature": {
                "One": {},
                "two": {"class": "nope", "anchor": "core", "role": "frame", "pattern": ".*"},
            },
            "extra": {},
        }
    }
    with pytest.raises(CatalogueError) as caught:
        parse_catalogue(tables)
    told = str(caught.value)
    for part in ("label 'odd'", "hint is missing", "unknown key 'colour'", "needs process and level",
                 "source 'mars'", "names are lower-case", "class 'nope'", "unknown key 'extra'"):  # fmt: skip
        assert part in told, part


def test_patterns_of_a_foreign_directory_are_checked():
    tables = read_tables()
    tables["mine.toml"] = {
        "signature": {
            "mine": {
                "class": "bad-flag", "role": "cause", "pattern": "a.*b.*cccc", "anchor": "bare",
                "versions": "1", "reference": "mine",
            }
        }
    }  # fmt: skip
    with pytest.raises(CatalogueError, match="more than one unbounded wildcard"):
        parse_catalogue(tables)


def test_shipped_files_pass_every_check():
    assert len(parse_catalogue(read_tables()).signatures) == len(CATALOGUE.signatures)


def test_references_between_classes_are_checked():
    tables = {"a.toml": {"class": {"x": {"label": "hang", "answer": "retry", "hint": "Do it.",
                                         "refines": ["y"], "after-stall": "z"}}}}  # fmt: skip
    with pytest.raises(CatalogueError, match=re.compile("'y'.*'z'", re.DOTALL)):
        parse_catalogue(tables)
