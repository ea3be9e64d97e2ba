"""The registry of workers: heartbeats, orders, and the list of workers.

A worker sends a heartbeat every second (an idle worker every 1.5 seconds), and the reply contains its
orders. A worker whose last heartbeat is older than `ALIVE` seconds counts as dead, and sends another before
it runs a task. A pause is therefore in effect as soon as all live workers have received it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from socket import gethostname
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from agentbus.core import names
from agentbus.core.errors import TimedOut
from agentbus.core.keys import pause_field
from agentbus.core.stream import fields, is_number, score, text
from agentbus.core.version import __version__
from agentbus.queues.dependents import queue_of
from agentbus.queues.ids import ASIDE, STREAMS
from agentbus.queues.limits import limit_of
from agentbus.queues.progress import began_in
from agentbus.store.failures import or_empty
from agentbus.store.scan import hash_fields
from agentbus.store.scope import INTERVALS
from agentbus.store.steps import Batch, Command, LinkDown, Pause, Script, ServerReply, one_step

if TYPE_CHECKING:
    from agentbus.queues.consumer import QueueConsumer
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op

T = TypeVar("T")

# Seconds without a heartbeat after which a worker counts as dead.
ALIVE = INTERVALS.alive
# Seconds for which a dead worker remains listed.
KEPT = 3600
_AT_ONCE = 500
# Maximum number of workers to list, those with the latest heartbeats.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Expected:
    """The seconds until an idle worker's next delayed task is due, and until its next retry is due.

    Each is None if there is none. `held` is the number of tasks that consumers of its group hold;
    `outcomes` is true if outcomes of tasks with dependents are still to be processed.
    """

    delayed: float | None
    retry: float | None
    held: int
    outcomes: bool


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """The orders for a worker: whether it is paused, why, whether it must stop, and its cancelled tasks.

    `expected` is set in the reply to an idle worker.
    """

    paused: bool = False
    reason: str | None = None
    stop: bool = False
    cancelled: frozenset[str] = frozenset()
    expected: Expected | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """A worker in the list. `age` is the seconds since its last heartbeat, by the server's clock.

    `pending` is the number of tasks that it has taken and not settled; `paused` is the reason of a pause.
    `lag` is the number of due tasks that its group has not finished; only `who` sets it. `began` maps each
    task that has run for more than a second to the unix time of its beginning, the oldest first, at most
    200.
    """

    worker: str
    agent_id: str
    queue: str
    group: str
    state: str
    alive: bool
    age: float
    seen: float
    started: float
    done: int
    failed: int
    running: int
    pending: int
    concurrency: int
    host: str
    pid: int
    version: str
    paused: str | None = None
    lag: int | None = None
    began: Mapping[str, float] = field(default_factory=dict)

    @property
    def running_for(self) -> float | None:
        """The seconds for which its oldest task had run at its last heartbeat; None without such a task."""
        return max(0.0, self.seen - min(self.began.values())) if self.began else None


class WorkerRegistration:
    """One worker's entry in the registry. Its heartbeats must not overlap."""

    def __init__(
        self, scope: Scope, worker: str, agent: str, queue: str, group: str, concurrency: int
    ) -> None:
        self.scope = scope
        self.worker = names.name("worker", worker)
        self.queue = queue
        self._record: list[str | int] = [
            *("agent", agent, "queue", queue, "group", group, "concurrency", concurrency),
            *("host", gethostname(), "pid", os.getpid(), "version", __version__),
        ]
        self._fields = fields_of(queue, agent, worker)
        # Heartbeats update this consumer's limits, and report the progress of its tasks.
        self.consumer: QueueConsumer | None = None
        self._numbers = count(1)
        self._until = float("-inf")

    @property
    def current(self) -> bool:
        """True if the last heartbeat is still valid; if not, this worker counts as dead."""
        return self.scope.monotonic() < self._until

    def beat_op(self, state: str, done: int, failed: int, running: int) -> Op[WorkerOrders]:
        """Send a heartbeat, and return the orders. `state` is `working`, `paused` or `stopping`.

        A worker that has reported `paused` takes no tasks until a reply ends the pause.
        """
        return (yield from self._beat("heartbeat_worker", (), (), state, done, failed, running))

    def idle_op(
        self,
        consumer: QueueConsumer,
        rings: Sequence[bytes],
        *figures: Any,
        listen: bool,
    ) -> Op[WorkerOrders]:
        """Send a heartbeat like `beat_op`, and also return the times for which an idle worker waits.

        `rings` are the entries of the queue's bell that the worker has read. With `listen`, the bell's
        consumer group is created if it is missing.
        """
        keys = self.scope.keys
        waits = (
            *(keys.delayed(self.queue), keys.settled, keys.bell(self.queue)),
            *(
                key
                for priority, stream in consumer.streams.items()
                for key in (stream, consumer.retries(priority))
            ),
        )
        read: tuple[Arg, ...] = (consumer.group, int(listen), len(rings), *rings)
        return (yield from self._beat("heartbeat_idle_worker", waits, read, *figures))

    def watch_op(
        self, consumers: Sequence[QueueConsumer], group: str, *figures: Any
    ) -> Op[tuple[WorkerOrders, bool, list[Any]]]:
        """Send a heartbeat like `beat_op`, and check the queues of these consumers.

        Also returns whether outcomes of tasks with dependents are recorded, and for each queue the result
        of the script `heartbeat_many_queues`.
        """
        keys = self.scope.keys
        waits = [keys.settled]
        for consumer in consumers:
            waits += (keys.delayed(consumer.queue), keys.bell(consumer.queue))
            for priority, stream in consumer.streams.items():
                waits += (stream, consumer.retries(priority))
        fields = [pause_field("queue", consumer.queue) for consumer in consumers]
        rest: list[Any] = []
        read: tuple[Arg, ...] = (group, ASIDE, len(consumers), *fields)
        orders = yield from self._beat("heartbeat_many_queues", waits, read, *figures, rest=rest)
        return orders, bool(rest[0]), rest[1]

    def _beat(
        self,
        script: str,
        waits: Sequence[str],
        read: Sequence[Arg],
        state: str,
        *figures: int,
        rest: list[Any] | None = None,
    ) -> Op[WorkerOrders]:
        # Count the time from before the request, so that it never ends later than on the server.
        began = self.scope.monotonic()
        keys, number = self.scope.keys, next(self._numbers)
        done, failed, running = figures
        progress = () if self.consumer is None else self.consumer.progress.fields()
        (order, limit, now), stop, silent, cancelled, *more = yield Script(
            script,
            (keys.beats, keys.beat(self.worker), keys.paused, *waits),
            (
                *read,
                *(self.worker, number, state, KEPT, len(self._fields)),
                *self._fields,
                *self._record,
                *("done", done, "failed", failed, "running", running, *progress),
            ),
            writes=True,
        )
        self._until = began + self.scope.intervals.alive
        self.scope.note_server_time(now / 1000)
        if self.consumer is not None:
            self.consumer.limit = limit_of(limit)
        if rest is not None:
            rest += more
        for worker in silent:
            yield from unregister(self.scope, text(worker), silent=KEPT)
        return WorkerOrders(
            bool(order),
            reason(order),
            bool(stop),
            frozenset(filter(None, text(cancelled).split("\n"))),
            _expected(*more) if more and rest is None else None,
        )

    def unregister_op(self) -> Op[None]:
        yield from unregister(self.scope, self.worker)


def _expected(delayed: bytes, retry: bytes, held: int, outcomes: int) -> Expected:
    return Expected(
        float(delayed) / 1000 if delayed else None,
        float(retry) / 1000 if retry else None,
        int(held),
        bool(outcomes),
    )


def fields_of(queue: str, agent: str, worker: str | None = None) -> list[str]:
    """Return the fields of all orders that apply to a worker, or to an agent that fetches."""
    fields = [pause_field("project"), pause_field("queue", queue), pause_field("agent", agent)]
    fields.append(pause_field("limit", queue))
    return fields if worker is None else [*fields, pause_field("worker", worker)]


def unregister(scope: Scope, worker: str, *, silent: float = 0.0) -> Op[bool]:
    """Remove a worker whose last heartbeat is `silent` seconds old; return whether it was removed."""
    keys = scope.keys
    gone = yield Script(
        "unregister_worker",
        (keys.beats, keys.beat(worker), keys.paused),
        (worker, pause_field("worker", worker), round(silent * 1000)),
        writes=True,
    )
    return bool(gone)


def pause_reason(
    scope: Scope, queue: str, agent: str, limited: QueueConsumer | None = None
) -> Op[str | None]:
    """Return the reason of the pause that keeps an agent from taking a queue's tasks; None if not paused.

    The limits of the queue, read in the same request, are set on the consumer `limited`, if given.
    """
    asked = one_step(Command("HMGET", scope.keys.paused, *fields_of(queue, agent)))
    orders = yield from or_empty(asked, [])
    if orders:
        limit = orders.pop()
        if limited is not None:
            limited.limit = limit_of(limit)
    return next((reason(order) for order in orders if order), None)


def ring(bell: str, number: int = 1, why: str = "due") -> Op[None]:
    """Wake a queue's workers: all that are busy or paused, and `number` idle ones of each group.

    `why` is `due` if due times have changed, or `order` for an order to workers.
    """
    yield from in_batches([("XADD", bell, "MAXLEN", number, "*", why, "1")] * number)


def reason(order: bytes) -> str | None:
    """Return who ordered a pause, and why; None if there is no order."""
    if not order:
        return None
    parts = parsed(order)
    who = f"by {parts['by']}" if parts.get("by") else "by an order"
    return f"{who}: {parts['why']}" if parts.get("why") else who


def parsed(stored: bytes) -> dict[str, str]:
    """Return the text fields of a JSON object, such as an order; empty if it is malformed."""
    try:
        fields = orjson.loads(stored)
    except ValueError:
        return {}
    if not isinstance(fields, dict):
        return {}
    return {key: value for key, value in fields.items() if isinstance(value, str)}


def workers(scope: Scope, *, counted: bool = True, sure: bool = False) -> Op[list[Registered]]:
    """Return the registered workers by queue and agent, including dead ones, at most 10,000.

    Unless `counted`, their numbers of pending tasks are not requested. If another program has overwritten
    the registry, it is empty until the workers' next heartbeats, for which this waits if it must be `sure`.
    """
    now, last, records = yield from _listed(scope, sure=sure)
    if not records:
        return []
    orders = yield from orders_by_field(scope)
    groups = {(record.get("queue", ""), record.get("group", "")) for record in records.values()}
    pending = yield from _pending(scope, sorted(groups) if counted else ())
    registered = []
    for worker, record in records.items():
        queue, group, agent = (record.get(name, "") for name in ("queue", "group", "agent"))
        order = next(
            (orders[field] for field in fields_of(queue, agent, worker) if field in orders), None
        )
        age = max(0.0, now - last[worker])
        registered.append(
            Registered(
                worker,
                agent,
                queue,
                group,
                record.get("state", "working"),
                age <= scope.intervals.alive,
                age,
                last[worker],
                _int(record, "started") / 1000,
                _int(record, "done"),
                _int(record, "failed"),
                _int(record, "running"),
                pending.get((queue, group, worker), 0),
                _int(record, "concurrency"),
                record.get("host", ""),
                _int(record, "pid"),
                record.get("version", ""),
                order,
                began=began_in(record.get("began")),
            )
        )
    return sorted(
        registered,
        key=lambda worker: (worker.queue, worker.agent_id, worker.started, worker.worker),
    )


def or_no_worker(scope: Scope, op: Op[T], *, task: str = "", queue: str = "") -> Op[T]:
    """Run an operation that waits for a task; if it times out and no worker of its queue lives, say so.

    The queue is that of `task`, or `queue`.
    """
    try:
        return (yield from op)
    except TimedOut as error:
        queue = queue or queue_of(task)
        try:
            known = yield from workers(scope, counted=False)
        except (LinkDown, ServerReply):
            # A user who may wait for results may not read the registry.
            raise error from None
        if any(worker.alive and worker.queue == queue for worker in known):
            raise
        project = scope.keys.project
        hint = f"start one, for the project {project}: a worker of another project takes none of its tasks"
        raise TimedOut(
            f"{error.message}: no worker of {queue!r} lives in the project {project}",
            hint=f"{hint}; {error.hint}" if error.hint else hint,
            shell_hint=f"{hint}; {error.shell_hint}" if error.shell_hint else hint,
        ) from None


def _listed(
    scope: Scope, *, sure: bool
) -> Op[tuple[float, dict[str, float], dict[str, dict[str, str]]]]:
    """Return the server's time, and the last heartbeat and the record of each worker."""
    keys = scope.keys
    listing = ("ZREVRANGE", keys.beats, 0, MOST - 1, "WITHSCORES")
    time, seen = yield Batch([("TIME",), listing])
    if isinstance(seen, ServerReply) and seen.code != "WRONGTYPE":
        raise seen
    foreign = isinstance(seen, ServerReply)
    if foreign:
        seen = []
    last = {text(seen[i]): score(seen[i + 1]) / 1000 for i in range(0, len(seen), 2)}
    replies = yield from in_batches([("HGETALL", keys.beat(worker)) for worker in last])
    if sure and (foreign or any(isinstance(flat, ServerReply) for flat in replies)):
        # A worker without a record registers again within this time, or before it takes a task.
        yield Pause(scope.intervals.alive)
        return (yield from _listed(scope, sure=False))
    records = {
        worker: fields(flat)
        for worker, flat in zip(last, replies, strict=True)
        if flat and not isinstance(flat, Exception)
    }
    return int(time[0]) + int(time[1]) / 1e6, last, records


def orders_by_field(scope: Scope) -> Op[dict[str, str]]:
    """Return the reason of each pause by its order's field, for about 10,000 orders at most."""
    stored = yield from or_empty(hash_fields(scope.keys.paused, MOST), {})
    reasons = {text(field): reason(order) or "" for field, order in stored.items()}
    return {field: why for field, why in reasons.items() if not field.startswith("limit:")}


def _pending(
    scope: Scope, groups: Sequence[tuple[str, str]]
) -> Op[dict[tuple[str, str, str], int]]:
    """Return the number of tasks that each consumer of the groups holds."""
    asked = [(queue, group, priority) for queue, group in groups for priority in STREAMS]
    pending: dict[tuple[str, str, str], int] = {}
    replies = yield from in_batches(
        [
            ("XINFO", "CONSUMERS", scope.keys.queue(queue, priority), group)
            for queue, group, priority in asked
        ]
    )
    for (queue, group, _), reply in zip(asked, replies, strict=True):
        # The reply is an error if the stream or its group is missing.
        for consumer in reply if isinstance(reply, list) else ():
            about: dict[bytes, Any] = dict(zip(consumer[::2], consumer[1::2], strict=True))
            who = (queue, group, text(about[b"name"]))
            pending[who] = pending.get(who, 0) + int(about[b"pending"])
    return pending


def in_batches(commands: Sequence[tuple[Arg, ...]]) -> Op[list[Any]]:
    """Send commands in batches of limited size, and return their replies, including errors."""
    replies: list[Any] = []
    for at in range(0, len(commands), _AT_ONCE):
        replies += yield Batch(commands[at : at + _AT_ONCE])
    return replies


def _int(record: dict[str, str], name: str) -> int:
    value = record.get(name, "")
    return int(value) if is_number(value) else 0
