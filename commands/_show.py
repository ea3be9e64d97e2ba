"""How the bus's values look: as JSON fields, and as a line for people."""

from __future__ import annotations

from agentbus.clock import rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.awaiting import Completion
    from agentbus.commands._out import Out
    from agentbus.flags import FlagState
    from agentbus.message import Message
    from agentbus.notebook import Note

# What an entry of the channel may not call its own fields, or they would hide the bus's.
_OWN = frozenset(("id", "agent_id", "topic", "message", "timestamp", "event"))
_NUMBERS = frozenset(("missed", "token"))


def message(out: Out, said: Message) -> None:
    """Write a message; a gap in what was heard is no message, and goes to stderr as text."""
    details = said.details or {}
    if said.event == "gap" and not out.json:
        out.warn(f"{said.text}; they are gone for good")
        return
    fields: dict[str, object] = {
        "id": said.id,
        "agent_id": said.agent_id,
        "topic": said.topic,
        "message": said.text,
        "timestamp": rfc3339(said.timestamp, milliseconds=True),
    }
    if said.event is not None:
        fields["event"] = said.event
    for key, value in details.items():
        if key not in _OWN:
            number = key in _NUMBERS and value.isdigit() and len(value) < 16
            fields[key] = int(value) if number else value
    topic = f" [{said.topic}]" if said.topic else ""
    body = said.text.removesuffix("\n")
    out.record(fields, f"{rfc3339(said.timestamp)} {said.agent_id}{topic} {body}")


def note(out: Out, found: Note, *, value: bool) -> None:
    """Write a note, with its value or without."""
    fields: dict[str, object] = {"key": found.key}
    if value:
        fields["value"] = found.value
    at = rfc3339(found.timestamp)
    fields |= {"author": found.author, "timestamp": at, "tags": list(found.tags)}
    tags = f" [{','.join(found.tags)}]" if found.tags else ""
    text = f"{found.key}{tags} {found.author} {at}"
    out.record(fields, f"{found.key}{tags} {found.value}" if value else text)


def flag(out: Out, state: FlagState) -> None:
    """Write a flag's state."""
    at = None if state.timestamp is None else rfc3339(state.timestamp)
    fields: dict[str, object] = {
        "flag": state.flag,
        "state": state.state,
        "agent_id": state.agent_id,
        "timestamp": at,
        "ttl": state.ttl,
        "token": state.token,
        "note": state.note,
    }
    text = f"{state.flag} {state.state}"
    if state.agent_id is not None:
        text += f" by {state.agent_id}"
    if at is not None:
        text += f" {'since' if state.state == 'held' else 'at'} {at}"
    if state.ttl is not None:
        text += f" for {state.ttl:g} s more"
    if state.note:
        text += f": {state.note}"
    out.record(fields, text)


def completion(out: Out, met: Completion) -> None:
    """Write what an awaiter waited for."""
    at = None if met.at is None else rfc3339(met.at, milliseconds=met.at % 1 > 0)
    fields: dict[str, object] = {
        "flag": met.flag,
        "state": met.state,
        "by": met.by,
        "at": at,
        "waited_ms": round(met.waited * 1000, 3),
    }
    if met.note is not None:
        fields["note"] = met.note
    text = f"{met.flag} {met.state}" + (f" by {met.by}" if met.by else "")
    text += (f" at {at}" if at else "") + (f": {met.note}" if met.note else "")
    out.record(fields, text)
