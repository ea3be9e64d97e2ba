"""Reclaims tasks of dead consumers, and recovers those of lost replies."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from agentbus.queues.ids import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import Consumption
    from agentbus.store.steps import Op
    from agentbus.workers.metrics import Tally

    Page = tuple[str, list[Taken]]

_EVERY = 30.0
_PAGE = 100
# How many seconds late the network may deliver a request that was given up.
_LATE = 300.0


class Reclaimer:
    """Reclaims tasks for one consumer.

    A task is reclaimed after `visibility` seconds without a heartbeat. `own` also reclaims the consumer's
    own idle tasks, for one that sends no heartbeats. `due_at` is the next time to reclaim, by
    `time.monotonic`.
    """

    def __init__(
        self,
        consumer: Consumption,
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
        # Until this time (`time.monotonic`) the server may assign tasks that this consumer does not know.
        self._doubtful_until = 0.0
        # Reclaimed and not started; and pending for this consumer from a lost reply.
        self._page: list[Taken] = []
        self.strays: list[Taken] = []
        # Two threads may reclaim; held until the tasks are in `_page`.
        self._reclaiming = threading.Lock()

    @property
    def held(self) -> list[Taken]:
        """The reclaimed and recovered tasks that have not started."""
        return [*self._page, *self.strays]

    @property
    def due(self) -> bool:
        """Whether it is time to reclaim."""
        return bool(self.strays) or time.monotonic() >= self.due_at

    @property
    def unsettled(self) -> bool:
        """Whether a reply with tasks was lost, and not all of them have run."""
        return self._consumer.doubtful or bool(self.strays)

    def certain(self) -> bool:
        """Return whether this consumer knows all tasks that it holds."""
        now = time.monotonic()
        if self._consumer.doubtful:
            # A copy of the lost request may still arrive, after a later one was answered.
            self._doubtful_until = now + _LATE
        return now >= self._doubtful_until

    def recover(self, known: Callable[[str], list[bytes]]) -> Op[None]:
        """Find the tasks of lost replies; to be called between two fetches.

        `known` returns the entry ids of a priority that this consumer knows it holds.
        """
        consumer = self._consumer
        if not consumer.doubtful:
            return
        self.certain()
        consumer.doubtful = False
        with self._reclaiming:
            held = self.held
            for priority in PRIORITIES:
                ids = [task.entry_id for task in held if task.priority == priority]
                own = consumer.own(priority, [*known(priority), *ids])
                tasks = yield from consumer.unless_missing(own, [])
                for task in tasks:
                    # It never ran: this is its first attempt, unless one was counted.
                    task.uncounted = 0
                self.strays += tasks

    def begin(self) -> bool:
        """Return whether it is time to reclaim; if so, set the next time."""
        now = time.monotonic()
        if now < self.due_at:
            return False
        self.due_at = now + min(_EVERY, self.visibility / 2)
        return True

    def page(self, priority: str, start: str, count: int = _PAGE) -> Op[Page]:
        """Reclaim idle tasks of one stream, and return where to continue ('' at its end) and the tasks."""
        with self._reclaiming:
            start, tasks, lost = yield from self._consumer.unless_missing(
                self._consumer.reclaim(priority, self.visibility, start, count, own=self._own),
                ("", [], 0),
            )
            self._page = list(tasks)
        if tasks:
            self._tally.note("reclaimed", len(tasks))
        if lost:
            self._tally.note("lost", lost)
        return start, tasks

    def each(self, run: Callable[[Op[Page]], Page]) -> Iterator[Taken]:
        """Yield recovered tasks one by one, then, if it is time, those of dead consumers."""
        while self.strays:
            yield self.strays[0]
            del self.strays[0]
        if not self.begin():
            return
        for priority in PRIORITIES:
            start = "-"
            while start:
                start, tasks = run(self.page(priority, start))
                for task in tasks:
                    yield task
                    self._page.remove(task)
