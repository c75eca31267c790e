# SPDX-License-Identifier: Apache-2.0
"""TOML lines with a comment that says where each value came from; tomli-w writes the values."""

import tomli_w


def assignment(key: str, value: object, comment: str = "") -> list[str]:
    """Return `key = value  # comment`; a value of several lines has its comment above it."""
    text = _inline(key, value)
    note = f"# {_one_line(comment)}" if comment else ""
    if not note:
        return text.split("\n")
    if "\n" in text:
        return [note, *text.split("\n")]
    return [f"{text}  {note}"]


def _inline(key: str, value: object) -> str:
    if isinstance(value, dict):
        # tomli-w writes a table as a section of its own, which would change the order of the
        # flags; inside an array of arrays it writes it in one place.
        text = tomli_w.dumps({key: [[value]]}).rstrip("\n")
        head, _, body = text.partition("[\n    [\n")
        return head + body.removesuffix(",\n    ],\n]").lstrip(" ")
    if isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        parts = [_value(item) for item in value]
        line = f"{_key(key)} = [{', '.join(parts)}]"
        if len(line) <= 90:
            return line
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        items = [_inline("x", item).partition(" = ")[2] for item in value]
        return f"{_key(key)} = [{', '.join(items)}]"
    return tomli_w.dumps({key: value}).rstrip("\n")


def _value(value: object) -> str:
    return tomli_w.dumps({"x": value}).rstrip("\n").partition(" = ")[2]


def _key(key: str) -> str:
    return tomli_w.dumps({key: 0}).partition(" = ")[0]


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
