"""The five panes of `top`: what each lists, by which columns, and what a row opens."""

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
# From this width on, there is room for longer sparklines.
_WIDE = 120


class Left:
    """A line of the talk that says how many messages are not shown."""

    def __init__(self, number: int) -> None:
        self.number = number


def columns(pane: str, width: int, now: float) -> list[Column]:
    """Return the columns of a pane at a width."""
    if pane == "queues":
        return _queues(30 if width >= _WIDE else 10)
    if pane == "agents":
        return _agents(now)
    if pane == "flags and leases":
        return _FLAGS(now)
    return _TALK if pane == "talk" else _HEALTH


def totals(one: Totals) -> str:
    """Return the line of the totals."""
    dead = f"+{one.dead_workers}†" if one.dead_workers else ""
    said = [
        *(f"backlog {one.backlog:,}", f"held {one.held:,}", f"delayed {one.delayed:,}"),
        *(f"dead {one.dead:,}", f"{_format.number(one.rate)}/s", f"workers {one.workers}{dead}"),
        *(f"unread {one.unread:,}", f"flags {one.flags}", f"leases {one.leases}"),
    ]
    said += [f"waiting {one.waiters}"] if one.waiters else []
    said += [f"quarantined {one.quarantined}"] if one.quarantined else []
    said += [f"after {one.dependent:,}"] if one.dependent else []
    said += [f"event streams {one.event_streams}"] if one.event_streams else []
    return "  ".join(said)


def _name(one: QueueRow) -> str:
    group = one.stats.group
    named = word(one.stats.queue) + (f" {word(group)}" if group not in (None, "default") else "")
    return named + (" ‖" if one.paused is not None else "")


def _trouble(one: QueueRow) -> str:
    if one.trouble == "no worker":
        return _RED
    return _YELLOW if one.trouble else ""


def _workers(one: QueueRow) -> str:
    dead = f"+{one.dead_workers}†" if one.dead_workers else ""
    return f"{one.stats.consumers}{dead}"


def _queues(bars: int) -> list[Column]:
    def figure(name: str, title: str, rank: int) -> Column:
        return Column(title, lambda one: str(getattr(one.stats, name)), rank=rank)

    backlog = Column(
        "BACKLOG",
        lambda one: str(one.stats.backlog) if one.stats.exact else f"{one.stats.backlog}+",
        style=_trouble,
    )
    return [
        Column("QUEUE", _name, left=True, style=_trouble),
        backlog,
        Column("OLDEST", lambda one: _format.age(one.stats.oldest), rank=2),
        figure("pending", "HELD", 3),
        figure("retrying", "RETRY", 4),
        figure("delayed", "DELAY", 5),
        Column(
            "DEAD",
            lambda one: str(one.stats.dead),
            rank=1,
            style=lambda one: _RED if one.stats.dead else "",
        ),
        Column("WORK", _workers, rank=2, style=lambda one: _RED if one.dead_workers else ""),
        Column("RATE/s", lambda one: _format.number(one.stats.rate), rank=3),
        Column("p95", lambda one: _format.share(one.stats.running, "p95"), rank=6),
        Column("TREND", lambda one: sparkline(one.points, bars), rank=7, left=True, width=bars),
        Column("AFTER", lambda one: str(one.stats.dependent), rank=9),
        Column("p50", lambda one: _format.share(one.stats.running, "p50"), rank=10),
        Column("WAIT p95", lambda one: _format.share(one.stats.waiting, "p95"), rank=11),
        Column(
            "TROUBLE",
            lambda one: f"paused {one.paused}" if one.paused is not None else one.trouble or "",
            left=True,
            rank=8,
            style=_trouble,
        ),
    ]


def _agents(now: float) -> list[Column]:
    def where(one: Presence) -> str:
        return " ".join(word(part) for part in (one.client, one.branch) if part)

    return [
        Column("AGENT", lambda one: word(one.agent), left=True),
        Column("STATE", lambda one: one.state or "seen", left=True),
        Column("SEEN", lambda one: _format.age(now - one.seen), rank=1),
        Column(
            "UNREAD", lambda one: str(one.unread), style=lambda one: _YELLOW if one.unread else ""
        ),
        Column("LEASES", lambda one: str(len(one.leases)), rank=3),
        Column("DOING", lambda one: one.doing or "", left=True, rank=2),
        Column("WHERE", where, left=True, rank=4),
        Column("HOST", lambda one: word(one.host) if one.host else "", left=True, rank=5),
    ]


def _spoken(one: Any) -> str:
    if isinstance(one, Left):
        came = "message came, and is" if one.number == 1 else "messages came, and are"
        return f"… {one.number:,} more {came} left out"
    return _message.line(one.agent_id, one.topic, one.text, notice=one.event)


_TALK = [
    Column(
        "AT",
        lambda one: "" if isinstance(one, Left) else rfc3339(one.timestamp)[11:19],
        left=True,
        style=lambda _one: _DIM,
        rank=1,
    ),
    Column(
        "SPOKEN",
        _spoken,
        left=True,
        style=lambda one: _YELLOW if isinstance(one, Left) else _DIM if one.event else "",
    ),
]
_HEALTH = [
    Column(
        "SEVERITY",
        lambda one: one.severity,
        left=True,
        style=lambda one: _RED if one.severity == "critical" else _YELLOW,
        rank=2,
    ),
    Column("CHECK", lambda one: one.check, left=True, rank=1),
    Column("FINDING", lambda one: one.text, left=True),
    Column("REMEDY", lambda one: one.remedy, left=True, rank=3),
]


def _FLAGS(now: float) -> list[Column]:  # noqa: N802
    return [
        Column("WHAT", lambda one: one.what, left=True),
        Column("STATE", lambda one: one.state, left=True),
        Column("BY", lambda one: word(one.by) if one.by else "", left=True),
        Column(
            "AGE",
            lambda one: _format.age(None if one.at is None else now - one.at),
            rank=2,
        ),
        Column("ENDS", lambda one: one.ends, left=True, rank=1),
        Column(
            "WAITING",
            lambda one: str(one.waiting) if one.waiting else "",
            style=lambda _one: _YELLOW,
            rank=3,
        ),
        Column("WHY", lambda one: one.why, left=True, rank=4),
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


def _held(found: Snapshot) -> list[Held]:
    rows = []
    for lease in found.leases:
        row = Held(
            f"lease {lease.pattern} {lease.agent}",
            shown(lease.pattern),
            "lease",
            lease.agent,
            lease.since,
        )
        row.ends, row.why, row.item = of_day(lease.until), lease.why or "", lease
        rows.append(row)
    for flag in found.flags:
        row = Held(f"flag {flag.flag}", word(flag.flag), flag.state, flag.agent_id, flag.timestamp)
        row.ends = "" if flag.ttl is None else f"in {_format.age(flag.ttl)}"
        row.why, row.item = flag.note or "", flag
        row.waiters = [one for one in found.waiters if one.flag == flag.flag]
        row.waiting = len(row.waiters)
        rows.append(row)
    # In the order of both lists, of which only the first rows are read.
    order = {"lease": 1, "held": 1}
    return sorted(rows, key=lambda row: (-bool(row.waiting), order.get(row.state, 2), row.what))


def rows(pane: str, found: Snapshot, spoken: Sequence[Any], match: str) -> list[Any]:
    """Return the rows of a pane; `match` is the filter, which the snapshot's own rows have passed."""
    if pane == "queues":
        return [*found.queues]
    if pane == "agents":
        return [*found.agents]
    if pane == "flags and leases":
        return _held(found)
    listed: Sequence[Any] = spoken if pane == "talk" else found.health.findings
    return [one for one in listed if not match or match.casefold() in _words(one).casefold()]


def _words(one: Any) -> str:
    if isinstance(one, Left):
        return ""
    return " ".join(str(getattr(one, name) or "") for name in one.__match_args__)


def key(pane: str, one: Any) -> object:
    """Return what identifies a row of a pane from frame to frame."""
    if pane == "queues":
        return one.stats.queue, one.stats.group
    if pane == "agents":
        return one.agent
    if pane == "flags and leases":
        return one.key
    if pane == "talk":
        return id(one) if isinstance(one, Left) else one.id
    return one.check, one.subject


def opened(pane: str, one: Any) -> Detail | None:
    """Return what opens when a row is chosen."""
    if pane == "queues":
        return details.QueueTasks(one.stats.queue, one.stats.group or "default")
    if isinstance(one, Left):
        return None
    if isinstance(one, Held):
        return details.Fields(one.what, one.item, [details.waiter(each) for each in one.waiters])
    title = {"agents": "agent", "talk": "message", "health": "finding"}[pane]
    return details.Fields(title, one)
