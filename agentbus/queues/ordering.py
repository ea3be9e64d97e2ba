"""One consumer of a group: its keys, and the order of tasks with ordering keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentbus.core import names
from agentbus.core.stream import text
from agentbus.queues.attempt_log import AttemptLog
from agentbus.queues.ids import ASIDE, PRIORITIES, RESULT_KEPT, RETRY, STREAMS, suffix, task_id
from agentbus.queues.progress import RunningProgress
from agentbus.store.steps import Script

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.limits import QueueLimit
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Arg, Op

# Milliseconds after which an ordered task is tried again if nothing wakes it earlier.
_LOOK_AGAIN = 5_000


class Ordering:
    """One consumer of one group of one queue: its keys, and the order of tasks with ordering keys.

    Results and outcomes of dead tasks are kept for `kept` seconds, 0 for never; dead letters are stored
    under the name `letters_of`, by default the queue's. The attempt log keeps about `recorded` entries; 0
    means no log.
    """

    def __init__(
        self,
        scope: Scope,
        queue: str,
        group: str,
        consumer: str,
        *,
        kept: float = RESULT_KEPT,
        letters_of: str | None = None,
        recorded: int = 0,
        visibility: float | None = None,
    ) -> None:
        self.scope = scope
        self.queue = names.name("queue", queue)
        self.group = names.name("group", group)
        self.consumer = consumer
        # After this many seconds without a heartbeat of this consumer, others may reclaim its tasks.
        self.visibility = visibility
        # True if the group is missing and must be created again.
        self.missing = False
        # True if a reply with tasks may have been lost, so that unknown tasks are pending.
        self.doubtful = False
        # Number of tasks reclaimed from agents that held them by hand beyond their visibility.
        self.overdue = 0
        # True if some task has required admission by the server before its start.
        self.asks_first = False
        # Limits of the queue as of the last heartbeat or fetch; None if it has none.
        self.limit: QueueLimit | None = None
        # Progress of the running tasks, for the worker's heartbeats.
        self.progress = RunningProgress(scope, self.id_of)
        # Unix time of the next check for deferred tasks, by priority. Several threads read this
        # dict, so keys are never added.
        self.due = dict.fromkeys(STREAMS, 0.0)
        keys = scope.keys
        self.streams = {priority: keys.queue(queue, priority) for priority in STREAMS}
        self.stats = keys.stats(queue)
        self.awaited = keys.awaited(queue)
        self.cancelled = keys.cancelled(queue)
        # Places of the tasks that this consumer must not start, or must stop.
        self.stopping: set[tuple[str, bytes]] = set()
        # The suffix of task ids, after the entry id, for each priority.
        self.suffixes = "\n".join(suffix(queue, priority) for priority in PRIORITIES)
        self.kept = math.ceil(kept)
        self.log = AttemptLog(scope, queue, group, consumer, recorded) if recorded else None
        self.letters = keys.dead_letters(letters_of or queue, group)
        why = "trimmed away before it was done"
        self.tombstone: tuple[Arg, ...] = ("queue", queue, "group", group, "error", why)

    def attempts(self, priority: str) -> str:
        """Return the key of the attempt records of one stream."""
        return self.scope.keys.attempts(self.queue, self.group, priority)

    def retries(self, priority: str) -> str:
        """Return the key of tasks that wait for their next attempt."""
        return self.scope.keys.retries(self.queue, self.group, priority)

    def id_of(self, task: Taken) -> str:
        """Return a task's id; a task that was delayed or moved keeps its first id."""
        return str(task.meta.get("id") or task_id(text(task.entry_id), self.queue, task.priority))

    @property
    def _log_key(self) -> tuple[str, ...]:
        """The key of the attempt log, if there is one."""
        return () if self.log is None else (self.log.key,)

    @property
    def _log_bound(self) -> tuple[Arg, ...]:
        """The approximate maximum number of entries in the attempt log, if there is one."""
        return () if self.log is None else (self.log.bound,)

    def _script(self, script: str, keys: Sequence[str], *argv: Arg) -> Script:
        """Return a script that writes, with the group and the consumer as first arguments."""
        return Script(script, keys, (self.group, self.consumer, *argv), writes=True)

    def start_ordered(self, tasks: Sequence[Taken], *, chained: bool = False) -> Op[list[int]]:
        """Start tasks of one priority (1), or defer them until their predecessors are done (0).

        Their entries must ascend. If they are `chained`, this consumer runs them one after the other, and a
        task may also start if its predecessors start. Returns -1 for a task that this consumer no longer
        holds.
        """
        first, keys = tasks[0], self.scope.keys
        answer: list[int] = yield self._script(
            "start_ordered",
            (
                *(self.streams[first.priority], keys.order(self.queue, first.tier)),
                *(self.attempts(first.priority), self.retries(first.priority)),
                *(self.streams[first.tier], self.streams[RETRY], keys.moved(self.queue)),
            ),
            *(ASIDE, _LOOK_AGAIN, suffix(self.queue, first.tier), int(chained)),
            *(
                word
                for task in tasks
                for word in (
                    *(task.entry_id, task.first_entry, task.meta["ordering_key"]),
                    max(0, task.attempt - 1),
                )
            ),
        )
        return answer

    def wake_ordered(self, tasks: Sequence[Taken]) -> Op[None]:
        """Remove settled tasks of one priority, entries ascending, from the order of their keys.

        If the next task of a key waits, it becomes due at once.
        """
        keys, tier = self.scope.keys, tasks[0].tier
        waiting = yield Script(
            "wake_ordered",
            (
                *(self.streams[tier], keys.order(self.queue, tier), self.retries(tier)),
                *(keys.bell(self.queue), self.streams[RETRY], self.retries(RETRY)),
                keys.moved(self.queue),
            ),
            (
                *(self.group, suffix(self.queue, tier)),
                *(word for task in tasks for word in (task.first_entry, task.meta["ordering_key"])),
            ),
            writes=True,
        )
        if waiting:
            self.due[tier] = self.due[RETRY] = 0.0
