# SPDX-License-Identifier: Apache-2.0
"""The text of `vllm serve --help=all` (argparse's layout) as a table of flags."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# "  --flag METAVAR, -f METAVAR", "  --flag, --no-flag", "  -f METAVAR, --flag METAVAR"; help stands
# deeper, or two blanks behind the flag.
_OPTION_LINE = re.compile(r" {2}(?=-{1,2}[A-Za-z])")
_NAME = re.compile(r"--([A-Za-z][A-Za-z0-9._-]*)")
_CHOICES = re.compile(r"\{([^{}]*)\}(.*)")
# "--disable-foo is deprecated and …", "[DEPRECATED] …"; not "allow deprecated quantization".
_DEPRECATED = re.compile(r"\[deprecated\]|\b(?:is|was|has been) deprecated\b", re.IGNORECASE)


class Flag(NamedTuple):
    """One flag of an installed vLLM.

    `choices` is empty where the flag takes anything; `deprecation` quotes the help, '' when none.
    """

    choices: tuple[str, ...] = ()
    deprecation: str = ""


def parse_help(text: str) -> Mapping[str, Flag]:
    """Return the flags by name without dashes, negative forms (`no-…`) included.

    A text that is not such a help (an error, the short help of 0.11 to 0.33 that only lists groups)
    yields few flags or none; the caller decides whether that can be all.
    """
    flags: dict[str, Flag] = {}
    for header, body in _entries(text):
        # A flag's own text may name other flags, its header not.
        names = _NAME.findall(_without_choices(header))
        flag = Flag(_choices(header), _deprecation(names, body))
        for name in names:
            flags[name] = flag
    return flags


def _entries(text: str) -> Iterator[tuple[str, str]]:
    header = ""
    body: list[str] = []
    for line in text.splitlines():
        if match := _OPTION_LINE.match(line):
            if header:
                yield header, " ".join(body)
            header, _, rest = line[match.end() :].partition("  ")
            body = [rest.strip()]
        elif header and line.startswith(" " * 8):
            body.append(line.strip())
        elif line.strip():
            # A group's heading or description ends the entry.
            if header:
                yield header, " ".join(body)
            header, body = "", []
    if header:
        yield header, " ".join(body)


def _without_choices(header: str) -> str:
    return re.sub(r"\{[^{}]*\}[^,]*", "", header)


def _choices(header: str) -> tuple[str, ...]:
    match = _CHOICES.search(header)
    # "{a,b} or name registered in --plugin": anything goes.
    if match is None or " or " in match[2]:
        return ()
    return tuple(choice for choice in match[1].split(",") if choice)


def _deprecation(names: list[str], body: str) -> str:
    sentences = re.split(r"(?<=[.!?]) ", body.strip())
    for index, sentence in enumerate(sentences):
        if _DEPRECATED.search(sentence) and _is_about(names, sentence):
            advice = [
                following
                for following in sentences[index + 1 :][:1]
                if following.startswith("Use ")
            ]
            return " ".join([sentence, *advice])
    return ""


def _is_about(names: list[str], sentence: str) -> bool:
    """Whether a sentence is about this flag itself and not about another thing it mentions."""
    if sentence.lower().startswith("[deprecated]"):
        return True
    dashed = sentence.replace("_", "-")
    return any(
        re.match(rf"(?:--)?{re.escape(name)} (?:is|was|has been) ", dashed) for name in names
    )
