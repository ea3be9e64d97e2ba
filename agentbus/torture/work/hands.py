"""A worker process as the library makes it: serial, in threads, in an event loop, on an asynchronous bus.

Run as a module: kind, url, project, place, name, seconds of toil, visibility.
"""

from __future__ import annotations

import asyncio
import pathlib
import signal
import sys
from typing import Any

import agentbus
from agentbus.core.errors import BackendUnavailable
from agentbus.queues.delivery import AsyncDelivery, Delivery
from agentbus.queues.retry import Backoff
from agentbus.torture.parent import end_with_parent
from agentbus.torture.work.tasks import ATTEMPTS, QUEUE, by_hand
from agentbus.torture.work.toil import Toil

KINDS = ("library", "threads", "coroutines", "asyncbus")
_AT_ONCE = {"library": 1, "threads": 4}


class Hands:
    """Works as the library does: half the tasks are acknowledged in batches, half by their handler."""

    def __init__(self, kind: str, url: str, project: str, toil: Toil, visibility: float) -> None:
        self._kind = kind
        self._url = url
        self._toil = toil
        self._connection: dict[str, Any] = {"project": project, "agent": "worker", "deadline": 1.0}
        self._options: dict[str, Any] = {
            "visibility": visibility,
            "attempts": ATTEMPTS,
            "backoff": Backoff(first=0.05, longest=0.2),
            "concurrency": _AT_ONCE.get(kind, 8),
        }

    def run(self) -> None:
        """Work until killed; whoever finds no server at his start tries again."""
        while True:
            try:
                self._run()
            except BackendUnavailable:
                if self._toil.worked:
                    raise

    def _run(self) -> None:
        if self._kind == "asyncbus":
            asyncio.run(self._on_an_asynchronous_bus())
            return
        handler = self._handle_async if self._kind == "coroutines" else self._handle
        with agentbus.connect(self._url, **self._connection) as bus:
            bus.subscribe(QUEUE, handler, **self._options).run()

    async def _on_an_asynchronous_bus(self) -> None:
        import agentbus.client.aio

        async with agentbus.client.aio.connect(self._url, **self._connection) as bus:
            await bus.subscribe(QUEUE, self._handle_async, **self._options).run()

    def _handle(self, delivery: Delivery) -> None:
        payload, attempt, name = delivery.payload, delivery.attempt, delivery.id
        self._toil(payload, attempt, name)
        if by_hand(payload["i"]):
            self._toil.settle(payload, attempt, name, delivery.ack)

    async def _handle_async(self, delivery: AsyncDelivery) -> None:
        payload, attempt, name = delivery.payload, delivery.attempt, delivery.id
        for seconds in self._toil.pauses(payload, attempt, name):
            await asyncio.sleep(seconds)
        if by_hand(payload["i"]):
            with self._toil.asking(payload, attempt, name) as answers:
                answers.append(await delivery.ack())


def main(kind: str, url: str, project: str, place: str, name: str, toil: str, seen: str) -> None:
    """Work until killed."""
    # A worker that ends with its terminal's interrupt would look like one that gave up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    Hands(kind, url, project, Toil(pathlib.Path(place), name, float(toil)), float(seen)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
