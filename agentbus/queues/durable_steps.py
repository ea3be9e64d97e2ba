"""Durable steps: results of a task's finished steps, which later attempts do not repeat.

They are fields in the record of the task's attempts, written while its consumer holds the task, and removed
by the script that settles it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentbus.core import envelope, names
from agentbus.core.errors import StaleDelivery, UsageError
from agentbus.core.stream import text
from agentbus.queues.state import as_list
from agentbus.store.steps import Batch

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import QueueConsumer
    from agentbus.store.steps import Op

# Seconds for which step results are kept after the last step or attempt, and maximum steps per
# task.
KEPT = 30 * 86_400
_MOST = 1000
# Seconds for which this consumer is known to hold the task without another look; a frozen one took longer.
_TRUSTED = 1.0
_PREFIX = "step:"


class DurableSteps:
    """The steps of one attempt at a task."""

    def __init__(self, consumer: QueueConsumer, task: Taken) -> None:
        self._consumer = consumer
        self._task = task
        self._key = consumer.scope.keys.runs(consumer.id_of(task), consumer.group)
        # Results of earlier attempts, once read. A first attempt can have some, too, if the task
        # was snoozed.
        self._known: dict[str, bytes] | None = None
        self._begun: set[str] = set()
        # When the last request that showed who holds the task was sent, by the monotonic clock.
        self._looked = 0.0

    def begin(self, name: str) -> Op[bytes | None]:
        """Begin a step, and return its result if an earlier attempt has finished it.

        Raises `InvalidName`, `UsageError` if this attempt had a step of the same name, and `StaleDelivery`.
        """
        names.name("step", name)
        if name in self._begun:
            raise UsageError(
                f"the task {self._consumer.id_of(self._task)} has two steps {name!r}",
                hint="give each step of a task its own name",
            )
        if len(self._begun) >= _MOST:
            raise UsageError(
                f"the task {self._consumer.id_of(self._task)} has more than {_MOST:,} steps",
                hint="publish further tasks for the rest",
            )
        self._begun.add(name)
        # Settle the task like a redelivered one, so that its end is recorded and its steps are
        # removed.
        self._task.uncounted = self._task.uncounted or 0
        if self._known is None or self._consumer.scope.monotonic() - self._looked > _TRUSTED:
            self._known = yield from self._look(name)
        return self._known.get(name)

    def _look(self, name: str) -> Op[dict[str, bytes]]:
        """Return the results that were recorded, if this consumer still holds the task."""
        consumer, entry = self._consumer, self._task.entry_id
        self._looked = consumer.scope.monotonic()
        stream = consumer.streams[self._task.priority]
        reply, holders = yield Batch(
            [("HGETALL", self._key), ("XPENDING", stream, consumer.group, entry, entry, 1)]
        )
        if not any(text(holder[1]) == consumer.consumer for holder in as_list(holders)):
            raise self._stale(name, "begun")
        flat = as_list(reply)
        pairs = ((text(flat[i]), flat[i + 1]) for i in range(0, len(flat), 2))
        return {
            field.removeprefix(_PREFIX): result
            for field, result in pairs
            if field.startswith(_PREFIX)
        }

    def end(self, name: str, result: object) -> Op[bytes]:
        """Record the result of a step atomically, and return it as JSON.

        Raises `InvalidPayload` if it cannot be sent, and `StaleDelivery` if another consumer has the task.
        """
        consumer, task = self._consumer, self._task
        data = envelope.encode(result, consumer.scope.max_body)
        keys = (consumer.streams[task.priority], consumer.attempts(task.priority), self._key)
        words = (task.entry_id, _PREFIX + name, data, KEPT)
        self._looked = consumer.scope.monotonic()
        stored: Any = yield consumer._script("record_step", keys, *words)
        if stored is None:
            raise self._stale(name, "recorded")
        return bytes(stored)

    def _stale(self, name: str, what: str) -> StaleDelivery:
        return StaleDelivery(
            f"the step {name!r} of the task {self._consumer.id_of(self._task)} was not {what}: another"
            " consumer has reclaimed the task",
            hint="the attempt of that consumer counts",
        )
