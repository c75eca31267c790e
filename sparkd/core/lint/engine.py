# SPDX-License-Identifier: Apache-2.0
"""Runs the rules over a checked configuration."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sparkd.core.config_model import Config
from sparkd.core.config_reader import Document, Source, parse
from sparkd.core.lint.facts import EngineFacts, Facts, is_known
from sparkd.core.lint.model import Finding, Hit, HostSubject, Rule, Severity, Subject
from sparkd.core.lint.registry import BY_CODE, RULES, UNUSED_IGNORE
from sparkd.core.schema import HOST


class _File(NamedTuple):
    """A configuration file and the engine it is about ('' for the host's)."""

    document: Document
    engine: str
    facts: Sequence[EngineFacts]
    """What is known of the engines that the file is about: one, or for the host's all."""


def lint(sources: Sequence[Source], config: Config, facts: Facts) -> tuple[Finding, ...]:
    """Return every finding, sorted by file and line, the ignored ones included.

    Args:
        sources: the files that `config` was loaded from.
        config: what `sparkd.core.config.load` made of them.
        facts: what was asked of the machine and the environments; rules that need more are silent.
    """
    host_source = next((s for s in sources if s.engine is None), Source(HOST, ""))
    every = [facts.engine(engine.name) for engine in config.engines]
    host_file = _File(parse(host_source), "", every)
    by_name = {source.engine: source for source in sources}

    host_findings = list(_host_findings(host_file, config, facts))
    engine_findings: list[Finding] = []
    unused: list[Finding] = []
    for engine in config.engines:
        document = parse(by_name[engine.name])
        file = _File(document, engine.name, [facts.engine(engine.name)])
        subject = Subject(engine, document.section("serve"), config, file.facts[0], facts.host)
        found = list(_engine_findings(file, subject))
        unused += _unused(file, found, facts)
        engine_findings += [_accept(finding, _ignore(document)) for finding in found]
    unused += _unused(host_file, [*host_findings, *engine_findings], facts)

    everywhere = _ignore(host_file.document)
    findings = [_accept(finding, everywhere) for finding in [*host_findings, *engine_findings]]
    return tuple(sorted([*findings, *unused], key=lambda f: (f.file, f.line, f.code, f.key)))


def counting(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that are not ignored."""
    return tuple(finding for finding in findings if not finding.ignored)


def has_errors(findings: Iterable[Finding]) -> bool:
    """Return whether a finding that is not ignored is an error."""
    return any(finding.severity is Severity.ERROR for finding in counting(findings))


def _host_findings(file: _File, config: Config, facts: Facts) -> Iterator[Finding]:
    subject = HostSubject(config, file.document.table, facts.host)
    for rule in RULES:
        if rule.host is not None and _can_judge(rule, file, facts):
            yield from (_finding(rule, hit, file) for hit in rule.host(subject))


def _engine_findings(file: _File, subject: Subject) -> Iterator[Finding]:
    for rule in RULES:
        if rule.engine is not None and _can_judge(rule, file, Facts(subject.host)):
            yield from (_finding(rule, hit, file) for hit in rule.engine(subject))


def _can_judge(rule: Rule, file: _File, facts: Facts) -> bool:
    # A file without engines (a host alone) still has the host's facts to be judged by.
    known = file.facts or [EngineFacts()]
    return all(is_known(need, facts.host, engine) for need in rule.needs for engine in known)


def _finding(rule: Rule, hit: Hit, file: _File) -> Finding:
    return Finding(
        code=rule.code,
        severity=rule.severity,
        engine=file.engine,
        file=file.document.path,
        line=file.document.line(*hit.key),
        key=".".join(hit.key),
        sentence=hit.sentence,
        instead=hit.instead or rule.instead,
        reference=rule.reference,
    )


def _ignore(document: Document) -> Mapping[str, Any]:
    ignore = document.section("lint").get("ignore", {})
    return ignore if isinstance(ignore, dict) else {}


def _accept(finding: Finding, ignore: Mapping[str, Any]) -> Finding:
    if finding.ignored or finding.code not in ignore:
        return finding
    return finding._replace(ignored=str(ignore[finding.code]))


def _unused(file: _File, found: Sequence[Finding], facts: Facts) -> Iterator[Finding]:
    """Yield the ignores of a file that none of `found` needed, where that can be told."""
    codes = {finding.code for finding in found}
    for code in _ignore(file.document):
        if code not in codes and _can_judge(BY_CODE[code], file, facts):
            sentence = f"nothing here is {code} ({BY_CODE[code].title})"
            yield _finding(UNUSED_IGNORE, Hit(("lint", "ignore", code), sentence), file)
