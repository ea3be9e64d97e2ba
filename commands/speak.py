"""speak: say something on the project's channel."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb, body
from agentbus.coordination import speak

VERB = Verb(
    "speak",
    "Say something on the project's channel.",
    Param("TEXT|-|@FILE", "The message.", dest="text"),
    Param("--msg TEXT", "The message, taken literally."),
    Param("--topic T", "The topic.", values="topic"),
    text="Prints the id of the entry. JSON: id, agent_id, topic, message, timestamp.",
    examples=(
        "agentbus speak 'unit tests green' --topic build",
        "git log -1 --format=%s | agentbus speak - --topic commits",
        "agentbus speak @report.txt",
    ),
    subject="topic",
)


def run(call: Call) -> None:
    """Speak, and print the entry's id."""
    args = call.args
    scope = call.enter()
    text = body("message", args.text, args.msg, scope.max_body, "--msg")
    entry_id = call.run(speak.append(scope, text, args.topic))
    if not call.out.json:
        call.out.record({}, entry_id)
        return
    from agentbus.core.clock import rfc3339
    from agentbus.core.stream import id_time

    fields = {
        "id": entry_id,
        "agent_id": scope.agent,
        "topic": args.topic,
        "message": text,
        "timestamp": rfc3339(id_time(entry_id), milliseconds=True),
    }
    call.out.record(fields, "")
