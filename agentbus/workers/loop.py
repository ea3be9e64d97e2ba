"""The base of a worker's execution loops: its limits, fetches that respect a pause, and the drain."""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import TaskBuried, TimedOut, UsageError
from agentbus.core.names import shell_word
from agentbus.core.validate import is_seconds
from agentbus.queues.claimed import Taken
from agentbus.queues.dead_letters import DeadLetters

if TYPE_CHECKING:
    from agentbus.queues.delivery import AnyDelivery
    from agentbus.store.steps import Op
    from agentbus.workers.acker import Acker
    from agentbus.workers.fetcher import Fetcher
    from agentbus.workers.heartbeat import Renewal
    from agentbus.workers.pause import Gate, Idle, Leave

    Wrap = Callable[[Taken], AnyDelivery]
    from agentbus.queues.runner import Runner


class Loop(ABC):
    """Base of a worker's execution loops: its limits, and fetches that respect a pause.

    `concurrency` tasks run at once, the loop holds up to `most`, and ends after `limit` done tasks.
    """

    def __init__(
        self,
        run: Callable[[Op[Any]], Any],
        fetcher: Fetcher,
        acker: Acker,
        gate: Gate,
        wrap: Wrap,
        renewal: Renewal,
        *,
        concurrency: int,
        most: int,
        limit: int | None,
    ) -> None:
        self._run = run
        self._consumer = fetcher.consumer
        self._fetcher = fetcher
        self._reclaimer = fetcher.reclaimer
        self._acker = acker
        self._tally = acker.tally
        self._gate = gate
        self._wrap = wrap
        self._renewal = renewal
        self._concurrency = concurrency
        self._most = most
        self._limit = limit
        # Waits while no task is held; None if waiting is limited to a given time.
        self.idle: Idle | Leave | None = None

    @abstractmethod
    def relieve(self) -> None:
        """Return tasks that wait behind slow ones to their queue; the heartbeat calls this."""

    @property
    def must_end(self) -> bool:
        """True if the loop must end."""
        return self._gate.stopping() or self._left == 0

    @property
    def _halted(self) -> bool:
        """True if no task may start now."""
        return self.must_end or self._gate.held

    @property
    def _left(self) -> float:
        """The number of tasks left until the limit."""
        return math.inf if self._limit is None else max(0, self._limit - self._acker.done)

    def _take_allowed(self, take: Callable[[], list[Taken]]) -> list[Taken] | None:
        """Take tasks, or return None if paused; if a pause begins meanwhile, give the tasks back."""
        if not self._gate.enter():
            return None
        tasks: list[Taken] = []
        free = False
        asked = time.monotonic()
        try:
            tasks = take()
        finally:
            free = self._gate.leave()
        if tasks:
            now = self._renewal.answered_at = time.monotonic()
            if self._renewal.overdue(now, asked):
                # The process was frozen before the reply arrived, and no heartbeat included these
                # tasks.
                tasks = self._acker.still_ours(tasks)
        if free:
            return tasks
        self._acker.give_back(tasks)
        return []

    @property
    @abstractmethod
    def held(self) -> list[Taken]:
        """The tasks that are not settled."""

    def _recover(self) -> None:
        """Return the unstarted tasks of lost replies to the queue."""
        if self._consumer.doubtful:
            self._run(self._reclaimer.recover(self._known))
        if self._reclaimer.strays:
            self._acker.give_back(self._reclaimer.strays, received=False)
            self._reclaimer.strays = []

    def _known(self, priority: str) -> list[bytes]:
        return [task.entry_id for task in self.held if task.priority == priority]

    def _retries(
        self, room: int, firsts: int, *, suspects: bool = True
    ) -> tuple[list[Taken], bool]:
        """Take deferred tasks, and return whether the task is a suspect, which must run alone."""
        alone = False

        def take() -> list[Taken]:
            nonlocal alone
            retries: list[Taken]
            op = self._fetcher.retries(room, firsts, suspects=suspects)
            retries, alone = self._run(op)
            return retries

        tasks = self._take_allowed(take) or []
        return tasks, alone and bool(tasks)

    def _wait(self, room: int, seconds: float) -> list[Taken]:
        if self.idle is not None and not self.held:
            return self._return_excess(self.idle.wait(room, self._take_allowed), room)
        tasks = self._take_allowed(lambda: self._run(self._fetcher.wait(room, seconds)))
        return self._return_excess(tasks or [], room)

    def _take(
        self,
        count: int,
        done: dict[str, list[bytes]] | None = None,
        took: float = 0.0,
        *,
        all_done: bool = False,
    ) -> list[Taken]:
        """Acknowledge done tasks, and unless paused, take new ones in the same step.

        `all_done` means that the consumer holds no other task.
        """

        def take(count: int = count) -> list[Taken]:
            if all_done and done and count:
                return self._count_done(
                    done, self._run(self._fetcher.new_when_done(count, done, took))
                )
            return self._count_done(done, self._run(self._fetcher.new(count, done, took)))

        tasks = self._take_allowed(take) if count else None
        if tasks is None:
            return take(0) if done else []
        return tasks

    def _count_done(
        self, done: dict[str, list[bytes]] | None, answer: tuple[int, list[Taken]]
    ) -> list[Taken]:
        """Count the tasks acknowledged with a fetch, and return the fetched ones."""
        stale, taken = answer
        if done:
            self._acker.count(sum(map(len, done.values())), stale)
        return taken

    def _admit(self, task: Taken) -> bool:
        admitted: bool = self._run(self._fetcher.admit(task))
        return admitted

    def _room(self, most: int, settling: int = 0) -> int:
        """Return how many tasks to take, at most `most`; `settling` ones are done but not counted yet."""
        return int(max(0, min(most, self._left - settling)))

    def _return_excess(self, taken: list[Taken], room: int) -> list[Taken]:
        """Return excess tasks: a blocking fetch applies its count to each priority."""
        if self._limit is None and self._most > self._concurrency:
            return taken
        for task in taken[room:]:
            self._acker.release(task)
        return taken[:room]


class Drain:
    """One worker's drain of a queue, which `stop` ends after `timeout` seconds at the latest.

    `buried` is the number of the group's tasks that became dead since `start`, at any worker.
    """

    def __init__(
        self,
        runner: Runner,
        queue: str,
        group: str,
        timeout: float | None,
        stop: Callable[[], None],
    ) -> None:
        if timeout is not None and not (is_seconds(timeout) and 0 < timeout < math.inf):
            raise UsageError(f"the drain timeout is {timeout!r}", hint="give seconds, above 0")
        letters_of = runner.policy(queue).dead_letters
        self._letters = DeadLetters(runner.scope, queue, group, letters_of=letters_of)
        self._queue = queue
        self._timeout = timeout
        self._stop = stop
        self._mark = ""
        self.late = False
        self._timer: threading.Timer | None = None
        self.ended = False
        self.buried = 0

    def start(self, run: Callable[[Op[Any]], Any]) -> None:
        """Start the clock, and record which dead letters exist."""
        self._mark = run(self._letters.newest())
        if self._timeout is not None:
            self._timer = threading.Timer(min(self._timeout, threading.TIMEOUT_MAX), self._time_out)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def finish(self, run: Callable[[Op[Any]], Any]) -> None:
        """Count the dead tasks. Raises `TimedOut` if the time expired before the queue was drained."""
        self.buried = run(self._letters.number_after(self._mark))
        if self.late and not self.ended:
            raise TimedOut(
                f"the queue {self._queue!r} was not drained in {self._timeout:g} s",
                hint="drain it again, with more time or more workers",
            )

    def _time_out(self) -> None:
        self.late = True
        self._stop()


def buried_error(drained: Iterable[tuple[str, str, int]]) -> TaskBuried | None:
    """Return the error for tasks that became dead during drains, by queue and group; None without any."""
    numbers = {(queue, group): number for queue, group, number in drained if number}
    if not numbers:
        return None
    counts = (
        f"{number} task{'' if number == 1 else 's'} of {queue!r}"
        for (queue, _), number in numbers.items()
    )
    queue, group = next(iter(numbers))
    whose = "" if group == "default" else f" --group {shell_word(group)}"
    single = sum(numbers.values()) == 1
    return TaskBuried(
        f"{', '.join(counts)} {'was' if single else 'were'} buried",
        hint=f"see bus.queue({queue!r}).dead_letters({group!r})",
        shell_hint=f"see 'agentbus dlq list {shell_word(queue)}{whose}'",
    )
