"""Writes the results of reports as one self-contained page, without external files.

All content of the archive is data: the template escapes it, and the page's policy allows only the
page's own script, in case an escape is missing.
"""

from __future__ import annotations

import os
import pathlib
from datetime import UTC, datetime
from importlib import resources

from markupsafe import Markup

from agentbus.core.errors import AgentBusError
from agentbus.pipeline.archives.directory import written_beside
from agentbus.pipeline.reports import svg, wording
from agentbus.pipeline.reports.running import Filled, Outcome
from agentbus.pipeline.reports.templates import template
from agentbus.pipeline.rows import schema

LIMIT = 300_000
# Limits on the rows of a table and the bytes of charts, tried in order until the page is within its
# limit.
_ROOM = ((25, 60_000), (12, 60_000), (6, 40_000), (3, 20_000), (1, 10_000), (0, 4_000))
_WORDS = {
    schema.CHANNEL: "entries of the channel",
    schema.QUEUE: "tasks published",
    schema.DEAD_LETTER: "dead letters",
    schema.METRICS: "entries of metrics",
    schema.EVENT: "events",
    schema.INBOX: "messages to one agent",
    schema.ATTEMPT: "attempts at tasks",
}


def render(
    outcome: Outcome, *, source: str, project: str | None = None, now: datetime | None = None
) -> str:
    """Return the page, of at most 300 kB. `source` describes the data in a few words.

    The title is the `project`, or else the source.
    """
    style, script = (
        Markup(resources.files(__package__).joinpath(name).read_text("utf-8"))  # noqa: S704
        for name in ("page.css", "page.js")
    )
    page = ""
    for most_rows, most_drawn in _ROOM:
        page = template("page.html.jinja").render(
            outcome=outcome,
            source=source,
            project=project,
            made=now or datetime.now(UTC),
            tiles=_tiles(outcome),
            style=style,
            script=script,
            draw=svg.draw,
            limits=svg.limits,
            kinds=_kinds,
            most_rows=most_rows,
            most_drawn=most_drawn,
        )
        if len(page.encode()) <= LIMIT:
            break
    return page


def write(text: str, path: pathlib.Path) -> None:
    """Write a page atomically.

    Raises `AgentBusError` if it cannot be written, and leaves no file behind.
    """
    try:
        with written_beside(str(path), text.encode()) as beside:
            # Other users may read a page, whatever the umask.
            os.chmod(beside, 0o644)
            os.replace(beside, path)
    except OSError as error:
        raise AgentBusError(
            f"the page could not be written to {str(path)!r} ({error.strerror or error})",
            hint="name a file in a directory that is there, may be written to, and has room",
        ) from error


def _tiles(outcome: Outcome) -> list[tuple[str, int]]:
    """Return the totals at the head of the page, each with its label."""
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
    return [*found, ("lost before archived", summary.lost)]


def _kinds(table: Filled) -> dict[str, str]:
    """Return the CSS class of each column's cells: `n` for figures, `t` for times, else none."""
    kinds = {}
    for name in table.columns:
        first = next((row[name] for row in table.rows if row[name] is not None), None)
        figures = isinstance(first, (int, float)) and not isinstance(first, bool)
        # Of durations that are too short to be measured, all may be null.
        figures = figures or (first is None and wording.unit(name) is not None)
        kinds[name] = "n" if figures else "t" if isinstance(first, datetime) else ""
    return kinds
