"""How the end of a hold looks."""

from __future__ import annotations

from agentbus import holds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.commands._out import Out


def show_end(
    out: Out, flag: str, how: str, value: str, token: int, note: str | None = None
) -> None:
    """Write how a hold ended."""
    agent, at = holds.holder(value), holds.since(value)
    fields = {
        "flag": flag,
        "state": how,
        "agent_id": agent,
        "timestamp": at,
        "ttl": None,
        "token": token,
        "note": note,
    }
    out.record(fields, f"{flag} {how} by {agent} at {at}" + (f": {note}" if note else ""))
