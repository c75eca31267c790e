# SPDX-License-Identifier: Apache-2.0
"""What looks like a secret, so that it is kept out of units and out of error messages.

A unit's environment and command line are readable by every local user (over D-Bus and in /proc),
so a secret there is a leak. sparkd accepts secrets only as files, through `[credentials]`.
"""

import re

_SECRET_NAME = re.compile(
    r"(?:token|secret|secret[_-]?key|access[_-]?key|api[_-]?key|password|passwd|passphrase)\Z",
    re.IGNORECASE,
)
# Inside JSON values "image_token" or "pad_token" are ordinary model settings.
_SECRET_JSON_KEY = re.compile(
    r"(?:(?:\A|auth|hf|hub|access|bearer|session)[_-]?token"
    r"|secret|secret[_-]?key|access[_-]?key|api[_-]?key|password|passwd|passphrase)\Z",
    re.IGNORECASE,
)
# Prefixes of tokens that services hand out: Hugging Face, OpenAI-style, GitHub, Slack, NVIDIA.
_SECRET_VALUE = re.compile(
    r"(?:hf_|sk-|gh[pousr]_|github_pat_|xox[abprs]-|nvapi-)[A-Za-z0-9_-]{16,}"
)


def is_secret_name(name: str) -> bool:
    """Return whether a variable or flag of this name usually holds a secret."""
    return bool(_SECRET_NAME.search(name))


def contains_secret(value: object) -> bool:
    """Return whether `value` holds a text shaped like a token, or a JSON key that names a secret.

    Tables and lists are searched to any depth.
    """
    if isinstance(value, str):
        return bool(_SECRET_VALUE.search(value))
    if isinstance(value, dict):
        return any(
            (isinstance(item, str) and item != "" and _SECRET_JSON_KEY.search(str(key)))
            or contains_secret(item)
            for key, item in value.items()
        )
    if isinstance(value, list):
        return any(contains_secret(item) for item in value)
    return False


def redact(text: str) -> str:
    """Return `text` with everything in it that is shaped like a token replaced by '(hidden)'."""
    return _SECRET_VALUE.sub("(hidden)", text)
