"""The execution loop of a serial worker: fetches, runs and acknowledges in batches."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple, cast

from agentbus.core.stream import position, text
from agentbus.queues.claimed import Taken
from agentbus.queues.ids import STREAMS
from agentbus.workers.acker import acks
from agentbus.workers.batch import Executor, KeyOrder, TaskBatch, TaskOutcome
from agentbus.workers.loop import Loop

# Target duration of a batch in seconds, and interval of acknowledgements: a longer batch withholds
# tasks from other workers.
_TARGET = 0.2
# After this many seconds, unstarted tasks are given back.
_OVERDUE = 2 * _TARGET
# Fetch the next batch during the current one if it has at least _AHEAD tasks and takes under _BRISK
# seconds.
_AHEAD = 16
_BRISK = 0.05
# Maximum bytes of payloads per batch; more would exceed the processor's caches.
_BYTES = 1 << 20


class _RanBatch(NamedTuple):
    """A batch that has run, the seconds since the last acknowledgement, and the unstarted tasks."""

    batch: TaskBatch
    took: float
    rest: list[Taken]


class Serial(Loop):
    """Runs a handler in the caller's thread."""

    def __init__(self, executor: Executor, *parts: Any, whole: bool = False, **limits: Any) -> None:
        super().__init__(*parts, **limits)
        self.executor = executor
        # If true, a batch takes as many tasks as the worker may hold, regardless of their duration.
        self._whole = whole
        self._size = self._most if whole else min(self._concurrency, self._most)
        # Mean seconds per task.
        self._mean = 0.0
        self._look_every = min(_TARGET, self._reclaimer.visibility / 4)
        self._brisk = False
        # True if payload bytes limit the number of tasks in a batch.
        self._large = False
        # The running batch, which the heartbeat may settle in part, and the last batch that has
        # run.
        self._running: TaskBatch | None = None
        self._ran: TaskBatch | None = None
        # Start of the task that is running alone.
        self._alone_since: float | None = None
        self._settling = threading.Lock()
        # The error of a settlement by the heartbeat.
        self._failure: Exception | None = None
        # During a fetch of the next tasks, the number of tasks that the heartbeat has returned.
        self._ahead: int | None = None
        # Tasks to run alone; the first one may be running.
        self._single: list[Taken] = []
        # Tasks that have been fetched but not started.
        self._next: list[Taken] = []
        # Done tasks, to be acknowledged with the next fetch.
        self._done: dict[str, list[bytes]] = {}
        self._took = 0.0

    @property
    def held(self) -> list[Taken]:
        """The tasks that are not settled."""
        tasks = [*self._single, *self._next]
        for batch in (self._running, self._ran):
            if batch is not None:
                tasks += batch.held
        return tasks

    def turn(self, wait: float) -> int:
        """Run redelivered tasks, then one batch, and return the number of tasks."""
        handled = self._again()
        if self.must_end:
            return handled
        if self._limit is not None:
            # The redelivered tasks may have used up the limit.
            self._next = self._return_excess(self._next, self._room(len(self._next)))
        if not self._next:
            self._next = self._take(self._room(self._size))
        if not self._next and wait and not handled:
            self._flush()
            self._next = self._wait(self._room(self._size), wait)
        return handled + (self._batch() if self._next else 0)

    def settle(self) -> int:
        """Run the tasks fetched so far, and return their number."""
        handled = 0
        while self._next and not self.must_end:
            handled += self._batch(more=False)
        self.let_go()
        return handled

    def let_go(self) -> None:
        """Acknowledge done tasks, and return unstarted ones."""
        self._flush()
        self._acker.give_back(self._waiting(0))

    def close(self) -> None:
        self.executor.close()

    def relieve(self) -> None:
        """Return tasks that wait behind a slow one, and acknowledge those done before it."""
        slow_since = time.monotonic() - _OVERDUE
        with self._settling:
            batch, alone_since = self._running, self._alone_since
            try:
                if batch is not None and batch.began < slow_since:
                    self._acknowledge(batch, [*batch.whole(), *self._waiting(0)])
                    self._give_back_ahead()
                elif alone_since is not None and alone_since < slow_since:
                    self._acker.give_back(self._waiting(1))
            except Exception as failure:  # noqa: BLE001 (the worker's own thread raises it)
                self._failure = failure

    def _give_back_ahead(self) -> None:
        """Return the prefetched tasks, whose reply will not be read before the running batch ends."""
        if self._ahead is not None:
            ahead = self._run(self._reclaimer.unknown(self._known))
            self._acker.give_back(ahead)
            self._ahead += len(ahead)

    def _waiting(self, running: int) -> list[Taken]:
        """Take away the waiting tasks, while `running` tasks run alone."""
        waiting = [*self._single[running:], *self._next]
        del self._single[running:]
        self._next = []
        return waiting

    def _batch(self, *, more: bool = True) -> int:
        """Run the fetched tasks, acknowledge them, and fetch the next ones in the same step."""
        handled = len(self._next)
        if self._consumer.asks_first or self._consumer.limit is not None:
            self._ask()
        enough = self._size // 2 + 1 if self._large else _AHEAD
        all_done = False
        if more and self._brisk and len(self._next) >= enough and self._limit is None:
            # The server is busy with other consumers anyway, and acknowledging all held tasks at
            # once is cheaper.
            all_done = self._consumer.accompanied > 0 and not self._large
            if not all_done:
                self._run_overlapped()
                return handled
        # Acknowledge the previous batch before running this one.
        self._flush()
        tasks, self._next = self._next, []
        batch, took, rest = self._run_timed(tasks)
        done = self._conclude(batch)
        more = more and self.executor.interrupted is None
        room = self._room(self._size, sum(map(len, done.values()))) if more else 0
        if done or room:
            all_done = all_done and len(tasks) == sum(map(len, done.values()))
            self._next = self._take(room, done, took, all_done=all_done)
            if all_done:
                self._trim()
        self._acker.give_back(rest)
        self._ran = None
        self._pass_on_interrupt()
        return handled

    def _ask(self) -> None:
        """Run tasks that need admission one by one, and check the order of the others' ordering keys."""
        single = [task for task in self._next if self._apart(task)]
        self._next = [task for task in self._next if not self._apart(task)]
        self._each_alone(single)
        if any(task.ordered for task in self._next):
            # Tasks finished earlier may have the same keys.
            self._flush()
            self._next = self._run(self._fetcher.enter_orders(self._next, chained=True))

    def _apart(self, task: Taken) -> bool:
        return self._fetcher.apart(task) or (task.ordered and not self.executor.chains)

    def _run_overlapped(self) -> None:
        """Run a batch while the server acknowledges the previous one and fetches the next."""
        tasks, self._next = self._next, []
        results: list[_RanBatch] = []

        def meanwhile() -> None:
            self._gate.sent()
            if not results:
                results.append(self._run_timed(tasks))

        def ahead() -> list[Taken]:
            fetch = self._fetcher.ahead(self._size, self._done, self._took, tasks, meanwhile)
            self._ahead = 0
            try:
                taken = self._count_done(self._done, self._run(fetch))
            finally:
                with self._settling:
                    gone, self._ahead = self._ahead, None
            return self._acker.still_ours(taken) if gone else taken

        try:
            following = self._take_allowed(ahead) or []
        except BaseException:
            # An interrupt ended the wait for the reply, but the batch has run.
            for ran in results:
                for priority, ids in self._conclude(ran.batch).items():
                    self._done[priority] = [*self._done.get(priority, ()), *ids]
            raise
        if not results:
            # The worker is paused: nothing was fetched or run.
            self._next = tasks
            self.let_go()
            return
        self._next = following
        ((batch, took, rest),) = results
        self._done, self._took = self._conclude(batch), took
        self._acker.give_back(rest)
        self._ran = None
        if self.executor.interrupted is not None:
            self.let_go()
            self._pass_on_interrupt()
        if not following and self._done:
            self._next = self._take(self._room(self._size), self._done, took)
            self._done = {}
        else:
            self._trim()

    def _trim(self) -> None:
        """Give back excess tasks, since the server applies a fetch's count to each priority."""
        if len(self._next) > 2 * self._size:
            # The fetch was sized before tasks became slow, or several priorities filled it.
            self._acker.give_back(self._next[self._size :])
            self._next = self._next[: self._size]

    def _run_timed(self, tasks: list[Taken]) -> _RanBatch:
        """Run a batch; the caller must then conclude it, and call `_pass_on_interrupt`."""
        order = None
        if self._consumer.asks_first and any(task.ordered for task in tasks):
            order = KeyOrder(self._consumer.scope.max_body)
        batch = self._running = TaskBatch(tasks, self._look, self._look_every, order)
        try:
            self._renewal.catch_up(batch.began)
            self._execute(batch)
        finally:
            with self._settling:
                self._running, self._ran = None, batch
        self._raise_failure()
        now = time.monotonic()
        ran = len(batch.outcomes)
        if ran:
            mean = (now - batch.began) / ran
            batch.count(self._tally, now - batch.began)
            self._resize(len(tasks), mean, now - batch.began)
        # If the worker was stopped, unstarted tasks remain in the batch.
        return _RanBatch(batch, now - batch.counted, batch.whole())

    def _execute(self, batch: TaskBatch) -> None:
        self.executor(batch, self._wrap)
        if self._gate.halt.forked:
            last = batch.outcomes[-1] if batch.outcomes else None
            self._gate.halt.leave_child(getattr(last, "error", None))

    def _resize(self, number: int, mean: float, took: float) -> None:
        """Choose the size of the next batch, after one of `number` tasks."""
        self._brisk = took < _BRISK and number >= self._size // 2
        # Let the mean rise at once when tasks become slow.
        self._mean = max(mean, (self._mean + mean) / 2)
        grown = self._size * 2 if number >= self._size else self._size
        self._large = self._consumer.mean_bytes > _BYTES / self._most
        most = self._most
        if self._large:
            most = max(1, min(most, int(_BYTES / self._consumer.mean_bytes)))
        grown = most if self._whole else min(grown, int(_TARGET / max(self._mean, 1e-9)))
        self._size = max(1, min(most, grown))

    def _look(self, now: float) -> None:
        """Check the running batch, between two of its tasks."""
        batch = self._running
        assert batch is not None
        self._renewal.catch_up(now)
        with self._settling:
            slow = now - batch.began > _OVERDUE
            self._acknowledge(batch, batch.whole() if slow else [])
        ended = time.monotonic()
        batch.look_at, batch.looked = ended + self._look_every, batch.looked + ended - now

    def _acknowledge(self, batch: TaskBatch, rest: list[Taken]) -> None:
        """Settle the done tasks of the running batch, and return the unstarted ones."""
        done, now = self._conclude(batch), time.monotonic()
        if done:
            self._acker.ack(done, now - batch.counted)
            batch.done = {}
        batch.counted = now
        self._acker.give_back(rest)
        gone = {id(task) for task in rest}
        for outcome in batch.outcomes[: batch.settled]:
            gone.add(id(outcome if isinstance(outcome, Taken) else outcome.task))
        batch.held = [task for task in batch.held if id(task) not in gone]

    def _conclude(self, batch: TaskBatch) -> dict[str, list[bytes]]:
        """Settle the outcomes that need more than an ack, and return the ids to acknowledge."""
        outcomes = batch.unsettled()
        # Read the outcomes before `plain`: an executor clears `plain` before it adds a special
        # outcome.
        if batch.plain and self._consumer.log is not None:
            self._consumer.log.remember(cast("list[Taken]", outcomes))
        ids = acks(outcomes) if batch.plain else self._acker.plain(outcomes)
        if not batch.done:
            batch.done = ids
            return ids
        for priority, some in ids.items():
            batch.done.setdefault(priority, []).extend(some)
        return batch.done

    def _known(self, priority: str) -> list[bytes]:
        return [*super()._known(priority), *self._done.get(priority, ())]

    def _flush(self) -> None:
        if self._done:
            self._take(0, self._done, self._took)
            self._done = {}

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _pass_on_interrupt(self) -> None:
        """Raise the interrupt of a handler after the done tasks have been settled."""
        interrupt, self.executor.interrupted = self.executor.interrupted, None
        if interrupt is not None:
            raise interrupt

    def _again(self) -> int:
        handled = 0
        if self._consumer.doubtful:
            # Acknowledge done tasks first: they are not among the held tasks.
            self._flush()
        self._recover()
        self._run(self._reclaimer.reclaim())
        while True:
            tasks, alone = self._retries(self._room(self._size), self._room(self._size))
            if not alone:
                break
            # This task may kill the process: no other task should then have to wait for the
            # visibility.
            waiting, self._next = self._next, []
            self._single = tasks
            self._acker.give_back(waiting)
            handled += self._each_alone(tasks)
        # Redelivered tasks whose attempts are not counted beforehand run like new tasks.
        others = [task for task in tasks if self._apart(task)]
        plain = [task for task in tasks if not self._apart(task)]
        if plain:
            self._single = others
            self._flush()
            plain.sort(key=_order)
            plain = self._run(self._fetcher.enter_orders(plain, chained=True))
            batch, took, rest = self._run_timed(plain)
            self._take(0, self._conclude(batch), took)
            self._acker.give_back(rest)
            self._ran = None
            self._pass_on_interrupt()
        return handled + len(plain) + self._each_alone(others)

    def _each_alone(self, tasks: list[Taken]) -> int:
        """Run tasks one by one, and return their number."""
        self._single = tasks
        handled = 0
        try:
            while tasks:
                handled += self._alone(tasks[0])
                del tasks[0]
        finally:
            # After an interrupt, the unstarted tasks are given back.
            self._single = tasks[1:]
        return handled

    def _alone(self, task: Taken) -> int:
        if self._halted:
            self._acker.give_back([task])
            return 0
        # Acknowledge done tasks first: they get no heartbeat, and this task may take long.
        self._flush()
        if self._admit(task):
            began = self._alone_since = time.monotonic()
            batch = TaskBatch([task], self._look, float("inf"))
            try:
                self._execute(batch)
            finally:
                with self._settling:
                    self._alone_since = None
            self._raise_failure()
            for outcome in batch.outcomes:
                if isinstance(outcome, Taken) or outcome.ran:
                    self._tally.count_runs(1, time.monotonic() - began)
                self._acker.settle(TaskOutcome(task) if isinstance(outcome, Taken) else outcome)
            if not batch.outcomes:
                # The worker was stopped after the attempt had been counted.
                self._acker.release(task)
            self._pass_on_interrupt()
        return 1


def _order(task: Taken) -> tuple[int, tuple[int, int]]:
    return STREAMS.index(task.priority), position(text(task.entry_id))
