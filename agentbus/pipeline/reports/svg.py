"""Draws a table's chart as SVG: bars, stacked bars, lines and heat maps, in classes that CSS colours.

Of libraries, pygal draws no heat maps and needs 150 kB for a chart of 360 bars, half of what the whole
page may have; leather stacks nothing; plotly and altair bring megabytes of script, or fetch it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from agentbus.pipeline.reports import wording
from agentbus.pipeline.reports.report import Chart
from agentbus.pipeline.reports.running import Filled
from agentbus.pipeline.reports.templates import template

# In units that are shown as about a pixel each: charts over time are as wide as the page, others half.
BROAD, NARROW = 1080, 500
# How much of a chart one can take in.
BARS, SERIES, LINES, CELLS = 15, 6, 20, 60
_LABEL, _LETTERS = 150, 20
# Of so few bars or cells each says its figure when it is pointed at.
_TITLED = 200
_LEVELS = 5
_STEPS = (
    *(timedelta(minutes=n) for n in (1, 2, 5, 10, 15, 30)),
    *(timedelta(hours=n) for n in (1, 2, 3, 6, 12)),
    *(timedelta(days=n) for n in (1, 2, 7, 14, 28, 91, 365)),
)
# Where on the x axis -> how much.
_Points = dict[Any, float]


def draw(table: Filled) -> str:
    """Return a table's chart, or nothing if it has none or there is nothing to draw."""
    chart = table.chart
    if chart is None or not table.rows:
        return ""
    if chart.kind == "heat":
        return _heat(table, chart)
    series = _series(table, chart)
    if not any(value for points in series.values() for value in points.values()):
        return ""
    moments = isinstance(table.rows[0][chart.x], datetime)
    drawn = (_over_time if moments else _across)(table, chart, series)
    return drawn + (_part("legend", map(_shown, series)) if len(series) > 1 else "")


def limits(table: Filled) -> str:
    """Say what of a table its chart leaves out, or nothing."""
    chart = table.chart
    if chart is None or not table.rows:
        return ""
    x = {row[chart.x] for row in table.rows}
    if chart.kind == "heat" and chart.series:
        lines = len({row[chart.series] for row in table.rows})
        return f"The chart shows the first {LINES} of {lines}." if lines > LINES else ""
    if chart.series and len(names := {row[chart.series] for row in table.rows}) > SERIES:
        return f"The chart shows the {SERIES} greatest of {len(names)}."
    if not isinstance(table.rows[0][chart.x], datetime) and len(x) > BARS:
        return f"The chart shows the first {BARS} of {len(x) + table.left_out:,}."
    return ""


def _series(table: Filled, chart: Chart) -> dict[str, _Points]:
    found: dict[str, _Points] = {}
    # Several rows of one category or moment add up, but of durations and levels the highest counts.
    highest = chart.unit == "ms" or chart.kind == "line"
    columns = [chart.y] if isinstance(chart.y, str) else list(chart.y)
    for row in table.rows:
        for column in columns:
            names = [_shown(row[chart.series])] if chart.series else []
            if len(columns) > 1 or not names:
                names.append(wording.heading(column))
            points = found.setdefault(" ".join(names), {})
            at, value = row[chart.x], row[column]
            if value is not None and math.isfinite(value):
                before = points.get(at, 0.0)
                points[at] = max(before, float(value)) if highest else before + max(0.0, value)
    # Of too many, those that have most to show.
    size = {name: sum(points.values()) for name, points in found.items()}
    most = set(sorted(size, key=lambda name: -size[name])[:SERIES])
    return {name: points for name, points in found.items() if name in most}


# -- bars of categories: names are long, so they lie -------------------------------------------------


def _across(table: Filled, chart: Chart, series: Mapping[str, _Points]) -> str:
    names = list(dict.fromkeys(row[chart.x] for row in table.rows))
    values = [
        {at: points[name] for at, points in enumerate(series.values()) if name in points}
        for name in names
    ]
    # Where each name has one figure, bars side by side would only leave room for what is not there.
    stacked = chart.kind == "stacked" or max(map(len, values[:BARS])) <= 1
    thick, between = (16, 8) if stacked else (max(6, 24 // len(series)), 12)
    tall = thick * (1 if stacked else len(series))
    most = max(sum(v.values()) if stacked else max(v.values(), default=0) for v in values)
    # Room for the figure behind the longest bar.
    scale = (NARROW - _LABEL - 80) / (most or 1)
    out, y = [], 4
    for name, bars in zip(names[:BARS], values[:BARS], strict=True):
        out.append(_label(name, y + tall / 2 + 4))
        x = float(_LABEL)
        for at, value in bars.items():
            width = value * scale
            top = y if stacked else y + at * thick
            figure = wording.figure(chart.unit, value)
            box = _box(x, top, max(width, 0.5), thick - (0 if stacked else 1))
            out.append(_part("path", f"s{at}", box, f"{_shown(list(series)[at])}: {figure}"))
            if not stacked and thick > 10:
                out.append(_part("text", "v", _LABEL + width + 6, top + thick / 2 + 4, figure))
            x += width if stacked else 0
        if stacked:
            total = wording.figure(chart.unit, sum(bars.values()))
            out.append(_part("text", "v", x + 6, y + tall / 2 + 4, total))
        y += tall + between
    return _part("frame", "narrow", table.title, NARROW, y, out)


# -- over time -----------------------------------------------------------------------------------


def _over_time(table: Filled, chart: Chart, series: Mapping[str, _Points]) -> str:
    left, right, top, high = 58, BROAD - 8, 8, 220
    moments = sorted({row[chart.x] for row in table.rows})
    bucket = _bucket(moments)
    first, last = moments[0], moments[-1] + bucket
    wide = (right - left) / (last - first).total_seconds()
    stacked = chart.kind in ("stacked", "bar")
    together = sum if stacked else max
    most = max(together(points.get(at, 0.0) for points in series.values()) for at in moments)
    ticks = _ticks(most, chart.unit)
    scale = high / ticks[-1]
    bottom = top + high

    def x(at: datetime) -> float:
        return float(left + (at - first).total_seconds() * wide)

    out = []
    for tick in ticks:
        y = bottom - tick * scale
        out.append(_part("path", "g", f"M{left} {y:.1f}H{right}"))
        out.append(_part("text", "a e", left - 6, y + 4, wording.figure(chart.unit, tick)))
    for at, label in _dates(first, last):
        out.append(_part("text", "a m", x(at), bottom + 16, label))
    if stacked:
        width = max(0.8, bucket.total_seconds() * wide * 0.85)
        base: dict[datetime, float] = {}
        boxes = []
        for number, (name, points) in enumerate(series.items()):
            for at, value in points.items():
                if not value:
                    continue
                base[at] = base.get(at, 0.0) + value
                box = _box(x(at), bottom - base[at] * scale, width, value * scale)
                title = f"{wording.moment(at)} {name}: {wording.figure(chart.unit, value)}"
                boxes.append((f"s{number}", box, title))
        out += _boxes(boxes, titled=len(moments) * len(series) <= _TITLED)
    else:
        widest = 1.5 * bucket.total_seconds() * wide
        for number, points in enumerate(series.values()):
            line = [(x(at), bottom - value * scale) for at, value in sorted(points.items())]
            out.append(_part("path", f"l{number}", _line(line, widest)))
    return _part("frame", "broad", table.title, BROAD, bottom + 24, out)


def _line(points: Sequence[tuple[float, float]], widest: float) -> str:
    """Return the path of a line that breaks where moments are missing; a point alone is a dot."""
    path, before = "", -math.inf
    for x, y in points:
        path += f"M{x:.1f} {y:.1f}h0" if x - before > widest else f"L{x:.1f} {y:.1f}"
        before = x
    return path


def _bucket(moments: Sequence[datetime]) -> timedelta:
    """Return the shortest time between two moments: the width of a bar."""
    gaps = [b - a for a, b in itertools.pairwise(moments)]
    return min(gaps, default=timedelta(hours=1))


def _dates(first: datetime, last: datetime) -> list[tuple[datetime, str]]:
    """Return some eight moments to write below the chart."""
    step = next((one for one in _STEPS if (last - first) / one <= 8), _STEPS[-1])
    zero = datetime(2000, 1, 3, tzinfo=UTC)
    at = zero + math.ceil((first - zero) / step) * step
    found = []
    while at < last:
        midnight = not (at.hour or at.minute)
        found.append((at, at.strftime("%b %-d" if midnight else "%H:%M")))
        at += step
    return found


def _ticks(most: float, unit: str | None) -> list[float]:
    """Return round figures from 0 to at least the greatest."""
    # Durations are round in seconds, minutes and hours.
    factor = next((f for f in (3_600_000, 60_000, 1000) if most >= 2 * f), 1) if unit == "ms" else 1
    most = most / factor or 1.0
    power = 10.0 ** math.floor(math.log10(most / 4)) if most > 0 else 1.0
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power * 4 >= most)
    if unit is None:
        step = max(1.0, math.ceil(step))
    number = max(1, math.ceil(most / step))
    return [at * step * factor for at in range(number + 1)]


# -- heat maps -----------------------------------------------------------------------------------


def _heat(table: Filled, chart: Chart) -> str:
    assert chart.series is not None
    assert isinstance(chart.y, str)
    lines = list(dict.fromkeys(row[chart.series] for row in table.rows))[:LINES]
    rows = [
        row for row in table.rows if row[chart.series] in set(lines) and row[chart.y] is not None
    ]
    if not rows:
        return ""
    place, labels, number = _columns([row[chart.x] for row in rows])
    sums: dict[tuple[int, int], float] = {}
    for row in rows:
        column = place(row[chart.x])
        if column is not None:
            key = lines.index(row[chart.series]), column
            sums[key] = sums.get(key, 0.0) + float(row[chart.y])
    most = max(sums.values(), default=0) or 1
    moments = isinstance(rows[0][chart.x], datetime)
    width = BROAD if moments else NARROW
    wide, high = min(44.0, (width - _LABEL - 8) / number), 20
    boxes = []
    for (line, column), value in sums.items():
        if value <= 0:
            continue
        # By the root, so that what is rare can be seen beside what is frequent.
        level = min(_LEVELS, 1 + int(_LEVELS * math.sqrt(value / most)))
        box = _box(_LABEL + column * wide, 4 + line * high, wide - 1, high - 1)
        name = wording.cut(_shown(lines[line]), 40)
        boxes.append((f"h{level}", box, f"{name}: {wording.figure(chart.unit, value)}"))
    out = _boxes(boxes, titled=len(sums) <= 2 * _TITLED)
    out += [_label(line, 4 + at * high + 14) for at, line in enumerate(lines)]
    bottom = 4 + len(lines) * high
    tilted = any(len(label) * 6.5 > max(wide, 50 if moments else 0) for _, label in labels)
    for column, label in labels:
        x = _LABEL + (column + 0.5) * wide
        if tilted:
            out.append(_part("tilted", "a e", x, bottom + 12, wording.cut(label, 16)))
        else:
            out.append(_part("text", "a m", x, bottom + 14, label))
    kind, high = "broad" if moments else "narrow", bottom + (84 if tilted else 22)
    return _part("frame", kind, table.title, width, high, out)


def _columns(found: Sequence[Any]) -> tuple[Any, list[tuple[float, str]], int]:
    """Return where a value stands on a heat map's x axis, the labels there, and how many columns."""
    if isinstance(found[0], datetime):
        moments = sorted(set(found))
        first, bucket = moments[0], _bucket(moments)
        number = int((moments[-1] - first) / bucket) + 1
        # Of too many, several share a column.
        joined = math.ceil(number / CELLS)
        bucket *= joined
        labels = [
            ((at - first) / bucket - 0.5, text) for at, text in _dates(first, moments[-1] + bucket)
        ]
        return (lambda at: int((at - first) / bucket)), labels, math.ceil(number / joined)
    names = list(dict.fromkeys(found))[:LINES]
    where = {name: at for at, name in enumerate(names)}
    return where.get, [(at, _shown(name)) for at, name in enumerate(names)], len(names)


# -- pieces ---------------------------------------------------------------------------------------


def _shown(name: Any) -> str:
    return "(none)" if name is None else wording.printable(str(name))


def _part(name: str, *given: Any) -> Markup:
    """Write a part of a chart by the macro of this name."""
    written: Markup = getattr(template("chart.svg.jinja").module, name)(*given)
    return written


def _box(x: float, y: float, width: float, height: float) -> str:
    """Return the path of a rectangle."""
    return f"M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h-{width:.1f}z"


def _boxes(found: Sequence[tuple[str, str, str]], *, titled: bool) -> list[Markup]:
    """Write rectangles, each its class, path and title; untitled, those of a class are one path."""
    if titled:
        return [_part("path", *box) for box in found]
    paths: dict[str, str] = {}
    for kind, path, _ in found:
        paths[kind] = paths.get(kind, "") + path
    return [_part("path", kind, path) for kind, path in paths.items()]


def _label(name: Any, y: float) -> Markup:
    """Write a name before its bar or line; a long one is cut, and shown whole when it is pointed at."""
    text = _shown(name)
    cut = wording.cut(text, _LETTERS)
    return _part("text", "e", _LABEL - 8, y, cut, text if cut != text else "")
