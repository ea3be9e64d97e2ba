"""One consumer of a group: its keys, and the order of the tasks with an ordering key."""

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

# Milliseconds after which an ordered task is tried again, unless it is woken before.
_LOOK_AGAIN = 5_000


class Ordering:
    """One consumer of one group of one queue: its keys, and the order of tasks with an ordering key.

    Results and burials are kept for `kept` seconds, 0 for never; dead letters are stored under the name
    `letters_of`, by default the queue's. The log of attempts keeps about `recorded` entries, 0 for no log.
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
        # True if the group is missing, and must be created again.
        self.missing = False
        # True if an answer with tasks may have been lost, so that it holds some without knowing.
        self.doubtful = False
        # How many tasks it has taken whose agents held them by hand for longer than their visibility.
        self.overdue = 0
        # True if a task has been seen that the server must admit before it starts.
        self.asks_first = False
        # The limits of the queue, as of the last heartbeat or fetch; None without any.
        self.limit: QueueLimit | None = None
        # How far its tasks are, for the heartbeats of its worker.
        self.progress = RunningProgress(self.id_of)
        # By priority, the unix time at which to look for tasks put aside. No key is ever added, since
        # several threads read it.
        self.due = dict.fromkeys(STREAMS, 0.0)
        keys = scope.keys
        self.streams = {priority: keys.queue(queue, priority) for priority in STREAMS}
        self.stats = keys.stats(queue)
        self.awaited = keys.awaited(queue)
        self.cancelled = keys.cancelled(queue)
        # The places of the tasks that this consumer must not start, or must stop.
        self.stopping: set[tuple[str, bytes]] = set()
        # The part of the tasks' ids after the entry's id, for each stream.
        self.suffixes = "\n".join(suffix(queue, priority) for priority in PRIORITIES)
        self.kept = math.ceil(kept)
        self.log = AttemptLog(scope, queue, group, consumer, recorded) if recorded else None
        self.letters = keys.dead_letters(letters_of or queue, group)
        why = "trimmed away before it was done"
        self.tombstone: tuple[Arg, ...] = ("queue", queue, "group", group, "error", why)

    def attempts(self, priority: str) -> str:
        """Return the key of the attempts of one stream's tasks."""
        return self.scope.keys.attempts(self.queue, self.group, priority)

    def retries(self, priority: str) -> str:
        """Return the key of the tasks that wait for their next attempt."""
        return self.scope.keys.retries(self.queue, self.group, priority)

    def id_of(self, task: Taken) -> str:
        """Return a task's id; one that was delayed, or moved, keeps its first id."""
        return str(task.meta.get("id") or task_id(text(task.entry_id), self.queue, task.priority))

    @property
    def _log_key(self) -> tuple[str, ...]:
        """The key of the log of attempts, if there is one."""
        return () if self.log is None else (self.log.key,)

    @property
    def _log_bound(self) -> tuple[Arg, ...]:
        """About how many entries the log of attempts keeps, if there is one."""
        return () if self.log is None else (self.log.bound,)

    def _script(self, script: str, keys: Sequence[str], *argv: Arg) -> Script:
        """Return a script that writes, with the group and the consumer as its first arguments."""
        return Script(script, keys, (self.group, self.consumer, *argv), writes=True)

    def start_ordered(self, tasks: Sequence[Taken], *, chained: bool = False) -> Op[list[int]]:
        """Let tasks of one priority start (1), or put them aside until those before them are done (0).

        Their entries ascend. If they are `chained`, this consumer runs one after the other, and each may
        also start after those before it that start. -1 if this consumer no longer holds the task.
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

        If the next one of a key waits, it is due at once.
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
