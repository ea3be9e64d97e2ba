"""The worker processes that are killed: the library's, and some that work as many programs do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import agentbus
import agentbus.aio
from agentbus.keys import Keys
from agentbus.retry import Backoff
from tests.history import ACCEPTED, BEGIN, DONE, FAILED, REFUSED, UNSURE, Scribe

QUEUE = "work"
GROUP = "default"
ATTEMPTS = 4
# The library's worker in each of its modes: one after the other, in threads, in an event loop of its
# own, in that of an asynchronous bus.
OURS = ("library", "threads", "coroutines", "asyncbus")
# How long the nemesis may hold a task, and how often one looks whether it still does.
_LONGEST_HOLD = 30.0
_GLANCE = 0.002


class Toil:
    """What a task does: a little work, written down. Poison ends the process."""

    def __init__(self, place: pathlib.Path, worker: str, toil: float) -> None:
        self._scribe = Scribe(place / "hands" / worker)
        self._holds = place / "holds"
        self._toil = toil

    def __call__(self, payload: Any, attempt: int, name: str) -> None:
        """Do a task, and keep a thread busy with it."""
        for seconds in self.pauses(payload, attempt, name):
            time.sleep(seconds)

    def pauses(self, payload: Any, attempt: int, name: str) -> Iterator[float]:
        """Do a task; yields how long it takes, bit by bit."""
        task = payload["i"]
        self._scribe.note(BEGIN, task, attempt, name)
        if payload.get("poison"):
            os._exit(9)
        if payload.get("flaky", 0) >= attempt:
            self._scribe.note(FAILED, task, attempt, name)
            raise ValueError(f"attempt {attempt} fails")
        yield self._toil
        if attempt > 1:
            # The nemesis keeps a task in its second worker's hands until the first one has answered.
            until = time.monotonic() + _LONGEST_HOLD
            while (self._holds / str(task)).exists() and time.monotonic() < until:
                yield _GLANCE
        self._scribe.note(DONE, task, attempt, name)

    def settle(self, payload: Any, attempt: int, name: str, ack: Any) -> None:
        """Acknowledge, and write down when it was asked and what the answer was."""
        with self.asking(payload, attempt, name) as answers:
            answers.append(ack())

    @contextlib.contextmanager
    def asking(self, payload: Any, attempt: int, name: str) -> Iterator[list[Any]]:
        """Write down when an acknowledgement was asked for, and the answer that is put into the list."""
        asked, answers = time.monotonic_ns(), list[Any]()
        try:
            yield answers
        except agentbus.AgentBusError:
            self._scribe.note(UNSURE, payload["i"], attempt, name, asked)
            raise
        self._scribe.note(ACCEPTED if answers[0] else REFUSED, payload["i"], attempt, name, asked)


def by_hand(task: int) -> bool:
    """Tell whether a task's handler acknowledges it itself, so that the answer is seen."""
    return task % 2 == 1


def library(kind: str, url: str, project: str, toil: Toil, visibility: float) -> None:
    """Work as the library does: half the tasks are acknowledged in batches, half by their handler."""

    def handle(delivery: agentbus.Delivery) -> None:
        toil(delivery.payload, delivery.attempt, delivery.id)
        if by_hand(delivery.payload["i"]):
            toil.settle(delivery.payload, delivery.attempt, delivery.id, delivery.ack)

    async def handle_async(delivery: agentbus.AsyncDelivery) -> None:
        payload, attempt, name = delivery.payload, delivery.attempt, delivery.id
        for seconds in toil.pauses(payload, attempt, name):
            await asyncio.sleep(seconds)
        if by_hand(payload["i"]):
            with toil.asking(payload, attempt, name) as answers:
                answers.append(await delivery.ack())

    options: dict[str, Any] = {
        "visibility": visibility,
        "attempts": ATTEMPTS,
        "backoff": Backoff(first=0.05, longest=0.2),
        "concurrency": {"library": 1, "threads": 4}.get(kind, 8),
    }
    connection: dict[str, Any] = {"project": project, "agent": "worker", "deadline": 1.0}

    async def on_an_asynchronous_bus() -> None:
        async with agentbus.aio.connect(url, **connection) as bus:
            await bus.subscribe(QUEUE, handle_async, **options).run()

    if kind == "asyncbus":
        asyncio.run(on_an_asynchronous_bus())
        return
    with agentbus.connect(url, **connection) as bus:
        handler = handle_async if kind == "coroutines" else handle
        worker = bus.subscribe(QUEUE, handler, **options)
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        worker.run()


class Naive:
    """Works as many programs do: whatever goes wrong between two commands goes wrong."""

    def __init__(self, url: str, project: str, toil: Toil, visibility: float) -> None:
        import redis

        self.toil = toil
        self.visibility = visibility
        self.raw = redis.Redis.from_url(
            url, protocol=2, driver_info=None, socket_timeout=2.0, health_check_interval=0
        )
        self.refused = redis.ResponseError
        self.trouble = redis.RedisError
        self.me = f"naive-{os.getpid()}"
        self.stream = Keys(project).queue(QUEUE, "normal")
        self.letters = Keys(project).dead_letters(QUEUE, GROUP)

    def run(self, kind: str) -> None:
        """Work for ever."""
        while True:
            with contextlib.suppress(self.trouble):
                with contextlib.suppress(self.refused):
                    # Another worker has made it.
                    self.raw.xgroup_create(self.stream, GROUP, "0", mkstream=True)
                while True:
                    getattr(self, kind)()

    def new(self) -> list[Any]:
        """Take a batch of tasks that nobody had."""
        reply = self.raw.xreadgroup(GROUP, self.me, {self.stream: ">"}, count=20, block=100)
        return reply[0][1] if reply else []

    def old(self) -> list[Any]:
        """Take over tasks that another worker has had for too long."""
        idle = round(self.visibility * 1000)
        found: list[Any] = self.raw.xautoclaim(self.stream, GROUP, self.me, idle, "0-0", count=20)[
            1
        ]
        return found

    def do(self, entry: Any, attempt: int, *, ack: bool = True) -> None:
        """Handle one task, and acknowledge it, whoever holds it."""
        entry_id, fields = entry
        payload, name = json.loads(fields[b"payload"]), entry_id.decode()
        self.toil(payload, attempt, name)
        if ack:
            accepted = lambda: self.raw.xack(self.stream, GROUP, entry_id)  # noqa: E731
            self.toil.settle(payload, attempt, name, accepted)

    def ack_first(self) -> None:
        """Acknowledge a batch, then handle it."""
        entries = self.new()
        if entries:
            self.raw.xack(self.stream, GROUP, *(entry_id for entry_id, _ in entries))
        for entry in entries:
            self.do(entry, 1, ack=False)

    def ack_after(self) -> None:
        """Acknowledge what was handled, and never ask whose it is now."""
        for entry in self.old():
            self.do(entry, 2)
        for entry in self.new():
            self.do(entry, 1)

    def count_deliveries(self) -> None:
        """Take the delivery count for the number of attempts."""
        old = self.old()
        counts = {
            entry["message_id"]: entry["times_delivered"]
            for entry in self.raw.xpending_range(
                self.stream, GROUP, "-", "+", 1000, consumername=self.me
            )
        }
        for entry_id, fields in old:
            if counts.get(entry_id, 0) > ATTEMPTS:
                self.raw.xadd(self.letters, fields)
                self.raw.xack(self.stream, GROUP, entry_id)
            else:
                self.do((entry_id, fields), 2)
        for entry in self.new():
            self.do(entry, 1)


def main(kind: str, url: str, project: str, place: str, worker: str, toil: str, seen: str) -> None:
    """Work until killed."""
    # A worker that ends with its terminal's interrupt would look like one that gave up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work = Toil(pathlib.Path(place), worker, float(toil))
    if kind in OURS:
        library(kind, url, project, work, float(seen))
    else:
        Naive(url, project, work, float(seen)).run(kind)


def _end_with_parent() -> None:
    """Leave no worker behind when the tests are killed: their end of our stdin closes with them."""
    os.read(0, 1)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
