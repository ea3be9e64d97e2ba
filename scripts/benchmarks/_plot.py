"""Draws a figure as SVG: bars on one axis from zero, with the lowest and the highest round.

Written by hand: a hundred lines that draw bars are less than any library that does, and what they write
stays the same for the same figures, so that a picture changes only where a figure does. The card has a
its own background, so that it can be read on any page; its colours follow the reader's wish for dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from xml.sax.saxutils import escape

from scripts.benchmarks._figures import Figure, Row

WIDTH = 760
_MARGIN = 20
_ROW = 26
_GROUP = 24
_TOP = 64
_BAR = 14
# How wide a small and a big letter of 12 px are, on the wide side: no font is at hand to ask.
_LETTER, _CAPITAL = 6.9, 8.6
_ROOM_FOR_TEXT = 150
# An axis ends at so many times the longest bar, however far one round went astray.
_FURTHEST = 1.6
_KINDS = {"ours": "AgentBus", "baseline": "baseline", "other": "others"}
_LIGHT = {
    "card": "#ffffff",
    "edge": "#d1d9e0",
    "text": "#1f2328",
    "quiet": "#59636e",
    "grid": "#e7ebef",
    "ours": "#0969da",
    "baseline": "#8c959f",
    "other": "#bc8a1c",
}
_DARK = {
    "card": "#0d1117",
    "edge": "#3d444d",
    "text": "#f0f6fc",
    "quiet": "#9198a1",
    "grid": "#262c36",
    "ours": "#4493f8",
    "baseline": "#7d8590",
    "other": "#d29922",
}
_FONT = "12px system-ui, -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"


def times(ratio: float) -> str:
    """Return a ratio with two decimals, or two digits if it is small."""
    return f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"


def shown(value: float) -> str:
    """Write a figure with three digits, or all before the point."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}" if digits <= 6 else f"{value:.2g}"


def svg(figure: Figure) -> str:
    """Return the picture as a separate document that names its figures as text."""
    return "".join(_Drawing(figure).lines())


class _Drawing:
    """A figure, and where on the card its values lie."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self._left = round(_MARGIN + 10 + max(_width(row.label) for row in figure.rows), 1)
        self._right = WIDTH - _MARGIN - _ROOM_FOR_TEXT
        most = max(row.spread.middle for row in figure.rows) or 1.0
        highest = max(row.spread.high for row in figure.rows)
        self._step = _step(min(highest, most * _FURTHEST) or 1.0)
        self._end = self._step * math.ceil(min(highest, most * _FURTHEST) / self._step - 1e-9)
        self._end = max(self._end, self._step)

    def lines(self) -> Iterator[str]:
        figure, places = self.figure, list(self._places())
        bottom = places[-1][1] + _ROW + 4
        height = bottom + 82
        title, about = escape(figure.title), escape(figure.measured)
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="t d">\n'
            f'<title id="t">{title}</title>\n<desc id="d">{escape(_told(figure))}</desc>\n'
            f"<style>\n{_style()}</style>\n"
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>\n'
            f'<text class="title" x="{_MARGIN}" y="28">{title}</text>\n'
            f'<text class="quiet" x="{_MARGIN}" y="48">{_cut(about)}</text>\n'
        )
        yield from self._axis(bottom)
        for row, top in places:
            yield from self._bar(row, top)
        yield from self._references(places)
        for row, top in places:
            yield from self._words(row, top)
        yield from self._legend(height - 16)
        yield "</svg>\n"

    def _places(self) -> Iterator[tuple[Row, int]]:
        """Yield each row with its upper end."""
        top, group = _TOP, ""
        for row in self.figure.rows:
            if row.group != group:
                group = row.group
                top += _GROUP
            yield row, top
            top += _ROW

    def _x(self, value: float) -> float:
        inside = min(value, self._end) / self._end
        return round(self._left + inside * (self._right - self._left), 1)

    def _axis(self, bottom: int) -> Iterator[str]:
        for number in range(round(self._end / self._step) + 1):
            value = number * self._step
            x = self._x(value)
            yield f'<line class="grid" x1="{x}" y1="{_TOP - 4}" x2="{x}" y2="{bottom}"/>\n'
            yield f'<text class="quiet mid" x="{x}" y="{bottom + 16}">{_tick(value, self._step)}</text>\n'
        better = {"more": "more is better", "less": "less is better"}[self.figure.better]
        unit, x = f"{escape(self.figure.unit)} ({better})", (self._left + self._right) / 2
        yield f'<text class="quiet mid" x="{x}" y="{bottom + 36}">{unit}</text>\n'

    def _bar(self, row: Row, top: int) -> Iterator[str]:
        middle = top + _ROW / 2
        yield (
            f'<rect class="{row.kind}" x="{self._left}" y="{middle - _BAR / 2}" '
            f'width="{self._long(row)}" height="{_BAR}" rx="2"/>\n'
        )
        low, high = self._x(row.spread.low), self._x(row.spread.high)
        if high - low > 1:
            yield f'<path class="whisker" d="{self._whisker(row, low, high, middle)}"/>\n'

    def _long(self, row: Row) -> float:
        return round(max(1.0, self._x(row.spread.middle) - self._left), 1)

    def _words(self, row: Row, top: int) -> Iterator[str]:
        """Write what a bar is, and its value behind it."""
        base = top + _ROW / 2 + 4
        if self._begins(row):
            yield f'<text class="group" x="{_MARGIN}" y="{top - 5}">{escape(row.group)}</text>\n'
        yield f'<text class="end" x="{self._left - 8}" y="{base}">{escape(row.label)}</text>\n'
        x = round(max(self._x(row.spread.high), self._left + self._long(row)) + 8, 1)
        ratio = (
            f' <tspan class="quiet">{times(row.ratio)} x</tspan>' if row.ratio is not None else ""
        )
        yield f'<text class="over" x="{x}" y="{base}">{shown(row.spread.middle)}{ratio}</text>\n'

    def _whisker(self, row: Row, low: float, high: float, y: float) -> str:
        line = f"M{low} {y - 4}V{y + 4}M{low} {y}H{high}"
        if row.spread.high > self._end:
            # It goes on beyond the axis.
            return f"{line}M{high - 5} {y - 4}L{high} {y}L{high - 5} {y + 4}"
        return f"{line}M{high} {y - 4}V{y + 4}"

    def _begins(self, row: Row) -> bool:
        first = next(one for one in self.figure.rows if one.group == row.group)
        return bool(row.group) and first is row

    def _references(self, places: list[tuple[Row, int]]) -> Iterator[str]:
        """Draw each baseline as a line through its group."""
        for base, _ in places:
            if base.kind != "baseline":
                continue
            tops = [top for one, top in places if one.group == base.group]
            x = self._x(base.spread.middle)
            yield (
                f'<line class="reference" x1="{x}" y1="{min(tops) + 2}" '
                f'x2="{x}" y2="{max(tops) + _ROW - 2}"/>\n'
            )

    def _legend(self, y: int) -> Iterator[str]:
        x = float(_MARGIN)
        kinds = [row.kind for row in self.figure.rows]
        for kind, name in _KINDS.items():
            if kind in kinds:
                yield f'<rect class="{kind}" x="{x}" y="{y - 9}" width="10" height="10" rx="2"/>\n'
                yield f'<text class="quiet" x="{x + 15}" y="{y}">{name}</text>\n'
                x += 15 + _width(name) + 10
        words = []
        if "baseline" in kinds:
            words.append("dashed: baseline")
        if any(row.ratio is not None for row in self.figure.rows):
            words.append("x: ratio")
        if any(row.spread.high > row.spread.low for row in self.figure.rows):
            words.append("whiskers: lowest to highest round")
        yield f'<text class="quiet" x="{x}" y="{y}">{"; ".join(words)}</text>\n'


def _told(figure: Figure) -> str:
    """Say the figures in a sentence, for those who do not see them."""
    rows = (
        f"{row.group + ', ' if row.group else ''}{row.label}: {shown(row.spread.middle)}"
        f" ({shown(row.spread.low)} to {shown(row.spread.high)})"
        for row in figure.rows
    )
    return f"{figure.measured}; {figure.unit}. {'; '.join(rows)}."


def _width(text: str) -> float:
    return sum(_CAPITAL if letter.isupper() else _LETTER for letter in text)


def _cut(text: str) -> str:
    room = int((WIDTH - 2 * _MARGIN) / _LETTER)
    return text if len(text) <= room else f"{text[: room - 1].rpartition(' ')[0]} …"


def _step(most: float) -> float:
    """Return the distance of the ticks: 1, 2 or 5 times a power of ten, four to eight of them."""
    power = 10.0 ** math.floor(math.log10(most / 4))
    return next(factor * power for factor in (1, 2, 5, 10) if most / (factor * power) <= 6)


def _tick(value: float, step: float) -> str:
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{digits}f}"


def _style() -> str:
    light, dark = _rules(_LIGHT), _rules(_DARK)
    return (
        f"text {{ font: {_FONT}; }}\n.title {{ font-size: 15px; font-weight: 600; }}\n"
        ".group { font-weight: 600; }\n.mid { text-anchor: middle; }\n.end { text-anchor: end; }\n"
        ".whisker, .reference { fill: none; stroke-width: 1.5; }\n.reference { stroke-dasharray: 4 3; }\n"
        f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
    )


def _rules(colours: dict[str, str]) -> str:
    return (
        f"text {{ fill: {colours['text']}; }}\n"
        f".quiet {{ fill: {colours['quiet']}; }}\n"
        f".card {{ fill: {colours['card']}; stroke: {colours['edge']}; }}\n"
        f".grid {{ stroke: {colours['grid']}; }}\n"
        f".whisker {{ stroke: {colours['text']}; }}\n.reference {{ stroke: {colours['quiet']}; }}\n"
        # So that a line behind a value does not cross it out.
        f".over {{ paint-order: stroke; stroke: {colours['card']}; stroke-width: 4px; }}\n"
        + "".join(f".{kind} {{ fill: {colours[kind]}; }}\n" for kind in _KINDS)
    )
