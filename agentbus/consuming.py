"""Taking tasks from a queue for a group, and saying what became of them."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import orjson

from agentbus import envelope, names
from agentbus.clock import rfc3339
from agentbus.queue import PRIORITIES, RESULT_KEPT, task_id
from agentbus.store import Batch, Command, Run, ServerReply
from agentbus.stream import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.keys import Scope
    from agentbus.store import Op

# The consumer that holds what waits for its next attempt; no worker has this name.
ASIDE = "~aside"
_TRACEBACK_KEPT = 8_000


class Taken:
    """A task as it was taken: where it lies, its payload, and the rest of its envelope."""

    __slots__ = ("attempt", "entry_id", "error", "meta", "payload", "priority")

    def __init__(
        self,
        entry_id: bytes,
        priority: str,
        payload: Any,
        meta: dict[str, Any],
        attempt: int,
        error: str | None = None,
    ) -> None:
        self.entry_id = entry_id
        self.priority = priority
        self.payload = payload
        self.meta = meta
        self.attempt = attempt
        self.error = error


class Consumption:
    """One consumer of one group of one queue: the operations on what it takes."""

    def __init__(self, scope: Scope, queue: str, group: str, consumer: str) -> None:
        self.scope = scope
        self.queue = names.name("queue", queue)
        self.group = names.name("group", group)
        self.consumer = consumer
        keys = scope.keys
        self.streams = {priority: keys.queue(queue, priority) for priority in PRIORITIES}
        self.stats = keys.stats(queue)
        self.letters = keys.dead_letters(queue, group)
        self.tombstone = (
            "queue",
            queue,
            "group",
            group,
            "error",
            "trimmed away before it was done",
        )

    def attempts(self, priority: str) -> str:
        """Return the key of the attempts of one stream's tasks."""
        return self.scope.keys.attempts(self.queue, self.group, priority)

    def retries(self, priority: str) -> str:
        """Return the key of what waits for its next attempt."""
        return self.scope.keys.retries(self.queue, self.group, priority)

    def id_of(self, task: Taken) -> str:
        """Return a task's id; one that was delayed keeps the id it had."""
        return str(task.meta.get("id") or task_id(text(task.entry_id), self.queue, task.priority))

    def prepare(self, start: str = "0") -> Op[None]:
        """Make the group where it is missing; it begins at the oldest task."""
        yield Batch(
            [
                ("XGROUP", "CREATE", stream, self.group, start, "MKSTREAM")
                for stream in self.streams.values()
            ]
        )

    def fetch(self, count: int, priorities: Sequence[str] = PRIORITIES) -> Op[list[Taken]]:
        """Take at most `count` new tasks, the highest priority first, without waiting."""
        streams = [self.streams[priority] for priority in priorities]
        reply = yield Run("fetch", streams, (self.group, self.consumer, count), writes=True)
        return [
            taken
            for index, entries in reply
            for taken in self.decoded(entries, priorities[index - 1])
        ]

    def decoded(self, entries: Sequence[Any], priority: str, attempt: int = 1) -> list[Taken]:
        """Return entries as tasks; a malformed one carries its error."""
        found: list[Taken] = []
        loads, append = orjson.loads, found.append
        for entry_id, flat in entries:
            if flat and len(flat) == 2 and flat[0] == b"payload":
                try:
                    append(Taken(entry_id, priority, loads(flat[1]), {}, attempt))
                    continue
                except ValueError as error:
                    append(Taken(entry_id, priority, None, {}, attempt, str(error)))
                    continue
            try:
                payload, meta = envelope.decode(flat or [])
            except (ValueError, UnicodeDecodeError) as error:
                append(Taken(entry_id, priority, None, {}, attempt, str(error)))
            else:
                append(Taken(entry_id, priority, payload, meta, attempt))
        return found

    def ack(self, priority: str, ids: Sequence[bytes], took: float) -> Op[list[bytes]]:
        """Acknowledge tasks of one stream, ids ascending; returns those no longer this consumer's."""
        stale: list[bytes] = yield Run(
            "ack",
            (self.streams[priority], self.stats),
            (self.group, self.consumer, round(took * 1000), *ids),
            writes=True,
        )
        return stale

    def begin(self, task: Taken) -> Op[int]:
        """Count an attempt before it starts; 0 if the task is no longer this consumer's."""
        number: int = yield Run(
            "begin",
            (self.streams[task.priority], self.attempts(task.priority)),
            (self.group, self.consumer, task.entry_id, 1),
            writes=True,
        )
        return number

    def finish(self, task: Taken, took: float, result: object = None) -> Op[bool]:
        """Acknowledge one task, with its result if it has one; tells whether it was still ours."""
        kept = []
        data: bytes = b""
        if result is not None:
            kept = [self.scope.keys.result(self.id_of(task))]
            data = envelope.encode(result, self.scope.max_body)
        done = yield Run(
            "finish",
            (self.streams[task.priority], self.stats, self.attempts(task.priority), *kept),
            (self.group, self.consumer, task.entry_id, round(took * 1000), data, RESULT_KEPT),
            writes=True,
        )
        return bool(done)

    def retry(self, task: Taken, after: float) -> Op[bool]:
        """Put a task aside for so many seconds; tells whether it was still ours."""
        due = yield Run(
            "retry",
            (
                *(self.streams[task.priority], self.stats),
                *(self.attempts(task.priority), self.retries(task.priority)),
            ),
            (
                *(self.group, self.consumer, task.entry_id, round(after * 1000)),
                *(task.attempt, ASIDE),
            ),
            writes=True,
        )
        return bool(due)

    def bury(self, task: Taken, error: BaseException | str) -> Op[bool]:
        """Move a task to the dead letters with the reason; tells whether it was still ours."""
        why, trace = told(error)
        letter = yield Run(
            "bury",
            (
                *(self.streams[task.priority], self.letters, self.stats),
                *(self.attempts(task.priority), self.retries(task.priority)),
            ),
            (
                *(self.group, self.consumer, task.entry_id),
                *("queue", self.queue, "group", self.group, "priority", task.priority),
                *("original_id", task.entry_id, "task_id", self.id_of(task)),
                *("attempts", task.attempt, "error", why, "traceback", trace),
                *("failed_at", rfc3339(self.scope.now(), milliseconds=True)),
            ),
            writes=True,
        )
        return bool(letter)

    def again(self, priority: str, count: int) -> Op[tuple[list[Taken], float | None]]:
        """Take tasks whose retry is due; also tells when the next one is, in unix seconds."""
        reply = yield Run(
            "again",
            (
                *(self.streams[priority], self.retries(priority), self.letters),
                *(self.stats, self.attempts(priority)),
            ),
            (self.group, self.consumer, count, *self.tombstone),
            writes=True,
        )
        due = float(reply[1]) / 1000 if reply[1] else None
        return self.decoded(reply[0], priority, 0), due

    def reclaim(
        self, priority: str, idle: float, start: str, count: int
    ) -> Op[tuple[str, list[Taken]]]:
        """Take over tasks idle for so many seconds; returns where to go on ('' at the end)."""
        reply = yield Run(
            "reclaim",
            (self.streams[priority], self.letters, self.stats, self.attempts(priority)),
            (
                *(self.group, self.consumer, round(idle * 1000), start, count, ASIDE),
                *self.tombstone,
            ),
            writes=True,
        )
        return text(reply[0]), self.decoded(reply[1], priority, 0)

    def heartbeat(self, priority: str, ids: Sequence[bytes]) -> Op[list[bytes]]:
        """Show that this consumer still works on tasks, ids ascending; returns those it has lost."""
        gone: list[bytes] = yield Run(
            "heartbeat",
            (self.streams[priority],),
            (self.group, self.consumer, *ids),
            writes=True,
        )
        return gone

    def promote(self, count: int = 1000) -> Op[tuple[int, float | None]]:
        """Move delayed tasks that are due into their streams; also tells when the next one is."""
        keys = self.scope.keys
        reply = yield Run(
            "promote",
            (keys.delayed(self.queue), keys.bodies(self.queue), *self.streams.values()),
            (count, *self.streams),
            writes=True,
        )
        return int(reply[0]), float(reply[1]) / 1000 if reply[1] else None

    def leave(self) -> Op[None]:
        """Delete this consumer from the groups in which it holds nothing."""
        for stream in self.streams.values():
            (reply,) = yield Batch([("XINFO", "CONSUMERS", stream, self.group)])
            if isinstance(reply, ServerReply):
                continue
            for consumer in reply:
                named = {consumer[i]: consumer[i + 1] for i in range(0, len(consumer), 2)}
                if named[b"name"] == self.consumer.encode() and named[b"pending"] == 0:
                    yield Command("XGROUP", "DELCONSUMER", stream, self.group, self.consumer)


def told(error: BaseException | str) -> tuple[str, str]:
    """Return what a dead letter says of an error, and its traceback, each of bounded length."""
    if isinstance(error, str):
        return _sendable(error)[:2000], ""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 (an error's own text may fail)
        said = "(it has no text)"
    trace = "".join(traceback.format_exception(error))
    return _sendable(f"{type(error).__name__}: {said}")[:2000], _sendable(trace[-_TRACEBACK_KEPT:])


def _sendable(said: str) -> str:
    # File names that are no text come as lone surrogates, which no server takes.
    return said.encode("utf-8", "backslashreplace").decode()
