# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a YAML text, without the text: it may hold a secret, or be any file."""

import re

import yaml

# PyYAML quotes names of anchors and tags from the text; single characters and its own <names> may
# be shown.
_QUOTED = re.compile(r"'(?!<)[^']{2,}'|\"(?!<)[^\"]{2,}\"")


def what_is_wrong(error: Exception) -> str:
    """Return the line and the rule of an error of PyYAML."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        problem = _QUOTED.sub("…", error.problem or "")
        return f"line {error.problem_mark.line + 1}: {problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position}: {error.reason}"
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    return str(error) if type(error) is yaml.YAMLError else "a date or number in it is none"
