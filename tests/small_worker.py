"""A worker of a few lines, with a gate and a thread that looks after it, for tests of the two."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import agentbus
from agentbus.queues.consumer import QueueConsumer
from agentbus.store.scope import Intervals
from agentbus.store.steps import Command, Wait
from agentbus.store.verb import Patient
from agentbus.workers.pause import Gate
from agentbus.workers.registry import WorkerOrders, WorkerRegistration

PATIENCE = 30.0
# Of workers that no test waits for.
BRISK = Intervals(beat=0.1, look=0.1, fetch=0.05)
# How long it may be blocked in taking: so long an order to pause takes to hold.
_BRIEF = 0.1


def tell(*_tasks: Any) -> None:
    """Do nothing with a task."""


class SmallWorker:
    """Takes tasks one by one while its gate lets it; a keeper beats, and wakes when the bell rings."""

    def __init__(
        self,
        bus: agentbus.Bus,
        queue: str = "mail",
        handler: Callable[[Any], Any] = tell,
        group: str = "default",
    ) -> None:
        self.name = f"host:1:{secrets.token_hex(4)}"
        self.ran: list[Any] = []
        self.done = 0
        self.running = 0
        self.ended = threading.Event()
        self._bus, self._handler = bus, handler
        self._of = QueueConsumer(bus.scope, queue, group, self.name)
        self._bell = bus.scope.keys.bell(queue)
        self._ending = False
        self._beaten = threading.Condition()
        self._beats = 0
        registration = WorkerRegistration(bus.scope, self.name, bus.agent, queue, group, 1)
        self.gate = Gate(
            registration,
            self._do,
            stop=self.stop,
            stopping=lambda: self._ending,
            figures=lambda: (self.done, 0, self.running),
        )
        self._threads = [threading.Thread(target=body) for body in (self._work, self._keep)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        self.beats(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.stop()
        self.gate.wake()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def stop(self) -> None:
        """End after what runs; called by an order, or at the end of a test."""
        self._ending = True
        self._ring()

    def beats(self, number: int = 2) -> None:
        """Ring until it has beaten so many times more."""
        for _ in range(number):
            with self._beaten:
                wanted = self._beats + 1
                self._ring()
                assert self._beaten.wait_for(lambda: self._beats >= wanted, PATIENCE)  # noqa: B023

    def has_run(self, number: int) -> None:
        """Block until it has run so many tasks."""
        with self._beaten:
            assert self._beaten.wait_for(lambda: len(self.ran) >= number, PATIENCE)

    def _work(self) -> None:
        self._do(self._of.prepare())
        while not self._ending:
            if not self.gate.enter(self._bus.scope.intervals.beat):
                continue
            # What was given back comes first.
            tasks, *_ = self._do(self._of.take_retries("normal", 1, firsts=1))
            if not tasks:
                tasks = self._do(self._of.take(1, _BRIEF))
            if not self.gate.leave():
                self._do(self._of.give_back(tasks))
                continue
            for task in tasks:
                self.running = 1
                with self._beaten:
                    self.ran.append(task.payload)
                    self._beaten.notify_all()
                self._handler(task.payload)
                self._do(self._of.finish(task, 0.0))
                self.running = 0
                self.done += 1
        self._do(self._of.leave())
        self.gate.withdraw()
        self.ended.set()

    def _keep(self) -> None:
        tail = "0-0"
        while not self._ending:
            self.gate.beat()
            with self._beaten:
                self._beats += 1
                self._beaten.notify_all()
            rung = self._do(_one(Wait(self._bell, tail, self._bus.scope.intervals.beat)))
            tail = rung[-1][0].decode() if rung else tail

    def _ring(self) -> None:
        self._do(_one(Command("XADD", self._bell, "MAXLEN", 1, "*", "test", "1")))

    def _do(self, op: Any) -> Any:
        return self._bus._run("work", Patient(op, float("inf")))


class Registry:
    """Registers workers without running them, and beats for them."""

    def __init__(self, bus: agentbus.Bus, queue: str = "mail", worker: str = "host:1:a") -> None:
        self.bus, self.worker = bus, worker
        self.entry = WorkerRegistration(bus.scope, worker, bus.agent, queue, "default", 4)

    def beat(self, state: str = "working", done: int = 0) -> WorkerOrders:
        """Beat once, and return what was ordered."""
        orders: WorkerOrders = self.bus._run("beat", self.entry.beat_op(state, done, 0, 0))
        return orders


def _one(step: Any) -> Any:
    reply = yield step
    return reply
