"""Publishes tasks that are kept until they are due."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import orjson

from agentbus.core import context, envelope
from agentbus.core.errors import UsageError
from agentbus.core.stream import text
from agentbus.core.validate import is_seconds
from agentbus.queues.bound import refused
from agentbus.queues.encoding import Encoded, encoded, known, window_of
from agentbus.queues.ids import RETRY, suffix, writable
from agentbus.queues.task import LONGEST, Task, check_due
from agentbus.store.steps import Push, Script

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Once, Op


class Schedule(Push):
    """The script `schedule` with one task; a link may send several of them as one.

    `when` is its delay and the time at which it is due, in ms; one of them is empty.
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
        """Return a script that keeps the tasks of all steps, which differ in nothing else."""
        argv: list[Arg] = [*self._head, self.once.token]
        for step in steps:
            assert isinstance(step, Schedule)
            argv += (*step._when, step.payload)
        return Script(self.script, self.keys, argv, writes=True)

    def shared(self, reply: Any, number: int) -> list[Any] | None:
        """Return the reply for each of the joined steps; None if they must be sent one by one."""
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
    """Keep one payload or `Task` until it is due, and return its id. Raises `QueueFull`."""
    writable(queue)
    when = due(delay, at)
    priority, words, key, ordering = kept(scope, item, priority, delay, at)
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
            *(keys.queue(queue, RETRY), *seen),
        )

    head = (1, queue, bound, round(window_of(item, window)), suffix(queue, "normal"))
    argv: list[Any] = [*head, "", *when, body]
    if key is None:
        kind = ("schedule", queue, priority, bound)
        push = Schedule(kind, scope.once, places, head, when, body)
        reply = yield push
        if push.sendings:
            # Not with the request of another one.
            scope.settled(push.once, push)
        if reply[0] == b"accepted":
            return text(reply[1])
        yield from refused(scope, queue, priority, bound, argv, reply)
    once = scope.once()
    argv[len(head)] = once.token
    while True:
        step = Script("schedule", places(once.key), argv, writes=True)
        reply = yield step
        scope.settled(once, step)
        if reply[0] != b"full":
            break
        yield from refused(scope, queue, priority, bound, argv, reply)
    found = text(reply[1])
    return found if "@" in found else found + suffix(queue, priority)


def kept(
    scope: Scope,
    item: object,
    priority: str,
    delay: float | None,
    at: float | None,
    more: Mapping[str, Any] | None = None,
) -> tuple[str, list[Any], str | None, str | None]:
    """Return the priority of a task that is kept until it is ready, its fields and values, and its keys.

    `more` are fields of its envelope that no publisher sets.
    """
    now = round(scope.now(), 3)
    if not isinstance(item, Task) and not more and context.current.get() is None:
        # As below, for a payload alone, which is the usual case.
        known(priority)
        data = envelope.encode(item, scope.max_body).decode()
        meta = f'{{"created_at":{now}}}'
        return priority, ["payload", data, "meta", meta, "agent_id", scope.agent], None, None
    task = item if isinstance(item, Task) else Task(item)
    priority = task.priority or priority
    known(priority)
    if task.created_at is None:
        # The entry's id will show when it was ready, not when it was published.
        task = replace(task, created_at=now)
    found = encoded(scope, task, more)
    assert isinstance(found, Encoded)
    check_due(task, at - scope.now() if at is not None else delay or 0.0)
    return priority, found.words(scope.agent), found.key, found.ordering_key


def due(delay: float | None, at: float | None) -> tuple[str, str]:
    """Check a delay or a time, in seconds, and return both in ms; the one that is not given is empty."""
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
