"""One consumer of a group: takes retries, reclaims, and sends heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from agentbus.core import names
from agentbus.core.stream import is_number, position, text
from agentbus.queues.attempt_log import EndedAttempt
from agentbus.queues.attempts import RUNS_KEPT
from agentbus.queues.claimed import Taken
from agentbus.queues.dependents import passed_on
from agentbus.queues.ids import ASIDE, PRIORITIES, RETRY, suffix
from agentbus.queues.turns import Turns
from agentbus.store.failures import GroupMissing
from agentbus.store.steps import Script, Take, one_step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentbus.store.steps import Arg, Op

T = TypeVar("T")

# Code in the reply of `take_retries` for a task that a dead worker may have begun.
_SUSPECT = 2


class FinishedRun(NamedTuple):
    """A done task, its encoded result (empty if none is kept), and its duration in seconds."""

    task: Taken
    data: bytes
    took: float


class QueueConsumer(Turns):
    """One consumer of one group of one queue: the operations that claim tasks."""

    def prepare(self, *, tail: bool = False) -> Op[None]:
        """Create the group if it is missing, at its last recorded position or at the oldest task.

        With `tail`, a new group starts after the newest tasks. Also records this consumer's visibility, by
        which others judge whether it has lost its tasks.
        """
        keys, fields = self._positions()
        visible = "" if self.visibility is None else round(self.visibility * 1000)
        yield Script(
            "create_groups",
            (*keys, self._visibilities),
            (self.group, "tail" if tail else "", self.consumer, visible, *fields),
            writes=tail,
        )

    def record_positions(self) -> Op[None]:
        """Record the group's position, so that it can be recreated there."""
        keys, fields = self._positions()
        yield Script("record_positions", keys, (self.group, *fields))

    def _positions(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        streams = (self.streams[priority] for priority in PRIORITIES)
        keys = (self.scope.keys.positions(self.queue), *streams)
        return keys, tuple(f"{names.escape(self.group)}:{priority}" for priority in PRIORITIES)

    @property
    def _visibilities(self) -> str:
        return self.scope.keys.visibilities(self.queue, self.group)

    def finish_many(self, priority: str, done: Sequence[FinishedRun]) -> Op[int]:
        """Acknowledge tasks of one priority with their results, entries ascending, all or none redelivered.

        All ids must name the same queue. Returns the number that this consumer had lost. Atomic.
        """
        keys, once, again = self.scope.keys, self.scope.once(), done[0].task.redelivered
        names_of = [self.id_of(run.task) for run in done]
        log = self._log([EndedAttempt(run.task) for run in done])
        words: list[Arg] = []
        for run, name in zip(done, names_of, strict=True):
            words += (run.task.entry_id, name, run.data)
            if again:
                words += (self._run(run.task, "done"), round(run.took * 1000))
        step = self._script(
            "finish_many",
            (
                *(self.streams[priority], self.stats, once.key, *self._noting(names_of[0])),
                *(self.attempts(priority), *(keys.result(name, self.group) for name in names_of)),
                *(keys.runs(name, self.group) for name in (names_of if again else ())),
                *log.keys,
            ),
            *(once.token, round(sum(run.took for run in done) * 1000), self.kept),
            *(RUNS_KEPT if again else "", len(done), *words, *log.words),
        )
        stale, awaited = yield step
        self.scope.free_slot(once, step)
        if awaited:
            yield from passed_on(self.scope)
        ordered = [run.task for run in done if run.task.ordered and run.task.entry_id not in stale]
        if ordered:
            yield from self.wake_ordered(ordered)
        return len(stale)

    def listen(self, count: int, seconds: float) -> Op[tuple[list[Taken], list[bytes], int]]:
        """Take new tasks like `take`, and also wait for entries of the queue's bell.

        Returns the tasks, the ids of these entries, and how many of them announce an order to workers. An
        entry wakes one waiting consumer of the group, which must exist on the bell's stream.
        """
        bell = self.scope.keys.bell(self.queue)
        streams = [*(self.streams[priority] for priority in PRIORITIES), bell]
        step = Take(streams, self.group, self.consumer, count, seconds, self.cancelled)
        reply, marked = yield step
        self.doubtful = self.doubtful or step.sendings > 1
        rung, by_stream = bell.encode(), reply or ()
        rings = [entry for stream, entries in by_stream if stream == rung for entry in entries]
        taken = self._of_streams([read for read in by_stream if read[0] != rung])
        if marked:
            taken = yield from self._without_cancelled(taken)
        orders = sum(fields is not None and fields[0] == b"order" for _, fields in rings)
        return taken, [entry_id for entry_id, _ in rings], orders

    def read_lost_deliveries(
        self, priority: str, known: Sequence[bytes], count: int = 1000
    ) -> Op[list[Taken]]:
        """Return the tasks of a stream that this consumer holds, except the `known` ones."""
        step = Script(
            "read_lost_deliveries",
            (self.streams[priority],),
            (self.group, self.consumer, count, *known),
        )
        entries = yield from self._where_it_is(priority, one_step(step), [])
        return self.decoded(entries, priority, 0)

    def _where_it_is(self, priority: str, op: Op[T], otherwise: T) -> Op[T]:
        """Run an operation; a group exists in the retry stream only if it has entries there."""
        try:
            return (yield from op)
        except GroupMissing:
            if priority != RETRY:
                raise
            return otherwise

    def take_retries(
        self, priority: str, count: int, *, firsts: int = 0, suspects: bool = True
    ) -> Op[tuple[list[Taken], float | None, int, bool]]:
        """Take deferred tasks that are due.

        Also returns the seconds until the next one is due, by the server's clock, the number of trimmed
        tasks, and whether the task is a suspect: a dead worker may have begun it, and it must run alone.
        With `suspects`, suspects come first, in order of fewest attempts.

        With `firsts`, at most that many tasks without a counted attempt (rerun, or given back unstarted)
        are returned as attempt 1, ids ascending: they run like first deliveries, uncounted and in batches.
        Tasks that failed before are returned with the number of the next attempt, all others as attempt 0,
        which must be counted before the start. One call returns one kind.
        """
        keys = (
            *(self.streams[priority], self.retries(priority), self.letters),
            *(self.stats, self.attempts(priority), self.awaited, self.scope.keys.settled),
            *(self.cancelled, self.scope.keys.taken),
            *self._log_key,
        )
        ids = suffix(self.queue, priority)
        rest = (int(suspects), ids, *self.tombstone, *self._log_bound)
        step = self._script("take_retries", keys, count, firsts, *rest)
        reply = yield step
        self.doubtful = self.doubtful or step.sendings > 1
        if reply[2]:
            yield from passed_on(self.scope)
        due = float(reply[1]) / 1000 if reply[1] else None
        firsts_only = reply[3] == 1
        tasks = self.decoded(reply[0], priority, int(firsts_only))
        for task, at in zip(tasks, reply[5] if self.log is not None else (), strict=False):
            task.due = float(at or 0)
        if not firsts_only:
            for task, record in zip(tasks, reply[4], strict=True):
                if is_number(text(record)):
                    task.attempt = int(record) + 1
                self.overdue += b" hand:" in record
        if firsts_only:
            tasks.sort(key=lambda task: position(text(task.entry_id)))
        return tasks, due, int(reply[2]), reply[3] == _SUSPECT

    def reclaim(
        self, priority: str, idle: float, start: str, count: int, *, own: bool = False
    ) -> Op[tuple[str, int, int]]:
        """Put aside tasks without a heartbeat for the visibility of the consumer that holds them.

        Where that is not recorded, `idle` seconds count. This consumer's own tasks are included only with
        `own`. They are due at once, as suspects, for any worker. Returns the id to continue from ('' at the
        end), how many were put aside, and how many had been trimmed.
        """
        keys = (
            *(self.streams[priority], self.letters, self.stats, self.attempts(priority)),
            *(self.awaited, self.scope.keys.settled, self.retries(priority)),
            *(self.scope.keys.bell(self.queue), self._visibilities, *self._log_key),
        )
        spared = ASIDE if own else self.consumer
        step = self._script(
            *("reclaim", keys, round(idle * 1000), start, count, ASIDE, spared),
            *(suffix(self.queue, priority), *self.tombstone, *self._log_bound),
        )
        reply = yield from self._where_it_is(priority, one_step(step), (b"", 0, 0))
        if reply[2]:
            yield from passed_on(self.scope)
        if reply[1]:
            self.due[priority] = 0.0
        return text(reply[0]), int(reply[1]), int(reply[2])

    def heartbeat(self, priority: str, ids: Sequence[bytes]) -> Op[list[bytes]]:
        """Send a heartbeat for tasks, ids ascending; return the ids that this consumer has lost."""
        gone: list[bytes] = yield self._script("heartbeat_tasks", (self.streams[priority],), *ids)
        return gone

    def promote(self, count: int = 1000) -> Op[tuple[int, float | None]]:
        """Move delayed tasks that are due into their streams; return their number.

        Also returns the seconds until the next one is due, by the server's clock.
        """
        keys = self.scope.keys
        reply = yield Script(
            "promote_delayed",
            (
                *(keys.delayed(self.queue), keys.bodies(self.queue)),
                *(
                    key
                    for priority, stream in self.streams.items()
                    for key in (stream, keys.order(self.queue, priority))
                ),
            ),
            (count, *self.streams),
            writes=True,
        )
        self.scope.note_server_time(reply[2] / 1000)
        return int(reply[0]), float(reply[1]) / 1000 if reply[1] else None

    def leave(self) -> Op[None]:
        """Delete this consumer from the groups in which it holds nothing."""
        bell = self.scope.keys.bell(self.queue)
        yield self._script("leave_groups", [*self.streams.values(), bell, self._visibilities])

    def give_back(self, tasks: Sequence[Taken]) -> Op[int]:
        """Give back unstarted tasks, due at once for any worker; return how many were still held."""
        given = 0
        for task in tasks:
            if task.counted:
                given += yield from self.unless_missing(self.release(task), False)
        rest = [task for task in tasks if not task.counted]
        for priority, stream in self.streams.items():
            # A task that was delivered before may have an uncounted attempt.
            for uncounted in (0, 1):
                ids = [
                    task.entry_id
                    for task in rest
                    if task.priority == priority and _uncounted(task) == uncounted
                ]
                if ids:
                    keys = stream, self.attempts(priority), self.retries(priority)
                    given += yield self._script("give_back", keys, ASIDE, uncounted, *ids)
        return given


def _uncounted(task: Taken) -> int:
    """Return the possible number of uncounted attempts at a task."""
    if task.attempt:
        return 0
    return 1 if task.uncounted is None else task.uncounted
