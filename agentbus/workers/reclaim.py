"""Reclaims the tasks of dead consumers, and recovers the tasks of lost replies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentbus.core.errors import UsageError
from agentbus.core.validate import is_seconds
from agentbus.queues.ids import STREAMS

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import QueueConsumer
    from agentbus.store.steps import Op
    from agentbus.workers.metrics import Tally

_EVERY = 30.0
_PAGE = 100
_LONGEST = 3_660 * 86_400
# Seconds by which the network may delay a request after the client has given it up.
_LATE = 300.0


def seconds(visibility: object) -> float:
    """Check the visibility of a consumer's tasks, in seconds, and return it."""
    if not is_seconds(visibility) or not 0 < visibility <= _LONGEST:
        raise UsageError(
            f"the visibility is {visibility!r}", hint="give seconds above 0, at most ten years"
        )
    return visibility


class Reclaimer:
    """Reclaims tasks for the workers of a group, and keeps the tasks of one consumer's lost replies.

    A task is reclaimed after `visibility` seconds without a heartbeat. With `own`, the consumer's own idle
    tasks are reclaimed, too, for a consumer that sends no heartbeats. `due_at` is the time of the next
    reclaim, by `time.monotonic`.
    """

    def __init__(
        self,
        consumer: QueueConsumer,
        tally: Tally,
        visibility: float,
        *,
        own: bool = False,
        due_at: float = 0.0,
    ) -> None:
        self._consumer = consumer
        self._tally = tally
        self.visibility = visibility
        self._own = own
        self.due_at = due_at
        # Time (`time.monotonic`) until which the server may assign tasks without this consumer's
        # knowledge.
        self._doubtful_until = 0.0
        # Tasks that a lost reply assigned to this consumer, and that have not started.
        self.strays: list[Taken] = []
        # Two threads may recover the tasks of lost replies.
        self._recovering = threading.Lock()

    @property
    def unsettled(self) -> bool:
        """True if a reply with tasks was lost, and not all of these tasks have run."""
        return self._consumer.doubtful or bool(self.strays)

    def certain(self) -> bool:
        """Return whether this consumer knows all tasks that it holds."""
        now = time.monotonic()
        if self._consumer.doubtful:
            # A copy of the lost request may arrive even after a later request was answered.
            self._doubtful_until = now + _LATE
        return now >= self._doubtful_until

    def recover(self, known: Callable[[str], list[bytes]]) -> Op[None]:
        """Find the tasks of lost replies; call this only between two fetches.

        `known` returns the entry ids that this consumer knows it holds, for a priority.
        """
        consumer = self._consumer
        if not consumer.doubtful:
            return
        self.certain()
        consumer.doubtful = False
        with self._recovering:
            self.strays += yield from self.unknown(
                lambda priority: [
                    *known(priority),
                    *(task.entry_id for task in self.strays if task.priority == priority),
                ]
            )

    def unknown(self, known: Callable[[str], list[bytes]]) -> Op[list[Taken]]:
        """Return the unstarted tasks that this consumer holds in addition to the `known` ones."""
        tasks: list[Taken] = []
        for priority in STREAMS:
            own = self._consumer.read_lost_deliveries(priority, known(priority))
            tasks += yield from self._consumer.unless_missing(own, [])
        for task in tasks:
            # The task never ran, so this is its first attempt unless one was already counted.
            task.uncounted = 0
        return tasks

    def reclaim(self) -> Op[None]:
        """If it is time, defer the tasks of dead consumers, due at once for any worker of the group."""
        now = time.monotonic()
        if now < self.due_at:
            return
        self.due_at = now + min(_EVERY, self.visibility / 2)
        consumer = self._consumer
        for priority in STREAMS:
            start = "-"
            while start:
                page = consumer.reclaim(priority, self.visibility, start, _PAGE, own=self._own)
                start, number, lost = yield from consumer.unless_missing(page, ("", 0, 0))
                if number:
                    self._tally.note("reclaimed", number)
                if lost:
                    self._tally.note("lost", lost)
