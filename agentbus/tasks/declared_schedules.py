"""Schedules that typed tasks declare by `every` or `cron`, and a scheduler that runs with their worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from agentbus.tasks.schedule_record import Definition
from agentbus.tasks.scheduler import Scheduler
from agentbus.tasks.schedules import Schedules
from agentbus.tasks.typed_task import enveloped

if TYPE_CHECKING:
    from agentbus.tasks.typed_task import AnyTask


def definitions(tasks: Iterable[AnyTask]) -> list[Definition]:
    """Return the schedules of tasks, named `<queue>.<task>`. Raises `InvalidPayload`.

    A tick has no arguments, so each parameter of such a task must have a default.
    """
    return [
        _definition(task)
        for task in tasks
        if task.declared.every is not None or task.declared.cron is not None
    ]


def _definition(task: AnyTask) -> Definition:
    # A unique task uses the key of a call without arguments, not a key per tick.
    call = task.item()
    key = enveloped(call.payload, call.envelope).key
    return Definition(
        f"{task.queue}.{task.name}",
        task.queue,
        call.payload,
        every=task.declared.every,
        cron=task.declared.cron,
        envelope=call.envelope if key is None else {**call.envelope, "key": key},
        **task.declared.times(),
    )


@contextmanager
def scheduled(bus: Any, declared: Sequence[Definition], owner: str | None) -> Iterator[None]:
    """Declare schedules on a `Bus`, and run a scheduler during the block.

    Schedules that the program `owner` no longer declares are removed; without an owner, none are removed.
    """
    schedules = Schedules(bus)
    if owner is not None:
        schedules.sync(declared, owner=owner)
    else:
        for one in declared:
            schedules.add(one.name, one.queue, one.payload, **_rest(one))
    with Scheduler(bus) if declared else nullcontext():
        yield


@asynccontextmanager
async def ascheduled(
    bus: Any, declared: Sequence[Definition], owner: str | None
) -> AsyncIterator[None]:
    """Declare and run schedules like `scheduled`, on an `AsyncBus`."""
    schedules = Schedules(bus)
    if owner is not None:
        await schedules.sync(declared, owner=owner)
    else:
        for one in declared:
            await schedules.add(one.name, one.queue, one.payload, **_rest(one))
    scheduler = Scheduler(bus).start() if declared else None
    try:
        yield
    finally:
        if scheduler is not None:
            await asyncio.to_thread(scheduler.close)


def _rest(one: Definition) -> dict[str, Any]:
    times = {"every": one.every, "cron": one.cron, "timezone": one.timezone, "missed": one.missed}
    return {**times, **one.envelope}
