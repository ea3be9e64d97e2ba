"""Undoes a request whose caller was interrupted before the answer came."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError
from agentbus.store.steps import LinkDown, Script, ServerReply

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Once, Op

# Seconds that an interrupted caller still waits: what is not undone ends with its TTL.
SHORTLY = 1.0


def undo(scope: Scope, once: Once, ended: Callable[[list[Any]], Op[object] | None]) -> Op[None]:
    """Undo a request if the server has executed it, and have the server ignore it if it comes later.

    `ended` returns the operation that undoes it, given its reply. No failure matters.
    """
    step = Script("undo", (once.key,), (once.token,), writes=True, optional=True)
    try:
        reply = yield step
        op = ended(reply) if reply else None
        if op is not None:
            yield from op
    except (LinkDown, ServerReply, AgentBusError):
        return
