# SPDX-License-Identifier: Apache-2.0
"""TOML lines with a comment that says where each value came from; tomli-w writes the values."""

import tomli_w


def assignment(key: str, value: object, comment: str = "") -> str:
    """Return `key = value  # comment`, on one line whatever the value is."""
    line = f"{_key(key)} = {_value(value)}"
    return f"{line}  # {_one_line(comment)}" if comment else line


def _value(value: object) -> str:
    # tomli-w would write a table as a section of its own, which would change the order of flags.
    if isinstance(value, dict):
        pairs = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    return tomli_w.dumps({"x": value}).rstrip("\n").partition(" = ")[2]


def _key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
