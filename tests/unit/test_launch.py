# SPDX-License-Identifier: Apache-2.0
"""Where a running engine listens, by its command line."""

import pytest

from sparkd.core import launch


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("python /opt/vllm/bin/vllm serve m --host 127.0.0.1 --port 8012", ("127.0.0.1", 8012)),
        ("vllm serve m --port=8012 --host=::", ("::1", 8012)),
        ("vllm serve m --host 0.0.0.0", ("127.0.0.1", 8000)),
        ("vllm serve m", ("127.0.0.1", 8000)),
        ("vllm serve m --host localhost --port 1 --port 2", ("127.0.0.1", 2)),
        ("vllm serve m --host example.org", None),
        ("vllm serve m --port x", None),
        ("vllm serve m --port 123456", None),
        ("vllm serve m --port", ("127.0.0.1", 8000)),
        ("python -m http.server --port 8012", None),
        ("", None),
    ],
)
def test_address(line: str, address: tuple[str, int] | None) -> None:
    assert launch.address(line.split()) == address
