# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a YAML text, without the text: it may hold a secret, or be any file."""

import yaml


def what_is_wrong(error: Exception) -> str:
    """Return the line and the rule of an error of PyYAML."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position}: {error.reason}"
    if isinstance(error, RecursionError):
        return "it nests too deeply"
    return str(error) if type(error) is yaml.YAMLError else "a date or number in it is none"
