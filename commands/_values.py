"""Prints values of the bus as JSON fields or as a line of text, and converts numbers."""

from __future__ import annotations

from agentbus.core.clock import rfc3339
from agentbus.core.names import word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from agentbus.commands._declare import Convert
    from agentbus.commands._output import Out
    from agentbus.coordination.flags import FlagState
    from agentbus.coordination.notes import Note
    from agentbus.coordination.wait import Completion
    from agentbus.coordination.waiters import Waiter


def fields(record: Any, *names: str) -> dict[str, Any]:
    """Return a value's fields, or the named ones, for JSON; a nested value becomes an object."""
    values = {}
    for name in names or record.__match_args__:
        value = getattr(record, name)
        if hasattr(value, "__match_args__"):
            value = fields(value)
        elif isinstance(value, tuple):
            value = [fields(item) if hasattr(item, "__match_args__") else item for item in value]
        values[name] = value
    return values


def note(out: Out, written: Note, *, value: bool) -> None:
    """Print a note, with or without its value."""
    out.record(*of_note(written, value=value))


def of_note(record: Note, *, value: bool) -> tuple[dict[str, Any], str]:
    """Return a note's fields for JSON and its line of text, with or without its value."""
    at = rfc3339(record.timestamp)
    shown: dict[str, Any] = {"key": record.key}
    if value:
        shown["value"] = record.value
    shown |= {"agent_id": record.author, "timestamp": at, "tags": list(record.tags)}
    shown["author"] = record.author
    head = word(record.key) + (f" [{','.join(map(word, record.tags))}]" if record.tags else "")
    return shown, f"{head} {record.value}" if value else f"{head} {word(record.author)} {at}"


def flag(
    out: Out,
    state: FlagState,
    waiting: Sequence[Waiter] = (),
    silent: float | None = None,
    mark: str = "",
) -> None:
    """Print a flag's state, and the agents that wait for it.

    `silent` is the seconds since its holder was last seen; `mark` says so in the text.
    """
    at = None if state.timestamp is None else rfc3339(state.timestamp)
    text = f"{word(state.flag)} {state.state}"
    if state.agent_id is not None:
        text += f" by {word(state.agent_id)}"
    if at is not None:
        text += f" {'since' if state.state == 'held' else 'at'} {at}"
    if state.ttl is not None:
        text += f" for {state.ttl:g} s more"
    text += mark
    if state.note:
        text += f": {state.note}"
    shown = fields(state) | {"timestamp": at}
    if silent is not None:
        shown["silent"] = round(silent, 3)
    if waiting:
        shown["waiting"] = [
            {"until": waiter.until, "agent_id": waiter.agent_id, "since": rfc3339(waiter.since)}
            for waiter in waiting
        ]
        text += "".join(
            f"; {word(waiter.agent_id)} waits until {waiter.until} since {rfc3339(waiter.since)}"
            for waiter in waiting
        )
    out.record(shown, text)


def completion(out: Out, met: Completion) -> None:
    """Print the outcome of a flag."""
    at = None if met.at is None else rfc3339(met.at, milliseconds=met.at % 1 > 0)
    shown: dict[str, Any] = {
        "flag": met.flag,
        "state": met.state,
        "agent_id": met.by,
        "timestamp": at,
        "waited_ms": round(met.waited * 1000, 3),
        "by": met.by,
        "at": at,
    }
    if met.note is not None:
        shown["note"] = met.note
    text = f"{word(met.flag)} {met.state}" + (f" by {word(met.by)}" if met.by else "")
    text += (f" at {at}" if at else "") + (f": {met.note}" if met.note else "")
    out.record(shown, text)


def result(out: Out, task_id: str, returned: object) -> None:
    """Print a task's result: text unchanged, other values as JSON, None as nothing."""
    if out.json:
        out.record({"task_id": task_id, "result": returned}, "")
    elif returned is not None:
        value(out, returned)


def value(out: Out, content: object) -> None:
    """Print a value as text: text unchanged, other values as JSON."""
    if isinstance(content, str):
        out.exactly(content.encode() if content.endswith("\n") else content.encode() + b"\n")
    else:
        import orjson

        out.record({}, orjson.dumps(content).decode())


def number(wanted: str, fits: Callable[[float], bool]) -> Convert:
    """Return a converter for numbers that `fits` accepts; `wanted` describes them."""

    def convert(text: str) -> float:
        try:
            converted = float(text)
        except ValueError:
            converted = float("nan")
        if not (text.isascii() and fits(converted)):
            raise ValueError(f"{text!r} is not {wanted}")
        return converted

    return convert
