# SPDX-License-Identifier: Apache-2.0
"""Text that systemd reads back byte for byte, whatever an operator put in it.

The rule was run against systemd's own parser with thousands of random values: double every `%`
(specifiers), then every `$` where systemd expands variables, then C-escape, then quote.
The order matters: a `%` that came out of an escape would be a specifier again. Words of harmless
characters alone stay bare, because people read these files.
"""

import re


class UnitTextError(ValueError):
    """A value that no unit file can carry."""


_C_ESCAPES = {ord("\\"): r"\\", ord('"'): r"\""} | {
    code: f"\\x{code:02x}" for code in (*range(1, 0x20), 0x7F)
}

# What systemd calls "not UTF-8 clean", and then ignores the line (run with 252).
_NONCHARACTER = re.compile(
    "[\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)

_BARE = re.compile(r"[A-Za-z0-9_./:=,@+-]+\Z")


def check_encodable(text: str) -> None:
    """Refuse what cannot be an argument or an environment value at all.

    Raises:
        UnitTextError: `text` holds a NUL byte, a lone surrogate or a noncharacter of Unicode.
    """
    if "\0" in text:
        raise UnitTextError("must not contain a NUL character")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise UnitTextError("must be encodable as UTF-8") from None
    if found := _NONCHARACTER.search(text):
        raise UnitTextError(
            f"must not contain U+{ord(found[0]):04X}, which is no character: systemd takes none"
        )


def specifier_safe(text: str) -> str:
    """Double `%`, so that no setting of any kind reads a specifier (`%n`, `%H`) into `text`."""
    return text.replace("%", "%%")


def quote_argument(argument: str) -> str:
    """Return `argument` as one word of an `ExecStart=`-like setting, after the command's path.

    Raises:
        UnitTextError: see `check_encodable`.
    """
    if _BARE.match(argument):
        return argument
    check_encodable(argument)
    literal = specifier_safe(argument).replace("$", "$$")
    return f'"{literal.translate(_C_ESCAPES)}"'


def quote_assignment(name: str, value: str) -> str:
    """Return `NAME=value` as one word of `Environment=`, which expands no `$`.

    Raises:
        UnitTextError: see `check_encodable`.
    """
    if _BARE.match(value):
        return f"{name}={value}"
    check_encodable(value)
    return f'"{name}={specifier_safe(value).translate(_C_ESCAPES)}"'
