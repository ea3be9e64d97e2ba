"""prime: print the page that an agent reads first."""

from __future__ import annotations

from agentbus.agents import prime
from agentbus.commands._declare import Call, Param, Verb, whole
from agentbus.coordination import presence
from agentbus.core.errors import UsageError

VERB = Verb(
    "prime",
    Param("--max-chars N", "At most N letters (2400).", convert=whole, default=2400),
    Param("--tools", "Name the tools of 'agentbus mcp' in place of commands."),
    text="Says this agent's name, who is present, what is leased, what waits in the inbox, the newest notes"
    " with the tag 'decision', and the commands to use. What other agents wrote is quoted and shortened."
    " Nothing is marked as read.",
    examples=("agentbus prime", "agentbus prime --tools --max-chars 1600"),
)


def run(call: Call) -> None:
    """Print the page."""
    most = call.args.max_chars
    if most < prime.LEAST:
        raise UsageError(f"--max-chars is {most}", hint=f"give at least {prime.LEAST}")
    scope = call.enter()
    reply, unguarded = call.run(prime.read(scope)), call.run(presence.is_unguarded(scope))
    page = prime.page(scope, reply, most=most, tools=call.args.tools, unguarded=unguarded)
    if call.out.json:
        call.out.record({"text": page}, "")
    else:
        call.out.exactly(f"{page}\n".encode())
