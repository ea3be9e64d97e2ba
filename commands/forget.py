"""forget: remove a note."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "forget",
    "Remove a note and its tag entries.",
    Param("key", metavar="KEY", required=True, help="The note's key."),
    text="Says so on the channel, in the same step. A missing note is exit 5. JSON: key.",
    examples=("agentbus forget docker-build",),
    subject="key",
)


def run(call: Call) -> None:
    """Remove the note and print its key."""
    call.bus.forget(call.args.key)
    call.out.record({"key": call.args.key}, call.args.key)
