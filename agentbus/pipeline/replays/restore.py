"""Converts rows of an archive back to stream entries, marked with their origin."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import orjson

from agentbus.core.envelope import AGENT
from agentbus.queues.dead_letters import OWN

# Fields and values of an entry, alternating.
Words: TypeAlias = list[str | bytes]

MARK = "replayed_from"
# A replayed task does not send its result again, unless requested.
_TOLD = ("reply_to", "webhook")
_BASE64 = ":base64"
# Lua's stack holds about 8,000 values: the remaining fields of another program's huge entry become
# one field.
_MOST_WORDS = 7_000


def task(
    origin: str,
    payload: str | None,
    fields: Mapping[str, str],
    *,
    agent: str | None = None,
    keep_replies: bool,
) -> tuple[str, Words]:
    """Return a task's ordering key ('' for none) and its entry.

    Its payload, publisher, other fields and envelope are unchanged, except for the id of a delayed
    task and, unless `keep_replies`, the destinations of results. `replayed_from` in the envelope is
    the origin. Another program's entry without a payload becomes a task with its fields as the
    payload, as workers would read it.
    """
    if not fields and payload is not None:
        return "", ["payload", payload, "meta", mark(origin), *_by(agent)]
    rest = dict(fields)
    first: str | bytes | None = payload
    if first is None:
        first = _bytes(rest.pop(f"payload{_BASE64}", None))
    if first is None:
        return "", _foreign(origin, rest)
    for name in ("id", f"id{_BASE64}"):
        rest.pop(name, None)
    words: Words = ["payload", first]
    found = _envelope(rest)
    if found is None:
        # Keep an unreadable envelope as it is: the task becomes a dead letter again because of it.
        words += _by(agent)
        return "", [*words, *_others(rest, len(words)), MARK, origin]
    rest.pop("meta", None)
    if not keep_replies:
        for name in _TOLD:
            found.pop(name, None)
    found[MARK] = origin
    ordering = found.get("ordering_key")
    # If an entry has no publisher, the archive stores its source in the column `agent`.
    words += ["meta", orjson.dumps(found), *_by(None if agent == found.get("source") else agent)]
    return (ordering if isinstance(ordering, str) else ""), [*words, *_others(rest, len(words))]


def mark(origin: str) -> str:
    """Return the envelope of a task of which only the origin is known."""
    return f'{{"{MARK}":{_json(origin)}}}'


def letter(
    origin: str,
    payload: str | None,
    fields: Mapping[str, str],
    *,
    agent: str | None = None,
    keep_replies: bool,
) -> tuple[str, Words]:
    """Return the task of a dead letter as `task` does, without the failure."""
    rest = dict(fields)
    for name in OWN:
        # A letter's own fields come last; another program's task may have a field of the same name.
        turn = 2
        while f"{name}:{turn}" in rest:
            turn += 1
        rest.pop(name if turn == 2 else f"{name}:{turn - 1}", None)
        rest.pop(f"{name}{_BASE64}", None)
    return task(origin, payload, rest, agent=agent, keep_replies=keep_replies)


def message(
    origin: str,
    agent: str | None,
    topic: str | None,
    event: str | None,
    payload: str | None,
    fields: Mapping[str, str],
) -> Words:
    """Return a message of the channel as an entry of the channel, with the field `replayed_from`.

    A notice of the bus is published as `replayed_event`, so that an agent waiting for a flag does
    not take it for a current notice.
    """
    words: Words = []
    for name, value in (("agent_id", agent), ("message", _said(payload)), ("topic", topic)):
        words += [] if value is None else [name, value]
    if event is not None:
        words += ["replayed_event", event]
    rest = {name: value for name, value in fields.items() if name != MARK}
    if f"event{_BASE64}" in rest:
        rest[f"replayed_event{_BASE64}"] = rest.pop(f"event{_BASE64}")
    return [*words, *_others(rest, len(words)), MARK, origin]


def message_as_task(
    origin: str,
    agent: str | None,
    topic: str | None,
    event: str | None,
    payload: str | None,
    fields: Mapping[str, str],
) -> Words:
    """Return a message of the channel as a task: `agent`, `topic`, `message`; `event`, `fields` if any."""
    said: dict[str, Any] = {"agent": agent, "topic": topic, "message": _said(payload)}
    if event is not None:
        said["event"] = event
    if fields:
        said["fields"] = dict(fields)
    return ["payload", orjson.dumps(said), "meta", orjson.dumps({MARK: origin})]


def _envelope(rest: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the remaining envelope of a task, empty if absent, None if unreadable."""
    if f"meta{_BASE64}" in rest:
        return None
    raw = rest.get("meta")
    if raw is None:
        return {}
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _by(agent: str | None) -> Words:
    return [] if agent is None else [AGENT, agent]


def _foreign(origin: str, rest: Mapping[str, str]) -> Words:
    rest = {name: value for name, value in rest.items() if name != MARK}
    if any(name.endswith(_BASE64) for name in rest):
        # JSON cannot represent bytes that are not UTF-8.
        return [*_others(rest, 0), MARK, origin]
    return ["payload", orjson.dumps(rest), "meta", orjson.dumps({MARK: origin})]


def _others(rest: Mapping[str, str], before: int) -> Words:
    """Return fields as they were written: bytes as bytes, and repeated fields repeatedly."""
    if before + 2 * len(rest) > _MOST_WORDS:
        return ["fields", orjson.dumps(dict(rest))]
    return [word for pair in _each(rest) for word in pair]


def _each(rest: Mapping[str, str]) -> Iterator[tuple[str, str | bytes]]:
    for name, value in rest.items():
        data = _bytes(value) if name.endswith(_BASE64) else None
        if data is not None:
            name = name.removesuffix(_BASE64)
        head, colon, turn = name.rpartition(":")
        repeated = (
            colon and turn.isdigit() and (head in rest or head in ("payload", "meta", "agent_id"))
        )
        yield (head if repeated else name), (value if data is None else data)


def _bytes(value: str | None) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None


def _said(payload: str | None) -> str | None:
    if payload is None:
        return None
    try:
        said = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return payload
    return said if isinstance(said, str) else payload


def _json(text: str) -> str:
    return orjson.dumps(text).decode()
