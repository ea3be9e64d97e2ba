"""A worker process by the library: serial, in threads, in an event loop, or on an asynchronous bus."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import agentbus
from agentbus.core.errors import BackendUnavailable
from agentbus.queues.delivery import AsyncDelivery, Delivery
from agentbus.queues.retry import Backoff
from agentbus.torture.assignment import Assignment, assigned
from agentbus.torture.history import FAIL, INVOKE, OK
from agentbus.torture.work.tasks import ACK, ATTEMPTS, LIFE, QUEUE, RUN, by_hand

KINDS = ("library", "threads", "coroutines", "asyncbus")
_AT_ONCE = {"library": 1, "threads": 4}
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
        yield self._seconds
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


class LibraryWorker:
    """Works by the library: half the tasks are acknowledged in batches, half by their handler."""

    def __init__(self, assignment: Assignment) -> None:
        self._kind = assignment.kind
        self._url = assignment.url
        self._handler = TaskHandler(assignment)
        self._connection: dict[str, Any] = {
            "project": assignment.project,
            "agent": "worker",
            "deadline": 1.0,
        }
        self._options: dict[str, Any] = {
            "visibility": assignment.options["visibility"],
            "attempts": ATTEMPTS,
            "backoff": Backoff(first=0.05, longest=0.2),
            "concurrency": _AT_ONCE.get(self._kind, 8),
        }

    def run(self) -> None:
        """Work until killed; a worker that finds no server when it starts tries again."""
        while True:
            try:
                self._run()
            except BackendUnavailable:
                if self._handler.worked:
                    raise

    def _run(self) -> None:
        if self._kind == "asyncbus":
            asyncio.run(self._run_async())
            return
        handler = self._handle_async if self._kind == "coroutines" else self._handle
        with agentbus.connect(self._url, **self._connection) as bus:
            bus.subscribe(QUEUE, handler, **self._options).run()

    async def _run_async(self) -> None:
        import agentbus.client.aio

        async with agentbus.client.aio.connect(self._url, **self._connection) as bus:
            await bus.subscribe(QUEUE, self._handle_async, **self._options).run()

    def _handle(self, delivery: Delivery) -> None:
        task = delivery.payload, delivery.attempt, delivery.id
        self._handler(*task)
        if by_hand(delivery.payload["i"]):
            with self._handler.settling(*task) as answered:
                answered(delivery.ack())

    async def _handle_async(self, delivery: AsyncDelivery) -> None:
        task = delivery.payload, delivery.attempt, delivery.id
        for seconds in self._handler.pauses(*task):
            await asyncio.sleep(seconds)
        if by_hand(delivery.payload["i"]):
            with self._handler.settling(*task) as answered:
                answered(await delivery.ack())


if __name__ == "__main__":
    LibraryWorker(assigned()[0]).run()
