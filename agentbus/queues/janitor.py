"""Removes old finished tasks, dead consumers and stale records from queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.core.record import Record
from agentbus.core.stream import position, text
from agentbus.core.timespec import stream_id
from agentbus.queues import dependencies, dependents
from agentbus.queues.dead_letters import DeadLetters
from agentbus.queues.ids import PRIORITIES, groups_of, missing
from agentbus.queues.settle import ASIDE
from agentbus.store.scan import queues
from agentbus.store.steps import Command, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op, Step

    Number = Generator[Step, Any, int]

# How long finished tasks are kept after they were published, for reruns.
RETENTION = 86_400.0
# Workers ask for tasks every second, or hold some; a consumer that did neither for this long is dead.
DEAD_AFTER = 3600.0
_EVERY, _LEFTOVERS_EVERY = 60.0, 3600.0
# Limits of one script.
_TRIMMED, _LOOKED_AT, _SWEPT = 10_000, 200, 100
# The limit of one call of the chore, so that it does not delay others.
_STEPS = 50


class Tidied(Record):
    """What was removed from a queue, or would be: entries, dead consumers, stale records."""

    queue: str
    trimmed: int
    consumers: int
    leftovers: int


def tidy(
    scope: Scope,
    queue: str | None = None,
    *,
    dry_run: bool = False,
    retention: Callable[[str], float] = lambda _queue: RETENTION,
    letters_of: Callable[[str], str] = str,
    dead_after: float = DEAD_AFTER,
) -> Op[list[Tidied]]:
    """Tidy a queue, or all of them, and return what was removed. Raises `NotFound`.

    `retention` returns how many seconds a queue keeps finished tasks, `letters_of` the name of its dead
    letters. `dead_after` is how many seconds a consumer may be silent.
    """
    if queue is not None:
        names.name("queue", queue)
        there = yield from groups_of(scope, queue)
        if not there:
            raise missing(queue)
        found = [queue]
    else:
        found = sorted({*(yield from queues(scope)), *(yield from _registered(scope))})
    done = []
    boxes = _Boxes(letters_of)
    for name in found:
        one = yield from _tidy(
            scope, name, retention(name), dead_after, boxes, leftovers=True, dry_run=dry_run
        )
        done.append(one)
    if not dry_run:
        yield from dependents.follow(scope)
    return done


class Janitor:
    """Tidies a project's queues once a minute, in one of its workers; a chore of every worker."""

    def __init__(
        self,
        scope: Scope,
        *,
        retention: Callable[[str], float] = lambda _queue: RETENTION,
        letters_of: Callable[[str], str] = str,
    ) -> None:
        self._scope = scope
        self._retention = retention
        self._letters_of = letters_of
        self._next = 0.0
        self._work: Op[None] | None = None
        self._reply: Any = None

    def op(self) -> Op[None]:
        """Do a bounded part of the work; further calls do the rest."""
        if self._work is None:
            now = self._scope.monotonic()
            if now < self._next:
                return
            self._next = now + _EVERY
            self._work, self._reply = self._round(), None
        work, self._work = self._work, None
        try:
            for _ in range(_STEPS):
                # If a step fails, this round ends, and the next one starts from the beginning.
                self._reply = yield work.send(self._reply)
        except StopIteration:
            return
        self._work = work

    def _round(self) -> Op[None]:
        scope = self._scope
        if not (yield _lease(scope, "trim", _EVERY)):
            return
        leftovers = bool((yield _lease(scope, "leftovers", _LEFTOVERS_EVERY)))
        boxes = _Boxes(self._letters_of)
        for queue in (yield from _registered(scope)):
            kept = self._retention(queue)
            yield from _tidy(scope, queue, kept, DEAD_AFTER, boxes, leftovers=leftovers)


class _Boxes:
    """The dead letters of queues; several queues may share them, and they are tidied once."""

    def __init__(self, letters_of: Callable[[str], str]) -> None:
        self._letters_of = letters_of
        self._seen: set[tuple[str, str]] = set()

    def new(self, queue: str, groups: set[str]) -> list[tuple[str, str]]:
        """Return the names and groups not returned before."""
        name = self._letters_of(queue)
        found = [(name, group) for group in sorted(groups) if (name, group) not in self._seen]
        self._seen.update(found)
        return found


def keep(scope: Scope, reader: str, queue: str, priority: str, entry_id: str | None) -> Op[None]:
    """Record the lowest id of a queue's stream that a reader outside of groups still needs.

    No entry from it on is trimmed. None removes the reader.
    """
    names.name("reader", reader)
    key = scope.keys.readers(names.name("queue", queue), priority)
    if entry_id is None:
        yield Command("HDEL", key, reader)
        return
    yield Command("HSET", key, reader, _id(entry_id))


def keep_events(scope: Scope, reader: str, stream: str, entry_id: str | None) -> Op[None]:
    """Record the lowest id of a stream of events that a reader other than a consumer still needs.

    No event from it on is removed from the stream or the outbox. None lets the relay remove the reader. If
    a server loses the record, the ledger still has it.
    """
    names.name("reader", reader)
    key = scope.keys.event_readers(names.name("stream", stream))
    yield Command("HSET", key, reader, "none" if entry_id is None else _id(entry_id))


def _id(entry_id: str) -> str:
    if stream_id(entry_id) is None:
        raise UsageError(f"{entry_id[:60]!a} is not an id", hint="give the id of an entry")
    milliseconds, sequence = position(entry_id)
    return f"{milliseconds}-{sequence}"


def _lease(scope: Scope, duty: str, seconds: float) -> Command:
    # Resent after a lost answer, it is refused: then this round is skipped.
    lasts = round(seconds * 1000)
    return Command("SET", scope.keys.tidied(duty), scope.agent, "NX", "PX", lasts)


def _registered(scope: Scope) -> Generator[Step, Any, list[str]]:
    found = yield Command("ZRANGE", scope.keys.queues, 0, -1)
    return [text(name) for name in found]


def _tidy(
    scope: Scope,
    queue: str,
    retention: float,
    dead_after: float,
    boxes: _Boxes,
    *,
    leftovers: bool,
    dry_run: bool = False,
) -> Op[Tidied]:
    streams = yield from groups_of(scope, queue)
    trimmed = consumers = forgotten = 0
    known: set[str] = set()
    for priority, groups in streams.items():
        trimmed += yield from _trim(scope, queue, priority, retention, dry_run=dry_run)
        for raw in (info[b"name"] for info in groups):
            consumers += yield from _sweep(scope, queue, priority, raw, dead_after, dry_run=dry_run)
            group = raw.decode("utf-8", "replace")
            # A group whose name is not text was created by another program, and has no keys of ours.
            if leftovers and group.encode() == raw:
                known.add(group)
                forgotten += yield from _of_tasks(scope, queue, group, priority, dry_run=dry_run)
    for name, group in boxes.new(queue, known):
        forgotten += yield from _of_letters(scope, name, group, dry_run=dry_run)
    if not dry_run:
        yield from dependencies.review(scope, queue, thorough=leftovers)
        if not streams:
            yield _unregister(scope, queue)
    return Tidied(queue, trimmed, consumers, forgotten)


def _trim(scope: Scope, queue: str, priority: str, retention: float, *, dry_run: bool) -> Number:
    keys = (scope.keys.queue(queue, priority), scope.keys.readers(queue, priority))
    total, at = 0, "-"
    while at:
        number, onwards = yield Script(
            "trim",
            keys,
            (round(retention * 1000), _TRIMMED, "1" if dry_run else "0", at),
            writes=not dry_run,
        )
        total += number
        at = text(onwards)
    return total


def _sweep(
    scope: Scope, queue: str, priority: str, group: bytes, dead_after: float, *, dry_run: bool
) -> Number:
    number: int = yield Script(
        "sweep",
        (scope.keys.queue(queue, priority),),
        (group, ASIDE, round(dead_after * 1000), _SWEPT, "1" if dry_run else "0"),
        writes=not dry_run,
    )
    return number


def _of_tasks(scope: Scope, queue: str, group: str, priority: str, *, dry_run: bool) -> Number:
    """Delete attempts and retries of tasks that are no longer pending."""
    keys = scope.keys
    records = {
        "hash": keys.attempts(queue, group, priority),
        "zset": keys.retries(queue, group, priority),
    }
    return (yield from _leftovers(keys.queue(queue, priority), records, group, dry_run=dry_run))


def _of_letters(scope: Scope, queue: str, group: str, *, dry_run: bool) -> Number:
    """Delete the records of replayed and purged letters that no longer exist."""
    keys = scope.keys
    records = {"hash": keys.replayed(queue, group), "set": keys.purged(queue, group)}
    letters = keys.dead_letters(queue, group)
    total = yield from _leftovers(letters, records, "", dry_run=dry_run)
    if not dry_run:
        yield from DeadLetters(scope, queue, group).compact()
    return total


def _leftovers(stream: str, records: dict[str, str], group: str, *, dry_run: bool) -> Number:
    total = 0
    for kind, key in records.items():
        cursor = ""
        while cursor != "0":
            onwards, number = yield Script(
                "leftovers",
                (stream, key),
                (kind, group, cursor or "0", _LOOKED_AT, "1" if dry_run else "0"),
                writes=not dry_run,
            )
            total += int(number)
            cursor = text(onwards)
    return total


def _unregister(scope: Scope, queue: str) -> Script:
    keys = scope.keys
    streams = (keys.queue(queue, priority) for priority in PRIORITIES)
    parts = (*streams, keys.delayed(queue), keys.after(queue), keys.awaited(queue))
    return Script("unregister", (keys.queues, *parts), (queue,), writes=True)
