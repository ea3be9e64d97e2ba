"""A handle for a published typed task: its id, and methods to read its result and cancel it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agentbus.queues import cancel, results, task_state
from agentbus.store.verb import Awaiting, Blocking, Patient, verb
from agentbus.workers.registry import or_no_worker

if TYPE_CHECKING:
    from agentbus.queues.cancel import Cancelled
    from agentbus.queues.task_state import TaskState
    from agentbus.store.steps import Op
    from agentbus.tasks.payloads import TypedResult

R = TypeVar("R")


class AnyHandle(Generic[R]):
    """The common part of blocking and asynchronous handles."""

    __slots__ = ("_bus", "_result", "_run", "id")

    def __init__(self, bus: Any, task_id: str, result: TypedResult) -> None:
        if bus._sharded is not None:
            bus = bus._sharded.of_task(task_id)
        self._bus = bus
        self._run = bus._run
        self._result = result
        self.id = task_id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @verb
    def result(self, wait: float | None = None, *, group: str | None = None) -> Patient[R]:
        """Return the result of the task, waiting up to `wait` seconds for it.

        The result has the function's declared return type. Raises `TaskBuried`, `TaskCancelled`,
        `TimedOut`, `NotFound` like `Queue.result`, and `InvalidPayload` if the result does not fit the
        type.
        """
        return Patient(self._typed(wait, group), wait or 0.0)

    @verb
    def cancel(self) -> Op[Cancelled]:
        """Cancel the task, like `Bus.cancel`. Raises `NotFound`, `Refused`."""
        return cancel.cancel(self._bus.scope, self.id, self._bus.runner.policies)

    @verb
    def state(self, *, group: str | None = None) -> Op[TaskState]:
        """Return the state of the task, like `Bus.task`. Raises `NotFound`."""
        return task_state.logged(self._bus.scope, self.id, group, self._bus.runner.policies)

    def _typed(self, wait: float | None, group: str | None) -> Op[R]:
        bus = self._bus
        op = results.result(bus.scope, self.id, wait, group, bus.runner.policies)
        data = yield from or_no_worker(bus.scope, op, task=self.id)
        decoded: R = self._result.decode(data)
        return decoded


class Handle(AnyHandle[R], Blocking):
    """A task published on a `Bus`."""

    __slots__ = ()


class AsyncHandle(AnyHandle[R], Awaiting):
    """A task published on an `AsyncBus`, whose methods are awaited."""

    __slots__ = ()
