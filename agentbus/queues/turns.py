"""One consumer of a group: takes tasks, and acknowledges batches in the same exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.queues.claimed import decoded
from agentbus.queues.dependents import passed_on
from agentbus.queues.ids import PRIORITIES, suffix
from agentbus.queues.settle import Ending
from agentbus.store.steps import Script, ServerReply, Take

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.store.steps import Arg, Once, Op

    # Task ids by priority.
    Done = Mapping[str, Sequence[bytes]]

# Average payload size in bytes above which payloads are decoded late.
_LARGE = 16_384
# Successive acknowledgements without other consumers' tasks after which this consumer counts as
# alone.
_ACCOMPANIED = 16


class Turns(Ending):
    """One consumer of one group of one queue: the operations that take tasks and acknowledge batches."""

    # If true, a work item that occurs in several tasks of another program is done only once.
    claiming = True
    # Average of payload sizes in bytes, which a large payload raises at once.
    mean_bytes = 0.0
    # If positive, the number of acknowledgements for which other consumers of the group count as
    # active; if negative, the number for which `turn_all_done` would probably fail.
    accompanied = 0

    def ack_and_take(
        self,
        done: Done,
        took: float,
        count: int,
        low: int = 0,
        logged: tuple[Arg, ...] | None = None,
    ) -> Op[tuple[list[bytes], list[Taken]]]:
        """Acknowledge tasks by priority, ids ascending, and take at most `count` new ones, without waiting.

        The highest priority comes first, except for `low` tasks of the lowest non-empty one. `took` is the
        handlers' time in seconds; `logged` are their attempts, if already packed. Returns the ids that this
        consumer had lost, and the new tasks. Sets `missing` if the group does not exist.
        """
        once = self.scope.once() if any(done.values()) else None
        step = self._ack_and_take(once, done, took, count, low, logged=logged)
        stale, replies, missing, awaited, holders = yield step
        if once:
            self.scope.free_slot(once, step)
            self._accompanied_by(holders)
        self.missing = self.missing or bool(missing)
        taken: list[Taken] = []
        for index, entries in replies:
            taken += self.decoded(entries, PRIORITIES[index - 1])
        self.doubtful = self.doubtful or (step.sendings > 1 and count > 0)
        if awaited:
            yield from passed_on(self.scope)
        return stale, taken

    def turn_ahead(
        self,
        done: Done,
        took: float,
        count: int,
        holds: Mapping[str, int] | None,
        meanwhile: Callable[[], None],
    ) -> Op[tuple[list[bytes], list[Taken]]]:
        """Acknowledge and take tasks of all priorities alike, and call `meanwhile` before the reply.

        `holds` is the number of tasks of each priority that this consumer holds, if known for certain.
        """
        once = self.scope.once()
        first = self._ack_and_take(once, done, took, 0, 0, holds)
        step = self._take(count, 0.0, first)
        step.meanwhile = meanwhile
        (stale, _, missing, awaited, holders), reply, marked = yield step
        self.scope.free_slot(once, step)
        self._accompanied_by(holders)
        self.missing = self.missing or bool(missing)
        taken = yield from self._read(step, reply, marked)
        if awaited:
            yield from passed_on(self.scope)
        return stale, taken

    def turn_all_done(
        self, done: Done, took: float, count: int
    ) -> Op[tuple[list[bytes], list[Taken]]]:
        """Acknowledge and take like `turn_ahead`, if `done` is everything that this consumer holds.

        The server then needs only the number of tasks instead of their ids. If it finds that the consumer
        holds others, or lacks some, `turn` acknowledges them.
        """
        once = self.scope.once()
        kinds = [priority for priority in PRIORITIES if done.get(priority)]
        words: list[Arg] = [round(took * 1000)]
        for priority in kinds:
            words += (len(done[priority]), done[priority][0], done[priority][-1])
        logged = self._attempts_of(done)
        keys = (
            *(self.stats, once.key, self.awaited, *(self.streams[priority] for priority in kinds)),
            *(self._log_key if logged else ()),
        )
        words += logged
        step = self._take(count, 0.0, self._script("ack_all", keys, once.token, *words))
        (all_done, holders), reply, marked = yield step
        self.scope.free_slot(once, step)
        self._accompanied_by(holders)
        taken = yield from self._read(step, reply, marked)
        if all_done:
            return [], taken
        self.accompanied = -_ACCOMPANIED
        stale, _ = yield from self.ack_and_take(done, took, 0, logged=logged)
        return stale, taken

    def _accompanied_by(self, holders: int) -> None:
        if self.accompanied < 0:
            self.accompanied += 1
        else:
            self.accompanied = _ACCOMPANIED if holders > 1 else max(0, self.accompanied - 1)

    def _read(self, step: Take, reply: Any, marked: int) -> Op[list[Taken]]:
        """Return the tasks of a read that was sent together with an acknowledgement."""
        if isinstance(reply, ServerReply):
            self.missing = True
            reply = None
        self.doubtful = self.doubtful or step.sendings > 1
        taken = self._of_streams(reply or ())
        if marked:
            taken = yield from self._without_cancelled(taken)
        return taken

    def _ack_and_take(
        self,
        once: Once | None,
        done: Done,
        took: float,
        count: int,
        low: int,
        holds: Mapping[str, int] | None = None,
        logged: tuple[Arg, ...] | None = None,
    ) -> Script:
        argv: list[Arg] = [
            *(self.group, self.consumer, once.token if once else "", count, low),
            *(round(took * 1000), self.suffixes),
            *(len(done.get(priority, ())) for priority in PRIORITIES),
            *("" if holds is None else holds.get(priority, 0) for priority in PRIORITIES),
        ]
        for priority in PRIORITIES:
            argv += done.get(priority, ())
        keys = (
            *(self.stats, once.key if once else self.stats),
            *(self.awaited, self.scope.keys.settled, self.cancelled),
            *(self.streams[priority] for priority in PRIORITIES),
        )
        if words := self._attempts_of(done) if logged is None else logged:
            keys += self._log_key
            argv += words
        return Script("ack_and_take", keys, argv, writes=True)

    def _attempts_of(self, done: Done) -> tuple[Arg, ...]:
        """Return the packed attempts at tasks to acknowledge; empty without a log."""
        return self.log.of_done(done) if self.log is not None and any(done.values()) else ()

    def _take(self, count: int, seconds: float, first: Script | None = None) -> Take:
        streams = [self.streams[priority] for priority in PRIORITIES]
        return Take(streams, self.group, self.consumer, count, seconds, self.cancelled, first)

    def _without_cancelled(self, taken: list[Taken]) -> Op[list[Taken]]:
        """Settle the cancelled tasks, and return the others."""
        skipped: set[tuple[str, bytes]] = set()
        for priority, stream in self.streams.items():
            some = [task for task in taken if task.priority == priority]
            if some:
                ids = [task.entry_id for task in some]
                words: tuple[Arg, ...] = (self.group, suffix(self.queue, priority), *ids)
                gone, held = yield Script(
                    "ack_cancelled", (stream, self.cancelled), words, writes=True
                )
                skipped.update((priority, entry_id) for entry_id in (*gone, *held))
                for task in some:
                    if task.entry_id in held:
                        yield from self.unless_missing(self.drop(task), False)
        return [task for task in taken if task.place not in skipped]

    def _of_streams(self, reply: Sequence[Any]) -> list[Taken]:
        priorities = {stream.encode(): priority for priority, stream in self.streams.items()}
        taken: list[Taken] = []
        for stream, entries in reply:
            taken += self.decoded(entries, priorities[bytes(stream)])
        return taken

    def take(self, count: int, seconds: float) -> Op[list[Taken]]:
        """Take new tasks, at most `count` of each priority, waiting at most `seconds` for the first."""
        step = self._take(count, seconds)
        reply, marked = yield step
        taken = self._of_streams(reply or ())
        self.doubtful = self.doubtful or step.sendings > 1
        return (yield from self._without_cancelled(taken)) if marked else taken

    def decoded(self, entries: list[Any], priority: str, attempt: int = 1) -> list[Taken]:
        """Decode entries as tasks, and empty their list; a malformed task carries its error."""
        if entries and (sample := entries[len(entries) // 2][1]):
            # Judge all payloads by one of them.
            size = len(sample[1])
            self.mean_bytes = max(size, (self.mean_bytes + size) / 2)
        large = self.mean_bytes > _LARGE
        tasks, asks_first = decoded(entries, priority, attempt, claiming=self.claiming, large=large)
        self.asks_first = self.asks_first or asks_first
        return tasks
