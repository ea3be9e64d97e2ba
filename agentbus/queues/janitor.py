"""Removes old finished tasks, dead consumers and stale records from queues."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import UsageError
from agentbus.core.stream import position, text
from agentbus.core.timespec import stream_id
from agentbus.queues import by_hand, dependencies, dependents
from agentbus.queues.dead_letters import DeadLetters
from agentbus.queues.ids import (
    ASIDE,
    PRIORITIES,
    RETRY,
    ROUTER,
    STREAMS,
    group_names,
    groups_of,
    missing,
    suffix,
)
from agentbus.queues.limiting import release_rest
from agentbus.queues.policy import DEFAULTS
from agentbus.queues.retry_stream import move_aside
from agentbus.store.failures import WrongType, or_empty
from agentbus.store.scan import hash_fields, members, queues
from agentbus.store.steps import Batch, Command, Script

if TYPE_CHECKING:
    from agentbus.queues.policy import Policies
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op, Step

    Number = Generator[Step, Any, int]

# Seconds after which an idle consumer is dead: live workers fetch every second, or hold tasks.
DEAD_AFTER = 3600.0
_EVERY, _LEFTOVERS_EVERY = 60.0, 3600.0
# Work limits of one script.
_TRIMMED, _LOOKED_AT, _SWEPT, _RECORDED = 10_000, 200, 100, 10_000
# Steps per call of the chore, so that other chores are not delayed.
_STEPS = 50


@dataclass(frozen=True, slots=True)
class Tidied:
    """Numbers of removed (or removable) items of a queue: entries, dead consumers, stale records."""

    queue: str
    trimmed: int
    consumers: int
    leftovers: int


def tidy(
    scope: Scope,
    queue: str | None = None,
    policies: Policies = DEFAULTS,
    *,
    dry_run: bool = False,
    dead_after: float = DEAD_AFTER,
) -> Op[list[Tidied]]:
    """Tidy one queue, or all queues, and return the removed numbers. Raises `NotFound`.

    `dead_after` is the silence in seconds after which a consumer is dead.
    """
    if queue is not None:
        names.name("queue", queue)
        there = yield from groups_of(scope, queue)
        if not there:
            raise (yield from missing(scope, queue))
        queue_names = [queue]
    else:
        queue_names = sorted({*(yield from queues(scope)), *(yield from _registered(scope))})
    tidying = _Tidying(scope, policies, dead_after=dead_after, dry_run=dry_run)
    done = []
    for name in queue_names:
        # A key of the wrong type, written by another program, must not stop work on the other
        # queues.
        tidied = yield from or_empty(tidying.queue(name), Tidied(name, 0, 0, 0))
        done.append(tidied)
    if not dry_run:
        yield from by_hand.tidy(scope)
        yield from dependents.resolve(scope)
        yield from dependents.continue_flows(scope)
    return done


class Janitor:
    """Tidies a project's queues once a minute, in one of its workers; every worker runs this as a chore."""

    def __init__(self, scope: Scope, policies: Policies = DEFAULTS) -> None:
        self._scope = scope
        self._policies = policies
        self._next = 0.0
        self._work: Op[None] | None = None
        self._reply: Any = None

    def op(self) -> Op[None]:
        """Do a limited part of the work; further calls do the rest."""
        if self._work is None:
            now = self._scope.monotonic()
            if now < self._next:
                return
            self._next = now + _EVERY
            self._work, self._reply = self._round(), None
        work, self._work = self._work, None
        try:
            for _ in range(_STEPS):
                reply, self._reply = self._reply, None
                foreign = isinstance(reply, WrongType)
                step = work.throw(reply) if foreign else work.send(reply)
                try:
                    # If a step fails, this round ends, and the next one starts over.
                    self._reply = yield step
                except WrongType as error:
                    # A key of the wrong type ends the work on its queue only.
                    self._reply = error
        except StopIteration:
            return
        self._work = work

    def _round(self) -> Op[None]:
        scope = self._scope
        if not (yield _lease(scope, "trim", _EVERY)):
            return
        leftovers = bool((yield _lease(scope, "leftovers", _LEFTOVERS_EVERY)))
        tidying = _Tidying(scope, self._policies, leftovers=leftovers)
        for queue in (yield from _registered(scope)):
            yield from or_empty(tidying.queue(queue), Tidied(queue, 0, 0, 0))
        yield from dependents.continue_flows(scope)
        if leftovers:
            yield from by_hand.tidy(scope)


def keep(scope: Scope, reader: str, queue: str, priority: str, entry_id: str | None) -> Op[None]:
    """Record the lowest id of a queue's stream that a reader outside the groups still needs.

    Entries from this id on are not trimmed. None removes the reader.
    """
    names.name("reader", reader)
    key = scope.keys.readers(names.name("queue", queue), priority)
    if entry_id is None:
        yield Command("HDEL", key, reader)
        return
    yield Command("HSET", key, reader, _id(entry_id))


def keep_events(scope: Scope, reader: str, stream: str, entry_id: str | None) -> Op[None]:
    """Record the lowest id of an event stream that a reader other than a consumer still needs.

    Events from this id on are not removed from the stream or the outbox. None lets the relay remove the
    reader. If a server loses the record, the ledger still has it.
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
    # If this command is resent after a lost reply, the server refuses it, and this round is
    # skipped.
    lasts = round(seconds * 1000)
    return Command("SET", scope.keys.tidied(duty), scope.agent, "NX", "PX", lasts)


def _registered(scope: Scope) -> Generator[Step, Any, list[str]]:
    names: list[str] = yield from or_empty(members(scope.keys.queues), [])
    return names


class _Tidying:
    """One round over all queues; dead letters shared by several queues are tidied once."""

    def __init__(
        self,
        scope: Scope,
        policies: Policies,
        *,
        dead_after: float = DEAD_AFTER,
        leftovers: bool = True,
        dry_run: bool = False,
    ) -> None:
        self._scope = scope
        self._policies = policies
        self._dead_after = round(dead_after * 1000)
        self._leftovers = leftovers
        self._dry_run = dry_run
        self._only_count = "1" if dry_run else "0"
        self._boxes: set[tuple[str, str]] = set()

    def queue(self, queue: str) -> Op[Tidied]:
        scope = self._scope
        streams = yield from groups_of(scope, queue, STREAMS)
        trimmed = consumers = forgotten = 0
        boxes: set[tuple[str, str]] = set()
        for priority, groups in streams.items():
            trimmed += yield from self._trim(queue, priority)
            stream = scope.keys.queue(queue, priority)
            for info in groups:
                raw = info[b"name"]
                if priority != RETRY and info[b"pending"]:
                    yield from self._unpin(queue, raw.decode("utf-8", "replace"), priority)
                silent = self._dead_after
                consumers += yield self._script(
                    "delete_silent_consumers",
                    (stream,),
                    raw,
                    ASIDE,
                    silent,
                    _SWEPT,
                    self._only_count,
                    0,
                )
                if priority == PRIORITIES[0]:
                    # Entries that a dead worker read from the bell are of no use to other workers.
                    bell = (scope.keys.bell(queue),)
                    yield self._script(
                        "delete_silent_consumers",
                        bell,
                        raw,
                        ASIDE,
                        silent,
                        _SWEPT,
                        self._only_count,
                        1,
                    )
                group = raw.decode("utf-8", "replace")
                # Only another program names a group in invalid UTF-8; such a group has no keys of
                # the bus.
                if self._leftovers and group.encode() == raw:
                    boxes.add((self._policies.letters_of(queue), group))
                    # Delete attempts and retries of tasks that are no longer pending.
                    records = {
                        "hash": scope.keys.attempts(queue, group, priority),
                        "zset": scope.keys.retries(queue, group, priority),
                    }
                    forgotten += yield from self._forget(stream, records, group)
        if self._leftovers:
            forgotten += yield from self._delete_cancel_marks(queue)
            moves = {"hash": scope.keys.moved(queue)}
            retries = scope.keys.queue(queue, RETRY)
            forgotten += yield from self._forget(retries, moves, "", "value")
            for group in sorted(group_names(streams)):
                forgotten += yield from self._delete_visibilities(queue, group)
        for name, group in sorted(boxes - self._boxes):
            forgotten += yield from self._letters(name, group)
        self._boxes |= boxes
        if not self._dry_run:
            yield from release_rest(scope, queue, sorted(group_names(streams)))
            yield from dependencies.review(scope, queue, thorough=self._leftovers)
            if not streams:
                yield _unregister(scope, queue)
        return Tidied(queue, trimmed, consumers, forgotten)

    def _delete_cancel_marks(self, queue: str) -> Number:
        """Delete the marks of cancelled tasks whose entries have been trimmed."""
        keys, total = self._scope.keys, 0
        for priority in STREAMS:
            stream, records = keys.queue(queue, priority), {"hash": keys.cancelled(queue)}
            total += yield from self._forget(stream, records, "", suffix(queue, priority))
        return total

    def _delete_visibilities(self, queue: str, group: str) -> Number:
        """Delete the recorded visibilities of consumers that are neither in the group nor registered."""
        keys = self._scope.keys
        key = keys.visibilities(queue, group)
        recorded = sorted((yield from or_empty(hash_fields(key, _RECORDED), {})))
        if not recorded:
            return 0
        streams = [keys.queue(queue, priority) for priority in STREAMS]
        consumers = yield Batch([("XINFO", "CONSUMERS", stream, group) for stream in streams])
        present = {
            consumer[1] for reply in consumers if isinstance(reply, list) for consumer in reply
        }
        beats = yield Batch([("ZSCORE", keys.beats, consumer) for consumer in recorded])
        gone = [
            consumer
            for consumer, beat in zip(recorded, beats, strict=True)
            if beat is None and consumer not in present
        ]
        if gone and not self._dry_run:
            yield Command("HDEL", key, *gone)
        return len(gone)

    def _unpin(self, queue: str, group: str, priority: str) -> Op[None]:
        """Move deferred tasks that keep many entries, for publishers that lack the right to move them."""
        length = yield Command("XLEN", self._scope.keys.queue(queue, priority))
        if group != ROUTER and not self._dry_run and length > 5 * self._policies.bound_of(queue):
            yield from move_aside(self._scope, queue, group, priority)

    def _trim(self, queue: str, priority: str) -> Number:
        keys = self._scope.keys.queue(queue, priority), self._scope.keys.readers(queue, priority)
        retention = round(self._policies.retention_of(queue) * 1000)
        total, at = 0, "-"
        while at:
            number, onwards = yield self._script(
                "trim_stream", keys, retention, _TRIMMED, self._only_count, at
            )
            total += number
            at = text(onwards)
        return total

    def _letters(self, queue: str, group: str) -> Number:
        """Delete the records of replayed and purged dead letters that no longer exist."""
        keys = self._scope.keys
        records = {"hash": keys.replayed(queue, group), "set": keys.purged(queue, group)}
        total = yield from self._forget(keys.dead_letters(queue, group), records, "")
        if not self._dry_run:
            yield from DeadLetters(self._scope, queue, group).compact()
        return total

    def _forget(self, stream: str, records: dict[str, str], group: str, named: str = "") -> Number:
        """Delete records, by their type, of entries that a stream no longer has.

        `named` is how a record names its entry, as in the script.
        """
        total = 0
        for kind, key in records.items():
            cursor = ""
            while cursor != "0":
                onwards, number = yield self._script(
                    *(
                        "delete_stale_records",
                        (stream, key),
                        kind,
                        group,
                        cursor or "0",
                        _LOOKED_AT,
                    ),
                    self._only_count,
                    named,
                )
                total += int(number)
                cursor = text(onwards)
        return total

    def _script(self, script: str, keys: tuple[str, ...], *argv: Arg) -> Script:
        return Script(script, keys, argv, writes=not self._dry_run)


def _unregister(scope: Scope, queue: str) -> Script:
    keys = scope.keys
    streams = (keys.queue(queue, priority) for priority in STREAMS)
    parts = (*streams, keys.delayed(queue), keys.after(queue), keys.awaited(queue))
    return Script("unregister_queue", (keys.queues, *parts), (queue,), writes=True)
