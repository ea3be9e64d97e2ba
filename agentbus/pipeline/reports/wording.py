"""Formats the figures of reports for people, on a page and on a terminal."""

from __future__ import annotations

import itertools
import math
from datetime import datetime
from typing import Any

_SPANS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
NOTHING = "–"  # noqa: RUF001 (a dash)


def cell(column: str, value: Any, unmeasured: str = NOTHING) -> str:
    """Format a value of a column; the suffix of the column's name determines its unit.

    A duration that is null is `unmeasured`.
    """
    if value is None:
        return unmeasured if unit(column) == "ms" else NOTHING
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return figure(unit(column), value)
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(column, one) for one in value)
    return printable(str(value))


def unit(column: str) -> str | None:
    """Return the unit in the suffix of a column's name."""
    for ending in ("ms", "bytes", "share", "rate"):
        if column == ending or column.endswith(f"_{ending}"):
            return ending
    return None


def figure(unit: str | None, value: float) -> str:
    """Format a figure with its unit."""
    if not math.isfinite(value):
        return NOTHING
    if unit == "ms":
        return duration(value)
    if unit == "bytes":
        return size(value)
    if unit == "share":
        return f"{number(100 * value)} %"
    return number(value) + ("/s" if unit == "rate" else "")


def number(value: float) -> str:
    """Format a number with three significant digits, but all digits of whole thousands."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def duration(ms: float) -> str:
    """Format a duration in one or two units."""
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 1000:
        return f"{number(round(ms, 1 if ms >= 1 else 3))} ms"
    if (seconds := round(ms / 1000, 1)) < 60:
        return f"{number(seconds)} s"
    for (span, name), (below, small) in itertools.pairwise(_SPANS):
        parts = round(ms / below)
        if parts * below >= span:
            whole, rest = divmod(parts, span // below)
            return f"{number(whole)} {name}" + (f" {rest} {small}" if rest else "")
    return f"{number(seconds)} s"


def size(value: float) -> str:
    """Format a number of bytes."""
    for factor, name in _SIZES:
        if value >= factor:
            return f"{number(round(value / factor, 1))} {name}"
    return f"{number(value)} B"


def moment(at: datetime) -> str:
    """Format a time in UTC."""
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return text.removesuffix(":00") if not at.microsecond else text


def heading(column: str) -> str:
    """Format a column's name without the suffix `_ms`, since its figures show their units."""
    name = column.removesuffix("_ms")
    return name.strip("_").replace("_", " ")


def printable(text: str) -> str:
    """Return a text without control characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def cut(text: str, length: int) -> str:
    """Return at most `length` characters; `…` marks a cut."""
    return text if len(text) <= length else f"{text[: max(0, length - 1)]}…"
