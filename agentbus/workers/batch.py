"""Batches of tasks that run, and the outcome of each task."""

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

# Runs shorter than this, in seconds, are counted together by their mean duration.
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
        # Duration of the run in seconds.
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
        """Store an error, and the retry or dead-lettering that it requests."""
        self.error = error
        if isinstance(error, Retry):
            self.after = error.after
        self.bury = isinstance(error, (Bury, str))


class KeyOrder:
    """The order of a batch by ordering key: after an unfinished task, other tasks of its key wait."""

    __slots__ = ("_blocked", "_largest")

    def __init__(self, largest: int) -> None:
        self._blocked: set[str] = set()
        # Maximum bytes of a result.
        self._largest = largest

    def admits(self, task: Taken) -> bool:
        """Return whether a task may start."""
        return task.meta.get("ordering_key") not in self._blocked

    def note_end(self, task: Taken, outcome: TaskOutcome | Taken) -> None:
        """Record a task's outcome; a result that cannot be stored is a failure."""
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
    """Return the outcome of a malformed task."""
    outcome = TaskOutcome(task)
    outcome.fail(f"the entry is malformed: {task.error}")
    return outcome


def expired_as(task: Taken, why: str) -> TaskOutcome:
    """Return the outcome of an expired task."""
    outcome = TaskOutcome(task)
    outcome.fail(why)
    # Do not count this attempt, which was never made.
    task.attempt -= 1
    return outcome


class TaskBatch:
    """Tasks that run in order: each is taken from `left`, and its outcome is added to `outcomes`.

    Another thread may empty `left` at any time. Between two tasks, the executor calls `look` once the time
    (`time.monotonic`) has reached `look_at`.
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
        # Tasks not settled yet.
        self.held = list(tasks)
        self.left = deque(tasks)
        self.outcomes: list[TaskOutcome | Taken] = []
        # True if every outcome is a plain task that needs only an acknowledgement.
        self.plain = False
        # Number of outcomes that were settled, or whose tasks are in `done` to be acknowledged.
        self.settled = 0
        self.done: dict[str, list[bytes]] = {}
        self.began = self.counted = time.monotonic()
        self.look_at = self.began + every
        self.look = look
        # Seconds spent in `look`, and the duration of each run that was not quick.
        self.looked = 0.0
        self.slow: list[float] = []
        # None unless some task has an ordering key.
        self.order = order

    def clock(self, began: float) -> float:
        """Return the time at which a run that began at `began` has ended."""
        now = time.monotonic()
        if now - began >= QUICK:
            self.slow.append(now - began)
        return now

    def count(self, tally: Tally, took: float) -> None:
        """Count the runs, quick ones by their mean; `took` includes the time of the calls of `look`."""
        # A pause of the whole process between two runs is recorded like a slow run; ignore the
        # excess.
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
        """Take all unstarted tasks."""
        tasks: list[Taken] = []
        add, take = tasks.append, self.left.popleft
        # The executor may take some of the tasks at the same time.
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
    """Runs batches of tasks, one after the other."""

    # True if tasks run one after the other, so that a failure stops the tasks with the same
    # ordering key.
    chains: bool
    # Interrupt or exit that ended a handler; it is not a failure of the task.
    interrupted: BaseException | None

    def __call__(self, batch: TaskBatch, wrap: Wrap) -> None:
        """Run tasks until stopped, and add the outcome of each started task."""

    def close(self) -> None:
        """Release its resources."""
