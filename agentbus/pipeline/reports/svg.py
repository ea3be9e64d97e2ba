"""Draws a table's chart as SVG: bars, stacked bars, lines and heat maps, in classes that CSS colours.

Of libraries, pygal draws no heat maps and needs 150 kB for a chart of 360 bars, half of what the whole
page may have; leather stacks nothing; plotly and altair bring megabytes of script, or fetch it.
"""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from agentbus.pipeline.reports import wording
from agentbus.pipeline.reports.report import Chart
from agentbus.pipeline.reports.running import Filled

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
# Series name -> (where on the x axis, how much), in order.
_Points = list[tuple[Any, float]]


def draw(table: Filled) -> str:
    """Return a table's chart, or nothing if it has none or there is nothing to draw."""
    chart = table.chart
    if chart is None or not table.rows:
        return ""
    if chart.kind == "heat":
        return _heat(table, chart)
    series = _series(table, chart)
    if not any(value for points in series.values() for _, value in points):
        return ""
    moments = isinstance(table.rows[0][chart.x], datetime)
    drawn = (_over_time if moments else _across)(table, chart, series)
    names = [_shown(name) for name in series]
    legend = "".join(
        f'<li class="k{at}">{html.escape(wording.cut(name, 40))}</li>'
        for at, name in enumerate(names)
    )
    return drawn + (f'<ul class="legend">{legend}</ul>' if len(names) > 1 else "")


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
    columns = [chart.y] if isinstance(chart.y, str) else list(chart.y)
    for row in table.rows:
        for column in columns:
            names = [_shown(row[chart.series])] if chart.series else []
            if len(columns) > 1 or not names:
                names.append(wording.heading(column))
            points = found.setdefault(" ".join(names), [])
            value = row[column]
            if value is not None and math.isfinite(value):
                points.append((row[chart.x], float(value)))
    # Of too many, those that have most to show.
    size = {name: sum(value for _, value in points) for name, points in found.items()}
    most = set(sorted(size, key=lambda name: -size[name])[:SERIES])
    return {name: points for name, points in found.items() if name in most}


# -- bars of categories: names are long, so they lie -------------------------------------------------


def _across(table: Filled, chart: Chart, series: Mapping[str, _Points]) -> str:
    values: dict[Any, dict[int, float]] = {row[chart.x]: {} for row in table.rows}
    names = list(values)[:BARS]
    for at, points in enumerate(series.values()):
        for name, value in points:
            before = values[name].get(at, 0.0)
            # Several rows of one name add up, but durations do not.
            values[name][at] = (
                max(before, value) if chart.unit == "ms" else before + max(0.0, value)
            )
    # Where each name has one figure, bars side by side would only leave room for what is not there.
    stacked = chart.kind == "stacked" or max(len(values[name]) for name in names) <= 1
    thick, between = (16, 8) if stacked else (max(6, 24 // len(series)), 12)
    tall = thick * (1 if stacked else len(series))
    most = max(sum(v.values()) if stacked else max(v.values(), default=0) for v in values.values())
    # Room for the figure behind the longest bar.
    scale = (NARROW - _LABEL - 80) / (most or 1)
    out, y = [], 4
    for name in names:
        out.append(_label(name, y + tall / 2 + 4))
        x = float(_LABEL)
        for at, value in sorted(values[name].items()):
            width = value * scale
            top = y if stacked else y + at * thick
            title = f"{_shown(list(series)[at])}: {wording.figure(chart.unit, value)}"
            out.append(_rect(at, x, top, max(width, 0.5), thick - (0 if stacked else 1), title))
            if not stacked and thick > 10:
                figure = wording.figure(chart.unit, value)
                out.append(_text("v", _LABEL + width + 6, top + thick / 2 + 4, figure))
            x += width if stacked else 0
        if stacked:
            total = wording.figure(chart.unit, sum(values[name].values()))
            out.append(_text("v", x + 6, y + tall / 2 + 4, total))
        y += tall + between
    return _svg(table.title, NARROW, y, out)


# -- over time -----------------------------------------------------------------------------------


def _over_time(table: Filled, chart: Chart, series: Mapping[str, _Points]) -> str:
    left, right, top, high = 58, BROAD - 8, 8, 220
    moments = sorted({row[chart.x] for row in table.rows})
    bucket = _bucket(moments)
    first, last = moments[0], moments[-1] + bucket
    wide = (right - left) / (last - first).total_seconds()
    stacked = chart.kind in ("stacked", "bar")
    sums: dict[datetime, float] = {}
    for points in series.values():
        for at, value in points:
            sums[at] = sums.get(at, 0.0) + value if stacked else max(sums.get(at, 0.0), value)
    ticks = _ticks(max(sums.values()), chart.unit)
    scale = high / ticks[-1]
    bottom = top + high

    def x(at: datetime) -> float:
        return float(left + (at - first).total_seconds() * wide)

    out = []
    for tick in ticks:
        y = bottom - tick * scale
        out.append(f'<path class="g" d="M{left} {y:.1f}H{right}"/>')
        out.append(_text("a e", left - 6, y + 4, wording.figure(chart.unit, tick)))
    for at, label in _dates(first, last):
        out.append(_text("a m", x(at), bottom + 16, label))
    if stacked:
        width = max(0.8, bucket.total_seconds() * wide * 0.85)
        base: dict[datetime, float] = {}
        titled = len(moments) * len(series) <= _TITLED
        for number, (name, points) in enumerate(series.items()):
            path = ""
            for at, value in _summed(points).items():
                y = bottom - (base.get(at, 0.0) + value) * scale
                base[at] = base.get(at, 0.0) + value
                if titled:
                    figure = wording.figure(chart.unit, value)
                    title = f"{wording.moment(at)} {name}: {figure}"
                    out.append(_rect(number, x(at), y, width, value * scale, title))
                else:
                    high_ = value * scale
                    path += f"M{x(at):.1f} {y:.1f}h{width:.1f}v{high_:.1f}h-{width:.1f}z"
            out += [f'<path class="s{number}" d="{path}"/>'] if path else []
    else:
        for number, points in enumerate(series.values()):
            out.append(
                _line(
                    number,
                    [(x(at), bottom - v * scale) for at, v in points],
                    1.5 * bucket.total_seconds() * wide,
                )
            )
    return _svg(table.title, BROAD, bottom + 24, out)


def _summed(points: _Points) -> dict[Any, float]:
    """Add up the values of the same moment."""
    found: dict[Any, float] = {}
    for at, value in points:
        if value > 0:
            found[at] = found.get(at, 0.0) + value
    return found


def _line(number: int, points: Sequence[tuple[float, float]], widest: float) -> str:
    """Draw a line that breaks where moments are missing; a point alone is a dot."""
    path, before = "", -math.inf
    highest: dict[float, float] = {}
    for x, y in points:
        # Of several values of one moment (by group, say) the highest; y counts from above.
        highest[x] = min(y, highest.get(x, math.inf))
    for x, y in sorted(highest.items()):
        path += f"M{x:.1f} {y:.1f}h0" if x - before > widest else f"L{x:.1f} {y:.1f}"
        before = x
    return f'<path class="l{number}" d="{path}"/>'


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
    paths: dict[int, list[str]] = {}
    titles = []
    for (line, column), value in sums.items():
        if value <= 0:
            continue
        # By the root, so that what is rare can be seen beside what is frequent.
        level = min(_LEVELS, 1 + int(_LEVELS * math.sqrt(value / most)))
        x, y = _LABEL + column * wide, 4 + line * high
        cell = f"M{x:.1f} {y}h{wide - 1:.1f}v{high - 1}h-{wide - 1:.1f}z"
        if len(sums) <= 2 * _TITLED:
            name = wording.cut(_shown(lines[line]), 40)
            text = html.escape(f"{name}: {wording.figure(chart.unit, value)}")
            titles.append(f'<path class="h{level}" d="{cell}"><title>{text}</title></path>')
        else:
            paths.setdefault(level, []).append(cell)
    out = [f'<path class="h{level}" d="{"".join(cells)}"/>' for level, cells in paths.items()]
    out += titles
    out += [_label(line, 4 + at * high + 14) for at, line in enumerate(lines)]
    bottom = 4 + len(lines) * high
    tilted = any(len(label) * 6.5 > max(wide, 50 if moments else 0) for _, label in labels)
    for column, label in labels:
        x = _LABEL + (column + 0.5) * wide
        if tilted:
            place_ = f'transform="translate({x:.1f} {bottom + 12})rotate(-40)"'
            out.append(f'<text class="a e" {place_}>{html.escape(wording.cut(label, 16))}</text>')
        else:
            out.append(_text("a m", x, bottom + 14, label))
    return _svg(table.title, width, bottom + (84 if tilted else 22), out)


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


def _label(name: Any, y: float) -> str:
    text = _shown(name)
    title = f"<title>{html.escape(wording.cut(text, 256))}</title>" if len(text) > _LETTERS else ""
    short = html.escape(wording.cut(text, _LETTERS))
    return f'<text class="e" x="{_LABEL - 8}" y="{y:.1f}">{short}{title}</text>'


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{html.escape(text)}</text>'


def _rect(number: int, x: float, y: float, width: float, height: float, title: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    inside = f"><title>{html.escape(wording.cut(title, 200))}</title></rect>" if title else "/>"
    return f'<rect class="s{number}" {place}{inside}'


def _svg(title: str, width: int, height: float, pieces: Sequence[str]) -> str:
    kind = "broad" if width == BROAD else "narrow"
    return (
        f'<div class="chart"><svg class="{kind}" viewBox="0 0 {width} {height:.0f}" role="img"'
        f' aria-label="{html.escape(title)}">{"".join(pieces)}</svg></div>'
    )
