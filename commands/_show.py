"""Prints values of the bus: as JSON fields, or as a line of text."""

from __future__ import annotations

from agentbus.core.clock import rfc3339

TYPE_CHECKING = False
if TYPE_CHECKING:
    from agentbus.commands._out import Out
    from agentbus.coordination.flags import FlagState
    from agentbus.coordination.notes import Note
    from agentbus.coordination.wait import Completion


def note(out: Out, found: Note, *, value: bool) -> None:
    """Print a note, with or without its value."""
    fields: dict[str, object] = {"key": found.key}
    if value:
        fields["value"] = found.value
    at = rfc3339(found.timestamp)
    fields |= {"author": found.author, "timestamp": at, "tags": list(found.tags)}
    tags = f" [{','.join(found.tags)}]" if found.tags else ""
    text = f"{found.key}{tags} {found.author} {at}"
    out.record(fields, f"{found.key}{tags} {found.value}" if value else text)


def flag(out: Out, state: FlagState) -> None:
    """Print a flag's state."""
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
    """Print the completion of a flag."""
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


def result(out: Out, task_id: str, found: object) -> None:
    """Print a task's result: text unchanged, other values as JSON, None as nothing."""
    if out.json:
        out.record({"id": task_id, "result": found}, "")
    elif isinstance(found, str):
        out.exactly(found.encode() if found.endswith("\n") else found.encode() + b"\n")
    elif found is not None:
        import orjson

        out.record({}, orjson.dumps(found).decode())
