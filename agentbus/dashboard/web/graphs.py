"""Draws the chain of a task and the history of a queue as SVG, with the same data as text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from agentbus.core.clock import rfc3339
from agentbus.core.escape import escaped
from agentbus.core.readable import age, cut, number
from agentbus.dashboard.history import RANGES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from agentbus.dashboard.history import History
    from agentbus.dashboard.task_chain import Chain, ChainTask
    from agentbus.dashboard.web.page import PageView
    from agentbus.workers.metrics import Durations

# Pixels: width and height of a task's box, and the gaps between columns and between rows.
_WIDE, _HIGH, _GAP, _LINE = 190, 46, 56, 16
# Maximum characters of a line in a task's box.
_LETTERS = 25
# The fewest points from which a chart is drawn, and the seconds of a chart whose times need no day.
_LEAST, _HOUR = 3, 7_200.0
# Pixels of a chart: its width, the space above for the largest value, its height, and the
# space below for the times.
_CHART, _TOP, _TALL, _BELOW = 360, 16, 112, 18
_IDS: Mapping[str, str] = {}
_SAID = {"caused": "caused", "before": "comes before", "replayed": "was replayed as"}


def chain(
    found: Chain, this: str, address: Callable[[ChainTask], str], names: Mapping[str, str] = _IDS
) -> Markup:
    """Return a chain's tasks as boxes in order of time, with an arrow for each link.

    `names` are shown in place of ids.
    """
    depths = _depths(found)
    rows: dict[int, int] = {}
    places = {}
    for one in found.tasks:
        depth = depths[one.id]
        row = rows[depth] = rows.get(depth, -1) + 1
        places[one.id] = depth * (_WIDE + _GAP) + 2, row * (_HIGH + _LINE) + 2
    width = (max(depths.values()) + 1) * (_WIDE + _GAP) - _GAP + 4
    height = (max(rows.values()) + 1) * (_HIGH + _LINE) - _LINE + 4
    arrows, boxes = Markup(), Markup()
    for link in found.links:
        (x1, y1), (x2, y2) = places[link.start], places[link.to]
        arrows += Markup('<path class="{kind}" d="{path}" marker-end="url(#arrow)"/>').format(
            kind=link.kind, path=_curve(x1 + _WIDE, y1 + _HIGH // 2, x2 - 3, y2 + _HIGH // 2)
        )
    for one in found.tasks:
        name = names.get(one.id, one.id)
        boxes += _box(one, name, *places[one.id], "" if one.id == this else address(one))
    return Markup(
        '<div class="scroll"><svg class="chain" viewBox="0 0 {w} {h}" width="{w}" height="{h}"'
        ' role="group" aria-label="The tasks around this one, as boxes; the table below has the same">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
        ' orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>{arrows}{boxes}</svg></div>'
    ).format(w=width, h=height, arrows=arrows, boxes=boxes)


def links_of(found: Chain, task: str) -> list[str]:
    """Return the links of a task to later tasks of the chain, in words."""
    return [f"{_SAID[one.kind]} {one.to}" for one in found.links if one.start == task]


def _box(one: ChainTask, name: str, x: int, y: int, link: str) -> Markup:
    said = one.state if one.queue is None else f"{one.state} in {one.queue}"
    box = Markup(
        '<rect class="{state}" x="{x}" y="{y}" width="{w}" height="{h}" rx="6"/>'
        '<text x="{tx}" y="{y1}">{id}</text><text class="soft" x="{tx}" y="{y2}">{said}</text>'
    ).format(
        state=f"task {one.state}" + ("" if link else " this"),
        x=x,
        y=y,
        w=_WIDE,
        h=_HIGH,
        tx=x + 10,
        y1=y + 19,
        y2=y + 36,
        id=escaped(cut(name, _LETTERS)),
        said=escaped(cut(said, _LETTERS)),
    )
    if not link or one.queue is None:
        return Markup("<g>{}</g>").format(box)
    return Markup('<a href="{link}">{box}</a>').format(link=link, box=box)


def _depths(found: Chain) -> dict[str, int]:
    """Return the column of each task: after those of all earlier tasks, unless in a cycle."""
    depths = {one.id: 0 for one in found.tasks}
    for _ in range(len(depths)):
        before = dict(depths)
        for one in found.links:
            depths[one.to] = max(depths[one.to], min(depths[one.start] + 1, len(depths) - 1))
        if depths == before:
            break
    columns = sorted(set(depths.values()))
    return {task: columns.index(depth) for task, depth in depths.items()}


def _curve(x1: int, y1: int, x2: int, y2: int) -> str:
    bend = max(20, abs(x2 - x1) // 2)
    return f"M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"


async def history_of(
    view: PageView, key: tuple[object, ...], queue: str | None = None
) -> dict[str, Any]:
    """Return the charts of the range that a page's query names, and its name."""
    wanted = view.param("range") or "1h"
    if wanted not in RANGES:
        wanted = "1h"

    async def drawn() -> Markup:
        return charts(await view.dashboard.history(queue=queue, range=wanted), wanted)

    found = await view.shared((*key, wanted), drawn)
    return {"charts": found, "range": wanted, "ranges": RANGE_NAMES}


RANGE_NAMES = {"1h": "last hour", "24h": "last day", "7d": "last week"}


def charts(found: History, wanted: str) -> Markup:
    """Return the charts of a range: tasks done and failed, run times, and waiting times."""
    points, width = found.points, RANGES[wanted][0]
    # Nothing is known of the time before the oldest sample.
    known = [found.since is not None and one.at + width > found.since for one in points]
    done = [one.done if k else None for one, k in zip(points, known, strict=True)]
    failed = [one.failed if k else None for one, k in zip(points, known, strict=True)]
    scale = _Scale(RANGE_NAMES[wanted], points[0].at, points[-1].at)
    rates = _chart(
        "Done and failed a second", [("done", done), ("failed", failed)], _per_second, scale
    )
    running = _spans("Run time, p50 and p95", [one.running for one in points], scale)
    waiting = _spans("Wait, p50 and p95", [one.waiting for one in points], scale)
    return rates + running + waiting


class _Scale(NamedTuple):
    """The range of a chart in words, and the times of its first and its last point."""

    said: str
    begins: float
    ends: float

    def time(self, at: float) -> str:
        """Return a time of the chart, with its day if the chart has several."""
        utc = rfc3339(at)
        return utc[11:16] if self.ends - self.begins < _HOUR else f"{utc[5:10]} {utc[11:16]}"


def _per_second(value: float) -> str:
    return f"{number(value)}/s"


def _spans(title: str, found: Sequence[Durations | None], scale: _Scale) -> Markup:
    p50 = [None if one is None else one.p50 for one in found]
    p95 = [None if one is None else one.p95 for one in found]
    return _chart(title, [("p50", p50), ("p95", p95)], age, scale)


def _chart(
    title: str,
    series: Sequence[tuple[str, Sequence[float | None]]],
    said: Callable[[float], str],
    scale: _Scale,
) -> Markup:
    """Return a line chart with its axis from zero, gaps at points without a value, and a legend."""
    most = _ceiling(max((value for _, values in series for value in values if value), default=0.0))
    drawn = max(sum(one is not None for one in values) for _, values in series) >= _LEAST
    lines, legend = Markup(), Markup()
    words = []
    for name, values in series:
        known = [value for value in values if value is not None]
        if drawn:
            lines += Markup('<path class="line {name}" d="{path}"/>').format(
                name=name, path=_path(values, most)
            )
        about = f"last {said(known[-1])}, at most {said(max(known))}" if known else "none"
        legend += Markup('<li class="{name}">{name} <span class="soft">{about}</span></li>').format(
            name=name, about=about
        )
        words.append(f"{name}: {about}")
    if not drawn:
        lines = Markup('<text class="middle" x="{x}" y="{y}">Not enough data yet</text>').format(
            x=_CHART // 2, y=(_TOP + _TALL) // 2
        )
        words.append("Not enough data yet for a chart")
    return Markup(
        '<figure class="chart"><figcaption><b>{title}</b><ul class="legend">{legend}</ul></figcaption>'
        '<svg viewBox="0 0 {w} {h}" role="img" aria-label="{title} in the {range}. {text}">'
        '<path class="axis" d="M0 {low}H{w}M0 {half}H{w}M0 {top}H{w}"/>{lines}'
        '<text x="0" y="{above}">{most}</text><text x="0" y="{zero}">0</text>'
        '<text x="0" y="{below}">{start}</text>'
        '<text class="end" x="{w}" y="{below}">{end}</text></svg></figure>'
    ).format(
        title=title,
        legend=legend,
        range=scale.said,
        text="; ".join(words),
        lines=lines,
        w=_CHART,
        h=_TALL + _BELOW,
        top=_TOP,
        above=_TOP - 3,
        half=(_TOP + _TALL) // 2,
        low=_TALL,
        zero=_TALL - 3,
        below=_TALL + 14,
        most=said(most) if most and drawn else "",
        start=scale.time(scale.begins),
        end=f"{scale.time(scale.ends)} UTC",
    )


def _ceiling(value: float) -> float:
    """Return the next round number, at which an axis ends."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * 0.9999)


def _path(values: Sequence[float | None], most: float) -> str:
    found, pen = [], "M"
    for at, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x = at * _CHART / max(1, len(values) - 1)
        y = _TALL - (_TALL - _TOP) * (value / most if most else 0.0)
        found.append(f"{pen}{x:.1f} {y:.1f}")
        # Draw a point without neighbours as a short line.
        if pen == "M" and (at + 1 == len(values) or values[at + 1] is None):
            found.append("h2")
        pen = "L"
    return "".join(found)
