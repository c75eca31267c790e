# SPDX-License-Identifier: Apache-2.0
"""The small pattern language of signatures: bounded by construction, with a literal to look for.

Signatures are regular expressions of a restricted form, so that no line of any log makes matching
slow (`Error.*Error.*Error.*x` needs minutes for a line of 9 kB): one atom after the other, at most
one unbounded wildcard, no quantified group except an optional one, and a literal of `LITERAL_MIN`
characters that every match must contain. The literal is derived from the pattern, never written
beside it, and is looked for with a plain substring search before the pattern is even compiled.
"""

import re
from typing import NamedTuple

LITERAL_MIN = 4
"""Shortest literal that narrows enough to be worth the search."""
_MAX_REPEATS = 8

_QUANTIFIER = re.compile(r"[*+?]|\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\((?:\?:|\?P<\w+>|\?!|\?=)?")
_CLASS_ESCAPES = frozenset("dDwWsSbBAZ")
_WIDE_ESCAPES = frozenset("DWS")


class _Atom(NamedTuple):
    """One piece of a pattern: `text` is its literal character or empty; `wide` takes nearly all."""

    text: str
    wide: bool
    low: int
    high: int | None  # None: unbounded
    depth: int
    anchor: bool


def literal_of(pattern: str) -> str:
    """Return the longest text that every match of `pattern` contains, '' if there is none.

    Only what stands outside groups counts: inside one, alternatives may differ.
    """
    best = run = ""
    for atom in _atoms(pattern):
        if atom.anchor:
            continue
        if atom.depth or not atom.text or atom.low == 0:
            best, run = max(best, run, key=len), ""
        else:
            run += atom.text
            if atom.high != 1:
                best, run = max(best, run, key=len), ""
    return max(best, run, key=len)


def lint(pattern: str) -> list[str]:
    """Return every reason why `pattern` may not be a signature's; empty when it is fine."""
    try:
        re.compile(pattern)
    except re.error as error:
        return [f"not a regular expression: {error}"]
    problems: list[str] = []
    if re.search(r"\\[1-9]|\(\?P=", pattern):
        problems.append("a back reference makes matching exponential")
    if re.search(r"\(\?[^:P!=]", pattern):
        problems.append("only (?:...), (?P<name>...), (?!...) and (?=...) groups are allowed")
    if re.search(r"(?<!\\)\)(?:[*+]|\{)", pattern):
        problems.append("a repeated group can backtrack exponentially; only '(...)?' is allowed")
    if _has_top_level_alternative(pattern):
        problems.append("an alternative outside a group has no literal in common")
    atoms = [atom for atom in _atoms(pattern) if not atom.anchor]
    problems += _repeat_problems(pattern, atoms)
    if len(literal_of(pattern)) < LITERAL_MIN:
        problems.append(f"no literal of {LITERAL_MIN} characters that every match contains")
    return problems


def _repeat_problems(pattern: str, atoms: list[_Atom]) -> list[str]:
    problems = []
    repeated = [atom for atom in atoms if atom.high is None or atom.high > 1]
    unbounded = [atom for atom in repeated if atom.high is None]
    if sum(atom.wide for atom in unbounded) > 1:
        problems.append("more than one unbounded wildcard: matching time grows with its power")
    if len(repeated) > _MAX_REPEATS:
        problems.append(f"more than {_MAX_REPEATS} repetitions")
    if atoms and atoms[0] in repeated and not pattern.startswith("^"):
        problems.append("a leading repetition is tried again at every character; anchor it with ^")
    return problems


def _has_top_level_alternative(pattern: str) -> bool:
    depth = position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 2
            continue
        if character == "[":
            position = _class_end(pattern, position)
            continue
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            return True
        position += 1
    return False


def _class_end(pattern: str, start: int) -> int:
    position = start + 1
    if pattern[position : position + 1] == "^":
        position += 1
    if pattern[position : position + 1] == "]":
        position += 1
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    return position + 1


def _atoms(pattern: str) -> list[_Atom]:
    atoms: list[_Atom] = []
    depth = position = 0
    while position < len(pattern):
        character = pattern[position]
        if character in "()|":
            group = _GROUP.match(pattern, position) if character == "(" else None
            depth += (character == "(") - (character == ")")
            position = group.end() if group else position + 1
            # A group breaks a literal run, and its closing quantifier belongs to no atom.
            atoms.append(_Atom("", wide=False, low=0, high=1, depth=depth + 1, anchor=False))
            if character == ")" and pattern[position : position + 1] == "?":
                position += 1
            continue
        text, wide, anchor, position = _atom_at(pattern, position)
        low, high, position = _quantifier_at(pattern, position)
        atoms.append(_Atom(text, wide, low, high, depth, anchor))
    return atoms


def _atom_at(pattern: str, position: int) -> tuple[str, bool, bool, int]:
    character = pattern[position]
    if character == "\\":
        escaped = pattern[position + 1 : position + 2]
        if escaped in _CLASS_ESCAPES:
            return "", escaped in _WIDE_ESCAPES, escaped in "bBAZ", position + 2
        return escaped, False, False, position + 2
    if character == "[":
        end = _class_end(pattern, position)
        return "", pattern[position + 1] == "^", False, end
    if character == ".":
        return "", True, False, position + 1
    return (
        ("", False, True, position + 1)
        if character in "^$"
        else (character, False, False, position + 1)
    )


def _quantifier_at(pattern: str, position: int) -> tuple[int, int | None, int]:
    match = _QUANTIFIER.match(pattern, position)
    if not match:
        return 1, 1, position
    end = match.end()
    if pattern[end : end + 1] == "?":  # lazy
        end += 1
    sign = match[0][0]
    if sign in "*+?":
        return int(sign == "+"), 1 if sign == "?" else None, end
    low = int(match[1] or 0)
    if not match[2]:
        return low, low, end
    return low, int(match[3]) if match[3] else None, end
