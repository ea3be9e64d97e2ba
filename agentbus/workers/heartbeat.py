"""A worker's background threads: heartbeats, due tasks, periodic maintenance."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from agentbus.core.errors import AgentBusError
from agentbus.core.stream import text
from agentbus.store.steps import Batch, Wait, one_step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.queues.consumer import Consumption
    from agentbus.queues.runner import LastingRunner
    from agentbus.store.steps import Op
    from agentbus.workers.renewal import Renewal


class Chore(NamedTuple):
    """Periodic maintenance: `op` runs every `every` seconds, and at the start and end of a worker."""

    op: Callable[[], Op[object]]
    every: float = 1.0


class Heartbeat:
    """Renews a worker's tasks and its registration while handlers run.

    `relieve` is called from time to time; `beat` renews the registration; `rung` is called when the queue's
    bell stream gets an entry: due times may have changed.
    """

    def __init__(
        self,
        consumer: Consumption,
        runner: LastingRunner,
        renewal: Renewal,
        chores: Sequence[Chore],
        *,
        relieve: Callable[[], None],
        rung: Callable[[], None],
        beat: Callable[[], object],
    ) -> None:
        self._consumer = consumer
        self._runner = runner
        self._renewal = renewal
        self._relieve = relieve
        self._chores = chores
        self._rung = rung
        self._beat = beat
        self._intervals = consumer.scope.intervals
        self._next_beat = 0.0
        self._next = dict.fromkeys(chores, 0.0)
        self._over = threading.Event()
        self._bell = consumer.scope.keys.bell(consumer.queue)
        # An idle server ends a blocked read up to 0.1 s late, so due times are waited for here.
        self._wake = threading.Event()
        self._ordered = False
        self._threads = [
            threading.Thread(target=work, name=f"agentbus-{name}", daemon=True)
            for name, work in (("heartbeat", self._keep), ("listener", self._listen))
        ]

    def start(self) -> None:
        """Do everything once, then start the threads."""
        self._work(at_once=True)
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop the threads, then do everything once more."""
        self._over.set()
        self._wake.set()
        # Another program may have stored another type there: then the listener looks by itself, soon.
        self._runner.run(one_step(Batch([("XADD", self._bell, "MAXLEN", 1, "*", "stop", "1")])))
        for thread in self._threads:
            thread.join()
        self._work(at_once=True)

    def _listen(self) -> None:
        """Wait for entries in the bell stream."""
        tail = "0-0"
        while not self._over.is_set():
            try:
                news = self._runner.run(self._news(tail))
            except AgentBusError:
                # The execution loop raises the same error from its own requests.
                self._over.wait(self._intervals.look)
                continue
            for entry_id, ordered in news:
                tail = entry_id
                self._ordered = self._ordered or ordered
                self._rung()
                self._wake.set()

    def _news(self, tail: str) -> Op[list[tuple[str, bool]]]:
        """Return the entries of the bell past an id, and whether each announces an order."""
        entries = yield Wait(self._bell, tail, self._intervals.look)
        return [(text(entry_id), fields[0] == b"order") for entry_id, fields in entries]

    def _keep(self) -> None:
        while not self._over.is_set():
            wait = self._intervals.look
            self._wake.clear()
            ordered, self._ordered = self._ordered, False
            try:
                _, due = self._runner.run(self._consumer.promote())
                self._relieve()
                self._work(ordered=ordered)
                if due is not None:
                    wait = min(wait, due)
            except AgentBusError:
                self._over.wait(self._intervals.look)
            self._wake.wait(max(0.001, min(wait, self._renewal.due_in)))

    def _work(self, *, at_once: bool = False, ordered: bool = False) -> None:
        now = time.monotonic()
        if self._renewal.due_in <= 0:
            self._renewal.renew()
        if at_once or ordered or now >= self._next_beat:
            # The reply contains the orders.
            self._next_beat = now + self._intervals.beat
            self._beat()
        for chore in self._chores:
            if at_once or now >= self._next[chore]:
                self._next[chore] = now + chore.every
                try:
                    self._runner.briefly(chore.op())
                except AgentBusError:
                    # It runs again soon; maintenance must not end a worker.
                    continue
