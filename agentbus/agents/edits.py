"""Leases what a tool is about to edit, and says why not where another agent has leased it."""

from __future__ import annotations

from agentbus.agents.bell import checked
from agentbus.coordination import leases
from agentbus.coordination.paths import MOST_PATTERNS, patterns
from agentbus.core import names
from agentbus.core.clock import of_day
from agentbus.core.errors import LeaseHeld, LeasesFull, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.agents.event import Event

# Letters of a reason, and of a path or a pattern, in a refusal.
_WHY, _PATH = 80, 120
_SUB = 6
# Seconds.
_LEASED = 600.0


def lease(event: Event) -> str | None:
    """Lease the paths of an edit for ten minutes; return the refusal if another agent has one of them.

    Paths outside the repository are nobody's.
    """
    scope = event.scope
    inside = [path for path in event.client.edited(event.given) if _is_inside(event, path)]
    if not inside:
        return None
    op = leases.take(
        *(scope, inside[:MOST_PATTERNS]),
        ttl=_LEASED,
        auto=True,
        sub=_sub(event.given.get("agent_id")),
        literal=True,
    )
    try:
        step = next(op)
        while True:
            step = op.send(event.execute(step))
    except StopIteration:
        return None
    except LeasesFull:
        # Nothing says that another agent edits there.
        return None
    except LeaseHeld as held:
        return refusal(held)


def refusal(held: LeaseHeld) -> str:
    """Return why an edit is refused, on one line, and what to do: never to take the lease by force."""
    why = f'"{leases.quoted(_cut(held.why, _WHY))}", ' if held.why else ""
    known = held.agent == checked(held.agent)
    who = held.agent if known else names.word(_cut(held.agent, _WHY))
    ask = f"ask: agentbus tell {names.shell_word(held.agent)} '…?' --wait 300"
    return (
        f"{leases.shown(_cut(held.path, _PATH))} is leased by {who} until {of_day(held.until)}"
        f" ({why}{leases.shown(_cut(held.pattern, _PATH))})."
        f" Do something else, or {ask if known else 'ask its owner'}"
    )


def _is_inside(event: Event, path: str) -> bool:
    try:
        patterns([path], by_worktree=event.scope.leases_by_worktree, literal=True)
    except (UsageError, ValueError):
        return False
    return True


def _sub(found: object) -> str | None:
    """Return the part of the agent that edits: the beginning of a subagent's id."""
    if not isinstance(found, str) or not found or not names.is_plain(found[:_SUB]):
        return None
    return found[:_SUB]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
