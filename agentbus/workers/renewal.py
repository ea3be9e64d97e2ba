"""Renews a worker's tasks, so that they are not reclaimed, and notices which it has lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agentbus.workers.acker import order

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.queues.consumer import Consumption
    from agentbus.store.steps import Op


class Renewal:
    """Sends heartbeats for the tasks that a worker holds; thread-safe.

    A task that another worker has taken over is added to those that this consumer must not start. `held`
    returns the tasks. `at` is the time before the last heartbeat, by `time.monotonic`.
    """

    def __init__(
        self,
        consumer: Consumption,
        run: Callable[[Op[Any]], Any],
        held: Callable[[], Iterable[Taken]],
        visibility: float,
    ) -> None:
        self._consumer = consumer
        self._run = run
        self._held = held
        self.every = visibility / 3
        # After this long without one, others may soon take the tasks over: the process was frozen.
        self._overdue = visibility / 2
        self._renewing = threading.Lock()
        self._lost: set[tuple[str, bytes]] = set()
        self.at = time.monotonic()

    @property
    def due_in(self) -> float:
        """In how many seconds the next heartbeat is due; negative after that."""
        return self.at + self.every - time.monotonic()

    def overdue(self, now: float, since: float | None = None) -> bool:
        """Return whether tasks that were renewed, or taken, at `since` may be lost."""
        return now - (self.at if since is None else since) > self._overdue

    def catch_up(self, now: float) -> None:
        """Renew the tasks if that is overdue, before another one begins."""
        if self.overdue(now):
            self.renew()

    def renew(self) -> None:
        """Send a heartbeat for all tasks."""
        with self._renewing:
            at = time.monotonic()
            held: dict[str, list[bytes]] = {}
            for task in self._held():
                held.setdefault(task.priority, []).append(task.entry_id)
            gone: set[tuple[str, bytes]] = set()
            for priority, ids in held.items():
                op = self._consumer.heartbeat(priority, sorted(ids, key=order))
                lost = self._run(self._consumer.unless_missing(op, []))
                gone.update((priority, entry_id) for entry_id in lost)
            self.at = at
            if gone or self._lost:
                self._note(gone)

    def _note(self, gone: set[tuple[str, bytes]]) -> None:
        """Mark the lost tasks, except those that were settled meanwhile."""
        held = {task.place for task in self._held()}
        stopping = self._consumer.stopping
        stopping.difference_update(self._lost - held)
        self._lost = (self._lost & held) | (gone & held)
        stopping.update(self._lost)
