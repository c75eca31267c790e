# SPDX-License-Identifier: Apache-2.0
"""What a benchmark found, and how it is shown: medians and ranges, and ratios of paired runs."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Figure(NamedTuple):
    """One quantity, measured once in every run."""

    name: str
    unit: str
    values: Sequence[float]
    peer: str = ""
    """Name of the figure of the same benchmark that this one is divided by, run by run."""


class Report(NamedTuple):
    """One benchmark on one suite."""

    benchmark: str
    place: str
    """The suite, and the systemd that it brings."""
    figures: Sequence[Figure]
    remarks: Sequence[str] = ()


def ratios(figure: Figure, figures: Iterable[Figure]) -> list[float]:
    """The figure divided by its peer, run by run; empty without a peer.

    Where the peer was below the resolution in some run, the one ratio of all runs together.
    """
    for other in figures:
        if figure.peer and other.name == figure.peer:
            if all(other.values):
                pairs = zip(figure.values, other.values, strict=True)
                return [ours / theirs for ours, theirs in pairs]
            return [sum(figure.values) / sum(other.values)] if any(other.values) else []
    return []


def as_json(report: Report) -> dict[str, object]:
    """For a program: every value, in the order of the runs."""
    return {
        "benchmark": report.benchmark,
        "place": report.place,
        "remarks": list(report.remarks),
        "figures": [
            {
                "name": figure.name,
                "unit": figure.unit,
                "values": list(figure.values),
                "peer": figure.peer or None,
                "ratios": ratios(figure, report.figures),
            }
            for figure in report.figures
        ],
    }


def as_table(report: Report) -> str:
    """For a person."""
    runs = max(len(figure.values) for figure in report.figures)
    width = max(len(figure.name) for figure in report.figures)
    lines = [f"{report.benchmark}, {report.place}, {runs} runs: median (min to max)"]
    for figure in report.figures:
        line = f"  {figure.name.ljust(width)}  {_range(figure.values):>28} {figure.unit}"
        found = ratios(figure, report.figures)
        if found:
            line = f"{line.ljust(width + 42)}  = {_range(found)} x {figure.peer}"
        lines.append(line)
    return "\n".join([*lines, *(f"  {remark}" for remark in report.remarks)])


def _range(values: Sequence[float]) -> str:
    low, middle, high = (_number(f(values)) for f in (min, median, max))
    return middle if low == high else f"{middle} ({low} to {high})"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
