"""Leases the paths that a tool is about to edit, and refuses if another agent holds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.agents.bell import checked
from agentbus.coordination import leases
from agentbus.coordination.lease_step import taking
from agentbus.coordination.leases import MOST_PATTERNS, patterns
from agentbus.core import client_session, names
from agentbus.core.clock import of_day
from agentbus.core.errors import UsageError

if TYPE_CHECKING:
    from agentbus.agents.event import Event
    from agentbus.core.errors import LeaseHeld

# Maximum characters of a reason, and of a path or a pattern, in a refusal.
_WHY, _PATH = 80, 120
_LEASED_MS = 600_000


def lease(event: Event) -> str | None:
    """Lease the paths of an edit for ten minutes; return the refusal if another agent has one of them.

    Paths outside the repository are not leased. The module imports only what a successful lease
    needs.
    """
    inside: dict[str, None] = {}
    for path in event.client.edited(event.given):
        inside |= dict.fromkeys(_patterns(event, path))
    wanted = [*inside]
    # A patch may change more files than can be leased at a time.
    for at in range(0, len(wanted), MOST_PATTERNS):
        refused = _lease(event, wanted[at : at + MOST_PATTERNS])
        if refused is not None:
            return refused
    return None


def _lease(event: Event, wanted: list[str]) -> str | None:
    pairs = [word for pattern in wanted for word in (pattern, "")]
    process = client_session.process_name(client_session.client_process())
    while True:
        step = taking(
            *(event.scope, event.scope.once(), _LEASED_MS, pairs),
            auto=True,
            sub=event.sub,
            counts=True,
            process=process,
        )
        reply = event.execute(step)
        freeing = leases.release(event.scope, reply[5::2] if reply[0] == b"held" else ())
        freed = next(freeing, None)
        if freed is None:
            break
        event.execute(freed)
        freeing.close()
    if reply[0] in (b"taken", b"full"):
        # If no lease is left, the reply does not say that another agent edits the path: allow the
        # edit.
        return None
    return refusal(event, leases.refusal_of(event.scope, wanted, int(reply[3]), reply[4:]))


def refusal(event: Event, held: LeaseHeld) -> str:
    """Return the one-line reason of a refused edit, with advice other than taking the lease."""
    why = f'"{leases.quoted(_cut(held.why, _WHY))}", ' if held.why else ""
    known = held.agent == checked(held.agent)
    who = held.agent if known else names.word(_cut(held.agent, _WHY))
    ask = leases.advice(event.scope.agent, held.agent)
    who = leases.held_by(who, held.sub)
    return (
        f"{leases.shown(_cut(held.path, _PATH))} is leased by {who} until {of_day(held.until)}"
        f" ({why}{leases.shown(_cut(held.pattern, _PATH))})."
        f" Do something else, or {ask if known else 'ask its owner'}"
    )


def _patterns(event: Event, path: str) -> list[str]:
    """Return the pattern of a path within the repository, none for another path."""
    try:
        return patterns([path], by_worktree=event.scope.leases_by_worktree, literal=True)
    except Exception as error:
        if isinstance(error, (UsageError, ValueError)):
            return []
        raise


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
