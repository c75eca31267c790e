# SPDX-License-Identifier: Apache-2.0
"""Rules for text that people and terminals will see: names, models, paths."""

import re
import unicodedata

# Control and format characters and the two line separators: they forge lines, hide text or turn
# its direction (bidi overrides), and no name or path needs them.
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_PATH = re.compile(r"(?:/[A-Za-z0-9._+@,=~-]+)+\Z")


def has_control_character(text: str) -> bool:
    """Return whether `text` holds a character that cannot be seen or that changes what is seen."""
    return any(unicodedata.category(character) in _UNSEEN_CATEGORIES for character in text)


def is_plain_path(text: str) -> bool:
    """Return whether `text` is an absolute, normalized path of characters safe in every setting.

    Such a path needs no quoting in any unit setting, in PATH or in LoadCredential=.
    """
    parts = text.split("/")
    return bool(_PATH.match(text)) and len(text) <= 1024 and "." not in parts and ".." not in parts
