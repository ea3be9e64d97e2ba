"""Publishes tasks: encodes them, and appends them within a queue's bound or stores them until due."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import chain
from operator import attrgetter
from sys import modules
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

import orjson

from agentbus.core import context, envelope
from agentbus.core.cache import cached
from agentbus.core.errors import QueueFull, UsageError
from agentbus.core.keys import Keys
from agentbus.core.shell_command import command, typed
from agentbus.core.stream import text
from agentbus.core.validate import is_seconds
from agentbus.queues import tracing
from agentbus.queues.ids import (
    BOUND,
    DEDUP_WINDOW,
    PRIORITIES,
    RETRY,
    UNIQUE_KEPT,
    suffix,
    writable,
)
from agentbus.queues.retry_stream import make_room
from agentbus.queues.task import LONGEST, Task, check_due, envelope_of, is_bare
from agentbus.store import durable
from agentbus.store.scope import server_time
from agentbus.store.steps import Emit, Push, Script

if TYPE_CHECKING:
    from agentbus.queues.policy import Policy
    from agentbus.queues.runner import AsyncRunner, Runner
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Once, Op


T = TypeVar("T")
# Number of publishes that request trimming at once after the queue has reached its bound.
_CROWDED = 20
_payload_and_meta = attrgetter("payload", "meta")
# Index of the script argument that says whether the caller will try to make room.
ASKS = 0


class BatchOptions(TypedDict, total=False):
    """The keywords of `publish_many` and `publish_stream`."""

    bound: int
    priority: str
    window: float
    trim: bool
    common: Task | None


# Maximum tasks per request, and bytes of payloads at which a request is full. Larger requests gain
# nothing, and a script must not block the server for long.
BATCH, BATCH_BYTES = 500, 1 << 20


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
    """Append one payload or `Task`, or store it until it is due, and return its id. Raises `QueueFull`."""
    if isinstance(item, Task) and is_bare(item):
        priority, item = item.priority or priority, item.payload
    if (
        type(item) is Task
        or (delay is not None or at is not None)
        or context.current.get() is not None
        or (tracing.API in modules and tracing.tracer() is not None)
    ):
        return (yield from _publish(scope, queue, item, bound, priority, delay, at, window, trim))
    # Inline `_send` for a bare payload, the common case: this saves a fifth of a publish.
    if priority not in PRIORITIES:
        check_priority(priority)
    place = stream_keys(scope.keys.project, queue, priority)
    data = envelope.encode(item, scope.max_body)
    if not place.crowded:
        kind, head = (place.stream, bound), (bound, queue, b"", scope.agent)
        push = Push(kind, scope.once, place.plain, head, data)
        reply = yield push
        if push.sendings:
            # Free the slot only if this push was sent itself, not joined to another request.
            scope.free_slot(push.once, push)
        if reply is not None:
            task_id: str = reply.decode() + place.suffix
            return task_id
        place.crowded = _CROWDED
    place.crowded -= 1
    (task_id,) = yield from _send(scope, queue, [data], priority, bound, window, trim, None)
    return task_id


@tracing.in_span(tracing.stamped)
def _publish(
    scope: Scope,
    queue: str,
    item: object,
    bound: int,
    priority: str,
    delay: float | None,
    at: float | None,
    window: float,
    trim: bool,
) -> Op[str]:
    if delay is not None or at is not None:
        return (yield from schedule(scope, queue, item, bound, priority, delay, at, window))
    if isinstance(item, Task):
        priority = item.priority or priority
    check_priority(priority)
    (task_id,) = yield from _send(
        scope, queue, [encoded(scope, item)], priority, bound, window, trim, None
    )
    return task_id


def confirmed(
    op: Op[T], runner: Runner | AsyncRunner, policy: Policy, kind: str | None, least: int | None
) -> Op[T]:
    """Return an operation whose writes are confirmed, if the caller or the policy demands it.

    Raises `UsageError`, and `ConfigError` if the server cannot confirm writes.
    """
    kind = policy.durable if kind is None else kind
    if least is not None and kind in {None, "disk"}:
        raise UsageError("min_replicas goes with durable='replica' alone", hint="leave it out")
    if kind is None:
        return op
    least = policy.min_replicas if least is None else least
    backend = runner.backend
    wanted = durable.demand(
        kind, least, runner.scope.mark(), where=backend.name, able=backend.confirms
    )
    return durable.confirmed(op, wanted)


def check_payloads(payloads: Iterable[object]) -> Iterable[object]:
    """Return the payloads of several tasks. Raises `UsageError` for a single payload."""
    # A loop over one of these would publish each character or key as a separate task.
    if isinstance(payloads, (str, bytes, dict)) or not hasattr(payloads, "__iter__"):
        raise UsageError(
            f"the payloads are one {type(payloads).__name__}",
            hint="give a list of them, or publish",
        )
    return payloads


@tracing.in_span(tracing.stamped, each=True)
def publish_many(
    scope: Scope, queue: str, items: Iterable[object], **how: Unpack[BatchOptions]
) -> Op[list[str]]:
    """Append any number of payloads or `Task`s in batches, and return their ids.

    `common` is the envelope of the payloads; it also fills the empty fields of the `Task`s.
    """
    ids: list[str] = []
    for step in _batches(scope, queue, items, **how):
        ids += yield from step
    return ids


@tracing.in_span(tracing.stamped, each=True)
def publish_stream(
    scope: Scope, queue: str, items: Iterable[object], **how: Unpack[BatchOptions]
) -> Op[None]:
    """Append like `publish_many`, and emit the ids of each batch when it is accepted."""
    for step in _batches(scope, queue, items, **how):
        for task_id in (yield from step):
            yield Emit(task_id)


class Ahead(Generic[T]):
    """Prepares the next batch while the server handles the current one."""

    def __init__(self, batches: Iterator[T]) -> None:
        self._batches = batches
        self._ready: list[T | Exception | None] = []

    def prepare(self) -> None:
        """Prepare a batch; `take` raises its errors."""
        if not self._ready:
            try:
                self._ready.append(next(self._batches, None))
            except Exception as error:  # noqa: BLE001 (raised by `take`)
                self._ready.append(error)

    def take(self) -> T | None:
        """Return the next batch, or None at the end."""
        self.prepare()
        batch = self._ready.pop()
        if isinstance(batch, Exception):
            raise batch
        return batch


def _batches(
    scope: Scope,
    queue: str,
    items: Iterable[object],
    *,
    bound: int = BOUND,
    priority: str = "normal",
    window: float = DEDUP_WINDOW,
    trim: bool = False,
    common: Task | None = None,
) -> Iterator[Op[list[str]]]:
    writable(queue)
    check_priority(priority)
    # With `trim`, a batch must not exceed the bound.
    most = min(BATCH, max(bound, 1)) if trim else BATCH
    ahead = Ahead(_grouped(scope, items, priority, most, common))
    meta = b"" if common is None else meta_of(scope, common)
    while batch := ahead.take():
        yield _send(scope, queue, batch[1], batch[0], bound, window, trim, ahead, meta)


def _grouped(
    scope: Scope, items: Iterable[object], default: str, most: int, common: Task | None
) -> Iterator[tuple[str, list[Any]]]:
    batch: list[Any] = []
    encode, limit = envelope.encode, scope.max_body
    now, kind, left = default, 0, BATCH_BYTES
    # A shared envelope cannot hold per-task fields: keys, or what a running handler adds.
    inherits = context.current.get() is not None or (
        common is not None and (common.key or common.ordering_key or common.unique) is not None
    )
    for item in items:
        priority = default
        data: bytes | Encoded | None = None
        if inherits or isinstance(item, Task):
            if common is not None:
                item = common.filling(item)
            if isinstance(item, Task) and item.priority:
                priority = item.priority
                check_priority(priority)
            data = encoded(scope, item)
        # 0 for a plain payload, 1 for a task with its own envelope, 2 if its key is also unique
        # until the task is done.
        rich = 1 + data.unique if isinstance(data, Encoded) else 0
        if batch and (rich != kind or priority != now):
            yield now, batch
            batch, left = [], BATCH_BYTES
        now, kind = priority, rich
        if data is None:
            data = encode(item, limit)
        left -= len(data.payload if isinstance(data, Encoded) else data)
        batch.append(data)
        if left <= 0 or len(batch) == most:
            # Yield before reading the next item, which may take long or be invalid.
            yield now, batch
            batch, left = [], BATCH_BYTES
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
    ahead: Ahead[Any] | None,
    meta: bytes = b"",
) -> Op[list[str]]:
    place, once = stream_keys(scope.keys.project, queue, priority), scope.once()
    rich = isinstance(tasks[0], Encoded)
    if not rich or all(task.key is task.ordering_key is None for task in tasks):
        if not place.crowded:
            head = (once.token, bound, queue, b"*" if rich else meta, scope.agent)
            words = chain.from_iterable(map(_payload_and_meta, tasks)) if rich else tasks
            step = Script("push", place.plain(once.key), (*head, *words), writes=True)
            if ahead is not None:
                step.meanwhile = ahead.prepare
            reply = yield step
            scope.free_slot(once, step)
            if reply is not None:
                milliseconds, _, sequence = reply.decode().partition("-")
                start, end = int(sequence), place.suffix
                numbers = range(start, start + len(tasks))
                return [f"{milliseconds}-{number}{end}" for number in numbers]
            place.crowded = _CROWDED
        place.crowded -= 1
        # There may be room after finished tasks (with `trim`, the oldest tasks) are trimmed.
        if not rich:
            tasks = [Encoded(data, meta, None, None) for data in tasks]
        once = scope.once()
    keys = [
        *(place.stream, place.queues, place.stats, once.key),
        *(place.order, place.metrics, place.readers, place.retries),
    ]
    argv: list[bytes | str | int] = [
        *(1, queue, bound, "trim" if trim else "refuse", round(window_of(tasks[0], window))),
        *(place.suffix, once.token, len(tasks)),
    ]
    for task in tasks:
        fields = task.words(scope.agent)
        seen = 0 if task.key is None else len(keys) - 7
        argv += (len(fields), seen, task.ordering_key or "", *fields)
        if task.key is not None:
            keys.append(scope.keys.seen(queue, task.key))
    while True:
        step = Script("publish", keys, argv, writes=True)
        if ahead is not None:
            step.meanwhile = ahead.prepare
        reply = yield step
        scope.free_slot(once, step)
        if reply[0] != b"full":
            break
        yield from make_room_or_raise(scope, queue, priority, bound, argv, reply)
    ids = [text(entry_id) for entry_id in reply[1:]]
    return [entry_id if "@" in entry_id else entry_id + place.suffix for entry_id in ids]


def trims(on_full: str) -> bool:
    """Return whether the oldest tasks are dropped at the bound. Raises `UsageError`."""
    if on_full not in ("refuse", "trim"):
        raise UsageError(f"on_full is {on_full!r}", hint="use 'refuse' or 'trim'")
    return on_full == "trim"


def make_room_or_raise(
    scope: Scope, queue: str, priority: str, bound: int, argv: list[Any], reply: Sequence[Any]
) -> Op[None]:
    """Make room after a refusal, and adapt the script's arguments for a retry; raises `QueueFull`."""
    if not argv[ASKS] or not reply[3]:
        raise full(queue, bound, reply)
    argv[ASKS] = int((yield from make_room(scope, queue, priority, reply)))


def full(queue: str, bound: int, reply: Sequence[Any]) -> QueueFull:
    """Return the error for a script's reply: number of tasks, blocking group, and oldest task."""
    group, oldest, number = text(reply[2]), text(reply[3]), int(reply[1])
    tasks = "task" if number == 1 else "tasks"
    if oldest:
        reader = (
            f"the group {group!r} has not finished"
            if group
            else "an archive with --hold, or another reader outside of groups, has not passed"
        )
        said = (
            f"the queue {queue!r} keeps {number} {tasks}, because {reader} {oldest};"
            f" ten times its limit of {bound} are kept"
        )
        if not group:
            return QueueFull(
                said,
                hint="run the archiver, or end its hold by release(settings, path)",
                shell_hint="run the archiver, or end its hold: agentbus archive release PATH",
            )
        hint = "wait until it is finished, or cancel it"
    else:
        said = f"the queue {queue!r} holds {number} unfinished {tasks}; the limit is {bound}" + (
            f"; the group {group!r} has not finished the oldest" if group else ""
        )
        whose = f" of the group {group!r}" if group else ""
        hint = f"start workers{whose}, wait, or raise its bound"
    if group in ("", "default"):
        return QueueFull(said, hint=hint)
    delete = command("agentbus bus delete", queue, f" --group {typed(group)} --force")
    return QueueFull(
        said,
        hint=f"{hint}; if nobody needs that group: queue.delete({group!r}, force=True)",
        shell_hint=f"{hint}; if nobody needs that group: {delete}",
    )


class Encoded:
    """A task with an envelope: its encoded payload, the rest of the envelope, also encoded, and its keys.

    `meta` is empty if the task has only keys and a payload.
    """

    __slots__ = ("key", "meta", "ordering_key", "payload", "unique")

    def __init__(
        self,
        payload: bytes,
        meta: bytes,
        key: str | None,
        ordering_key: str | None,
        unique: bool = False,
    ) -> None:
        self.payload = payload
        self.meta = meta
        self.key = key
        self.ordering_key = ordering_key
        self.unique = unique

    def words(self, agent: str) -> list[bytes | str]:
        """Return the fields and values of the entry, as published by an agent."""
        meta = (b"meta", self.meta) if self.meta else ()
        return [b"payload", self.payload, *meta, *envelope.by(agent)]


def encoded(scope: Scope, item: object, more: Mapping[str, Any] | None = None) -> bytes | Encoded:
    """Return an encoded payload; if it has an envelope, or is published by a handler, an `Encoded`.

    `more` are envelope fields that no publisher sets.
    """
    origin = context.current.get()
    if not isinstance(item, Task):
        if origin is None and not more:
            return envelope.encode(item, scope.max_body)
        item = Task(item)
    meta = envelope_of(item)
    data = envelope.encode(item.payload, scope.max_body)
    if meta is None and origin is None and not more:
        return data
    meta = {**(meta or {}), **more} if more else meta or {}
    if origin is not None:
        _link(meta, origin)
    kept = envelope.encode(meta, scope.max_body) if meta else b""
    if item.unique is not None and item.key is None:
        raise UsageError("a unique task has no key", hint="give it a key")
    return Encoded(data, kept, item.key, item.ordering_key, item.unique is not None)


def meta_of(scope: Scope, item: Task) -> bytes:
    """Return the encoded envelope of a task without its payload; empty if it has no fields."""
    data = encoded(scope, replace(item, payload=None, unique=None))
    return data.meta if isinstance(data, Encoded) else b""


def _link(meta: dict[str, Any], origin: context.Origin) -> None:
    """Link a task that a handler publishes to the handler's task."""
    meta.setdefault("correlation_id", origin.correlation_id)
    meta.setdefault("causation_id", origin.id)
    if origin.trail:
        meta.setdefault("trail", origin.trail)
    if origin.traceparent and context.is_traceparent(origin.traceparent):
        meta.setdefault("traceparent", context.child(origin.traceparent))


def window_of(item: object, window: float) -> float:
    """Return the seconds for which a task's dedup key is kept: `window`, unless the task is unique."""
    return UNIQUE_KEPT if isinstance(item, (Task, Encoded)) and item.unique else window


def check_priority(priority: object) -> None:
    """Raise `UsageError` for a word that is not a priority."""
    if priority not in PRIORITIES:
        raise UsageError(
            f"{priority!r} is not a priority", hint=f"use one of {', '.join(PRIORITIES)}"
        )


class Schedule(Push):
    """The script `schedule` with one task; a link may join several of them.

    `when` is the delay and the due time in ms; one of them is empty.
    """

    __slots__ = ("_when",)
    script = "schedule"

    def __init__(
        self,
        kind: object,
        reserve: Callable[[], Once],
        keys_with: Callable[[str], tuple[str, ...]],
        head: tuple[Arg, ...],
        when: tuple[str, str],
        body: bytes,
    ) -> None:
        super().__init__(kind, reserve, keys_with, head, body)
        self._when = when

    @property
    def argv(self) -> Sequence[Arg]:  # type: ignore[override]
        """The arguments of the script."""
        return (*self._head, self.once.token, *self._when, self.payload)

    def joined(self, steps: Sequence[Push]) -> Script:
        """Return a script that stores the tasks of all steps, which are otherwise identical."""
        argv: list[Arg] = [*self._head, self.once.token]
        for step in steps:
            assert isinstance(step, Schedule)
            argv += (*step._when, step.payload)
        return Script(self.script, self.keys, argv, writes=True)

    def shared(self, reply: Any, number: int) -> list[Any] | None:
        """Return the reply for each joined step; None if they must be sent separately."""
        if reply[0] != b"accepted":
            return None
        name, at, tail = bytes(reply[1]).partition(b"@")
        first = int(name[1:])
        return [[b"accepted", b"d%d%b%b" % (first + n, at, tail)] for n in range(number)]


def schedule(
    scope: Scope,
    queue: str,
    item: object,
    bound: int,
    priority: str,
    delay: float | None,
    at: float | None,
    window: float,
) -> Op[str]:
    """Store one payload or `Task` until it is due, and return its id. Raises `QueueFull`."""
    writable(queue)
    when = due(delay, at)
    yield from date(scope, [item])
    priority, words, key, ordering = stored_fields(scope, item, priority, delay, at)
    keys = scope.keys
    seen = [keys.seen(queue, key)] if key is not None else []
    if isinstance(words[0], bytes):
        words = [word if isinstance(word, str) else word.decode() for word in words]
    body = orjson.dumps([priority, ordering or "", *words])

    def places(once: str) -> tuple[str, ...]:
        return (
            *(keys.delayed(queue), keys.bodies(queue), keys.queues, keys.stats(queue)),
            *(once, keys.queue(queue, priority), keys.bell(queue)),
            *(keys.metrics, keys.readers(queue, priority), keys.after(queue)),
            *(keys.queue(queue, RETRY), keys.ids(queue), *seen),
        )

    head = (1, queue, bound, round(window_of(item, window)), suffix(queue, "normal"))
    argv: list[Any] = [*head, "", *when, body]
    if key is None:
        kind = ("schedule", queue, priority, bound)
        push = Schedule(kind, scope.once, places, head, when, body)
        reply = yield push
        if push.sendings:
            # Free the slot only if this push was sent itself, not joined to another request.
            scope.free_slot(push.once, push)
        if reply[0] == b"accepted":
            return text(reply[1])
        yield from make_room_or_raise(scope, queue, priority, bound, argv, reply)
    once = scope.once()
    argv[len(head)] = once.token
    while True:
        step = Script("schedule", places(once.key), argv, writes=True)
        reply = yield step
        scope.free_slot(once, step)
        if reply[0] != b"full":
            break
        yield from make_room_or_raise(scope, queue, priority, bound, argv, reply)
    entry_id = text(reply[1])
    return entry_id if "@" in entry_id else entry_id + suffix(queue, priority)


def date(scope: Scope, items: Iterable[object]) -> Op[None]:
    """Ask for the server's time if a task expires: a publisher's own clock may be wrong."""
    if any(isinstance(item, Task) and item.expires is not None for item in items):
        yield from server_time(scope)


def stored_fields(
    scope: Scope,
    item: object,
    priority: str,
    delay: float | None,
    at: float | None,
    more: Mapping[str, Any] | None = None,
) -> tuple[str, list[Any], str | None, str | None]:
    """Return the priority of a task to store until it is ready, its fields and values, and its keys.

    `more` are envelope fields that no publisher sets.
    """
    now = round(scope.server_now(), 3)
    if not isinstance(item, Task) and not more and context.current.get() is None:
        # Inline the code below for a bare payload, the common case.
        check_priority(priority)
        data = envelope.encode(item, scope.max_body).decode()
        meta = f'{{"created_at":{now}}}'
        return priority, ["payload", data, "meta", meta, "agent_id", scope.agent], None, None
    task = item if isinstance(item, Task) else Task(item)
    priority = task.priority or priority
    check_priority(priority)
    if task.created_at is None:
        # The entry's id shows when the task became due, not when it was published.
        task = replace(task, created_at=now)
    message = encoded(scope, task, more)
    assert isinstance(message, Encoded)
    check_due(task, at - scope.server_now() if at is not None else delay or 0.0)
    return priority, message.words(scope.agent), message.key, message.ordering_key


def due(delay: float | None, at: float | None) -> tuple[str, str]:
    """Check a delay or a time in seconds, and return both in ms; the missing one is empty."""
    if delay is not None and at is not None:
        raise UsageError("a task has a delay and a time", hint="give one of them")
    if delay is not None:
        if not is_seconds(delay) or not 0 <= delay <= LONGEST:
            raise UsageError(f"the delay is {delay!r}", hint="give seconds, at most 400 days")
        return str(round(delay * 1000)), ""
    assert at is not None
    if not is_seconds(at) or not 0 <= at <= time.time() + LONGEST:
        raise UsageError(f"the time is {at!r}", hint="give unix seconds, at most 400 days ahead")
    return "", str(round(at * 1000))


class StreamKeys:
    """The keys for a publish, and the suffix of task ids."""

    __slots__ = (
        *("crowded", "metrics", "order", "queues", "readers", "retries", "stats", "stream"),
        "suffix",
    )

    def __init__(self, project: str, queue: str, priority: str) -> None:
        writable(queue)
        keys = Keys(project)
        # Number of further publishes that are expected to need trimming.
        self.crowded = 0
        self.stream = keys.queue(queue, priority)
        self.retries = keys.queue(queue, RETRY)
        self.queues = keys.queues
        self.stats = keys.stats(queue)
        self.metrics = keys.metrics
        self.readers = keys.readers(queue, priority)
        self.order = keys.order(queue, priority)
        self.suffix = suffix(queue, priority)

    def plain(self, once: str) -> tuple[str, ...]:
        """Return the keys for a publish of bare payloads."""
        return (self.stream, once, self.stats, self.queues, self.retries)


stream_keys = cached(StreamKeys)


class Priority(StrEnum):
    """The priority of a task; each has a separate stream, and they are read in this order."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
