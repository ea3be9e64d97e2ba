"""Activity: how much each agent said and published, on which topics, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from agentbus.pipeline.reports.aggregate import Figures, Row
from agentbus.pipeline.reports.arithmetic import ordered, summed
from agentbus.pipeline.reports.entries import COUNTS, ENTRIES, counted, talk_seconds
from agentbus.pipeline.reports.report import Chart, Report, Table

# Maximum number of agents in the heat map, and of cells.
_LINES, _CELLS = 20, 8000
_MOMENTS = 1500
_TABLES = ("agents", "times", "heat", "topics")


def by(figures: Figures, what: str) -> list[Row]:
    """Return the messages, events, tasks and bytes of each agent or topic."""
    rows = _named(counted(figures, what), what)
    rows = ordered(rows, "-events", f"{what}?")
    return sorted(rows, key=lambda row: -(row["messages"] + row["tasks"]))


def _named(rows: Iterable[Row], what: str) -> list[Row]:
    """Sum up the rows of each name."""
    return [{what: name, **sums} for (name,), sums in summed(rows, ("name",), COUNTS).items()]


def times(figures: Figures) -> list[Row]:
    """Return the same figures by time (seconds to days, depending on the span)."""
    rows = ({**row, "time": _time(figures, row)} for row in counted(figures, "agent"))
    found = summed(rows, ("time",), COUNTS)
    return ordered(({"time": time, **sums} for (time,), sums in found.items()), "time")


def heat(figures: Figures) -> list[Row]:
    """Return entries by agent and time, for the most active agents."""
    cells: Counter[tuple[str, datetime | None]] = Counter()
    all_of: Counter[str] = Counter()
    for row in counted(figures, "agent"):
        if row["name"] is not None:
            entries = row["messages"] + row["events"] + row["tasks"]
            cells[row["name"], _time(figures, row)] += entries
            all_of[row["name"]] += entries
    most = sorted(all_of, key=lambda agent: (-all_of[agent], agent))[:_LINES]
    place = {agent: number for number, agent in enumerate(most)}
    rows = [
        {"agent": agent, "time": time, "entries": entries}
        for (agent, time), entries in cells.items()
        if agent in place
    ]
    return sorted(ordered(rows, "time"), key=lambda row: place[row["agent"]])


def _time(figures: Figures, row: Row) -> datetime | None:
    slot = row["slot"]
    return None if slot is None else figures.moment(slot * talk_seconds(figures.span))


def build(figures: Figures) -> Sequence[Table]:
    """Return the tables of activity."""
    bucket = figures.span.bucket
    return (
        Table(
            "agents",
            "By agent",
            ("agent", *COUNTS),
            by(figures, "agent"),
            Chart("stacked", "agent", ("messages", "events", "tasks")),
            note="Tasks of other programs may have no agent.",
        ),
        Table(
            "times",
            f"By {bucket}",
            ("time", *COUNTS),
            times(figures),
            Chart("stacked", "time", ("messages", "events", "tasks")),
            top=_MOMENTS,
        ),
        Table(
            "heat",
            f"Agents by {bucket}",
            ("agent", "time", "entries"),
            heat(figures),
            Chart("heat", "time", "entries", series="agent"),
            note=f"Messages, events and tasks together, of the {_LINES} busiest agents.",
            top=_CELLS,
        ),
        Table(
            "topics",
            "By topic",
            ("topic", *COUNTS),
            by(figures, "topic"),
            Chart("stacked", "topic", ("messages", "events", "tasks")),
            note="Most tasks, and messages to all agents, have no topic.",
        ),
    )


REPORT = Report(
    "activity",
    "Activity",
    "How much agents said and published, on which topics, and when. A message was said by an agent, an"
    " event was written by the bus about a flag or a note, a task was published to a queue. Bytes are"
    " those of messages and payloads.",
    (ENTRIES,),
    _TABLES,
    build,
    "Nothing was said or published in this time.",
)
