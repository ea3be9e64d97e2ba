"""Counts what programs fetch and settle, and writes the counts together with their own requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from agentbus.queues.consumer import Consumption
from agentbus.workers.metrics import Tally

if TYPE_CHECKING:
    from agentbus.queues.claimed import Taken
    from agentbus.store.scope import Scope
    from agentbus.store.steps import Op


T = TypeVar("T")

# Seconds between two entries, as for a worker.
_EVERY = 1.0


class FetchTally(Tally):
    """The counts of one program's fetches for a group, written at most once a second.

    They are sent in the same exchange as a fetch or a settle, and the last ones when the bus is closed.
    """

    def __init__(self, scope: Scope, queue: str, group: str, consumer: str) -> None:
        super().__init__(scope, queue, group, consumer)
        self._clock = scope
        self._due = scope.monotonic() + _EVERY

    def aboard(self, op: Op[T]) -> Op[T]:
        """Return an operation that also writes the counts, if that is due."""
        now = self._clock.monotonic()
        if now < self._due:
            return op
        self._due = now + _EVERY
        return self.beside(op)


class Fetched(Consumption):
    """The consumer of fetched tasks: settles them, and counts that. `tally` is set after construction.

    A task runs from the moment at which it was fetched until it is settled.
    """

    tally: FetchTally
    # When the tasks were fetched, by the monotonic clock.
    since = 0.0

    def finish(self, task: Taken, took: float, result: object = None) -> Op[bool]:
        took = self.scope.monotonic() - self.since
        ours = yield from self.tally.aboard(super().finish(task, took, result))
        self._count(took, "processed" if ours else "stale")
        return ours

    def retry(
        self,
        task: Taken,
        after: float,
        *,
        error: BaseException | str | None = None,
        took: float = 0.0,
        ran: bool = True,
    ) -> Op[bool]:
        took = self.scope.monotonic() - self.since
        op = super().retry(task, after, error=error, took=took, ran=ran)
        ours = yield from self.tally.aboard(op)
        self._failed("retried" if ours else "stale")
        return ours

    def bury(self, task: Taken, error: BaseException | str, *, took: float = 0.0) -> Op[bool]:
        took = self.scope.monotonic() - self.since
        ours = yield from self.tally.aboard(super().bury(task, error, took=took))
        self._failed("dead" if ours else "stale")
        return ours

    def _failed(self, then: str) -> None:
        self.tally.note("failed")
        self._count(self.scope.monotonic() - self.since, then)

    def _count(self, took: float, outcome: str) -> None:
        self.tally.note(outcome)
        self.tally.ran(1, took)
