"""hook: answer an event of a coding agent's client."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentbus.agents import hook
from agentbus.commands._declare import Param, Verb

if TYPE_CHECKING:
    from agentbus.commands._declare import Call

VERB = Verb(
    "hook",
    Param("CLIENT", "claude, codex, copilot, gemini, cursor or opencode.", required=True),
    Param("EVENT", "The event, as the client calls it.", required=True),
    Param("--tools", "The client has the tools of 'agentbus mcp': name these, not commands."),
    text="Reads the client's JSON on stdin. With nothing new it prints nothing; else one JSON object, in"
    " the form that the client takes. It says what waits for the agent ('agentbus inbox' reads it),"
    " leases what a tool is about to edit, and refuses the edit of a path that another agent has leased."
    " A server that does not answer within half a second is left alone for 30 s. The event Wake waits"
    " for a message while the agent is idle, up to an hour, and says on stderr that it came. The exit"
    " code is 2 in that case alone, else 0.",
    examples=("agentbus hook claude PostToolUse",),
    subject="event",
    unconfigured=True,
)


def run(call: Call) -> None:
    """Answer the event."""
    code = hook.run(call.args.client, call.args.event, call.args.flags, tools=call.args.tools)
    if code:
        # Exit here, since the client reads this code; the caller turns the 2 of a wrong command
        # line into 0.
        os._exit(code)
