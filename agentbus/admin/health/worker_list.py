"""The registered workers and pause orders, as the health checks need them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agentbus.core.keys import pause_field
from agentbus.workers import registry

if TYPE_CHECKING:
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op
    from agentbus.workers.registry import Registered


class WorkerList:
    """The registered workers by queue, the numbers of live and `dead` ones, and pause reasons."""

    def __init__(self, workers: Sequence[Registered], orders: Mapping[str, str]) -> None:
        self.workers = workers
        self.number = sum(worker.alive for worker in workers)
        self.dead = len(workers) - self.number
        self._orders = orders
        self._by_queue: dict[str, list[Registered]] = {}
        for worker in workers:
            self._by_queue.setdefault(worker.queue, []).append(worker)

    def of(self, queue: str, group: str | None) -> list[Registered]:
        """Return the workers of a group, or with None of all groups of the queue, including dead ones."""
        workers = self._by_queue.get(queue, [])
        return [worker for worker in workers if group in (None, worker.group)]

    def alive(self, queue: str, group: str | None) -> list[Registered]:
        """Return the live workers of a group, or with None of any group of the queue."""
        return [worker for worker in self.of(queue, group) if worker.alive]

    def paused(self, queue: str) -> str | None:
        """Return the reason of a queue's pause, or None."""
        fields = (pause_field("project"), pause_field("queue", queue))
        return next((self._orders[field] for field in fields if field in self._orders), None)

    def reason(self, field: str) -> str | None:
        """Return the reason of the pause order stored in a field, or None."""
        return self._orders.get(field)

    @property
    def halted(self) -> bool:
        return pause_field("project") in self._orders


def listed(scope: Scope) -> Op[WorkerList]:
    """Read the registered workers and the pause orders."""
    workers = yield from registry.workers(scope, counted=False)
    return WorkerList(workers, (yield from registry.orders_by_field(scope)))
