# SPDX-License-Identifier: Apache-2.0
"""Metric families as Prometheus' text format 0.0.4.

Written out here because importing prometheus_client costs the daemon 4 MB that stay resident and
most of what it imports is an HTTP server that is not used (measured); the tests read the result
back with its parser.
"""

from collections.abc import Iterable, Iterator

from sparkd.core.metrics import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def text(families: Iterable[Family]) -> str:
    """The whole page."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}"
    yield f"# TYPE {family.name} {family.type}"
    for sample in family.samples:
        pairs = zip(family.label_names, sample.labels, strict=True)
        labels = ",".join(f'{name}="{_value(value)}"' for name, value in pairs)
        yield (
            f"{family.name}{{{labels}}} {sample.value!r}"
            if labels
            else (f"{family.name} {sample.value!r}")
        )


def _value(label: str) -> str:
    # A file name may hold bytes that are no UTF-8; the page must be all the same.
    clean = label.encode("utf-8", "backslashreplace").decode()
    return clean.translate(_ESCAPES)
