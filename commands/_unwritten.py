"""Reports what a verb had done when its output could not be written."""

from __future__ import annotations

from collections.abc import Mapping

from agentbus.core.errors import AgentBusError

# Changes that verbs and their actions make in one step before they print; all other verbs print
# first.
_DONE = {
    "announce": "the flag was taken",
    "satisfy": "the flag was satisfied",
    "fail": "the flag was failed",
    "release": "the flag was released",
    "jot": "the note was written",
    "forget": "the note was removed",
    "speak": "the message was spoken",
    "tell": "the message was sent",
    "reply": "the message was sent",
    "publish": "the task was published",
    "halt": "the project was halted",
    "resume": "what was asked for was resumed",
    "agent pause": "the agent was paused",
    "agent resume": "the agent was resumed",
    "agent delete": "the agent was deleted",
    "bus delete": "the queue or group was deleted",
    "flow cancel": "the flow was cancelled",
    "limit set": "the limit was set",
    "limit remove": "the limit was removed",
    "quarantine release": "the consumer was released",
    "schedule add": "the schedule was added",
    "schedule pause": "the schedule was paused",
    "schedule remove": "the schedule was removed",
    "schedule resume": "the schedule was resumed",
    "schedule trigger": "the task was published",
    "task bury": "the task was buried",
    "task cancel": "the task was cancelled, or its worker asked to stop",
    "task done": "the task was settled as done",
    "task renew": "the task's hold was renewed",
    "task retry": "the task was put aside until its next attempt",
    "task take": "the task was taken",
}
# Changes that a verb makes only with this parameter; without it, the verb prints something.
_DONE_WITH = {
    "await": ("delete", "the completion was consumed"),
    "clear": ("force", "the project's keys were removed"),
    "pause": ("queue", "the queue was paused"),
}
# Verbs that work in steps, and print between them.
_STEPWISE = ("ask", "dlq purge", "dlq replay", "flow replay", "lease", "rerun")
_HEARS = ("inbox", "overhear")


class Unwritten(AgentBusError):
    """Stdout cannot be written, for example because the disk is full."""


def explained(error: AgentBusError, verb: str, values: Mapping[str, object]) -> AgentBusError:
    """Return an error, of stdout with what the verb, or its action, had done before it printed."""
    if not isinstance(error, Unwritten):
        return error
    option, with_it = _DONE_WITH.get(verb, ("", ""))
    done = _DONE.get(verb) or (with_it if values.get(option) else "")
    if verb in _STEPWISE or (verb == "publish" and values.get("lines")):
        effect, then = "; a part of it may be done", "; look before you repeat it"
    elif done:
        effect, then = f"; {done}", "; do not repeat it"
    else:
        effect, then = "", "; what was not printed stays unheard" if verb in _HEARS else ""
    return Unwritten(f"{error.message}{effect}", hint=f"{error.hint}{then}")
