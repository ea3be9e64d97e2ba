"""A task to be published: a payload in its envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import context, names
from agentbus.core.errors import InvalidPayload, UsageError
from agentbus.core.record import Record
from agentbus.queues.ids import PRIVATE, writable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_ATTEMPTS = 1000
# How far ahead a task may be due, or expire, in seconds.
LONGEST = 400 * 86_400.0
# The maximum size of all headers of a task, and of each other text, in bytes: programs get them in their
# environment, where the system limits each variable.
MOST_TEXT = 8 * 1024


class Task(Record):
    """A payload in its envelope. Empty fields are not stored.

    `key` is for dedup; tasks with the same `ordering_key` run in order; `reply_to` is the queue, and
    `webhook` the URL, that gets the outcome. `traceparent` is W3C Trace Context's; `headers` are the user's
    own, text to text; `created_at` is in unix seconds. `trail` lists the agents that it passed, as recorded
    by routers. `attempts` is the maximum number of its runs, in place of the worker's. `expires` seconds
    after its publication it is not run any more, but buried. With `notify` the channel gets a message when
    it is done or buried, on the topic `tasks`.
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

    def filling(self, item: object) -> Task:
        """Return a payload in this envelope, or a `Task` with what it leaves empty from this one."""
        if not isinstance(item, Task):
            return self.__replace__(payload=item)
        own = {name: getattr(item, name) for name in Task.__match_args__}
        own = {name: value for name, value in own.items() if value is not None}
        return self.__replace__(**{**own, "payload": item.payload})


def check(task: Task) -> None:
    """Raise `InvalidPayload` or `UsageError` for a field that is not as it must be."""
    for what in ("key", "reply_to", "ordering_key", "topic"):
        value = getattr(task, what)
        if value is not None:
            names.name(what.replace("_", " "), value)
    if task.reply_to is not None and not task.reply_to.startswith(PRIVATE):
        writable(task.reply_to)
    for what in ("correlation_id", "causation_id", "source", "tenant", "webhook"):
        value = getattr(task, what)
        if value is not None and not isinstance(value, str):
            raise InvalidPayload(f"the {what} is a {type(value).__name__}", hint="give it as text")
        if value is not None:
            _check_size(f"the {what}", value)
    if task.traceparent is not None and not context.is_traceparent(task.traceparent):
        raise InvalidPayload(
            f"{task.traceparent!a} is not a traceparent",
            hint="write it as W3C Trace Context does: 00-<32 hex digits>-<16 hex digits>-01",
        )
    if task.webhook is not None:
        from agentbus.queues import webhook_url

        webhook_url.target(task.webhook)
    if task.trail is not None and not isinstance(task.trail, (list, tuple)):
        raise InvalidPayload(f"the trail is a {type(task.trail).__name__}", hint="give a list")
    if task.notify not in (None, True, False):
        raise InvalidPayload(f"notify is {task.notify!r}", hint="give True, or leave it out")
    headers = task.headers
    if headers is not None and not hasattr(headers, "items"):
        raise InvalidPayload(f"the headers are a {type(headers).__name__}", hint="give a dict")
    if headers is not None and not all(
        isinstance(part, str) for pair in dict(headers).items() for part in pair
    ):
        raise InvalidPayload("a header is not text", hint="give text for its name and its value")
    if headers is not None:
        _check_size("the headers", *(part for pair in dict(headers).items() for part in pair))
    attempts, expires = task.attempts, task.expires
    if attempts is not None and not (type(attempts) is int and 0 < attempts <= MOST_ATTEMPTS):
        raise UsageError(
            f"the attempts are {attempts!r}", hint=f"give a number from 1 to {MOST_ATTEMPTS}"
        )
    if expires is not None and not (type(expires) in (int, float) and 0 < expires <= LONGEST):
        raise UsageError(
            f"the time to expire is {expires!r}", hint="give seconds, above 0 and at most 400 days"
        )


def _check_size(what: str, *texts: str) -> None:
    # Most are short: without a check of each character.
    if sum(map(len, texts)) * 4 <= MOST_TEXT:
        return
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    if size > MOST_TEXT:
        raise InvalidPayload(
            f"{what} {'have' if what.endswith('s') else 'has'} {size} bytes; the limit is {MOST_TEXT}",
            hint="put it into the payload",
        )


def check_due(task: Task, seconds: float) -> None:
    """Raise `UsageError` for a task that expires before it is due, in `seconds`."""
    if task.expires is not None and task.expires <= seconds:
        raise UsageError(
            f"the task expires before it is due, in {seconds:g} s", hint="give it more time"
        )
