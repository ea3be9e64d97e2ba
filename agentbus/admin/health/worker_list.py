"""The registered workers and pause orders, as the health checks need them."""

from __future__ import annotations

from agentbus.core.keys import pause_field
from agentbus.core.record import Record
from agentbus.workers import registry
from agentbus.workers.registry import ALIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


class ListedWorker(Record):
    """A registered worker; `silent` is the seconds since its last heartbeat."""

    worker: str
    agent: str
    host: str
    silent: float

    @property
    def alive(self) -> bool:
        """Whether its last heartbeat is recent enough."""
        return self.silent <= ALIVE


class WorkerList:
    """The registered workers by queue and group, and the pause orders."""

    def __init__(
        self, workers: Mapping[tuple[str, str], list[ListedWorker]], orders: Mapping[str, str]
    ):
        self._workers = workers
        self._orders = orders

    @property
    def number(self) -> int:
        """The number of live workers."""
        return sum(worker.alive for workers in self._workers.values() for worker in workers)

    def of(self, queue: str, group: str) -> list[ListedWorker]:
        """Return the workers of a group, including dead ones."""
        return self._workers.get((queue, group), [])

    def alive(self, queue: str, group: str | None) -> list[ListedWorker]:
        """Return the live workers of a group, or with None of any group of the queue."""
        if group is not None:
            return [worker for worker in self.of(queue, group) if worker.alive]
        return [
            worker
            for (its, _), workers in self._workers.items()
            for worker in workers
            if its == queue and worker.alive
        ]

    def paused(self, queue: str) -> str | None:
        """Return the reason of a queue's pause, or None."""
        fields = (pause_field("project"), pause_field("queue", queue))
        return next((self._orders[field] for field in fields if field in self._orders), None)

    @property
    def halted(self) -> bool:
        """Whether the project is halted."""
        return pause_field("project") in self._orders

    def is_paused(self, queue: str, worker: ListedWorker) -> bool:
        """Return whether a pause order applies to a worker."""
        fields = registry.fields_of(queue, worker.agent, worker.worker)
        return any(field in self._orders for field in fields)


def listed(scope: Scope) -> Op[WorkerList]:
    """Read the workers and orders."""
    now, last, records = yield from registry.listed(scope)
    orders = yield from registry.orders_by_field(scope)
    workers: dict[tuple[str, str], list[ListedWorker]] = {}
    for worker, record in records.items():
        where = record.get("queue", ""), record.get("group", "")
        host = f"{record.get('host', '?')}:{record.get('pid', '?')}"
        silent = max(0.0, now - last[worker])
        workers.setdefault(where, []).append(
            ListedWorker(worker, record.get("agent", ""), host, silent)
        )
    return WorkerList(workers, orders)
