"""A task to publish: a payload in its envelope."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from agentbus.core import context, names
from agentbus.core.envelope import META
from agentbus.core.errors import InvalidPayload, UsageError
from agentbus.queues import webhook_url
from agentbus.queues.ids import PRIVATE, writable

MOST_ATTEMPTS = 1000
UNTIL_DONE = "until_done"
# Maximum seconds ahead at which a task may be due, or expire.
LONGEST = 400 * 86_400.0
# Maximum bytes of a task's headers together, and of each other text. Programs get them as
# environment variables, whose size the system limits.
MOST_TEXT = 8 * 1024


@dataclass(frozen=True, slots=True)
class Task:
    """A payload in its envelope. Empty fields are not stored.

    `key` is for dedup; tasks with the same `ordering_key` run in order; `reply_to` is the queue, and
    `webhook` the URL, that receives the outcome. `traceparent` is from W3C Trace Context; `headers` are the
    user's own, text to text; `created_at` is in unix seconds. `trail` lists the agents that it has passed,
    as recorded by routers. `attempts` is the maximum number of runs, instead of the worker's. `expires`
    seconds after its publication, it is no longer run, but becomes a dead letter. With `notify`, a message
    announces its end on the channel, on the topic `tasks`. `task` is the name of a typed task. An attempt
    that takes longer than `time_limit` seconds is stopped, and fails. With `unique` set to "until_done",
    its key is kept until the task has ended, instead of for the policy's window.
    """

    payload: Any
    key: str | None = None
    priority: str | None = None
    topic: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    reply_to: str | None = None
    webhook: str | None = None
    headers: Mapping[str, str] | None = None
    ordering_key: str | None = None
    traceparent: str | None = None
    source: str | None = None
    tenant: str | None = None
    created_at: float | None = None
    trail: Sequence[Any] | None = None
    attempts: int | None = None
    expires: float | None = None
    notify: bool | None = None
    task: str | None = None
    time_limit: float | None = None
    unique: str | None = None

    def filling(self, item: object) -> Task:
        """Return a payload in this envelope, or a `Task` with its empty fields filled from this one."""
        if not isinstance(item, Task):
            return replace(self, payload=item)
        own = {name: getattr(item, name) for name in Task.__match_args__}
        own = {name: value for name, value in own.items() if value is not None}
        return replace(self, **{**own, "payload": item.payload})


# The envelope fields that a Task has, and a function that returns their values.
_FIELDS = tuple(name for name in META if name in Task.__match_args__)
_values = attrgetter(*_FIELDS)
_EMPTY = (None,) * len(_FIELDS)
_SHOWN: dict[str, str] = {name: name.replace("_", " ") for name in _FIELDS}


def is_bare(task: Task) -> bool:
    """Return whether a task has only a payload and perhaps a priority."""
    return _values(task) == _EMPTY


def envelope_of(task: Task) -> dict[str, Any] | None:
    """Return the fields of a task other than its payload and its priority; None for a bare task.

    Raises `InvalidPayload` or `UsageError` for an invalid task.
    """
    values = _values(task)
    left = len(values) - values.count(None)
    if not left:
        return None
    fields: dict[str, Any] = {}
    for what, value, check in zip(_FIELDS, values, _CHECKS, strict=True):
        if value is not None:
            check(what, value)
            if value:
                fields[what] = value
            left -= 1
            if not left:
                break
    return fields


def _name(what: str, value: Any) -> None:
    names.name(_SHOWN[what], value)


def _reply_to(what: str, value: Any) -> None:
    _name(what, value)
    if not value.startswith(PRIVATE):
        writable(value)


def _text(what: str, value: Any) -> None:
    if type(value) is str and len(value) * 4 <= MOST_TEXT:
        # Fast path: a short text needs no byte count.
        return
    if not isinstance(value, str):
        raise InvalidPayload(f"the {what} is a {type(value).__name__}", hint="give it as text")
    _check_size(f"the {what}", value)


def _webhook(what: str, value: Any) -> None:
    _text(what, value)
    webhook_url.target(value)


def _traceparent(_what: str, value: Any) -> None:
    if not context.is_traceparent(value):
        raise InvalidPayload(
            f"{value!a} is not a traceparent",
            hint="write it as W3C Trace Context does: 00-<32 hex digits>-<16 hex digits>-01",
        )


def _trail(_what: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)):
        raise InvalidPayload(f"the trail is a {type(value).__name__}", hint="give a list")


def _notify(_what: str, value: Any) -> None:
    if value not in (True, False):
        raise InvalidPayload(f"notify is {value!r}", hint="give True, or leave it out")


def _headers(_what: str, headers: Any) -> None:
    if not hasattr(headers, "items"):
        raise InvalidPayload(f"the headers are a {type(headers).__name__}", hint="give a dict")
    size = 0
    for name, value in (headers if type(headers) is dict else dict(headers)).items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidPayload(
                "a header is not text", hint="give text for its name and its value"
            )
        size += len(name) + len(value)
    if size * 4 > MOST_TEXT:
        _check_size("the headers", *(part for pair in dict(headers).items() for part in pair))


def _attempts(_what: str, attempts: Any) -> None:
    if not (type(attempts) is int and 0 < attempts <= MOST_ATTEMPTS):
        raise UsageError(
            f"the attempts are {attempts!r}", hint=f"give a number from 1 to {MOST_ATTEMPTS}"
        )


def _expires(_what: str, expires: Any) -> None:
    if not (type(expires) in (int, float) and 0 < expires <= LONGEST):
        raise UsageError(
            f"the time to expire is {expires!r}", hint="give seconds, above 0 and at most 400 days"
        )


def _time_limit(_what: str, seconds: Any) -> None:
    if not (type(seconds) in (int, float) and 0 < seconds <= LONGEST):
        raise UsageError(
            f"the time limit is {seconds!r}", hint="give seconds, above 0 and at most 400 days"
        )


def _unique(_what: str, given: Any) -> None:
    if given != UNTIL_DONE:
        raise UsageError(f"unique is {given!r}", hint=f"give {UNTIL_DONE!r}, or leave it out")


def _anything(_what: str, _value: Any) -> None:
    """Accept any value, which is checked when it is encoded."""


_CHECKED: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(("key", "ordering_key", "task", "topic"), _name),
    **dict.fromkeys(("correlation_id", "causation_id", "source", "tenant"), _text),
    "reply_to": _reply_to,
    "webhook": _webhook,
    "traceparent": _traceparent,
    "trail": _trail,
    "notify": _notify,
    "headers": _headers,
    "attempts": _attempts,
    "expires": _expires,
    "time_limit": _time_limit,
    "unique": _unique,
}
_CHECKS = tuple(_CHECKED.get(what, _anything) for what in _FIELDS)


def _check_size(what: str, *texts: str) -> None:
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if size > MOST_TEXT:
        raise InvalidPayload(
            f"{what} {'have' if what.endswith('s') else 'has'} {size} bytes; the limit is {MOST_TEXT}",
            hint="put it into the payload",
        )


def check_due(task: Task, seconds: float) -> None:
    """Raise `UsageError` if a task expires before it is due, in `seconds`."""
    if task.expires is not None and task.expires <= seconds:
        raise UsageError(
            f"the task expires before it is due, in {seconds:g} s", hint="give it more time"
        )
