"""Draws the chain of a task and the last hour of a queue as SVG, with the same data as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from agentbus.core.clock import rfc3339
from agentbus.core.escape import escaped
from agentbus.core.readable import age, cut, number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentbus.dashboard.dashboard import Dashboard
    from agentbus.dashboard.history import History
    from agentbus.dashboard.task_chain import Chain, ChainTask
    from agentbus.store.verb import Awaiting
    from agentbus.workers.metrics import Durations

# Pixels: width and height of a task's box, and the gaps between columns and between rows.
_WIDE, _HIGH, _GAP, _LINE = 190, 46, 56, 16
# Maximum characters of a line in a task's box.
_LETTERS = 25
# Pixels of an hour's chart: its width, the space above for the largest value, its height, and the
# space below for the times.
_CHART, _TOP, _TALL, _BELOW = 360, 14, 110, 16
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


async def hour_of(dashboard: Dashboard[Awaiting], queue: str | None = None) -> Markup:
    """Return the charts of the last hour of a project, or of a queue."""
    return hour(await dashboard.history(queue=queue))


def hour(found: History) -> Markup:
    """Return the charts of an hour: tasks done and failed, run times, and waiting times."""
    points = found.points
    rates = _chart(
        "Done and failed a second",
        [("done", [one.done for one in points]), ("failed", [one.failed for one in points])],
        number,
        points[0].at,
    )
    running = _spans("Run time, p50 and p95", [one.running for one in points], points[0].at)
    waiting = _spans("Wait, p50 and p95", [one.waiting for one in points], points[0].at)
    return rates + running + waiting


def _spans(title: str, found: Sequence[Durations | None], begins: float) -> Markup:
    return _chart(
        title,
        [
            ("p50", [None if one is None else one.p50 for one in found]),
            ("p95", [None if one is None else one.p95 for one in found]),
        ],
        age,
        begins,
    )


def _chart(
    title: str,
    series: Sequence[tuple[str, Sequence[float | None]]],
    said: Callable[[float], str],
    begins: float,
) -> Markup:
    """Return a line chart, with gaps at points without a value."""
    most = max((value for _, values in series for value in values if value), default=0.0)
    lines = Markup()
    words = []
    for name, values in series:
        known = [value for value in values if value is not None]
        if most:
            lines += Markup('<path class="line {name}" d="{path}"/>').format(
                name=name, path=_path(values, most)
            )
        words.append(
            f"{name}: at most {said(max(known))}, last {said(known[-1])}"
            if known
            else f"{name}: none"
        )
    text = "; ".join(words)
    last = begins + 60 * (len(series[0][1]) - 1)
    return Markup(
        '<figure class="chart"><figcaption><b>{title}</b> <span class="soft">{text}</span></figcaption>'
        '<svg viewBox="0 0 {w} {h}" role="img" aria-label="{title} in the last hour. {text}">'
        '<path class="axis" d="M0 {low}H{w}M0 {top}H{w}"/>{lines}'
        '<text x="0" y="10">{most}</text><text x="0" y="{below}">{start}</text>'
        '<text class="end" x="{w}" y="{below}">{end}</text></svg></figure>'
    ).format(
        title=title,
        text=text,
        lines=lines,
        w=_CHART,
        h=_TALL + _BELOW,
        top=_TOP,
        low=_TALL,
        below=_TALL + 13,
        most=said(most) if most else "",
        start=rfc3339(begins)[11:16],
        end=f"{rfc3339(last)[11:16]} UTC",
    )


def _path(values: Sequence[float | None], most: float) -> str:
    found, pen = [], "M"
    for at, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        x = at * _CHART / max(1, len(values) - 1)
        found.append(f"{pen}{x:.1f} {_TALL - 1 - (_TALL - 1 - _TOP) * value / most:.1f}")
        # Draw a point without neighbours as a short line.
        if pen == "M" and (at + 1 == len(values) or values[at + 1] is None):
            found.append("h2")
        pen = "L"
    return "".join(found)
