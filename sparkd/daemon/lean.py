# SPDX-License-Identifier: Apache-2.0
"""Keeps what the daemon does not need out of its memory. Import it before anything else.

hashlib has SHA-256 of its own; with OpenSSL's it would map libcrypto, 4 MB of which stay resident.
"""

import sys

sys.modules.setdefault("_hashlib", None)  # type: ignore[arg-type]  # None: "cannot be imported"
