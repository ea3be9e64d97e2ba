"""What the benchmarks share: medians with their spread, tables to read, and figures as data."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FULL = "full"


def percentile(values: Iterable[float], part: float) -> float:
    """Return the value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(part / 100 * (len(ordered) - 1)))]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure, with the lowest and the highest round."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the median of the rounds."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found))

    @classmethod
    def once(cls, value: float) -> Spread:
        """Return what was measured once."""
        return cls(value, value, value)

    @classmethod
    def at(cls, part: float, values: Sequence[float]) -> Spread:
        """Return a percentile of all values, with that of each tenth of them as rounds."""
        size = -(-len(values) // 10)
        tenths = [values[at : at + size] for at in range(0, len(values), size)]
        each = [percentile(tenth, part) for tenth in tenths]
        middle = percentile(values, part)
        return cls(middle, min(*each, middle), max(*each, middle))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a figure. `ratio` is that to the row of its group which `against` names."""

    label: str
    spread: Spread
    kind: Literal["ours", "baseline", "other"] = "ours"
    ratio: float | None = None
    against: str = ""
    wanted: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, in one unit.

    `name` is that of its picture. `source` names the module and the function that measure it, whose
    docstrings say what it means. `better` says which way is better.
    """

    name: str
    source: str
    title: str
    measured: str
    unit: str
    rows: tuple[Row, ...]
    better: Literal["more", "less"] = "more"

    @classmethod
    def load(cls, found: dict[str, Any]) -> Figure:
        """Return a figure out of its JSON."""
        rows = (Row(**{**row, "spread": Spread(**row["spread"])}) for row in found["rows"])
        return cls(**{**found, "rows": tuple(rows)})


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their heads, aligned."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    sys.stdout.write(f"\n{title}\n")
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.flush()


def run(
    measure: Callable[[argparse.Namespace], Iterable[Figure]],
    parser: argparse.ArgumentParser,
    sizes: dict[str, dict[str, Any]],
) -> None:
    """Measure at the size that was asked for, and write the figures where they are wanted as data.

    The parser's own defaults are the full size; `sizes` says what is less at the others.
    """
    parser.add_argument("--size", choices=(*sizes, FULL), default=FULL)
    parser.add_argument("--figures", type=pathlib.Path, help="write the figures there, as JSON")
    size = parser.parse_known_args()[0].size
    parser.set_defaults(**sizes.get(size, {}))
    given = parser.parse_args()
    figures = [dataclasses.asdict(figure) for figure in measure(given)]
    if given.figures:
        given.figures.write_text(json.dumps(figures))
