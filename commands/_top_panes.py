"""The five panes of `top`: their rows, their columns, and the details that rows open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentbus.commands import _format, _message, _top_details as details
from agentbus.commands._top_table import Column, sparkline
from agentbus.coordination.leases import shown
from agentbus.core.clock import of_day, rfc3339
from agentbus.core.names import word

if TYPE_CHECKING:
    from agentbus.commands._top_details import Detail
    from agentbus.coordination.presence import Presence
    from agentbus.dashboard import QueueRow, Snapshot, Totals

PANES = ("agents", "talk", "queues", "flags and leases", "health")
_RED, _YELLOW, _DIM = "bold red", "yellow", "dim"
# The terminal width from which there is room for longer sparklines.
_WIDE = 120


class Left:
    """A line of the talk with the number of messages that are not shown."""

    def __init__(self, number: int) -> None:
        self.number = number


def columns(pane: str, width: int, now: float) -> list[Column]:
    """Return the columns of a pane for a width."""
    if pane == "queues":
        return _queues(30 if width >= _WIDE else 10)
    if pane == "agents":
        return _agents(now)
    if pane == "flags and leases":
        return _FLAGS(now)
    return _TALK if pane == "talk" else _HEALTH


def totals(row: Totals) -> str:
    """Return the line of the totals."""
    dead = f"+{row.dead_workers}†" if row.dead_workers else ""
    said = [
        *(f"backlog {row.backlog:,}", f"running {row.held:,}", f"delayed {row.delayed:,}"),
        *(f"dead {row.dead:,}", f"{_format.number(row.rate)}/s", f"workers {row.workers}{dead}"),
        *(f"unread {row.unread:,}", f"flags {row.flags}", f"leases {row.leases}"),
    ]
    said += [f"waiting {row.waiters}"] if row.waiters else []
    said += [f"quarantined {row.quarantined}"] if row.quarantined else []
    said += [f"blocked {row.blocked:,}"] if row.blocked else []
    said += [f"event streams {row.event_streams}"] if row.event_streams else []
    return "  ".join(said)


def _name(row: QueueRow) -> str:
    group = row.stats.group
    named = word(row.stats.queue) + (f" {word(group)}" if group not in (None, "default") else "")
    return named + (" ‖" if row.paused is not None else "")


def _trouble(row: QueueRow) -> str:
    if row.trouble == "no worker":
        return _RED
    return _YELLOW if row.trouble else ""


def _workers(row: QueueRow) -> str:
    dead = f"+{row.dead_workers}†" if row.dead_workers else ""
    return f"{row.stats.consumers}{dead}"


def _queues(bars: int) -> list[Column]:
    def figure(name: str, title: str, rank: int) -> Column:
        return Column(title, lambda row: str(getattr(row.stats, name)), rank=rank)

    backlog = Column(
        "BACKLOG",
        lambda row: str(row.stats.backlog) if row.stats.exact else f"{row.stats.backlog}+",
        style=_trouble,
    )
    return [
        Column("QUEUE", _name, left=True, style=_trouble),
        backlog,
        Column("OLDEST", lambda row: _format.age(row.stats.oldest), rank=2),
        figure("pending", "RUN", 3),
        figure("retrying", "RETRY", 4),
        figure("delayed", "DELAY", 5),
        Column(
            "DEAD",
            lambda row: str(row.stats.dead),
            rank=1,
            style=lambda row: _RED if row.stats.dead else "",
        ),
        Column("WORK", _workers, rank=2, style=lambda row: _RED if row.dead_workers else ""),
        Column("RATE/s", lambda row: _format.number(row.stats.rate), rank=3),
        Column("p95", lambda row: _format.share(row.stats.running, "p95"), rank=6),
        Column("TREND", lambda row: sparkline(row.points, bars), rank=7, left=True, width=bars),
        Column("BLOCK", lambda row: str(row.stats.blocked), rank=9),
        Column("p50", lambda row: _format.share(row.stats.running, "p50"), rank=10),
        Column("WAIT p95", lambda row: _format.share(row.stats.waiting, "p95"), rank=11),
        Column(
            "TROUBLE",
            lambda row: f"paused {row.paused}" if row.paused is not None else row.trouble or "",
            left=True,
            rank=8,
            style=_trouble,
        ),
    ]


def _agents(now: float) -> list[Column]:
    def where(agent: Presence) -> str:
        return " ".join(word(part) for part in (agent.client, agent.branch) if part)

    return [
        Column("AGENT", lambda row: word(row.agent), left=True),
        Column("STATE", lambda row: row.state or "seen", left=True),
        Column("SEEN", lambda row: _format.age(now - row.seen), rank=1),
        Column(
            "UNREAD", lambda row: str(row.unread), style=lambda row: _YELLOW if row.unread else ""
        ),
        Column("LEASES", lambda row: str(len(row.leases)), rank=3),
        Column("DOING", lambda row: row.doing or "", left=True, rank=2),
        Column("WHERE", where, left=True, rank=4),
        Column("HOST", lambda row: word(row.host) if row.host else "", left=True, rank=5),
    ]


def _spoken(message: Any) -> str:
    if isinstance(message, Left):
        came = "message came, and is" if message.number == 1 else "messages came, and are"
        return f"… {message.number:,} more {came} left out"
    return _message.line(message.agent_id, message.topic, message.text, notice=message.event)


_TALK = [
    Column(
        "AT",
        lambda row: "" if isinstance(row, Left) else rfc3339(row.timestamp)[11:19],
        left=True,
        style=lambda _one: _DIM,
        rank=1,
    ),
    Column(
        "SPOKEN",
        _spoken,
        left=True,
        style=lambda row: _YELLOW if isinstance(row, Left) else _DIM if row.event else "",
    ),
]
_HEALTH = [
    Column(
        "SEVERITY",
        lambda row: row.severity,
        left=True,
        style=lambda row: _RED if row.severity == "critical" else _YELLOW,
        rank=2,
    ),
    Column("CHECK", lambda row: row.check, left=True, rank=1),
    Column("FINDING", lambda row: row.text, left=True),
    Column("REMEDY", lambda row: row.remedy, left=True, rank=3),
]


def _FLAGS(now: float) -> list[Column]:  # noqa: N802
    return [
        Column("WHAT", lambda row: row.what, left=True),
        Column("STATE", lambda row: row.state, left=True),
        Column("BY", lambda row: word(row.by) if row.by else "", left=True),
        Column(
            "AGE",
            lambda row: _format.age(None if row.at is None else now - row.at),
            rank=2,
        ),
        Column("ENDS", lambda row: row.ends, left=True, rank=1),
        Column(
            "WAITING",
            lambda row: str(row.waiting) if row.waiting else "",
            style=lambda _one: _YELLOW,
            rank=3,
        ),
        Column("WHY", lambda row: row.why, left=True, rank=4),
    ]


class Held:
    """A row of the pane of flags and leases."""

    def __init__(self, key: str, what: str, state: str, by: str | None, at: float | None) -> None:
        self.key = key
        self.what = what
        self.state = state
        self.by = by
        self.at = at
        self.ends = ""
        self.why = ""
        self.waiting = 0
        self.item: Any = None
        self.waiters: list[Any] = []


def _held(snapshot: Snapshot) -> list[Held]:
    rows = []
    for lease in snapshot.leases:
        row = Held(
            f"lease {lease.path} {lease.agent} {lease.sub or ''}",
            shown(lease.path),
            "lease",
            lease.agent,
            lease.since,
        )
        row.ends, row.why, row.item = of_day(lease.until), lease.why or "", lease
        rows.append(row)
    for flag in snapshot.flags:
        row = Held(f"flag {flag.flag}", word(flag.flag), flag.state, flag.agent_id, flag.timestamp)
        row.ends = "" if flag.ttl is None else f"in {_format.age(flag.ttl)}"
        row.why, row.item = flag.note or "", flag
        row.waiters = [waiter for waiter in snapshot.waiters if waiter.flag == flag.flag]
        row.waiting = len(row.waiters)
        rows.append(row)
    # Keep the order of both lists, of which only the first rows are read.
    order = {"lease": 1, "held": 1}
    return sorted(rows, key=lambda row: (-bool(row.waiting), order.get(row.state, 2), row.what))


def rows(pane: str, snapshot: Snapshot, spoken: Sequence[Any], match: str) -> list[Any]:
    """Return the rows of a pane; `match` is the filter, already applied to the snapshot's rows."""
    if pane == "queues":
        return [*snapshot.queues]
    if pane == "agents":
        return [*snapshot.agents]
    if pane == "flags and leases":
        return _held(snapshot)
    listed: Sequence[Any] = spoken if pane == "talk" else snapshot.health.findings
    return [row for row in listed if not match or match.casefold() in _words(row).casefold()]


def _words(row: Any) -> str:
    if isinstance(row, Left):
        return ""
    return " ".join(str(getattr(row, name) or "") for name in row.__match_args__)


def key(pane: str, row: Any) -> object:
    """Return the key that identifies a row of a pane across frames."""
    if pane == "queues":
        return row.stats.queue, row.stats.group
    if pane == "agents":
        return row.agent
    if pane == "flags and leases":
        return row.key
    if pane == "talk":
        return id(row) if isinstance(row, Left) else row.id
    return row.check, row.subject


def opened(pane: str, row: Any) -> Detail | None:
    """Return the detail that a row opens."""
    if pane == "queues":
        return details.QueueTasks(row.stats.queue, row.stats.group or "default")
    if isinstance(row, Left):
        return None
    if isinstance(row, Held):
        return details.Fields(row.what, row.item, [details.waiter(each) for each in row.waiters])
    title = {"agents": "agent", "talk": "message", "health": "finding"}[pane]
    return details.Fields(title, row)
