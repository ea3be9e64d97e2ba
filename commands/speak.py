"""speak: say something on the project's channel."""

from __future__ import annotations

import sys

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
    text="Prints the id of the entry, and to a person on a terminal how many present agents it reaches."
    " JSON: id, agent_id, topic, message, timestamp, reach (that number).",
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
        # A script's stderr is for what went wrong.
        if sys.stderr.isatty() and (number := _reach(call, said, args.topic)) is not None:
            call.out.warn(_told(number))
        return
    from agentbus.core.clock import rfc3339

    entry_id, at = call.run(_timed(speak.append(scope, text, args.topic)))
    fields = {
        "id": entry_id,
        "agent_id": scope.agent,
        "topic": args.topic,
        "message": text,
        "timestamp": rfc3339(at, milliseconds=True),
        "reach": _reach(call, entry_id, args.topic),
    }
    call.out.record(fields, "")


def _reach(call: Call, entry_id: str, topic: str | None) -> int | None:
    """Return how many agents it reaches; None if that is unknown, since the message stands."""
    try:
        return call.run(speak.reach(call.enter(), entry_id, topic))
    except Exception as error:
        from agentbus.core.errors import AgentBusError

        if not isinstance(error, AgentBusError):
            raise
        return None


def _told(number: int) -> str:
    if not number:
        return "reaches no agent that is present; those that come later can read it"
    return "reaches 1 agent that is present" if number == 1 else f"reaches {number} present agents"


def _timed(append: Op[str]) -> Op[tuple[str, float]]:
    """Return the id that `append` returns, and its time in unix seconds."""
    from agentbus.core.stream import id_time

    entry_id = yield from append
    return entry_id, id_time(entry_id)
