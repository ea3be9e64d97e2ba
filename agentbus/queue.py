"""Work: queues on streams and consumer groups, that lose nothing they have accepted."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import orjson

from agentbus import envelope, names
from agentbus.errors import InvalidPayload, NotFound, QueueFull, TimedOut, UsageError
from agentbus.record import Record
from agentbus.store import Command, Pause, Run
from agentbus.stream import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentbus.keys import Scope
    from agentbus.store import Op


class Priority(StrEnum):
    """How urgent a task is; each is a stream of its own, read in this order."""

    CRITICAL = "critical"
    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


PRIORITIES = tuple(priority.value for priority in Priority)
BOUND = 10_000
DEDUP_WINDOW = 300
RESULT_KEPT = 86_400
# How many tasks one request carries: more gains nothing, and a script must not block the server.
BATCH = 500
_FAR = 400 * 86_400.0


class Task(Record):
    """What is published beside the payload; empty fields are not stored."""

    key: str | None = None
    priority: str = "normal"
    correlation_id: str | None = None
    causation_id: str | None = None
    reply_to: str | None = None
    webhook: str | None = None
    headers: Mapping[str, str] | None = None
    traceparent: str | None = None
    source: str | None = None
    tenant: str | None = None


def bound_of(queue: str) -> int:
    """Return how many tasks a queue holds unless it is told otherwise."""
    if queue == "incoming":
        return 1_000
    return 100 if queue.startswith("agent.") else BOUND


def publish(
    scope: Scope,
    queue: str,
    payload: object,
    task: Task,
    *,
    bound: int,
    delay: float | None = None,
    at: float | None = None,
    window: float = DEDUP_WINDOW,
    trim: bool = False,
) -> Op[str]:
    """Append one task, or keep it until it is due, and return its id. Raises `QueueFull`."""
    _check(task)
    words = _words(scope, payload, task)
    keys, once = scope.keys, scope.once()
    seen = [keys.seen(queue, names.name("key", task.key))] if task.key is not None else []
    stream = keys.queue(queue, task.priority)
    if delay is not None or at is not None:
        wait, due = _due(delay, at)
        step = Run(
            "schedule",
            (
                *(keys.delayed(queue), keys.bodies(queue), keys.queues, keys.stats(queue)),
                *(once.key, stream, keys.bell(queue), *seen),
            ),
            (
                *(queue, bound, round(window), _suffix(queue, "normal"), once.token),
                *(wait, due, task.priority, *words),
            ),
            writes=True,
        )
    else:
        step = _publishing(scope, queue, task.priority, once, [words], bound, window, trim, seen)
    reply = yield step
    scope.settled(once, step)
    if reply[0] == b"full":
        raise _full(queue, bound, int(reply[1]))
    found = text(reply[1])
    return found if "@" in found else found + _suffix(queue, task.priority)


def publish_batch(
    scope: Scope,
    queue: str,
    payloads: Sequence[object],
    *,
    priority: str,
    bound: int,
    trim: bool = False,
) -> Op[list[str]]:
    """Append tasks, all or none of them, in one request, and return their ids."""
    encode, limit = envelope.encode, scope.max_body
    words: list[list[bytes | str]] = [[b"payload", encode(item, limit)] for item in payloads]
    once = scope.once()
    step = _publishing(scope, queue, priority, once, words, bound, DEDUP_WINDOW, trim, [])
    reply = yield step
    scope.settled(once, step)
    if reply[0] == b"full":
        raise _full(queue, bound, int(reply[1]))
    milliseconds, _, sequence = text(reply[1]).partition("-")
    start, end = int(sequence), _suffix(queue, priority)
    return [f"{milliseconds}-{start + i}{end}" for i in range(len(payloads))]


def publish_many(
    scope: Scope,
    queue: str,
    payloads: Iterable[object],
    *,
    priority: str,
    bound: int,
    trim: bool = False,
) -> Op[list[str]]:
    """Append any number of tasks, a batch at a time, and return their ids."""
    ids: list[str] = []
    batch: list[object] = []
    for payload in payloads:
        batch.append(payload)
        if len(batch) == (min(BATCH, max(bound, 1)) if trim else BATCH):
            ids += yield from publish_batch(
                scope, queue, batch, priority=priority, bound=bound, trim=trim
            )
            batch = []
    if batch:
        ids += yield from publish_batch(
            scope, queue, batch, priority=priority, bound=bound, trim=trim
        )
    return ids


def result(scope: Scope, task_id: str, wait: float | None = None) -> Op[Any]:
    """Return a finished task's result, waiting for it so many seconds. Raises `NotFound`, `TimedOut`."""
    names.name("task id", task_id[:256])
    if not wait:
        found = yield Command("GET", scope.keys.result(task_id))
        if found is None:
            raise NotFound(f"there is no result of the task {task_id!r}", hint="wait for it")
        return orjson.loads(found)
    until = scope.monotonic() + wait
    pause = 0.005
    while True:
        found = yield Command("GET", scope.keys.result(task_id))
        if found is not None:
            return orjson.loads(found)
        left = until - scope.monotonic()
        if left <= 0:
            raise TimedOut(f"waited {wait:g} s for the result of {task_id!r}")
        yield Pause(min(pause, left))
        pause = min(pause * 1.5, 0.25)


def peek(scope: Scope, queue: str, limit: int = 10) -> Op[list[tuple[str, Any]]]:
    """Return the oldest tasks of a queue, by priority, without taking them."""
    found: list[tuple[str, Any]] = []
    for priority in PRIORITIES:
        room = limit - len(found)
        if room <= 0:
            break
        entries = yield Command(
            "XRANGE", scope.keys.queue(queue, priority), "-", "+", "COUNT", room
        )
        for entry_id, flat in entries:
            try:
                payload, _ = envelope.decode(flat or [])
            except ValueError as error:
                payload = {"malformed": str(error)}
            found.append((text(entry_id) + _suffix(queue, priority), payload))
    return found


def split(task_id: str) -> tuple[str, str, str]:
    """Return the entry id, the queue's encoded name and the priority in a task's id."""
    entry_id, separator, rest = task_id.partition("@")
    if not separator:
        raise UsageError(f"{task_id!r} is no task id", hint="give one that 'publish' printed")
    queue, _, priority = rest.partition(":")
    return entry_id, queue, priority or "normal"


def task_id(entry_id: str, queue: str, priority: str) -> str:
    """Return a task's id: the id of its entry, and where it lies."""
    return entry_id + _suffix(queue, priority)


def _publishing(
    scope: Scope,
    queue: str,
    priority: str,
    once: Any,
    tasks: Sequence[Sequence[bytes | str]],
    bound: int,
    window: float,
    trim: bool,
    seen: list[str],
) -> Run:
    keys = scope.keys
    argv: list[bytes | str | int] = [
        *(queue, bound, "trim" if trim else "refuse", round(window)),
        *(_suffix(queue, priority), once.token, len(tasks)),
    ]
    for words in tasks:
        argv.append(len(words))
        argv += words
    return Run(
        "publish",
        (keys.queue(queue, priority), keys.queues, keys.stats(queue), once.key, *seen),
        argv,
        writes=True,
    )


def _words(scope: Scope, payload: object, task: Task) -> list[bytes | str]:
    words: list[bytes | str] = [b"payload", envelope.encode(payload, scope.max_body)]
    meta = {name: getattr(task, name) for name in envelope.META if getattr(task, name, None)}
    if meta:
        words += [b"meta", envelope.encode(meta, scope.max_body)]
    return words


def on_full(word: str) -> None:
    """Check what is to happen at the bound."""
    if word not in {"refuse", "trim"}:
        raise UsageError(f"on_full is {word!r}", hint="use 'refuse' or 'trim'")


def _check(task: Task) -> None:
    if task.priority not in PRIORITIES:
        raise UsageError(
            f"{task.priority!r} is no priority", hint=f"use one of {', '.join(PRIORITIES)}"
        )
    for what in ("key", "reply_to"):
        value = getattr(task, what)
        if value is not None:
            names.name(what.replace("_", " "), value)
    headers = task.headers
    if headers is not None and not all(
        isinstance(part, str) for pair in dict(headers).items() for part in pair
    ):
        raise InvalidPayload("a header is no text", hint="give text for its name and its value")


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


def _suffix(queue: str, priority: str) -> str:
    tail = "" if priority == "normal" else f":{priority}"
    return f"@{names.escape(queue)}{tail}"


def _full(queue: str, bound: int, length: int) -> QueueFull:
    return QueueFull(
        f"the queue {queue!r} holds {length} tasks that are not done, and {bound} fit",
        hint="start workers, wait, or raise its bound",
    )
