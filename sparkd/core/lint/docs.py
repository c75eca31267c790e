# SPDX-License-Identifier: Apache-2.0
"""The rules as documentation: for docs/lint.md and for `sparkctl check --explain`."""

from collections.abc import Iterator

from sparkd.core.lint.model import Rule
from sparkd.core.lint.registry import RULES

_GROUPS = {
    "1": "Starting and restarting",
    "2": "Memory",
    "3": "Flags and variables",
    "4": "Features and the checkpoint",
    "5": "Open defects of vLLM",
    "9": "Ignores",
}


def markdown() -> str:
    """Return the part of docs/lint.md that describes the rules."""
    return "\n".join(_markdown()) + "\n"


def _markdown() -> Iterator[str]:
    group = ""
    for rule in RULES:
        if rule.code[3] != group:
            group = rule.code[3]
            yield f"## {_GROUPS[group]}"
            yield ""
        yield f"### {rule.code}: {rule.title}"
        yield ""
        yield f"*{rule.severity.capitalize()}.* {rule.why}"
        yield ""
        yield f"- Write instead: {rule.instead}."
        for need in rule.needs:
            yield f"- Needs {need}."
        yield f"- Reference: {_reference(rule)}"
        yield ""


def _reference(rule: Rule) -> str:
    return f"<{rule.reference}>" if rule.reference.startswith("https:") else rule.reference


def explain(rule: Rule) -> str:
    """Return one rule for a terminal."""
    lines = [
        f"{rule.code}: {rule.title} ({rule.severity})",
        "",
        rule.why,
        "",
        f"Write instead: {rule.instead}.",
        *(f"Needs {need}." for need in rule.needs),
        f"Reference: {rule.reference}",
        f'To accept it, with the reason: [lint] ignore = {{ {rule.code} = "…" }}',
    ]
    return "\n".join(lines)


def overview() -> str:
    """Return one line for each rule."""
    return "\n".join(f"{rule.code}  {rule.severity:7}  {rule.title}" for rule in RULES)
