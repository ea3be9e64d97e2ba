"""Works off a queue: takes tasks, runs a handler for each, and says what became of them.

First deliveries run fast: taken in batches and acknowledged together. What is delivered again has each
attempt counted before it starts; what a dead worker held runs one by one: so a task that kills its worker
is buried after its attempts, and its neighbours never are.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus import names
from agentbus.asking import Asking
from agentbus.consuming import Consumption
from agentbus.delivery import AsyncDelivery, Delivery
from agentbus.errors import AgentBusError, UsageError
from agentbus.intake import Intake
from agentbus.keeping import Chore, Keeper
from agentbus.performing import Batches, Coroutines, Finish, Inline, Outcome, Pool, is_async, runner
from agentbus.retry import ATTEMPTS, Backoff
from agentbus.settling import Settling
from agentbus.sliding import Window
from agentbus.taken import Taken

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from agentbus.bus import Verbs
    from agentbus.store import Link, Op

VISIBILITY = 180.0
_MOST = 500
# A batch should take about this long: longer ones keep tasks from other workers.
_BRISK, _SLOW = 0.05, 0.2
# From so many tasks on, a batch is taken while the one before it runs.
_AHEAD = 16
_LONGEST_WAIT = 1.0
# While tasks run, one that was put aside may fall due at any moment.
_SHORT_WAIT = 0.1
# Seconds for which a worker that was told to stop tries to say what it has done.
_GRACE = 30.0


class Worker:
    """Runs a handler for the tasks of one queue, for one group.

    `concurrency` tasks run at once: in threads, or in an event loop if the handler is asynchronous. With
    `batch` the handler gets a list of deliveries. `attempts` is the number of runs in all, `visibility`
    the seconds without a sign of life after which a worker loses its tasks, `backoff` the pause before
    the next attempt. It ends when nothing is left (`drain`), or when `count` tasks are done. `prefetch`
    is how many tasks it holds at most.
    """

    def __init__(
        self,
        bus: Verbs,
        queue: str,
        handler: Callable[..., Any],
        *,
        link: Link,
        loop: asyncio.AbstractEventLoop | None = None,
        arun: Callable[[Op[Any]], Any] | None = None,
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
        _check(concurrency=concurrency, attempts=attempts, count=count, prefetch=prefetch)
        if not (math.isfinite(visibility) and visibility > 0):
            raise UsageError(f"the visibility is {visibility!r}", hint="give seconds, above 0")
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.queue = names.name("queue", queue)
        self.group = names.name("group", group)
        self._do = Asking(bus, link)
        self._stopping = threading.Event()
        self._task = Consumption(bus.scope, queue, group, self.name)
        self._settling = Settling(
            self._task, self._do, attempts=attempts, backoff=backoff or Backoff()
        )
        self._intake = Intake(
            self._task, self._settling, self._do, attempts=attempts, visibility=visibility
        )
        self._visibility = visibility
        self._drain = drain
        self._limit = count
        self._concurrency = concurrency
        # Without a second attempt, a task that was taken must be one that runs: were this worker to
        # die, those that only waited in its hands would be buried with it.
        self._most = concurrency if attempts == 1 else prefetch or _MOST
        self._size = min(concurrency, self._most)
        self._brisk = False
        self._held: Sequence[Taken] = ()
        # Taken, and not yet begun.
        self._next: list[Taken] = []
        # Done, and acknowledged with the next take.
        self._done: dict[str, list[bytes]] = {}
        self._took = 0.0
        stopping = self._stopping.is_set
        alone = runner(handler, loop=loop, stopping=stopping)
        awaited = is_async(handler) and not batch
        self._wrap = (
            partial(AsyncDelivery, self._task, arun or self._do.later)
            if awaited
            else partial(Delivery, self._task, self._do)
        )
        self._perform: Inline | Coroutines | Batches = alone
        self._window: Window | None = None
        self._suspects: threading.Thread | None = None
        if batch:
            self._perform = Batches(handler, Finish(loop, keep=True))
        elif concurrency > 1:
            window = self._window = Window(concurrency, self._most, self._settling)
            window.pool = Pool(alone, concurrency, stopping, window.report, loop)
            window.start()
        self.chores: list[Chore] = []

    @property
    def done(self) -> int:
        """How many tasks this worker has done and acknowledged."""
        return self._settling.done

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        self.close()

    def stop(self) -> None:
        """Stop after what runs now is finished and acknowledged; may be called twice, and by a signal."""
        self._stopping.set()
        self._do.hurry(_GRACE)

    def run(self) -> int:
        """Work until stopped (or, to drain, until nothing is left); returns how many tasks were done.

        Waits for a server that goes away, for as long as it takes; raises `BackendUnavailable` if it was
        never there.
        """
        keeper = Keeper(
            self._task,
            self._do,
            self._in_hand,
            self.chores,
            visibility=self._visibility,
            # What falls due may have changed.
            rung=self._intake.look_again,
        )
        self._intake.prepare()
        keeper.start()
        try:
            while not self._stopping.is_set() and self._left != 0:
                # Asked first: what becomes due after the pass has looked is still to come.
                expected = not self._drain or self._intake.expected() or bool(self._in_hand())
                if not self._pass(_LONGEST_WAIT if expected else 0.0) and not expected:
                    break
        finally:
            self.stop()
            self._let_go()
            self.close()
            keeper.end()
            self._do(self._task.leave())
        return self.done

    def run_once(self, *, wait: float = 0.0) -> int:
        """Make one pass: what is to be delivered again, then one batch of new tasks, to its end."""
        self._intake.prepare()
        self._do(self._task.promote())
        self._intake.look_again()
        handled = self._pass(wait)
        if self._window is not None:
            self._window.until(lambda: not self._in_hand(), None)
        while self._next and not self._stopping.is_set():
            handled += self._batch(self._next, more=False)
        return handled

    # -- one pass --

    def _pass(self, wait: float) -> int:
        if self._window is not None:
            return self._slide(self._window, wait)
        handled = self._again()
        if self._left == 0 or self._stopping.is_set():
            return handled
        batch, self._next = self._next, []
        if not batch:
            batch = self._intake.new(self._room())
        if not batch and wait and not handled:
            batch = self._within(self._intake.wait(self._room(), wait))
        return handled + (self._batch(batch) if batch else 0)

    def _batch(self, batch: list[Taken], *, more: bool = True) -> int:
        """Run a batch, acknowledge it, and take the next one in the same step."""
        self._held = batch
        handled = len(batch)
        if self._task.ordered:
            batch = self._without_ordered(batch)
        if more and self._brisk and len(batch) >= _AHEAD and self._limit is None:
            self._overlapped(batch)
            return handled
        if self._done:
            # Those before are not to wait for these.
            self._intake.new(0, self._done, self._took)
            self._done = {}
        outcomes, took = self._timed(batch)
        done = self._settling.plain(outcomes)
        room = self._room(sum(map(len, done.values()))) if more else 0
        if done or room:
            self._next = self._intake.new(room, done, took)
        self._held = self._next
        return handled

    def _overlapped(self, batch: list[Taken]) -> None:
        """Run a batch while the server acknowledges the one before and looks for the one after."""
        results: list[tuple[list[Outcome | Taken], float]] = []

        def meanwhile() -> None:
            if not results:
                results.append(self._timed(batch))

        following = self._intake.ahead(self._size, self._done, self._took, batch, meanwhile)
        ((outcomes, took),) = results
        self._done, self._took = self._settling.plain(outcomes), took
        if following and took > self._visibility / 3:
            # They gave no sign of life, since we did not know of them.
            following = self._settling.still_ours(following)
        if not following and self._done:
            following = self._intake.new(self._room(), self._done, took)
            self._done = {}
        self._next = self._held = following

    def _timed(self, batch: list[Taken]) -> tuple[list[Outcome | Taken], float]:
        began = time.monotonic()
        outcomes = self._perform(batch, self._wrap)
        took = time.monotonic() - began
        self._brisk = took < _BRISK and len(batch) >= self._size // 2
        if self._brisk and len(batch) >= self._size:
            self._size = min(self._most, self._size * 2)
        elif took > _SLOW:
            self._size = max(1, self._size // 2)
        if len(outcomes) < len(batch):
            # It was told to stop.
            begun = {id(found if type(found) is Taken else found.task) for found in outcomes}  # type: ignore[union-attr]
            for task in batch:
                if id(task) not in begun:
                    self._settling.release(task)
        return outcomes, took

    def _again(self) -> int:
        """Run what is to be delivered again, one by one."""
        handled = 0
        for task in self._intake.retries(self._room(most=_AHEAD)):
            handled += self._alone(task)
        if self._intake.reclaims:
            for task in self._intake.reclaimed(self._known):
                handled += self._alone(task)
        return handled

    def _alone(self, task: Taken) -> int:
        if self._left == 0 or self._stopping.is_set():
            # It stays pending with its attempts, for whoever takes it over.
            return 0
        self._held = [task, *self._next]
        if self._intake.admitted(task):
            for outcome in self._perform([task], self._wrap):
                self._settling.settle(Outcome(task) if isinstance(outcome, Taken) else outcome)
        self._held = self._next
        return 1

    def _without_ordered(self, batch: list[Taken]) -> list[Taken]:
        """Run those with an ordering key, one by one, and return the others."""
        for task in batch:
            if task.ordered:
                self._alone(task)
        self._held = rest = [task for task in batch if not task.ordered]
        return rest

    # -- side by side --

    def _slide(self, window: Window, wait: float) -> int:
        if window.failure is not None:
            raise window.failure
        handled = 0
        for task in self._intake.retries(max(0, window.room)):
            handled += self._submit(window, [task])
        if self._intake.reclaims and not (self._suspects and self._suspects.is_alive()):
            self._suspects = threading.Thread(target=self._one_by_one, args=(window,), daemon=True)
            self._suspects.start()
        room = self._room(len(window.held), window.room)
        if room <= 0:
            window.until(lambda: self._room(len(window.held), window.room) > 0, _LONGEST_WAIT)
            return handled + 1
        batch = self._intake.new(room)
        if not batch and wait and not handled:
            wait = min(wait, _SHORT_WAIT) if window.held else wait
            batch = self._within(self._intake.wait(room, wait), room)
        if self._task.ordered:
            for task in batch:
                if task.ordered:
                    self._submit(window, [task])
            batch = [task for task in batch if not task.ordered]
        window.submit(batch, self._wrap)
        return handled + len(batch) + len(window.held)

    def _submit(self, window: Window, tasks: list[Taken]) -> int:
        for task in tasks:
            if self._intake.admitted(task):
                window.submit([task], self._wrap)
        return len(tasks)

    def _one_by_one(self, window: Window) -> None:
        """Run what dead workers held: one at a time, beside first deliveries."""
        try:
            for task in self._intake.reclaimed(self._known):
                if self._left == 0 or self._stopping.is_set():
                    return
                self._submit(window, [task])
                window.until(partial(_gone, window, task), None)
        except AgentBusError as failure:
            window.failure = failure

    # -- how many --

    @property
    def _left(self) -> float:
        return math.inf if self._limit is None else max(0, self._limit - self.done)

    def _room(self, settling: int = 0, most: int | None = None) -> int:
        """Return how many more tasks may be taken, while so many are about to be done."""
        size = self._size if most is None else most
        return int(max(0, min(size, self._left - settling)))

    def _within(self, taken: list[Taken], room: int | None = None) -> list[Taken]:
        """Give back what is too much: where it blocks, the server counts for each priority."""
        if self._limit is None and self._most > self._concurrency:
            return taken
        room = self._room() if room is None else room
        for task in taken[room:]:
            self._settling.release(task)
        return taken[:room]

    # -- what is in hand --

    def _in_hand(self) -> list[Taken]:
        inside = self._window.held if self._window is not None else []
        return [*self._held, *inside, *self._intake.page]

    def _known(self, priority: str) -> list[bytes]:
        return [task.entry_id for task in self._in_hand() if task.priority == priority]

    def _let_go(self) -> None:
        """Say what was done, and give back what was not begun."""
        if self._done:
            self._intake.new(0, self._done, self._took)
            self._done = {}
        for task in self._next:
            self._settling.release(task)
        self._next = []
        self._held = ()

    def close(self) -> None:
        """End the threads of a worker that does not run, or has ended."""
        if self._suspects is not None and self._suspects is not threading.current_thread():
            self._suspects.join()
        if self._window is not None:
            self._window.close()
        self._perform.close()

    # -- asking the server --


def _gone(window: Window, task: Taken) -> bool:
    return not window.holds(task)


def _check(**numbers: int | None) -> None:
    for what, number in numbers.items():
        if number is None and what in {"count", "prefetch"}:
            continue
        if not isinstance(number, int) or number < 1:
            raise UsageError(f"the {what} is {number!r}", hint="give a number, at least 1")
