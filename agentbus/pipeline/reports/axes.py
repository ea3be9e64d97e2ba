"""Axes of charts: round figures, labels of times, and widths of words."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from agentbus.pipeline.reports.span import LENGTHS, Bucket, Span

_STEPS = (
    *(timedelta(seconds=n) for n in (1, 2, 5, 10, 15, 30)),
    *(timedelta(minutes=n) for n in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=n) for n in (1, 2, 3, 6, 12)),
    *(timedelta(days=n) for n in (1, 2, 7, 14, 28, 91, 365)),
)
# A Monday, the origin of steps of whole weeks.
_ZERO = datetime(2000, 1, 3, tzinfo=UTC)
_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "share": ((0.01, "%"),),
    "rate": ((1, "/s"),),
    "ms": ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms")),
    "bytes": ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (1000, "kB"), (1, "B")),
}
# Approximate maximum width in pixels of a character in the smaller type.
_LETTER = 6.6


def between(moments: Iterable[datetime], span: Span, bucket: Bucket) -> tuple[datetime, datetime]:
    """Return the ends of an axis: it covers the whole span in whole buckets."""
    length = timedelta(seconds=LENGTHS[bucket])
    known = [*moments, *(at for at in (span.first, span.last) if at is not None)]
    first, last = (at - (at - _ZERO) % length for at in (min(known), max(known)))
    return first, last + length


def dates(first: datetime, last: datetime, wide: float) -> list[tuple[datetime, str]]:
    """Return at most about eight labels of times for an axis of this width in pixels."""
    most = min(8, max(1, int(wide / 72)))
    step = next((one for one in _STEPS if (last - first) / one <= most), _STEPS[-1])
    at = _ZERO + math.ceil((first - _ZERO) / step) * step
    # A short axis may lie between two steps.
    at = at if at < last else first
    found: list[tuple[datetime, str]] = []
    while at <= last:
        found.append((at, _written(at, step)))
        at += step
    return found


def _written(at: datetime, step: timedelta) -> str:
    if step >= timedelta(days=91):
        return at.strftime("%b %Y")
    if step < timedelta(minutes=1):
        return at.strftime("%H:%M:%S")
    return at.strftime("%b %-d" if not (at.hour or at.minute) else "%H:%M")


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit in which the figures of an axis are written, by size and name."""

    factor: float
    name: str

    def figure(self, value: float) -> str:
        """Write a figure with at most four significant digits, or all digits of an integer."""
        value /= self.factor
        text = f"{value:,.0f}" if abs(value) >= 1000 or value == round(value) else f"{value:.3g}"
        return f"{text} {self.name}" if self.name and value else text


def scale(reach: float, unit: str | None) -> Scale:
    """Return the largest unit of which figures up to `reach` contain at least two."""
    scales = _SCALES.get(unit or "", ((1, ""),))
    return Scale(*next((one for one in scales if reach >= 2 * one[0]), scales[-1]))


def ticks(least: float, most: float, unit: str | None) -> list[tuple[float, str]]:
    """Return round figures that cover the range from least to most, written in one unit."""
    written = scale(max(most, -least), unit)
    most, least = most / written.factor, least / written.factor
    reach = max(most, -least) or 1.0
    power = 10.0 ** math.floor(math.log10(reach / 4))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power * 4 >= reach)
    if unit is None:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(least / step), math.ceil(most / step)
    if first == last:
        last = first + 1
    steps = [at * step * written.factor for at in range(first, last + 1)]
    return [(at, written.figure(at)) for at in steps]


def pixels(text: str, letter: float = _LETTER) -> float:
    """Return the approximate width of a text; a Chinese or Japanese character counts twice."""
    return sum(letter * (2 if unicodedata.east_asian_width(c) in "WF" else 1) for c in text)


def cut(text: str, wide: float, letter: float = _LETTER) -> str:
    """Return the part of a text that fits this width in pixels; `…` marks a cut."""
    if pixels(text, letter) <= wide:
        return text
    kept = ""
    for c in text:
        if pixels(f"{kept}{c}…", letter) > wide:
            break
        kept += c
    return f"{kept}…"
