"""Prints entries of the channel: as JSON fields, or as a line of text."""

from __future__ import annotations

from agentbus.core.clock import rfc3339
from agentbus.core.names import word
from agentbus.core.stream import id_time, is_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.commands._output import Out
    from agentbus.coordination.message import Message

# The fields that every entry may have; other fields belong to a notice of the bus.
_OWN = ("id", "agent_id", "topic", "message", "timestamp", "event", "truncated")
_NUMBERS = frozenset(("missed", "skipped", "token", "truncated"))


def pair(entry_id: str, named: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return an entry unchanged. Raises `ValueError` for an invalid id, as its time is shown."""
    id_time(entry_id)
    return entry_id, named


def show_message(out: Out, message: Message, project: str) -> None:
    """Print a message as `show` prints its entry, with the project as an additional JSON field."""
    named = {"agent_id": message.agent_id, "message": message.text}
    named |= {} if message.topic is None else {"topic": message.topic}
    named |= {} if message.event is None else {"event": message.event}
    show(out, message.id, {**named, **(message.details or {})}, project)


def show(out: Out, entry_id: str, named: dict[str, str], project: str | None = None) -> None:
    """Print an entry; a gap or a skip becomes a warning on stderr unless the output is JSON."""
    event, said = named.get("event"), named.get("message", "")
    if event == "gap" and not out.json:
        gone = {"": "if so, they are", "1": "that is"}.get(named.get("missed", ""), "they are")
        out.warn(f"{said}; {gone} gone for good")
        return
    if event == "skipped" and not out.json:
        out.warn(f"{said}; 'agentbus overhear --since {entry_id}' prints them")
        return
    out.record(*rendered(out, entry_id, named, project))


def rendered(
    out: Out, entry_id: str, named: dict[str, str], project: str | None = None
) -> tuple[dict[str, object], str]:
    """Return an entry's JSON fields and no text, or no fields and its line of text."""
    if out.json:
        return fields(entry_id, named, project), ""
    event, topic, said = named.get("event"), named.get("topic"), named.get("message", "")
    at = rfc3339(id_time(entry_id))
    return {}, f"{at} {line(named.get('agent_id', ''), topic, said, notice=event)}"


def fields(entry_id: str, named: dict[str, str], project: str | None = None) -> dict[str, object]:
    """Return an entry's fields for JSON."""
    event = named.get("event")
    record: dict[str, object] = {
        "id": entry_id,
        "agent_id": named.get("agent_id", ""),
        "topic": named.get("topic"),
        "message": named.get("message", ""),
        "timestamp": rfc3339(id_time(entry_id), milliseconds=True),
    }
    if project is not None:
        record["project"] = project
    if event is not None:
        record["event"] = event
    for key, value in named.items():
        if key not in _OWN and key not in record:
            number = key in _NUMBERS and is_number(value)
            unknown = event == "gap" and not value
            record[key] = int(value) if number else None if unknown else value
    return record


def line(agent: str, topic: str | None, said: str, *, notice: str | None) -> str:
    """Return a message as text; a notice of the bus is marked before the name, unlike any text."""
    about = f" [{word(topic)}]" if topic else ""
    return f"{'* ' if notice is not None else ''}{word(agent)}{about} {said.removesuffix(chr(10))}"
