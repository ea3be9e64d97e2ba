"""fail: release a flag as failed."""

from __future__ import annotations

from agentbus.commands._declare import FLAG, Call, Param, Verb
from agentbus.commands.satisfy import end

VERB = Verb(
    "fail",
    *FLAG,
    Param("--force", "Even if another agent holds it."),
    Param("--note TEXT", "A note for the awaiters, such as the error."),
    text="Records the failure, wakes the awaiters, which exit 8 with the note, and reports it on the"
    " channel, in one atomic step. The next announce or satisfy clears it. If another agent holds the"
    " flag, exit 4. The flag need not be announced. JSON: flag, state, agent_id, timestamp, ttl, token,"
    " note.",
    examples=(
        "agentbus fail building --note 'exit 2: tests red'",
        "make || agentbus fail building",
    ),
    subject="flag",
)


def run(call: Call) -> None:
    """Fail the flag and print it."""
    end(call, "failed")
