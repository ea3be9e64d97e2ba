"""Tasks that run, and the outcome of each."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from agentbus.core import envelope
from agentbus.core.errors import InvalidPayload
from agentbus.queues.claimed import NotRun
from agentbus.queues.retry import Bury, Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentbus.queues.claimed import Taken
    from agentbus.queues.delivery import AnyDelivery
    from agentbus.workers.metrics import Tally

    Wrap = Callable[[Taken], AnyDelivery]

# Runs that take fewer seconds are counted together, by their mean.
QUICK = 0.001


class TaskOutcome:
    """The outcome of one run: a result, an error, settled by the handler, or not started."""

    __slots__ = ("acked", "after", "begun", "bury", "error", "result", "settled", "task", "took")

    def __init__(self, task: Taken, result: object = None, *, begun: bool = True) -> None:
        self.task = task
        self.result = result
        self.error: BaseException | str | None = None
        self.after: float | None = None
        self.bury = False
        self.settled = False
        self.acked = False
        self.begun = begun
        # Seconds.
        self.took = 0.0

    @property
    def plain(self) -> bool:
        """True if the task is done, without a result."""
        return self.error is None and self.result is None and not self.settled and self.begun

    @property
    def ran(self) -> bool:
        """True if the handler was called."""
        return self.begun and not isinstance(self.error, NotRun)

    def fail(self, error: BaseException | str) -> None:
        """Store an error, and the retry or burial that it asks for."""
        self.error = error
        if isinstance(error, Retry):
            self.after = error.after
        self.bury = isinstance(error, (Bury, str))


class KeyOrder:
    """The order of a batch's tasks by ordering key: after one that is not done, those of its key wait."""

    __slots__ = ("_blocked", "_largest")

    def __init__(self, largest: int) -> None:
        self._blocked: set[str] = set()
        # The bytes of a result.
        self._largest = largest

    def admits(self, task: Taken) -> bool:
        """Return whether a task may start."""
        return task.meta.get("ordering_key") not in self._blocked

    def note_end(self, task: Taken, outcome: TaskOutcome | Taken) -> None:
        """Record how a task ended; a result that cannot be stored is a failure."""
        if not task.ordered or not isinstance(outcome, TaskOutcome):
            return
        if outcome.result is not None and outcome.error is None:
            try:
                envelope.encode(outcome.result, self._largest)
            except InvalidPayload as error:
                outcome.fail(error)
        done = outcome.acked if outcome.settled else outcome.error is None and outcome.begun
        if not done:
            self._blocked.add(task.meta["ordering_key"])


def malformed(task: Taken) -> TaskOutcome:
    """Return the outcome of a task that cannot be read."""
    outcome = TaskOutcome(task)
    outcome.fail(f"the entry is malformed: {task.error}")
    return outcome


def expired_as(task: Taken, why: str) -> TaskOutcome:
    """Return the outcome of a task that has expired."""
    outcome = TaskOutcome(task)
    outcome.fail(why)
    # This attempt was not made.
    task.attempt -= 1
    return outcome


class TaskBatch:
    """Tasks that run in their order: each is taken from `left`, and its outcome added to `outcomes`.

    Another thread may empty `left` meanwhile. Between two tasks the executor calls `look` once the time
    (`time.monotonic`) is `look_at`.
    """

    __slots__ = (
        "began",
        "counted",
        "done",
        "held",
        "left",
        "look",
        "look_at",
        "looked",
        "order",
        "outcomes",
        "plain",
        "settled",
        "slow",
    )

    def __init__(
        self,
        tasks: Sequence[Taken],
        look: Callable[[float], None],
        every: float,
        order: KeyOrder | None = None,
    ) -> None:
        # Tasks that are not settled yet.
        self.held = list(tasks)
        self.left = deque(tasks)
        self.outcomes: list[TaskOutcome | Taken] = []
        # True if each of them is a task that needs an ack and nothing else.
        self.plain = False
        # How many of the outcomes were settled, or are among the done tasks to acknowledge.
        self.settled = 0
        self.done: dict[str, list[bytes]] = {}
        self.began = self.counted = time.monotonic()
        self.look_at = self.began + every
        self.look = look
        # The seconds of looks, and of each run that was not quick.
        self.looked = 0.0
        self.slow: list[float] = []
        # None if no task has an ordering key.
        self.order = order

    def clock(self, began: float) -> float:
        """Return the time, at which a run that began at another time has ended."""
        now = time.monotonic()
        if now - began >= QUICK:
            self.slow.append(now - began)
        return now

    def count(self, tally: Tally, took: float) -> None:
        """Count its runs, quick ones by their mean; `took` is their time and that of the looks."""
        # A pause of the process between two runs looks like one more.
        runs = len(self.outcomes)
        if not self.plain:
            runs -= sum(
                isinstance(outcome, TaskOutcome) and not outcome.ran for outcome in self.outcomes
            )
        slow = self.slow[:runs]
        for seconds in slow:
            tally.count_runs(1, seconds)
        quick = runs - len(slow)
        if quick:
            tally.count_runs(quick, max(0.0, took - self.looked - sum(slow)) / quick)

    def whole(self) -> list[Taken]:
        """Take all tasks that have not started."""
        tasks: list[Taken] = []
        add, take = tasks.append, self.left.popleft
        # The executor may take some of them meanwhile.
        with contextlib.suppress(IndexError):
            while True:
                add(take())
        return tasks

    def unsettled(self) -> list[TaskOutcome | Taken]:
        """Return the outcomes since the last call."""
        unsettled = self.outcomes[self.settled :]
        self.settled += len(unsettled)
        return unsettled


class Executor(Protocol):
    """Runs one batch of tasks after the other."""

    # True if it runs one task after the other, and stops those of an ordering key at a failure.
    chains: bool
    # An interrupt or exit that ended a handler, which is not a failure of its task.
    interrupted: BaseException | None

    def __call__(self, batch: TaskBatch, wrap: Wrap) -> None:
        """Run tasks until stopped, and add the outcome of each that was started."""

    def close(self) -> None:
        """Release its resources."""
