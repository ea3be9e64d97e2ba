"""forget: delete a note."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb
from agentbus.coordination import notes
from agentbus.core.names import word

VERB = Verb(
    "forget",
    Param("KEY", "The note's key.", required=True, values="note"),
    text="Reports it on the channel in the same atomic step. If there is no such note, exit 5. JSON:"
    " key.",
    examples=("agentbus forget docker-build",),
    subject="key",
)


def run(call: Call) -> None:
    """Delete the note and print its key."""
    call.run(notes.forget(call.enter(), call.args.key))
    call.out.record({"key": call.args.key}, word(call.args.key))
