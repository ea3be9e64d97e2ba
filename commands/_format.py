"""Formats figures: tables of at most 100 columns, ages, rates, durations."""

from __future__ import annotations

from agentbus.commands import _values
from agentbus.commands._output import plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from agentbus.commands._output import Out
    from agentbus.workers.metrics import Durations

    T = TypeVar("T")

WIDTH = 100
_SPANS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "m"), (1.0, "s"))


def show(
    out: Out,
    found: Sequence[T],
    columns: Mapping[str, Callable[[T], str]],
    fields: Callable[[T], Mapping[str, object]] = _values.fields,
    *,
    left: int,
) -> None:
    """Print a table with a row for each value, or each value's fields as JSON.

    `columns` maps each heading to the function that formats a cell; the first `left` columns may be
    truncated.
    """
    if out.json:
        for one in found:
            out.record(fields(one), "")
        return
    if not found:
        return
    head = [*columns]
    rows = [[plain(cell(one)) for cell in columns.values()] for one in found]
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    over = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    while over > 0:
        at = max(range(left), key=lambda one: widths[one])
        if widths[at] <= 8:
            break
        widths[at] -= 1
        over -= 1
    for row in (head, *rows):
        cells = [
            cut(cell, width).ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.record({}, "  ".join(cells).rstrip())


def pairs(out: Out, named: Mapping[str, object]) -> None:
    """Print names and values, one pair a line, without the values that are None."""
    for name, value in named.items():
        if value is not None:
            out.record({}, f"{name:<9} {value}")


def cut(text: str, width: int) -> str:
    """Return text truncated to `width` characters; a truncated text ends with `…`."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def age(seconds: float | None) -> str:
    """Format a time span in one or two units."""
    if seconds is None:
        return "-"
    if seconds < 1:
        milliseconds = seconds * 1000
        return f"{milliseconds:.0f}ms" if milliseconds >= 10 else f"{milliseconds:.1f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    for at, (unit, name) in enumerate(_SPANS):
        if seconds >= unit:
            whole, rest = divmod(int(seconds), int(unit))
            if at == len(_SPANS) - 1:
                return f"{whole}s"
            below, small = _SPANS[at + 1]
            part = rest // int(below)
            return f"{whole}{name}" + (f"{part}{small}" if part else "")
    return "-"


def number(value: float) -> str:
    """Format a rate with at most three significant digits or none after the point."""
    return (
        f"{value:.0f}"
        if value >= 100 or value == 0
        else f"{value:.1f}"
        if value >= 1
        else f"{value:.2f}"
    )


def count(number: int, thing: str) -> str:
    """Format a number with its noun, in the plural unless it is 1."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def durations(found: Durations | None) -> str:
    """Format the mean and the percentiles of durations on one line."""
    if found is None:
        return "-"
    parts = (("mean", found.mean), ("p50", found.p50), ("p95", found.p95), ("p99", found.p99))
    return ", ".join(f"{name} {age(value)}" for name, value in parts)


def share(found: Durations | None, name: str) -> str:
    """Format one of the percentiles."""
    return age(None if found is None else getattr(found, name))
