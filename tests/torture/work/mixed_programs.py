"""Processes of the mixed loads: one that publishes, workers, and some that publish, cancel and drain."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import agentbus
from agentbus.core.errors import AgentBusError, BackendUnavailable
from agentbus.queues.delivery import Delivery
from agentbus.queues.retry import Backoff
from agentbus.tasks import Flows, FlowTask, chain, group
from tests.torture.assignment import Allowance, Assignment
from tests.torture.history import FAIL, INVOKE, OK, read_history
from tests.torture.work.loads import SLOTS
from tests.torture.work.mixed_checks import (
    CANCEL,
    DRAIN,
    LIMITED,
    RESULT,
    SLOT,
    STEP,
    STEPPED,
)
from tests.torture.work.tasks import LIFE, PUBLISH, RUN

AUTHOR, WORKER, DRAINER = "author", "worker", "drainer"
# How long a task or a step takes, a slot is used, and a process waits after a refusal, in seconds.
_TOIL, _USES, _PAUSE = 0.01, 0.05, 0.05
# A worker whose server is away for a moment must not lose its tasks; a slot is held for moments.
_VISIBILITY, _SLOT_TTL = 4.0, 2.0
_WAITS = 10.0
# How many tasks are drained together, how many of these are cancelled, and how long the last ones take.
_BATCH, _CANCELLED, _SLOW_ONES, _SLOW = 12, 4, 3, 0.2
# One flow of so many fails, and is undone.
_FAILING = 3
# Of the tasks with steps, one of so many kills its worker in the first attempt, and one fails in it.
_DYING, _RETRIED = 16, 3
# Task numbers of a process begin at a multiple of this.
_EACH = 1_000_000


class Doing:
    """Handles tasks, and writes a history of them."""

    def __init__(self, told: Assignment) -> None:
        self.scribe = told.scribe()
        self._semaphore = told.options["queue"]
        self.bus: agentbus.Bus
        self.scribe.note(LIFE, INVOKE)

    def __call__(self, delivery: Delivery) -> str:
        """Do a task, and return a value that no other run returns."""
        task: Any = delivery.payload
        of = {"i": task["i"], "do": task["do"], "attempt": delivery.attempt, "id": delivery.id}
        given = delivery.results()
        self.scribe.note(RUN, INVOKE, **of, after=task.get("after", []), given=given)
        value = uuid.uuid4().hex
        outcome: dict[str, Any] = {"why": "failed"}
        try:
            if task.get("fails"):
                outcome = {"why": "buried"}
                raise agentbus.Bury("as asked")
            if task["do"] == STEP:
                self._steps(delivery, of)
            elif task["do"] == LIMITED:
                self._use_slot(of)
            else:
                time.sleep(task.get("toil", _TOIL))
            outcome = {"value": value}
        finally:
            self.scribe.note(RUN, OK if "value" in outcome else FAIL, **of, **outcome)
        return value

    def _steps(self, delivery: Delivery, of: dict[str, Any]) -> None:
        for name in ("one", "two", "three"):
            value = delivery.step(name, self._step, {**of, "name": name})
            self.scribe.note(STEPPED, OK, **of, name=name, value=value)
            if delivery.attempt == 1 and name == "two":
                if of["i"] % _DYING == 0:
                    self.scribe.die()
                if of["i"] % _RETRIED == 0:
                    raise ValueError("the first attempt ends after two steps")

    def _step(self, of: dict[str, Any]) -> str:
        self.scribe.note(STEP, INVOKE, **of)
        time.sleep(_TOIL)
        value = uuid.uuid4().hex
        self.scribe.note(STEP, OK, **of, value=value)
        return value

    def _use_slot(self, of: dict[str, Any]) -> None:
        with self.bus.semaphore(self._semaphore, SLOTS, ttl=_SLOT_TTL).held(wait=_WAITS):
            self.scribe.note(SLOT, INVOKE, **of)
            try:
                time.sleep(_USES)
            finally:
                self.scribe.note(SLOT, OK, **of)


def subscribed(bus: agentbus.Bus, do: Doing, queue: str, **options: Any) -> Any:
    """Return a worker whose tasks are never buried, however often their workers die."""
    do.bus = bus
    backoff = Backoff(first=0.05, longest=0.2)
    return bus.subscribe(
        queue, do, attempts=1000, visibility=_VISIBILITY, backoff=backoff, **options
    )


def work(told: Assignment, _limit: Allowance) -> None:
    """Work on a queue until killed."""
    do = Doing(told)
    while True:
        with contextlib.suppress(BackendUnavailable), _connected(told) as bus:
            subscribed(bus, do, told.options["queue"], concurrency=told.options["at_once"]).run()


class Publishing:
    """Publishes tasks, each once under its own number, and writes a history of the outcomes."""

    def __init__(self, told: Assignment, bus: agentbus.Bus, do: Doing) -> None:
        self.bus, self.scribe, self._durable = bus, do.scribe, told.options["durable"]
        numbers = [
            number
            for entry in read_history(told.history)
            if entry.op == PUBLISH
            for number in (*entry.of["tasks"], *entry.of["undo"])
        ]
        self._next = max(numbers, default=told.options["number"] * _EACH) + 1

    def numbers(self, count: int) -> list[int]:
        """Return the numbers of the next tasks."""
        self._next += count
        return [*range(self._next - count, self._next)]

    def publish(
        self,
        do: str,
        send: Callable[[], Any],
        tasks: Sequence[int],
        undo: Sequence[int] = (),
        *,
        fails: bool = False,
        durable: bool = False,
    ) -> Any:
        """Publish, and return what the library does, or None if it was refused or is unknown."""
        of: dict[str, Any] = {
            "do": do,
            "tasks": tasks,
            "undo": undo,
            "fails": fails,
            "durable": durable,
        }
        try:
            with self.scribe.asking(PUBLISH, **of):
                return send()
        except AgentBusError:
            time.sleep(_PAUSE)
            return None


class Author(Publishing):
    """Publishes some of each kind in each round, and asks for results."""

    def __init__(self, told: Assignment, bus: agentbus.Bus, do: Doing) -> None:
        super().__init__(told, bus, do)
        self._queue, self._limited = told.options["queue"], told.options["limited"]
        self._before: list[tuple[int, str]] = []

    def round(self, number: int) -> None:
        """Publish a flow, tasks with steps, limited tasks, a durable one, and one after another."""
        self._flow(fails=number % _FAILING == 0)
        queue, limited = self.bus.queue(self._queue), self.bus.queue(self._limited)
        for i in self.numbers(2):
            self.publish(STEP, partial(queue.publish, {"i": i, "do": STEP}), [i])
        some = self.numbers(4)
        payloads = [{"i": i, "do": LIMITED} for i in some]
        self.publish(LIMITED, lambda: limited.publish_many(payloads), some)
        kept, then = self.numbers(2)
        task_id = self.publish(
            "durable",
            lambda: queue.publish({"i": kept, "do": "durable"}, durable=self._durable),
            [kept],
            durable=True,
        )
        if task_id is None:
            return
        after = {"i": then, "do": "after", "after": [kept]}
        self.publish("after", lambda: queue.publish(after, after=task_id), [then])
        self._before.append((kept, task_id))
        self._ask(*self._before[max(0, len(self._before) - 3)])

    def _flow(self, *, fails: bool) -> None:
        first, second, third, last, *undo = self.numbers(7)

        def task(i: int, after: Sequence[int], undone_by: int | None = None) -> FlowTask:
            payload = {"i": i, "do": "flow", "after": after, "fails": fails and i == last}
            undone = None if undone_by is None else task(undone_by, [i])
            return FlowTask(payload, self._queue, undo=undone)

        flow = chain(
            task(first, [], undo[0]),
            group(task(second, [first], undo[1]), task(third, [first], undo[2])),
            task(last, [second, third]),
        )
        flows = Flows(self.bus)
        self.publish(
            *("flow", lambda: flows.publish(flow), [first, second, third, last], undo),
            fails=fails,
        )

    def _ask(self, task: int, task_id: str) -> None:
        with (
            contextlib.suppress(AgentBusError),
            self.scribe.asking(RESULT, i=task) as answer,
        ):
            answer["value"] = self.bus.result(task_id)


class Drainer(Publishing):
    """Publishes tasks, and drains the queue that it shares with others while it cancels some of them."""

    def __init__(self, told: Assignment, bus: agentbus.Bus, do: Doing) -> None:
        super().__init__(told, bus, do)
        self._told, self._do = told, do
        self._queue = told.options["queue"]
        self._drains = 0
        self._chance = random.Random(f"{told.seed} {self._next}")

    def round(self, _number: int) -> None:
        """Publish, cancel and drain."""
        some = self.numbers(_BATCH)
        queue = self.bus.queue(self._queue)
        payloads: list[dict[str, Any]] = [{"i": i, "do": DRAIN} for i in some]
        for payload in payloads[-_SLOW_ONES:]:
            payload["toil"] = _SLOW
        ids = self.publish(DRAIN, lambda: queue.publish_many(payloads), some)
        if ids is None:
            return
        chosen = self._chance.sample([*zip(some, ids, strict=True)], _CANCELLED)
        cancelling = threading.Thread(target=self._cancel, args=(chosen,))
        cancelling.start()
        self.drain()
        cancelling.join()

    def drain(self) -> None:
        """Do what is there until nothing is left."""
        while True:
            self._drains += 1
            with contextlib.suppress(AgentBusError), self.scribe.asking(DRAIN, n=self._drains):
                subscribed(self.bus, self._do, self._queue, drain=True).run()
                return
            time.sleep(_PAUSE)

    def _cancel(self, chosen: Sequence[tuple[int, str]]) -> None:
        with _connected(self._told) as bus:
            for task, task_id in chosen:
                with (
                    contextlib.suppress(AgentBusError),
                    self.scribe.asking(CANCEL, i=task) as answer,
                ):
                    answer["state"] = bus.cancel(task_id).state


def publish(told: Assignment, limit: Allowance) -> None:
    """Do round after round, as far as allowed, and leave nothing to be drained."""
    do = Doing(told)
    # A successor does not catch up.
    rounds = told.allowed
    with _connected(told) as bus:
        one = (Drainer if told.kind == DRAINER else Author)(told, bus, do)
        while limit.reaches(rounds + 1) and not limit.over:
            one.round(rounds)
            rounds += 1
        if isinstance(one, Drainer):
            one.drain()


def _connected(told: Assignment) -> agentbus.Bus:
    return agentbus.connect(told.url, project=told.project, agent=told.name, deadline=1.0)


def main(told: Assignment, limit: Allowance) -> None:
    """Do what the kind says."""
    (work if told.kind == WORKER else publish)(told, limit)
