"""Draws a table's chart as SVG with CSS classes: bars, stacked bars, lines and heat maps.

No library fits: pygal draws no heat maps and needs 150 kB for a chart of 360 bars, half of the
page's limit; leather cannot stack bars; plotly and altair include or fetch megabytes of script.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup

from agentbus.pipeline.reports import axes, wording
from agentbus.pipeline.reports.report import Chart
from agentbus.pipeline.reports.running import Filled
from agentbus.pipeline.reports.span import LENGTHS
from agentbus.pipeline.reports.templates import template

# Widths in units of about one pixel: charts over time are as wide as the page, others half as wide.
BROAD, NARROW = 1080, 500
# Limits of a readable chart: names with bars, bars in all, series; rows and columns of heat maps.
NAMES, BARS, SERIES, LINES, CELLS = 15, 45, 6, 20, 60
_LABEL, _THICK, _LETTER = 170, 15, 8.2
# Up to this many bars or cells show their figures when the pointer is over them.
_TITLED = 200
_LEVELS = 5
# Maximum width of a bar.
_WIDEST = 48.0
# Maps positions on the x axis to figures.
_Points = dict[Any, float]


def draw(table: Filled) -> str:
    """Return a table's chart, or nothing if it has no chart or no data."""
    chart = table.chart
    if chart is None or not table.rows:
        return ""
    if chart.apart is not None:
        parts = ((name, draw(part)) for name, part in _parts(table, chart.apart))
        return Markup("").join(_part("caption", name) + part for name, part in parts if part)
    if chart.kind == "heat":
        return _heat(table, chart)
    series = _largest(_series(table, chart))
    if not any(value for points in series.values() for value in points.values()):
        return ""
    drawn = (_over_time if _is_over_time(table, chart) else _across)(table, chart, series)
    return drawn + (_part("legend", series) if len(series) > 1 else "")


def limits(table: Filled) -> str:
    """Return a sentence about the data that a table's chart omits, or nothing."""
    chart = table.chart
    if chart is None or not table.rows:
        return ""
    if chart.apart is not None:
        cut = any(limits(part) for _, part in _parts(table, chart.apart))
        return f"Each chart shows at most {NAMES} names." if cut else ""
    if chart.kind == "heat":
        lines = {_series_of(row, chart) for row in table.rows}
        found = f"The chart shows the first {LINES} of {len(lines)}." if len(lines) > LINES else ""
    else:
        series = len(_series(table, chart))
        found = f"The chart shows the {SERIES} greatest of {series}." if series > SERIES else ""
    if _is_over_time(table, chart):
        rest = f"The chart lacks {table.left_out:,} further rows." if table.left_out else ""
        return " ".join(filter(None, (found, rest)))
    if chart.kind == "heat" or found:
        return found
    names, most = {_category(row, chart) for row in table.rows}, _most_names(series)
    if len(names) > most:
        return f"The chart shows the first {most} of {len(names) + table.left_out:,}."
    return ""


def _parts(table: Filled, column: str) -> list[tuple[str, Filled]]:
    """Split a table by the values of a column, each with a separate chart."""
    parts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in table.rows:
        parts[_named(column, row[column])].append(row)
    one = replace(table, chart=table.chart and replace(table.chart, apart=None), left_out=0)
    return [
        (name, replace(one, title=f"{table.title}: {name}", rows=rows))
        for name, rows in parts.items()
    ]


def _is_over_time(table: Filled, chart: Chart) -> bool:
    return isinstance(table.rows[0][chart.x], datetime)


def _category(row: Mapping[str, Any], chart: Chart) -> Any:
    name, detail = row[chart.x], chart.detail and row[chart.detail]
    return name if detail is None else f"{name} {detail}"


def _series_of(row: Mapping[str, Any], chart: Chart) -> str | None:
    """Return the name of the series of a row, None if the rows are not split."""
    if not chart.series:
        return None
    if isinstance(chart.series, str):
        return _named(chart.series, row[chart.series])
    return " ".join(_named(one, row[one]) for one in chart.series if row[one] is not None)


def _series(table: Filled, chart: Chart) -> dict[str, _Points]:
    found: dict[str, _Points] = {}
    # Add up several rows of one category or moment, but take the maximum of durations and levels.
    highest = chart.unit == "ms" or chart.kind == "line"
    columns = [chart.y] if isinstance(chart.y, str) else list(chart.y)
    for row in table.rows:
        for column in columns:
            names = [name] if (name := _series_of(row, chart)) else []
            if len(columns) > 1 or not names:
                names.append(wording.heading(column))
            points = found.setdefault(" ".join(names), {})
            at, value = _category(row, chart), row[column]
            if value is None and table.unmeasured != wording.NOTHING:
                value = 0.0
            if value is not None and math.isfinite(value):
                before = points.get(at, -math.inf if highest else 0.0)
                points[at] = max(before, float(value)) if highest else before + max(0.0, value)
    return found


def _largest(series: Mapping[str, _Points]) -> dict[str, _Points]:
    """Return as many series as a chart has room for."""
    size = {name: sum(map(abs, points.values())) for name, points in series.items()}
    most = set(sorted(size, key=lambda name: -size[name])[:SERIES])
    return {name: points for name, points in series.items() if name in most}


def _figure(table: Filled, chart: Chart, value: float) -> str:
    """Format a figure of a chart as the table does."""
    unmeasured = not value and table.unmeasured != wording.NOTHING
    return table.unmeasured if unmeasured else wording.figure(chart.unit, value)


# -- bars of categories: names are long, so they lie -------------------------------------------------


def _most_names(series: int) -> int:
    """Return the number of names with bars, given the number of series."""
    return max(5, min(NAMES, BARS // max(series, 1)))


def _across(table: Filled, chart: Chart, series: Mapping[str, _Points]) -> str:
    names = list(dict.fromkeys(_category(row, chart) for row in table.rows))
    names = names[: _most_names(len(series))]
    values = [
        {at: points[name] for at, points in enumerate(series.values()) if name in points}
        for name in names
    ]
    # Stack the bars if each name has one figure: side by side they would leave gaps for missing
    # figures.
    stacked = chart.kind == "stacked" or max(map(len, values)) <= 1
    most = max(sum(v.values()) if stacked else max(v.values(), default=0) for v in values)
    # Reserve space for the figure after the longest bar.
    figures = [_figure(table, chart, n) for v in values for n in (*v.values(), sum(v.values()))]
    room = max(map(axes.pixels, figures), default=0) + 12
    scale = (NARROW - _LABEL - room) / (most or 1)
    titles = list(series)
    out, y = [], 4.0
    for name, bars in zip(names, values, strict=True):
        tall = _THICK * (1 if stacked else max(1, len(bars)))
        out.append(_label(_named(chart.x, name), y + tall / 2 + 4))
        x = float(_LABEL)
        for place, (at, value) in enumerate(bars.items()):
            width = value * scale
            top = y if stacked else y + place * _THICK
            figure = _figure(table, chart, value)
            if value:
                box = _box(x, top, max(width, 0.5), _THICK - (0 if stacked else 1))
                title = f"{titles[at]}: {figure}"
                out.append(_part("path", f"s{at}", box, title))
            if not stacked:
                out.append(_part("text", "v", x + width + 6, top + 11, figure))
            elif len(bars) > 1 and axes.pixels(figure) + 6 < width < sum(bars.values()) * scale:
                out.append(_part("text", f"i{at} m", x + width / 2, y + 11, figure))
            x += width if stacked else 0
        if stacked:
            total = _figure(table, chart, sum(bars.values()))
            out.append(_part("text", "v", x + 6, y + 11, total))
        y += tall + 9
    return _part("frame", "narrow", table.title, NARROW, y, out)


# -- over time -----------------------------------------------------------------------------------


def _over_time(table: Filled, chart: Chart, series: Mapping[str, _Points]) -> str:
    left, right, top, high = 64, BROAD - 30, 20, 220
    length = chart.bucket or table.span.bucket
    bucket = timedelta(seconds=LENGTHS[length])
    moments = {at for points in series.values() for at in points}
    first, last = axes.between(moments, table.span, length)
    wide = (right - left) / (last - first).total_seconds()
    stacked = chart.kind in ("stacked", "bar")
    sums = _sums(series.values(), stacked=stacked)
    ticks = axes.ticks(
        min(low for low, _ in sums.values()), max(up for _, up in sums.values()), chart.unit
    )
    least, most = ticks[0][0], ticks[-1][0]
    scale = high / (most - least)
    bottom = top + high

    def x(at: datetime) -> float:
        return float(left + (at - first).total_seconds() * wide)

    def y(value: float) -> float:
        return bottom - (value - least) * scale

    out = []
    for tick, text in ticks:
        out.append(_part("path", "g" if tick else "g z", f"M{left} {y(tick):.1f}H{right}"))
        out.append(_part("text", "a e", left - 6, y(tick) + 4, text))
    for at, label in axes.dates(first, last, right - left):
        out.append(_part("path", "g", f"M{x(at):.1f} {bottom}v4"))
        out.append(_part("text", "a m", x(at), bottom + 17, label))
    half = bucket / 2
    pitch = bucket.total_seconds() * wide
    if stacked:
        width = min(_WIDEST, max(0.8, pitch * 0.85))
        base: dict[datetime, float] = defaultdict(float)
        boxes = []
        for number, (name, points) in enumerate(series.items()):
            for at, value in points.items():
                if not value:
                    continue
                base[at] += value
                box = _box(x(at + half) - width / 2, y(base[at]), width, value * scale)
                title = f"{wording.moment(at)} {name}: {wording.figure(chart.unit, value)}"
                boxes.append((f"s{number}", box, title))
        out += _boxes(boxes, titled=len(boxes) <= _TITLED)
        marks = [(x(at + half), y(up), up) for at, (_, up) in sums.items() if up > 0]
        out += _figures(sorted(marks), chart.unit)
    else:
        for number, points in enumerate(series.values()):
            line = [(x(at + half), y(value)) for at, value in sorted(points.items())]
            path, dots = _line(line, 1.5 * pitch)
            out += [_part("path", f"l{number}", path)] if path else []
            out += [_part("path", f"s{number}", dots)] if dots else []
    return _part("frame", "broad", table.title, BROAD, bottom + 26, out)


def _sums(series: Any, *, stacked: bool) -> dict[datetime, tuple[float, float]]:
    """Return the lowest and highest figure at each moment, summed if they are stacked."""
    found: dict[datetime, tuple[float, float]] = {}
    for points in series:
        for at, value in points.items():
            low, up = found.get(at, (0.0, 0.0))
            found[at] = min(low, value), up + value if stacked else max(up, value)
    return found


def _figures(marks: Sequence[tuple[float, float, float]], unit: str | None) -> list[Markup]:
    """Write each bar's figure above it, if there is space for all."""
    out, end = [], -math.inf
    for x, y, value in marks:
        text = wording.figure(unit, value)
        half = axes.pixels(text) / 2
        if x - half < end + 3:
            return []
        out.append(_part("text", "v m", x, y - 4, text))
        end = x + half
    return out


def _line(points: Sequence[tuple[float, float]], widest: float) -> tuple[str, str]:
    """Return the path of a line with gaps at missing moments, and of dots for single points."""
    path, dots = "", ""
    for at, (x, y) in enumerate(points):
        joins = at > 0 and x - points[at - 1][0] <= widest
        goes_on = at + 1 < len(points) and points[at + 1][0] - x <= widest
        if joins or goes_on:
            path += f"{'L' if joins else 'M'}{x:.1f} {y:.1f}"
        else:
            dots += f"M{x - 3:.1f} {y:.1f}a3 3 0 1 0 6 0a3 3 0 1 0 -6 0"
    return path, dots


# -- heat maps -----------------------------------------------------------------------------------


def _heat(table: Filled, chart: Chart) -> str:
    assert isinstance(chart.series, str)
    assert isinstance(chart.y, str)
    lines = list(dict.fromkeys(row[chart.series] for row in table.rows))[:LINES]
    rows = [
        row for row in table.rows if row[chart.series] in set(lines) and row[chart.y] is not None
    ]
    if not rows:
        return ""
    over_time = _is_over_time(table, chart)
    width = BROAD if over_time else NARROW
    place, labels, number = (_moments if over_time else _names)(table, chart, rows)
    sums: dict[tuple[int, int], float] = defaultdict(float)
    for row in rows:
        column = place(row[chart.x])
        if column is not None:
            sums[lines.index(row[chart.series]), column] += float(row[chart.y])
    most = max(sums.values(), default=0) or 1
    wide, high = min(44.0, (width - _LABEL - 30) / number), 20
    boxes, figures = [], []
    for (line, column), value in sums.items():
        if value <= 0:
            continue
        # Scale by the square root, so that rare values remain visible beside frequent ones.
        level = min(_LEVELS, 1 + int(_LEVELS * math.sqrt(value / most)))
        x, y = _LABEL + column * wide, 4 + line * high
        name, figure = _named(chart.series, lines[line]), wording.figure(chart.unit, value)
        boxes.append(
            (f"h{level}", _box(x, y, wide - 1, high - 1), f"{wording.cut(name, 40)}: {figure}")
        )
        if axes.pixels(figure) <= wide - 4:
            figures.append(_part("text", f"f{level} m", x + (wide - 1) / 2, y + 14, figure))
    out = _boxes(boxes, titled=len(sums) <= 2 * _TITLED) + figures
    out += [_label(_named(chart.series, line), 4 + at * high + 14) for at, line in enumerate(lines)]
    bottom = 4 + len(lines) * high
    found = labels(wide * number)
    tilted = not over_time and any(axes.pixels(label) > wide - 6 for _, label in found)
    for at, label in found:
        x = _LABEL + at * wide
        if tilted:
            out.append(_part("tilted", "a e", x + 4, bottom + 12, axes.cut(label, 100)))
        else:
            out.append(_part("text", "a m", x, bottom + 15, label))
    return _part(
        "frame",
        "broad" if over_time else "narrow",
        table.title,
        width,
        bottom + (100 if tilted else 22),
        out,
    )


def _moments(table: Filled, chart: Chart, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the functions for positions and labels on the x axis, and the number of columns."""
    length = chart.bucket or table.span.bucket
    first, last = axes.between((row[chart.x] for row in rows), table.span, length)
    bucket = timedelta(seconds=LENGTHS[length])
    number = round((last - first) / bucket)
    # If there are too many buckets, several share a column.
    joined = math.ceil(number / CELLS)
    bucket *= joined

    def labels(wide: float) -> list[tuple[float, str]]:
        return [((at - first) / bucket, text) for at, text in axes.dates(first, last, wide)]

    return (lambda at: int((at - first) / bucket)), labels, math.ceil(number / joined)


def _names(_table: Filled, chart: Chart, rows: Sequence[Mapping[str, Any]]) -> Any:
    names = list(dict.fromkeys(row[chart.x] for row in rows))[:LINES]
    where = {name: at for at, name in enumerate(names)}
    labels = [(at + 0.5, _named(chart.x, name)) for at, name in enumerate(names)]
    return where.get, (lambda _wide: labels), len(names)


# -- pieces ---------------------------------------------------------------------------------------


def _named(column: str, name: Any) -> str:
    """Return the name of a category or a series: `no group` if it has none."""
    return f"no {wording.heading(column)}" if name is None else wording.printable(str(name))


def _part(name: str, *given: Any) -> Markup:
    """Render a part of a chart with the macro of this name."""
    written: Markup = getattr(template("chart.svg.jinja").module, name)(*given)
    return written


def _box(x: float, y: float, width: float, height: float) -> str:
    """Return the path of a rectangle."""
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def _boxes(found: Sequence[tuple[str, str, str]], *, titled: bool) -> list[Markup]:
    """Write rectangles, each a class, path and title; untitled ones of a class are one path."""
    if titled:
        return [_part("path", *box) for box in found]
    paths: dict[str, str] = {}
    for kind, path, _ in found:
        paths[kind] = paths.get(kind, "") + path
    return [_part("path", kind, path) for kind, path in paths.items()]


def _label(text: str, y: float) -> Markup:
    """Write a name before its bar or line; a long name is cut, with the full name as a tooltip."""
    cut = axes.cut(text, _LABEL - 10, _LETTER)
    return _part("text", "e", _LABEL - 8, y, cut, text if cut != text else "")
