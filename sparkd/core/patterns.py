# SPDX-License-Identifier: Apache-2.0
"""The small pattern language of signatures: bounded by construction, with a literal to look for.

Signatures are regular expressions of a restricted form, so that no line of any log makes matching
slow (`Error.*Error.*Error.*x` needs minutes for a line of 9 kB): one atom after the other, at most
one unbounded wildcard, no repeated group except an optional one, and a literal of `LITERAL_MIN`
characters that every match must contain. The literal is derived from the pattern, never written
beside it, and is looked for with a plain substring search before the pattern is even compiled.
"""

import re

LITERAL_MIN = 4
"""Shortest literal that narrows enough to be worth the search."""
_MAX_REPEATS = 8

_TOKEN = re.compile(
    r"(?P<text>(?:[^\\.^$*+?{}\[\]|()]|\\[^A-Za-z0-9])+)"
    r"|(?P<quantifier>[*+?]\??|\{\d*,?\d*\}\??)"
    r"|(?P<anchor>[\^$]|\\[bBAZ])"
    r"|(?P<group>\((?:\?:|\?P<\w+>|\?!|\?=)?|\)\??|\|)"
    r"|(?P<any>\.|\\[A-Za-z0-9]|\[\^?\]?(?:[^\\\]]|\\.)*\])"
)
_ESCAPED = re.compile(r"\\(.)")
_ONE_TIME = re.compile(r"\?\??|\{[01]?,?1?\}\??")
_BOUNDED = re.compile(r"\{\d*(?:,\d+)?\}\??")
_WIDE = (".", "\\S", "\\D", "\\W")


def literal_of(pattern: str) -> str:
    """Return the longest text that every match of `pattern` contains, '' if there is none.

    Only what stands outside groups counts: inside one, alternatives may differ.
    """
    best = run = ""
    depth, after_text = 0, False
    for token in _TOKEN.finditer(pattern):
        kind, text = token.lastgroup, token[0]
        if kind == "text" and depth == 0:
            run += _ESCAPED.sub(r"\1", text) if "\\" in text else text
        elif kind == "quantifier" and after_text and depth == 0:
            if text[0] in "*?" or text.startswith(("{0", "{,")):
                run = run[:-1]
            best, run = max(best, run, key=len), ""
        elif kind != "anchor":
            best, run = max(best, run, key=len), ""
            depth += (text[0] == "(") - (text[0] == ")")
        after_text = kind == "text"
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
    problems += _structure_problems(pattern)
    if len(literal_of(pattern)) < LITERAL_MIN:
        problems.append(f"no literal of {LITERAL_MIN} characters that every match contains")
    return problems


def _structure_problems(pattern: str) -> list[str]:
    problems: list[str] = []
    depth = repeats = wildcards = 0
    before: tuple[str, str, int] = ("", "", 0)  # the token that a quantifier would repeat
    for token in _TOKEN.finditer(pattern):
        kind, text = str(token.lastgroup), token[0]
        if kind == "group":
            depth += (text[0] == "(") - (text[0] == ")")
            if text == "|" and depth == 0:
                problems.append("an alternative outside a group has no literal in common")
        elif kind == "quantifier" and not _ONE_TIME.fullmatch(text):
            repeats += 1
            wide = before[1] in _WIDE or before[1].startswith("[^")
            wildcards += wide and not _BOUNDED.fullmatch(text)
            if before[0] == "group":
                problems.append("a repeated group can backtrack exponentially; use '(...)?' only")
            elif before[2] == 0 and (before[0] == "any" or len(before[1]) == 1):
                problems.append("a leading repetition is tried at every character; anchor with ^")
        before = (kind, text, token.start())
    if wildcards > 1:
        problems.append("more than one unbounded wildcard: matching time grows with its power")
    if repeats > _MAX_REPEATS:
        problems.append(f"more than {_MAX_REPEATS} repetitions")
    return problems
