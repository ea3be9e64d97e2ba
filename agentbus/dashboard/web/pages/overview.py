"""The overview: the project's figures, problems and remedies, worst queues, agents, messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core.readable import number
from agentbus.dashboard.web import graphs
from agentbus.dashboard.web.page import PageView, WebPage

if TYPE_CHECKING:
    from agentbus.admin.health import HealthFinding
    from agentbus.coordination.message import Message

# Maximum rows of the lists, of the messages and of the findings.
_SHOWN, _TALK, _FINDINGS = 10, 20, 6


async def load(view: PageView) -> dict[str, Any]:
    """Return the values of the overview: its cards and short lists."""
    found, totals = view.snapshot, view.snapshot.totals
    queues = view.link("queues")
    dead = f"+ {totals.dead_workers} dead" if totals.dead_workers else ""
    cards = [
        (
            "Backlog",
            totals.backlog,
            f"{totals.queues:,} {'queue' if totals.queues == 1 else 'queues'}",
            queues,
            "",
        ),
        ("Held", totals.held, "not finished", queues, ""),
        (
            "Dead letters",
            totals.dead,
            "by error",
            view.link("letters"),
            "bad" if totals.dead else "",
        ),
        ("Done", f"{number(totals.rate)}/s", "last minute", queues, ""),
        ("Workers", totals.workers, dead, view.link("workers"), "bad" if dead else ""),
        ("Agents", totals.agents, f"{totals.unread:,} unread", view.link("agents"), ""),
        (
            "Flags and leases",
            totals.flags + totals.leases,
            f"{totals.waiters} waiting",
            view.link("flags"),
            "",
        ),
    ]
    by_kind: dict[tuple[str, str], list[HealthFinding]] = {}
    for one in found.health.findings:
        by_kind.setdefault((one.severity, one.check), []).append(one)
    kinds = [*by_kind.values()]
    worst = [row for row in found.queues if row.trouble or row.paused is not None]
    return {
        "cards": cards,
        "findings": kinds[:_FINDINGS],
        "more": len(found.health.findings) if len(kinds) > _FINDINGS else 0,
        "worst": (worst or found.queues)[:_SHOWN],
        "troubled": bool(worst),
        "agents": found.agents[:_SHOWN],
        "messages": view.talk[:_TALK],
        **(await graphs.history_of(view, ("history",))),
    }


def hears(_view: PageView, _message: Message) -> bool:
    """Tell whether a message belongs on the page: every message does."""
    return True


PAGE = WebPage(
    "overview",
    "Overview",
    load,
    live=("halted", "cards", "health", "worst", "history", "agents"),
    hears=hears,
)
