"""Works off a queue: takes tasks, runs a handler for each, and says what became of them.

First deliveries run fast: taken in batches and acknowledged together. What is delivered again (its
worker died, or its handler failed) runs alone, one by one, each attempt counted before it starts: so a
task that kills its worker is buried after its attempts, and its neighbours never are.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus import names
from agentbus.consuming import Consumption, Taken
from agentbus.delivery import Delivery
from agentbus.errors import AgentBusError, InvalidPayload
from agentbus.performing import Outcome, performer
from agentbus.queue import PRIORITIES
from agentbus.retry import ATTEMPTS, Backoff
from agentbus.store import Batch, Command, ServerReply, Step, Take, Wait
from agentbus.store.trouble import GroupMissing
from agentbus.stream import text
from agentbus.verb import Patient

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.bus import Bus
    from agentbus.store import Op

VISIBILITY = 180.0
_MOST = 500
# A batch should take about this long: longer ones keep tasks from other workers.
_BRISK, _SLOW = 0.05, 0.2
_LONGEST_WAIT = 1.0
_RECLAIM_EVERY = 30.0
# Every so many batches one starts at the low end, so that no priority starves.
_TURN = 10


class Worker:
    """Runs a handler for the tasks of one queue, for one group."""

    def __init__(
        self,
        bus: Bus,
        queue: str,
        handler: Callable[..., Any],
        *,
        group: str = "default",
        concurrency: int = 1,
        batch: bool = False,
        attempts: int = ATTEMPTS,
        visibility: float = VISIBILITY,
        drain: bool = False,
        backoff: Backoff | None = None,
        count: int | None = None,
        prefetch: int | None = None,
    ) -> None:
        names.name("queue", queue)
        names.name("group", group)
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.queue = queue
        self.group = group
        self.done = 0
        self._bus = bus
        self._task = Consumption(bus.scope, queue, group, self.name)
        self._attempts = attempts
        self._visibility = visibility
        self._drain = drain
        self._backoff = backoff or Backoff()
        self._left = count
        self._concurrency = concurrency
        self._stopping = threading.Event()
        self._perform = performer(
            handler, concurrency=concurrency, batch=batch, stopping=self._stopping.is_set
        )
        # Without a second attempt, a task that was taken must be one that runs: were this worker to
        # die, those that only waited in its hands would be buried with it.
        self._most = concurrency if attempts == 1 else prefetch or _MOST
        self._size = concurrency
        self._mixed = True
        self._turn = 0
        self._next_reclaim = 0.0
        self._next_retry: dict[str, float] = {}
        self._held: list[Taken] = []
        self._unsure = True
        self._bell = bus.scope.keys.bell(queue)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        self._perform.close()

    def stop(self) -> None:
        """Stop after what runs now is finished and acknowledged; may be called twice, and by a signal."""
        self._stopping.set()

    def run(self) -> int:
        """Work until stopped (or, to drain, until nothing is left); returns how many tasks were done."""
        keeper = threading.Thread(target=self._keep, daemon=True)
        keeper.start()
        try:
            while not self._stopping.is_set() and self._left != 0:
                # Asked first: what becomes due after the pass has looked is still to come.
                expected = not self._drain or self._expected()
                if not self.run_once(wait=_LONGEST_WAIT if expected else 0.0) and not expected:
                    break
        finally:
            self._stopping.set()
            self._do(_ring(self._bell))
            keeper.join()
            self._perform.close()
            self._do(self._task.leave())
        return self.done

    def run_once(self, *, wait: float = 0.0) -> int:
        """Make one pass: what is to be delivered again, then one batch of new tasks."""
        if self._unsure:
            self._do(self._task.prepare())
            self._unsure = False
        self._do(self._task.promote())
        handled = self._redeliveries()
        if self._left != 0 and not self._stopping.is_set():
            batch = self._take(0.0 if handled else wait)
            if batch:
                self._first_runs(batch)
            handled += len(batch)
        return handled

    # -- new tasks --

    def _take(self, wait: float) -> list[Taken]:
        size = self._size if self._left is None else min(self._size, self._left)
        self._turn += 1
        if self._mixed:
            order: Sequence[str] = PRIORITIES
            if self._turn % _TURN == 0:
                order, size = PRIORITIES[::-1], 1
            taken: list[Taken] = self._again_if_missing(lambda: self._task.fetch(size, order))
            self._mixed = len({task.priority for task in taken}) != 1 or (
                taken[0].priority != "normal"
            )
            if taken or not wait:
                return taken
        step = Take(
            list(self._task.streams.values()), self.group, self.name, size, self._patience(wait)
        )
        reply = self._again_if_missing(lambda: _one(step))
        if step.sendings > 1:
            # The answer that was lost may have given us tasks: they are ours, and were never run.
            self._next_reclaim = 0.0
        of_stream = {stream: priority for priority, stream in self._task.streams.items()}
        taken = []
        for stream, entries in reply:
            taken += self._task.decoded(entries, of_stream[text(stream)])
        if self._left is not None and len(taken) > self._left:
            # The server counts for each stream.
            self._release(taken[self._left :])
            taken = taken[: self._left]
        self._mixed = any(task.priority != "normal" for task in taken)
        return taken

    def _first_runs(self, batch: list[Taken]) -> None:
        self._held = batch
        began = time.monotonic()
        outcomes = self._perform(batch, self._delivery)
        took = time.monotonic() - began
        if took < _BRISK and len(batch) >= self._size:
            self._size = min(self._most, self._size * 2)
        elif took > _SLOW:
            self._size = max(self._concurrency, self._size // 2)
        if len(outcomes) < len(batch):
            begun = {outcome.task for outcome in outcomes}
            self._release([task for task in batch if task not in begun])
        plain: dict[str, list[bytes]] = {}
        for outcome in outcomes:
            if outcome.plain and outcome.task.attempt == 1:
                plain.setdefault(outcome.task.priority, []).append(outcome.task.entry_id)
            else:
                self._settle(outcome)
        for priority, ids in plain.items():
            stale = self._ours(self._task.ack(priority, ids, took), ids)
            self._count(len(ids) - len(stale))
        self._held = []

    # -- tasks delivered again --

    def _redeliveries(self) -> int:
        handled = 0
        now = time.monotonic()
        for priority in PRIORITIES:
            if self._next_retry.get(priority, 0.0) <= self._bus.scope.now():
                tasks, due = self._again_if_missing(partial(self._task.again, priority, 10))
                self._next_retry[priority] = due or self._bus.scope.now() + _LONGEST_WAIT
                handled += self._one_by_one(tasks)
        if now >= self._next_reclaim:
            self._next_reclaim = now + min(_RECLAIM_EVERY, self._visibility / 2)
            for priority in PRIORITIES:
                start = "-"
                while start and not self._stopping.is_set():
                    start, tasks = self._again_if_missing(
                        partial(self._task.reclaim, priority, self._visibility, start, 100)
                    )
                    handled += self._one_by_one(tasks)
        return handled

    def _one_by_one(self, tasks: list[Taken]) -> int:
        self._held = list(tasks)
        for task in tasks:
            if self._left == 0 or self._stopping.is_set():
                # The rest stays pending with its attempts, for whoever takes it over.
                break
            task.attempt = self._ours(self._task.begin(task), 0)
            if not task.attempt:
                continue
            if task.attempt > self._attempts:
                why = f"its worker died, or was stopped, in each of its {self._attempts} attempts"
                task.attempt = self._attempts
                self._ours(self._task.bury(task, why), False)
                continue
            (outcome,) = self._perform([task], self._delivery)
            self._settle(outcome)
            self._held.remove(task)
        self._held = []
        return len(tasks)

    # -- what became of them --

    def _settle(self, outcome: Outcome) -> None:
        task = outcome.task
        if outcome.settled:
            self._count(int(outcome.acked))
            return
        if outcome.error is None:
            try:
                if self._ours(self._task.finish(task, outcome.took, outcome.result), False):
                    self._count(1)
                return
            except InvalidPayload as error:
                # Nothing was sent: the result is as wrong as any other failure.
                outcome.failed(error)
        assert outcome.error is not None
        if outcome.bury or task.attempt >= self._attempts:
            self._ours(self._task.bury(task, outcome.error), False)
        else:
            after = (
                outcome.after if outcome.after is not None else self._backoff.after(task.attempt)
            )
            if self._ours(self._task.retry(task, after), False):
                due = self._bus.scope.now() + after
                known = self._next_retry.get(task.priority, due)
                self._next_retry[task.priority] = min(known, due)

    def _count(self, number: int) -> None:
        self.done += number
        if self._left is not None:
            self._left = max(0, self._left - number)

    def _delivery(self, task: Taken) -> Delivery:
        return Delivery(self._task, task, self._do)

    # -- upkeep --

    def _keep(self) -> None:
        """Move what is due, and show signs of life for what runs, whatever the handler does."""
        beat = time.monotonic() + self._visibility / 3
        tail = "0-0"
        while not self._stopping.is_set():
            try:
                _, due = self._do(self._task.promote())
                wait = min(_LONGEST_WAIT, beat - time.monotonic())
                if due is not None:
                    wait = min(wait, due - self._bus.scope.now())
                rung = self._do(_one(Wait(self._bell, tail, max(wait, 0.001))))
                tail = text(rung[-1][0]) if rung else tail
            except AgentBusError:
                # The server is away; the main loop waits for it, and this one asks again.
                continue
            if time.monotonic() >= beat:
                beat = time.monotonic() + self._visibility / 3
                self._beat()

    def _beat(self) -> None:
        held: dict[str, list[bytes]] = {}
        for task in list(self._held):
            held.setdefault(task.priority, []).append(task.entry_id)
        for priority, ids in held.items():
            self._ours(self._task.heartbeat(priority, sorted(ids, key=_order)), ids)

    def _expected(self) -> bool:
        """Tell whether anything is still to come: a delayed task, or a retry."""
        counts = self._do(_waiting(self._task))
        return any(counts)

    def _patience(self, wait: float) -> float:
        soonest = min(self._next_retry.values(), default=float("inf")) - self._bus.scope.now()
        return max(0.001, min(wait, soonest)) if wait else 0.0

    def _again_if_missing(self, make: Callable[[], Op[Any]]) -> Any:
        try:
            return self._do(make())
        except GroupMissing:
            # Made again at the oldest task: what was acknowledged before has been trimmed or runs again.
            self._do(self._task.prepare())
            return self._do(make())

    def _ours(self, op: Op[Any], otherwise: Any) -> Any:
        """Say what became of a task; where its group was removed meanwhile, it is not ours any longer."""
        try:
            return self._do(op)
        except GroupMissing:
            self._unsure = True
            return otherwise

    def _release(self, tasks: Sequence[Taken]) -> None:
        """Give back tasks that were taken and not begun, due at once for any worker."""
        for task in tasks:
            task.attempt = max(0, task.attempt - 1)
            self._ours(self._task.retry(task, 0.0), False)

    def _do(self, op: Op[Any]) -> Any:
        return self._bus._run("work", Patient(op, float("inf")))


def _one(step: Step) -> Op[Any]:
    reply = yield step
    return reply


def _ring(bell: str) -> Op[None]:
    yield Command("XADD", bell, "MAXLEN", 1, "*", "stop", "1")


def _waiting(consumption: Consumption) -> Op[list[int]]:
    keys = consumption.scope.keys
    replies = yield Batch(
        [
            ("ZCARD", keys.delayed(consumption.queue)),
            *(("ZCARD", consumption.retries(priority)) for priority in PRIORITIES),
        ]
    )
    return [0 if isinstance(reply, ServerReply) else int(reply) for reply in replies]


def _order(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence)
