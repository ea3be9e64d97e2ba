"""What the benchmarks share: medians, percentiles, a table."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence


def percentile(values: Iterable[float], part: float) -> float:
    """Return the value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(part / 100 * (len(ordered) - 1)))]


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their heads, aligned."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    sys.stdout.write(f"\n{title}\n")
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.flush()
