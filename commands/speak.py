"""speak: say something on the project's channel."""

from __future__ import annotations

from agentbus.commands._declare import Call, Param, Verb, body
from agentbus.coordination import speak

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.store.steps import Op

VERB = Verb(
    "speak",
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
    """Speak, and print the message's id."""
    args = call.args
    scope = call.enter()
    text = body("message", args.text, args.msg, scope.max_body, "--msg")
    if not call.settings.json:
        said = call.run(speak.append(scope, text, args.topic))
        call.out.record({}, said)
        return
    from agentbus.core.clock import rfc3339

    entry_id, at = call.run(_timed(speak.append(scope, text, args.topic)))
    fields = {
        "id": entry_id,
        "agent_id": scope.agent,
        "topic": args.topic,
        "message": text,
        "timestamp": rfc3339(at, milliseconds=True),
    }
    call.out.record(fields, "")


def _timed(append: Op[str]) -> Op[tuple[str, float]]:
    """Return the id that `append` returns, and its time in unix seconds."""
    from agentbus.core.stream import id_time

    entry_id = yield from append
    return entry_id, id_time(entry_id)
