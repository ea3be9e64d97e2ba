"""Publishes tasks: appends them to a queue, or keeps them until they are due."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from sys import modules
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

from agentbus.core import context, envelope
from agentbus.core.errors import UsageError
from agentbus.core.stream import text
from agentbus.queues import tracing
from agentbus.queues.bound import refused
from agentbus.queues.encoding import Encoded, encoded, known, meta_of, window_of
from agentbus.queues.ids import BOUND, DEDUP_WINDOW, PRIORITIES, writable
from agentbus.queues.scheduling import schedule
from agentbus.queues.stream_keys import place as stream_keys
from agentbus.queues.task import Task, is_bare
from agentbus.store import durable
from agentbus.store.steps import Emit, Push, Script

if TYPE_CHECKING:
    from agentbus.queues.policy import Policy
    from agentbus.queues.runner import AsyncRunner, Runner
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op

T = TypeVar("T")


class BatchOptions(TypedDict, total=False):
    """The keywords of `publish_many` and `publish_stream`."""

    bound: int
    priority: str
    window: float
    trim: bool
    common: Task | None


# When a queue is at its bound, so many publishes in a row ask for trimming at once.
_CROWDED = 20
_payload_and_meta = attrgetter("payload", "meta")
# Tasks in one request, and the bytes of payloads at which it is complete: more gains nothing, and a script
# must not block the server.
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
    """Append one payload or `Task`, or keep it until it is due, and return its id. Raises `QueueFull`."""
    if isinstance(item, Task) and is_bare(item):
        priority, item = item.priority or priority, item.payload
    if (
        type(item) is Task
        or (delay is not None or at is not None)
        or context.current.get() is not None
        or (tracing.API in modules and tracing.tracer() is not None)
    ):
        return (yield from _publish(scope, queue, item, bound, priority, delay, at, window, trim))
    # As `_send`, for a payload alone, which is the usual case: it saves a fifth of a publish.
    if priority not in PRIORITIES:
        known(priority)
    place = stream_keys(scope.keys.project, queue, priority)
    data = envelope.encode(item, scope.max_body)
    if not place.crowded:
        kind, head = (place.stream, bound), (bound, queue, b"", scope.agent)
        push = Push(kind, scope.once, place.plain, head, data)
        reply = yield push
        if push.sendings:
            # Not with the request of another one.
            scope.settled(push.once, push)
        if reply is not None:
            found: str = reply.decode() + place.suffix
            return found
        place.crowded = _CROWDED
    place.crowded -= 1
    (found,) = yield from _send(scope, queue, [data], priority, bound, window, trim, None)
    return found


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
    known(priority)
    (found,) = yield from _send(
        scope, queue, [encoded(scope, item)], priority, bound, window, trim, None
    )
    return found


def confirmed(
    op: Op[T], runner: Runner | AsyncRunner, policy: Policy, kind: str | None, least: int | None
) -> Op[T]:
    """Return an operation whose writes are confirmed, if the caller or the policy demands it.

    Raises `UsageError`, and `ConfigError` for a server that confirms nothing.
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


def several(payloads: Iterable[object]) -> Iterable[object]:
    """Return the payloads of several tasks. Raises `UsageError` for a single one."""
    # Iterating over these would publish each character or key as its own task.
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
    """Append any number of payloads or `Task`s, a batch at a time, and return their ids.

    `common` is the envelope of the payloads, and of the `Task`s what they leave empty.
    """
    ids: list[str] = []
    for step in _batches(scope, queue, items, **how):
        ids += yield from step
    return ids


@tracing.in_span(tracing.stamped, each=True)
def publish_stream(
    scope: Scope, queue: str, items: Iterable[object], **how: Unpack[BatchOptions]
) -> Op[None]:
    """Append as `publish_many` does, and emit the ids of each batch when it is accepted."""
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
    common: Task | None = None,
) -> Iterator[Op[list[str]]]:
    writable(queue)
    known(priority)
    # With `trim`, a batch must not be longer than the bound.
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
    # What a key makes different for each task, or a handler's task adds, is in no common envelope.
    inherits = context.current.get() is not None or (
        common is not None and (common.key or common.ordering_key or common.unique) is not None
    )
    for item in items:
        priority = default
        found: bytes | Encoded | None = None
        if inherits or isinstance(item, Task):
            if common is not None:
                item = common.filling(item)
            if isinstance(item, Task) and item.priority:
                priority = item.priority
                known(priority)
            found = encoded(scope, item)
        # With an envelope apart, 2 if its key is kept for as long as it is not done.
        rich = 1 + found.unique if isinstance(found, Encoded) else 0
        if batch and (rich != kind or priority != now):
            yield now, batch
            batch, left = [], BATCH_BYTES
        now, kind = priority, rich
        if found is None:
            found = encode(item, limit)
        left -= len(found.payload if isinstance(found, Encoded) else found)
        batch.append(found)
        if left <= 0 or len(batch) == most:
            # Before the next item is read: it may take long, or be invalid.
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
    if not rich or all(one.key is one.ordering_key is None for one in tasks):
        if not place.crowded:
            head = (once.token, bound, queue, b"*" if rich else meta, scope.agent)
            words = chain.from_iterable(map(_payload_and_meta, tasks)) if rich else tasks
            step = Script("push", place.plain(once.key), (*head, *words), writes=True)
            if ahead is not None:
                step.meanwhile = ahead.prepare
            reply = yield step
            scope.settled(once, step)
            if reply is not None:
                milliseconds, _, sequence = reply.decode().partition("-")
                start, end = int(sequence), place.suffix
                numbers = range(start, start + len(tasks))
                return [f"{milliseconds}-{number}{end}" for number in numbers]
            place.crowded = _CROWDED
        place.crowded -= 1
        # There may be room after finished tasks, or the oldest, are trimmed.
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
    for one in tasks:
        fields = one.words(scope.agent)
        seen = 0 if one.key is None else len(keys) - 7
        argv += (len(fields), seen, one.ordering_key or "", *fields)
        if one.key is not None:
            keys.append(scope.keys.seen(queue, one.key))
    while True:
        step = Script("publish", keys, argv, writes=True)
        if ahead is not None:
            step.meanwhile = ahead.prepare
        reply = yield step
        scope.settled(once, step)
        if reply[0] != b"full":
            break
        yield from refused(scope, queue, priority, bound, argv, reply)
    ids = [text(found) for found in reply[1:]]
    return [found if "@" in found else found + place.suffix for found in ids]
