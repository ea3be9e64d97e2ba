"""The envelope of a task: its fields, and their encoding in a stream entry.

An entry has the fields `payload` (JSON), `agent_id` (the agent that published it) and, unless the rest of
the envelope is empty, `meta` (JSON of that rest). An entry without `payload` was written by another
program: its fields are the payload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import orjson

from agentbus.core.errors import InvalidPayload

if TYPE_CHECKING:

    class Envelope(TypedDict, total=False):
        """The fields of a `Task` that a publisher sets by keyword."""

        key: str | None
        priority: str | None
        topic: str | None
        correlation_id: str | None
        causation_id: str | None
        reply_to: str | None
        webhook: str | None
        headers: Mapping[str, str] | None
        ordering_key: str | None
        traceparent: str | None
        source: str | None
        tenant: str | None
        created_at: float | None
        trail: Sequence[Any] | None
        attempts: int | None
        expires: float | None
        notify: bool | None
        task: str | None
        time_limit: float | None
        unique: str | None


# In JSON over _LONG bytes, checking each value is faster than searching the text if the values
# average _PART bytes or more.
_LONG, _PART = 2048, 128
_BACKSLASH = ord("\\")
# The field that names the agent that published a task.
AGENT = b"agent_id"
# The field in which a router records the agents that an entry of another program has passed.
TRAIL = "agentbus_trail"
# The field that identifies a piece of work in entries of other programs.
WORK_ITEM = "work_item_id"
# The field with the id of another program's entry, and the field in which a router keeps that id.
INBOX, ROUTED_INBOX = "inbox_id", "routed_inbox_id"
# The envelope fields other than the payload, by their names in `meta`.
META = (
    "topic",
    "correlation_id",
    "causation_id",
    "reply_to",
    "webhook",
    "headers",
    "traceparent",
    "key",
    "ordering_key",
    "source",
    "tenant",
    "created_at",
    "replayed_from",
    "trail",
    "attempts",
    "expires",
    "notify",
    "task",
    "time_limit",
    "after",
    "after_group",
    "flow",
    "unique",
)


# Options that make orjson refuse subclasses and dataclasses.
_PLAIN = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS


def by(agent: str) -> tuple[bytes, str]:
    """Return the field that names the publishing agent, and its value."""
    return AGENT, agent


def encode(payload: object, limit: int) -> bytes:
    """Return a payload as JSON that every later sink can store; raises `InvalidPayload`."""
    try:
        # Dataclasses and subclasses of str could hide a NUL or a NaN from the checks below.
        data = orjson.dumps(payload, None, _PLAIN)
    except TypeError as error:
        if "UTF-8" in str(error):
            raise InvalidPayload(
                "the payload holds text that is not UTF-8", hint="encode it as UTF-8"
            ) from None
        raise InvalidPayload(
            f"the payload cannot be sent as JSON ({error})",
            hint="send plain data: dicts with text keys, lists, text, numbers, true, false, null",
        ) from None
    if len(data) > limit:
        raise InvalidPayload(
            f"the payload has {len(data)} bytes; the limit is {limit}",
            hint="store the bulk elsewhere and send its location, or raise 'max_body'",
        )
    # Use `find` and the number of the byte: `in` first tries to convert bytes to a number, and
    # fails slowly.
    if _BACKSLASH in data and data.find(b"\\u0000") >= 0 and _holds(payload, _is_nul):
        raise InvalidPayload(
            "the payload holds a NUL character", hint="leave it out: databases cannot store it"
        )
    if (
        not (len(data) > _LONG and _is_finite(payload, len(data) // _PART))
        and data.find(b"null") >= 0
        and _holds(payload, _is_not_finite)
    ):
        raise InvalidPayload(
            "the payload holds a NaN or an infinity", hint="JSON has none: send null or text"
        )
    return data


def decode(flat: Sequence[bytes]) -> tuple[Any, dict[str, Any]]:
    """Return an entry's payload and the rest of its envelope; raises `ValueError` if it is malformed."""
    named = {flat[i]: flat[i + 1] for i in range(0, len(flat) - 1, 2)}
    payload = named.pop(b"payload", None)
    if payload is None:
        # Another program wrote this entry; if its bytes are not UTF-8, it is malformed.
        fields = {key.decode(): value.decode() for key, value in named.items()}
        return fields, {name: fields[name] for name in (WORK_ITEM, INBOX) if fields.get(name)}
    rest = orjson.loads(named[b"meta"]) if b"meta" in named else {}
    if not isinstance(rest, dict):
        raise ValueError("the field 'meta' is not an object")  # noqa: TRY004 (malformed data)
    if b"id" in named:
        rest["id"] = named[b"id"].decode()
    return orjson.loads(payload), rest


def trail_of(meta: dict[str, Any], payload: object) -> Any:
    """Return the recorded agents that a task has passed; None if none are recorded.

    An entry of another program holds the trail in a field, as JSON. Invalid JSON is returned unchanged.
    """
    trail = meta.get("trail")
    if trail is None and isinstance(payload, dict):
        trail = payload.get(TRAIL)
        if isinstance(trail, str):
            try:
                return orjson.loads(trail)
            except ValueError:
                return trail
    return trail


def _holds(value: object, test: Any) -> bool:
    if isinstance(value, dict):
        return any(test(key) or _holds(item, test) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return any(_holds(item, test) for item in value)
    return bool(test(value))


def _is_finite(value: object, most: int) -> bool:
    """Report whether a value of at most `most` parts holds no NaN and no infinity; False if unsure."""
    parts: list[Any] = [value]
    while parts:
        part = parts.pop()
        most -= 1
        kind = type(part)
        if kind is str or kind is int or part is None or kind is bool:
            continue
        if kind is float:
            if not math.isfinite(part):
                return False
        elif kind is dict and len(part) <= most:
            parts += part.values()
        elif (kind is list or kind is tuple) and len(part) <= most:
            parts += part
        else:
            return False
    return True


def _is_nul(value: object) -> bool:
    return isinstance(value, str) and "\0" in value


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
