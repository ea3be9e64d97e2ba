"""A worker process by the library: serial, in threads, in an event loop, or on an asynchronous bus."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import agentbus
import agentbus.aio
from agentbus.core.errors import BackendUnavailable
from agentbus.core.settings import resolve
from agentbus.queues.delivery import AsyncDelivery, Delivery
from agentbus.queues.retry import Backoff, Retry
from tests.torture.assignment import Allowance, Assignment
from tests.torture.history import FAIL, INVOKE, OK
from tests.torture.work.tasks import ACK, ATTEMPTS, LIFE, QUEUE, RUN, by_hand

KINDS = ("library", "threads", "coroutines", "asyncbus")
# How many tasks a worker of each kind runs at once.
AT_ONCE = {"library": 1, "threads": 4, "coroutines": 8, "asyncbus": 8}
# How long the nemesis may hold a task, and how often the worker looks whether it still does.
_LONGEST_HOLD = 30.0
_GLANCE = 0.002


class TaskHandler:
    """Does a task, and writes a history of it. Poison ends the process."""

    def __init__(self, assignment: Assignment) -> None:
        self._scribe = assignment.scribe()
        self._holds = pathlib.Path(assignment.place) / "holds"
        self._seconds: float = assignment.options["toil"]
        # Whether any task was begun.
        self.worked = False
        self._scribe.note(LIFE, INVOKE)

    def __call__(self, payload: Any, attempt: int, name: str) -> None:
        """Do a task, and keep a thread busy with it."""
        for seconds in self.pauses(payload, attempt, name):
            time.sleep(seconds)

    def pauses(self, payload: Any, attempt: int, name: str) -> Iterator[float]:
        """Do a task; yields the pauses that it consists of, in seconds."""
        self.worked = True
        of = {"i": payload["i"], "attempt": attempt, "id": name}
        self._scribe.note(RUN, INVOKE, **of)
        if payload.get("poison"):
            self._scribe.die()
        if payload.get("flaky", 0) >= attempt:
            self._scribe.note(RUN, FAIL, **of)
            raise ValueError(f"attempt {attempt} fails")
        if "retry" in payload:
            self._scribe.note(RUN, FAIL, **of)
            raise Retry(after=payload["retry"])
        yield payload.get("toil", self._seconds)
        if attempt > 1:
            # The nemesis keeps a task with its second worker until the first one has its answer.
            until = time.monotonic() + _LONGEST_HOLD
            while (self._holds / str(payload["i"])).exists() and time.monotonic() < until:
                yield _GLANCE
        self._scribe.note(RUN, OK, **of)

    @contextlib.contextmanager
    def settling(self, payload: Any, attempt: int, name: str) -> Iterator[Callable[[Any], None]]:
        """Write down an acknowledgement; the block calls the function with the answer."""
        of = {"i": payload["i"], "attempt": attempt, "id": name}
        with self._scribe.asking(ACK, (), **of) as answer:
            yield lambda accepted: answer.update(phase=OK if accepted else FAIL)


def main(assignment: Assignment, _limit: Allowance) -> None:
    """Work by the library until killed; a worker that finds no server when it starts tries again.

    Half the tasks are acknowledged in batches, half by their handler, unless `by_hand` says which.
    """
    kind, do, told = assignment.kind, TaskHandler(assignment), assignment.options
    queue = told.get("queue", QUEUE)
    settings = resolve(
        {
            "url": assignment.url,
            "project": assignment.project,
            "agent": "worker",
            "deadline": 1.0,
            "config": told.get("config"),
        }
    )
    options: dict[str, Any] = {
        "visibility": told["visibility"],
        "attempts": ATTEMPTS,
        "backoff": Backoff(first=0.05, longest=0.2),
        "concurrency": AT_ONCE[kind],
    }

    def acks(task: int) -> bool:
        return bool(told.get("by_hand", by_hand(task)))

    def handle(delivery: Delivery) -> None:
        task = delivery.payload, delivery.attempt, delivery.id
        do(*task)
        if acks(delivery.payload["i"]):
            with do.settling(*task) as answered:
                answered(delivery.ack())

    async def handle_async(delivery: AsyncDelivery) -> None:
        task = delivery.payload, delivery.attempt, delivery.id
        for seconds in do.pauses(*task):
            await asyncio.sleep(seconds)
        if acks(delivery.payload["i"]):
            with do.settling(*task) as answered:
                answered(await delivery.ack())

    async def work_async() -> None:
        async with agentbus.aio.AsyncBus(settings) as bus:
            await bus.subscribe(queue, handle_async, **options).run()

    while True:
        try:
            if kind == "asyncbus":
                asyncio.run(work_async())
            with agentbus.Bus(settings) as bus:
                handler = handle_async if kind == "coroutines" else handle
                bus.subscribe(queue, handler, **options).run()
        except BackendUnavailable:
            if do.worked:
                raise
