"""Writes what reports found as one page that stands alone: no script, font or image from elsewhere.

All that comes from the archive is data: it is escaped, and a policy in the page lets no script run
but the page's own, should an escape ever be missing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import os
import pathlib
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from agentbus.core.errors import AgentBusError
from agentbus.pipeline.reports import svg, wording
from agentbus.pipeline.reports.running import Filled, Outcome, Result, Summary
from agentbus.pipeline.rows import schema

LIMIT = 300_000
# Limits on the rows of a table and the bytes of charts on the page; lower where it would grow
# beyond its limit.
_ROOM = ((25, 60_000), (12, 60_000), (6, 40_000), (3, 20_000), (1, 10_000), (0, 4_000))
_LETTERS = 60
# A table of so few rows is open below its chart.
_FEW = 8
_COLUMNS = 6
_Room = tuple[int, int]
_WORDS = {
    schema.CHANNEL: "entries of the channel",
    schema.QUEUE: "tasks published",
    schema.DEAD_LETTER: "dead letters",
    schema.METRICS: "entries of metrics",
    schema.EVENT: "events",
}


def render(outcome: Outcome, *, source: str, now: datetime | None = None) -> str:
    """Return the page, of at most 300 kB. `source` says in a few words what was read."""
    made = now or datetime.now(UTC)
    page = ""
    for room in _ROOM:
        page = _page(outcome, source, made, room)
        if len(page.encode()) <= LIMIT:
            break
    return page


def write(text: str, path: pathlib.Path) -> None:
    """Write a page as a whole: it appears at its path complete, or what was there stays.

    Raises `AgentBusError` if it cannot be written; then nothing is left behind.
    """
    beside = None
    try:
        # The same directory: only there is a rename one step.
        number, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
        beside = pathlib.Path(name)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files for their owner alone; a page is for others, too.
        beside.chmod(0o644)
        beside.replace(path)
    except OSError as error:
        if beside is not None:
            with contextlib.suppress(OSError):
                beside.unlink()
        raise AgentBusError(
            f"the page could not be written to {str(path)!r} ({error.strerror or error})",
            hint="name a file in a directory that is there, may be written to, and has room",
        ) from error


def _page(outcome: Outcome, source: str, made: datetime, room: _Room) -> str:
    style, script = (
        resources.files(__package__).joinpath(name).read_text("utf-8")
        for name in ("page.css", "page.js")
    )
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    sections = "".join(_section(one, room) for one in outcome.results)
    links = "".join(
        f'<a href="#{one.name}"{" class=none" if one.empty else ""}>{_text(one.title)}</a>'
        for one in outcome.results
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>AgentBus: {_text(source)}</title><style>{style}</style></head><body>\n"
        f"<header><h1>{_text(source)}</h1>{_range(outcome.summary)}</header>\n"
        f"{_tiles(outcome)}\n{_losses(outcome.summary)}\n"
        f"<nav>{links}</nav>\n<main>{sections}</main>\n"
        f"<footer>Made by <b>agentbus report</b> on {wording.moment(made.replace(microsecond=0))} UTC in"
        f" {wording.duration(outcome.seconds * 1000)}. All times are UTC.</footer>\n"
        f"<script>{script}</script></body></html>\n"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# -- the head ---------------------------------------------------------------------------------------


def _range(summary: Summary) -> str:
    span = summary.span
    if span.first is None or span.last is None:
        return '<p class="soft">There is no entry in this time.</p>'
    first, last = (at.replace(microsecond=0) for at in (span.first, span.last))
    long = wording.duration((span.last - span.first).total_seconds() * 1000)
    return f'<p class="soft">{wording.moment(first)} to {wording.moment(last)} UTC ({long})</p>'


def _tiles(outcome: Outcome) -> str:
    summary = outcome.summary
    found = [("entries", summary.total)]
    found += [(_WORDS[kind], n) for kind, n in summary.rows.items() if kind in _WORDS]
    found.append(("streams", summary.streams))
    for one in outcome.results:
        for table in one.tables:
            if (one.name, table.name) in (("activity", "agents"), ("flags", "flags")):
                key = "agent" if table.name == "agents" else "flag"
                named = sum(1 for row in table.rows if row[key] is not None)
                found.append((table.name, named + table.left_out))
    found.append(("lost before archived", summary.lost))
    tiles = "".join(f'<div class="tile"><b>{n:,}</b><span>{what}</span></div>' for what, n in found)
    return f'<div class="tiles">{tiles}</div>'


def _losses(summary: Summary) -> str:
    if not summary.lost:
        return '<p class="note">No entry is known to have been lost before it was archived.</p>'
    lines = "".join(
        f"<li><bdi>{_text(one.stream)}</bdi>: {one.lost:,}"
        + (f", up to {wording.moment(one.until.replace(microsecond=0))}" if one.until else "")
        + "</li>"
        for one in summary.losses
    )
    many = "1 entry was" if summary.lost == 1 else f"{summary.lost:,} entries were"
    return (
        f'<div class="warn"><p><b>{many} gone before they could be archived</b>, so that the figures'
        f" below are too small by what these would add:</p><ul>{lines}</ul></div>"
    )


# -- a report -----------------------------------------------------------------------------------------


def _section(result: Result, room: _Room) -> str:
    head = f'<section id="{result.name}"><h2>{_text(result.title)}</h2>'
    head += f'<p class="soft">{_text(result.about)}</p>'
    if result.empty is not None:
        return f"{head}<p>{_text(result.empty)}</p></section>\n"
    cards = "".join(_card(table, room) for table in result.tables if table.rows)
    none = [table.title.lower() for table in result.tables if not table.rows]
    rest = f'<p class="note">Nothing to tell: {_text("; ".join(none))}.</p>' if none else ""
    return f'{head}<div class="cards">{cards}</div>{rest}</section>\n'


def _card(table: Filled, room: _Room) -> str:
    rows, most = room
    chart = svg.draw(table)
    if len(chart) > most:
        chart = '<p class="note">There is no room for this chart on the page.</p>'
    moments = table.chart is not None and isinstance(table.rows[0][table.chart.x], datetime)
    notes = " ".join(filter(None, (table.note, svg.limits(table))))
    note = f'<p class="note">{_text(notes)}</p>' if notes else ""
    return (
        f'<div class="card{" wide" if moments else ""}" id="{table.report}-{table.name}">'
        f"<h3>{_text(table.title)}</h3>{chart}{note}{_rows(table, rows, open=not chart)}</div>"
    )


def _rows(table: Filled, most: int, *, open: bool) -> str:
    shown = table.rows[:most]
    number = len(table.rows) + table.left_out
    counted = "1 row" if number == 1 else f"{number:,} rows"
    rest = number - len(shown)
    if not shown:
        return f'<p class="note">{counted}.</p>'
    title = f"{counted}, the first {len(shown)} of them here" if rest else counted
    figures = {name: _is_figure(table, name) for name in table.columns}
    head = "".join(
        f"<th{' class=n' if figures[name] else ''}><button>{_text(wording.heading(name))}</button></th>"
        for name in table.columns
    )
    body = "".join(f"<tr>{_cells(table, row, figures)}</tr>" for row in shown)
    # Its card takes the whole width while the table is open.
    many = " class=many" if len(table.columns) > _COLUMNS else ""
    state = " open" if open or number <= _FEW else ""
    return (
        f"<details{state}><summary>{title}</summary>"
        f'<div class="scroll"><table{many}><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div></details>"
    )


def _cells(table: Filled, row: Mapping[str, Any], figures: Mapping[str, bool]) -> str:
    cells = []
    for name in table.columns:
        value, text = row[name], wording.cell(name, row[name])
        if figures[name]:
            plain = "" if value is None else f' data-v="{value:.10g}"'
            cells.append(f"<td class=n{plain}>{_text(text)}</td>")
        elif isinstance(value, datetime):
            cells.append(f"<td class=t>{_text(text)}</td>")
        elif value is None:
            cells.append(f"<td>{wording.NOTHING}</td>")
        else:
            cut = wording.cut(text, _LETTERS)
            title = f' title="{_text(wording.cut(text, 256))}"' if cut != text else ""
            cells.append(f"<td><bdi{title}>{_text(cut)}</bdi></td>")
    return "".join(cells)


def _is_figure(table: Filled, name: str) -> bool:
    values = [row[name] for row in table.rows if row[name] is not None]
    return bool(values) and all(
        isinstance(one, (int, float)) and not isinstance(one, bool) for one in values
    )


def _text(text: str) -> str:
    return html.escape(wording.printable(text))
