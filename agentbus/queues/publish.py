"""Publishes tasks: appends them to a queue, or keeps them until they are due."""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from agentbus.core import context, envelope, names
from agentbus.core.errors import InvalidPayload, QueueFull, UsageError
from agentbus.core.keys import Keys
from agentbus.core.record import Record
from agentbus.core.stream import text
from agentbus.queues import tracing
from agentbus.queues.ids import BOUND, DEDUP_WINDOW, PRIORITIES, suffix
from agentbus.store.steps import Emit, Script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypedDict, Unpack

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

    class BatchOptions(TypedDict, total=False):
        """The keywords of `publish_many` and `publish_stream`."""

        bound: int
        priority: str
        window: float
        trim: bool


# Tasks in one request: more gains nothing, and a script must not block the server.
BATCH = 500
_FAR = 400 * 86_400.0


class Task(Record):
    """A payload in its envelope. Empty fields are not stored.

    `key` is for dedup; tasks with the same `ordering_key` run in order; `reply_to` is the queue, and
    `webhook` the URL, that gets the outcome. `traceparent` is W3C Trace Context's; `headers` are the user's
    own, text to text; `created_at` is in unix seconds. `trail` lists the agents that it passed, as recorded
    by routers.
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


class _StreamKeys:
    """The keys of a publish, and the suffix of its tasks' ids."""

    __slots__ = ("metrics", "order", "queues", "readers", "stats", "stream", "suffix")

    def __init__(self, project: str, queue: str, priority: str) -> None:
        keys = Keys(project)
        self.stream = keys.queue(queue, priority)
        self.queues = keys.queues
        self.stats = keys.stats(queue)
        self.metrics = keys.metrics
        self.readers = keys.readers(queue, priority)
        self.order = keys.order(queue, priority)
        self.suffix = suffix(queue, priority)

    def plain(self, once: str) -> tuple[str, ...]:
        """Return the keys of a publish of payloads alone."""
        return (self.stream, once, self.stats, self.queues)


_place = lru_cache(1000)(_StreamKeys)


def _stamped(item: object, traceparent: str | None) -> object:
    """Return an item with a `traceparent`; a task keeps its own."""
    if traceparent is None:
        return item
    if not isinstance(item, Task):
        return Task(item, traceparent=traceparent)
    return item if item.traceparent is not None else item.__replace__(traceparent=traceparent)


@tracing.in_span(_stamped)
def publish(
    scope: Scope,
    queue: str,
    item: object,
    *,
    bound: int = BOUND,
    priority: str = "normal",
    delay: float | None = None,
    at: float | None = None,
    window: float = DEDUP_WINDOW,
    trim: bool = False,
) -> Op[str]:
    """Append one payload or `Task`, or keep it until it is due, and return its id. Raises `QueueFull`."""
    if type(item) is not Task and delay is None and at is None and context.current.get() is None:
        # As `_send`, for a payload alone, which is the usual case: it saves a fifth of a publish.
        if priority not in PRIORITIES:
            _known(priority)
        place, once = _place(scope.keys.project, queue, priority), scope.once()
        data = envelope.encode(item, scope.max_body)
        step = Script("push", place.plain(once.key), (once.token, bound, queue, data), writes=True)
        reply = yield step
        scope.settled(once, step)
        if reply is not None:
            return str(reply.decode() + place.suffix)
        rich: list[Any] = [([b"payload", data], None, None)]
        (found,) = yield from _send(scope, queue, rich, priority, bound, window, trim, None)
        return found
    if delay is not None or at is not None:
        return (yield from _schedule(scope, queue, item, bound, priority, delay, at, window))
    if isinstance(item, Task):
        priority = item.priority or priority
    _known(priority)
    (found,) = yield from _send(
        scope, queue, [_words(scope, item)], priority, bound, window, trim, None
    )
    return found


@tracing.in_span(_stamped, each=True)
def publish_many(
    scope: Scope, queue: str, items: Iterable[object], **how: Unpack[BatchOptions]
) -> Op[list[str]]:
    """Append any number of payloads or `Task`s, a batch at a time, and return their ids."""
    ids: list[str] = []
    for step in _batches(scope, queue, items, **how):
        ids += yield from step
    return ids


@tracing.in_span(_stamped, each=True)
def publish_stream(
    scope: Scope, queue: str, items: Iterable[object], **how: Unpack[BatchOptions]
) -> Op[None]:
    """Append as `publish_many` does, and emit the ids of each batch when it is accepted."""
    for step in _batches(scope, queue, items, **how):
        for task_id in (yield from step):
            yield Emit(task_id)


class _Ahead:
    """Prepares the next batch while the server handles the current one."""

    def __init__(self, batches: Iterator[tuple[str, list[Any]]]) -> None:
        self._batches = batches
        self._ready: list[tuple[str, list[Any]] | Exception | None] = []

    def prepare(self) -> None:
        """Prepare a batch; `take` raises its errors."""
        if not self._ready:
            try:
                self._ready.append(next(self._batches, None))
            except Exception as error:  # noqa: BLE001 (raised by `take`)
                self._ready.append(error)

    def take(self) -> tuple[str, list[Any]] | None:
        """Return the next batch with its priority, or None at the end."""
        self.prepare()
        found = self._ready.pop()
        if isinstance(found, Exception):
            raise found
        return found


def _batches(
    scope: Scope,
    queue: str,
    items: Iterable[object],
    *,
    bound: int = BOUND,
    priority: str = "normal",
    window: float = DEDUP_WINDOW,
    trim: bool = False,
) -> Iterator[Op[list[str]]]:
    _known(priority)
    # With `trim`, a batch must not be longer than the bound.
    most = min(BATCH, max(bound, 1)) if trim else BATCH
    ahead = _Ahead(_grouped(scope, queue, items, priority, most))
    while batch := ahead.take():
        yield _send(scope, queue, batch[1], batch[0], bound, window, trim, ahead)


def _grouped(
    scope: Scope, queue: str, items: Iterable[object], default: str, most: int
) -> Iterator[tuple[str, list[Any]]]:
    batch: list[Any] = []
    encode, limit = envelope.encode, scope.max_body
    now, kind = default, False
    inherits = context.current.get() is not None
    for item in items:
        rich = inherits or isinstance(item, Task)
        priority = default
        if isinstance(item, Task) and item.priority:
            priority = item.priority
            _known(priority)
        if batch and (rich is not kind or priority != now):
            yield now, batch
            batch = []
        now, kind = priority, rich
        batch.append(_words(scope, item) if rich else encode(item, limit))
        if len(batch) == most:
            # Before the next item is read: it may take long, or be invalid.
            yield now, batch
            batch = []
    if batch:
        yield now, batch


def _send(
    scope: Scope,
    queue: str,
    tasks: Sequence[Any],
    priority: str,
    bound: int,
    window: float,
    trim: bool,
    ahead: _Ahead | None,
) -> Op[list[str]]:
    place, once = _place(scope.keys.project, queue, priority), scope.once()
    if not isinstance(tasks[0], tuple):
        plain = (once.token, bound, queue, *tasks)
        step = Script("push", place.plain(once.key), plain, writes=True)
        if ahead is not None:
            step.meanwhile = ahead.prepare
        reply = yield step
        scope.settled(once, step)
        if reply is not None:
            milliseconds, _, sequence = reply.decode().partition("-")
            start, end = int(sequence), place.suffix
            return [f"{milliseconds}-{number}{end}" for number in range(start, start + len(tasks))]
        # There may be room after finished tasks, or the oldest, are trimmed.
        tasks = [([b"payload", data], None, None) for data in tasks]
        once = scope.once()
    keys = [
        *(place.stream, place.queues, place.stats, once.key),
        *(place.order, place.metrics, place.readers),
    ]
    argv: list[bytes | str | int] = [
        *(queue, bound, "trim" if trim else "refuse", round(window), place.suffix),
        *(once.token, len(tasks)),
    ]
    for words, key, ordering in tasks:
        argv += (len(words), 0 if key is None else len(keys) - 6, ordering or "", *words)
        if key is not None:
            keys.append(scope.keys.seen(queue, key))
    step = Script("publish", keys, argv, writes=True)
    if ahead is not None:
        step.meanwhile = ahead.prepare
    reply = yield step
    scope.settled(once, step)
    if reply[0] == b"full":
        raise _full(queue, bound, int(reply[1]))
    ids = [text(found) for found in reply[1:]]
    return [found if "@" in found else found + place.suffix for found in ids]


def _schedule(
    scope: Scope,
    queue: str,
    item: object,
    bound: int,
    priority: str,
    delay: float | None,
    at: float | None,
    window: float,
) -> Op[str]:
    wait, due = _due(delay, at)
    priority, (words, key, ordering) = kept(scope, item, priority)
    keys, once = scope.keys, scope.once()
    seen = [keys.seen(queue, key)] if key is not None else []
    step = Script(
        "schedule",
        (
            *(keys.delayed(queue), keys.bodies(queue), keys.queues, keys.stats(queue)),
            *(once.key, keys.queue(queue, priority), keys.bell(queue)),
            *(keys.metrics, keys.readers(queue, priority), keys.after(queue), *seen),
        ),
        (
            *(queue, bound, round(window), suffix(queue, "normal"), once.token),
            *(wait, due, priority, ordering or "", *words),
        ),
        writes=True,
    )
    reply = yield step
    scope.settled(once, step)
    if reply[0] == b"full":
        raise _full(queue, bound, int(reply[1]))
    found = text(reply[1])
    return found if "@" in found else found + suffix(queue, priority)


def kept(scope: Scope, item: object, priority: str) -> tuple[str, Any]:
    """Return the priority and the `_words` of a task that is kept until it is ready."""
    task = item if isinstance(item, Task) else Task(item)
    priority = task.priority or priority
    _known(priority)
    if task.created_at is None:
        # The entry's id will show when it was ready, not when it was published.
        task = task.__replace__(created_at=round(scope.now(), 3))
    return priority, _words(scope, task)


def _words(scope: Scope, item: object) -> Any:
    """Return an encoded payload; for a `Task`, its fields, its key and its ordering key."""
    origin = context.current.get()
    if not isinstance(item, Task):
        if origin is None:
            return envelope.encode(item, scope.max_body)
        item = Task(item)
    _check(item)
    words: list[bytes | str] = [b"payload", envelope.encode(item.payload, scope.max_body)]
    meta = {name: value for name in envelope.META if (value := getattr(item, name, None))}
    if origin is not None:
        # A task that a handler publishes is linked to the handler's task.
        meta.setdefault("correlation_id", origin.correlation_id or origin.id)
        meta.setdefault("causation_id", origin.id)
        if origin.trail:
            meta.setdefault("trail", origin.trail)
        if origin.traceparent and context.is_traceparent(origin.traceparent):
            meta.setdefault("traceparent", context.child(origin.traceparent))
    if meta:
        words += [b"meta", envelope.encode(meta, scope.max_body)]
    return words, item.key, item.ordering_key


def _known(priority: object) -> None:
    if priority not in PRIORITIES:
        raise UsageError(
            f"{priority!r} is not a priority", hint=f"use one of {', '.join(PRIORITIES)}"
        )


def _check(task: Task) -> None:
    for what in ("key", "reply_to", "ordering_key", "topic"):
        value = getattr(task, what)
        if value is not None:
            names.name(what.replace("_", " "), value)
    for what in ("correlation_id", "causation_id", "source", "tenant", "webhook"):
        value = getattr(task, what)
        if value is not None and not isinstance(value, str):
            raise InvalidPayload(f"the {what} is a {type(value).__name__}", hint="give it as text")
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
    headers = task.headers
    if headers is not None and not hasattr(headers, "items"):
        raise InvalidPayload(f"the headers are a {type(headers).__name__}", hint="give a dict")
    if headers is not None and not all(
        isinstance(part, str) for pair in dict(headers).items() for part in pair
    ):
        raise InvalidPayload("a header is not text", hint="give text for its name and its value")


def _due(delay: float | None, at: float | None) -> tuple[str, str]:
    if delay is not None and at is not None:
        raise UsageError("a task has a delay and a time", hint="give one of them")
    if delay is not None:
        if not isinstance(delay, (int, float)) or not 0 <= delay <= _FAR:
            raise UsageError(f"the delay is {delay!r}", hint="give seconds, at most 400 days")
        return str(round(delay * 1000)), ""
    assert at is not None
    if not isinstance(at, (int, float)) or not 0 <= at <= time.time() + _FAR:
        raise UsageError(f"the time is {at!r}", hint="give unix seconds, at most 400 days ahead")
    return "", str(round(at * 1000))


def _full(queue: str, bound: int, length: int) -> QueueFull:
    return QueueFull(
        f"the queue {queue!r} holds {length} unfinished tasks; the limit is {bound}",
        hint="start workers, wait, or raise its bound",
    )
