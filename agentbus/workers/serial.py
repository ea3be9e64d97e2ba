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

# The target duration of a batch in seconds: a longer one withholds tasks from other workers. What is done
# is acknowledged as often.
_TARGET = 0.2
# After twice that, the tasks that have not started are given back.
_OVERDUE = 2 * _TARGET
# The next batch is fetched while one runs, if that has at least this many tasks, and is this fast.
_AHEAD = 16
_BRISK = 0.05
# The bytes of payloads at which a batch is complete: more of them do not fit into the processor's caches.
_BYTES = 1 << 20


class _RanBatch(NamedTuple):
    """A batch that ran, its seconds since the last acknowledgement, and the tasks not started."""

    batch: TaskBatch
    took: float
    rest: list[Taken]


class Serial(Loop):
    """Runs a handler in the caller's thread."""

    def __init__(self, executor: Executor, *parts: Any, whole: bool = False, **limits: Any) -> None:
        super().__init__(*parts, **limits)
        self.executor = executor
        # If true, it takes as many tasks as it may hold, however long they run.
        self._whole = whole
        self._size = self._most if whole else min(self._concurrency, self._most)
        # Seconds for one task.
        self._mean = 0.0
        self._look_every = min(_TARGET, self._reclaimer.visibility / 4)
        self._brisk = False
        # True if the number of tasks in a batch is bounded by their bytes.
        self._large = False
        # The batch that runs, of which the heartbeat may settle a part; and one that has run.
        self._running: TaskBatch | None = None
        self._ran: TaskBatch | None = None
        # When the task that runs alone began.
        self._alone_since: float | None = None
        self._settling = threading.Lock()
        # The error with which a settlement of the heartbeat failed.
        self._failure: Exception | None = None
        # While the next tasks are fetched: how many of them the heartbeat has returned.
        self._ahead: int | None = None
        # Taken, and to be run alone; the first may run now.
        self._single: list[Taken] = []
        # Taken, and not started.
        self._next: list[Taken] = []
        # Done, to be acknowledged with the next fetch.
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
            # Redelivered tasks may have used up the limit.
            self._next = self._return_excess(self._next, self._room(len(self._next)))
        if not self._next:
            self._next = self._take(self._room(self._size))
        if not self._next and wait and not handled:
            self._flush()
            self._next = self._wait(self._room(self._size), wait)
        return handled + (self._batch() if self._next else 0)

    def settle(self) -> int:
        """Run the tasks taken so far, and return their number."""
        handled = 0
        while self._next and not self.must_end:
            handled += self._batch(more=False)
        self.let_go()
        return handled

    def let_go(self) -> None:
        """Acknowledge the done tasks, and return those not started."""
        self._flush()
        self._acker.give_back(self._waiting(0))

    def close(self) -> None:
        self.executor.close()

    def relieve(self) -> None:
        """Return the tasks that wait behind a slow one, and acknowledge those done before it."""
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
        """Return the next tasks: the reply with them will not be read before the running batch ends."""
        if self._ahead is not None:
            ahead = self._run(self._reclaimer.unknown(self._known))
            self._acker.give_back(ahead)
            self._ahead += len(ahead)

    def _waiting(self, running: int) -> list[Taken]:
        """Take away the tasks that wait while others run, of which so many run alone."""
        waiting = [*self._single[running:], *self._next]
        del self._single[running:]
        self._next = []
        return waiting

    def _batch(self, *, more: bool = True) -> int:
        """Run the tasks taken, acknowledge them, and take the next ones in the same step."""
        handled = len(self._next)
        if self._consumer.asks_first or self._consumer.limit is not None:
            self._ask()
        enough = self._size // 2 + 1 if self._large else _AHEAD
        all_done = False
        if more and self._brisk and len(self._next) >= enough and self._limit is None:
            # The server works for others meanwhile, and acknowledges all that one holds at less cost.
            all_done = self._consumer.accompanied > 0 and not self._large
            if not all_done:
                self._run_overlapped()
                return handled
        # Acknowledge the previous batch before this one runs.
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
        """Run the tasks that the server is asked about one by one, and ask it about the others of a key."""
        single = [task for task in self._next if self._apart(task)]
        self._next = [task for task in self._next if not self._apart(task)]
        self._each_alone(single)
        if any(task.ordered for task in self._next):
            # Tasks done before may have the same keys.
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
            # An interrupt came while it waited for the reply: the batch has still run.
            for ran in results:
                for priority, ids in self._conclude(ran.batch).items():
                    self._done[priority] = [*self._done.get(priority, ()), *ids]
            raise
        if not results:
            # The worker is paused: nothing was fetched, and nothing ran.
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
        """Give back the tasks that are too many: of each priority, as many are taken."""
        if len(self._next) > 2 * self._size:
            # Or they were asked for before tasks became slow.
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
        # Some are left if the worker was stopped.
        return _RanBatch(batch, now - batch.counted, batch.whole())

    def _execute(self, batch: TaskBatch) -> None:
        self.executor(batch, self._wrap)
        if self._gate.halt.forked:
            last = batch.outcomes[-1] if batch.outcomes else None
            self._gate.halt.leave_child(getattr(last, "error", None))

    def _resize(self, number: int, mean: float, took: float) -> None:
        """Choose the size of the next batch, after one of `number` tasks."""
        self._brisk = took < _BRISK and number >= self._size // 2
        # A task that became slow counts at once.
        self._mean = max(mean, (self._mean + mean) / 2)
        grown = self._size * 2 if number >= self._size else self._size
        self._large = self._consumer.mean_bytes > _BYTES / self._most
        most = self._most
        if self._large:
            most = max(1, min(most, int(_BYTES / self._consumer.mean_bytes)))
        grown = most if self._whole else min(grown, int(_TARGET / max(self._mean, 1e-9)))
        self._size = max(1, min(most, grown))

    def _look(self, now: float) -> None:
        """Look at the batch that runs, between two of its tasks."""
        batch = self._running
        assert batch is not None
        self._renewal.catch_up(now)
        with self._settling:
            slow = now - batch.began > _OVERDUE
            self._acknowledge(batch, batch.whole() if slow else [])
        ended = time.monotonic()
        batch.look_at, batch.looked = ended + self._look_every, batch.looked + ended - now

    def _acknowledge(self, batch: TaskBatch, rest: list[Taken]) -> None:
        """Settle what is done of the batch that runs, and return tasks that have not started."""
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
        """Settle what has run and needs more than an ack, and return the ids to acknowledge."""
        outcomes = batch.unsettled()
        # In this order: an outcome that needs more is added after that was noted.
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
        """Raise the interrupt of a handler, after the done tasks are settled."""
        interrupt, self.executor.interrupted = self.executor.interrupted, None
        if interrupt is not None:
            raise interrupt

    def _again(self) -> int:
        handled = 0
        if self._consumer.doubtful:
            # Done tasks are not among the held ones.
            self._flush()
        self._recover()
        self._run(self._reclaimer.reclaim())
        while True:
            tasks, alone = self._retries(self._room(self._size), self._room(self._size))
            if not alone:
                break
            # If it kills this process, nothing else should wait for the visibility.
            waiting, self._next = self._next, []
            self._single = tasks
            self._acker.give_back(waiting)
            handled += self._each_alone(tasks)
        # Tasks whose attempt is not counted before it starts run as new ones do.
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
            # After an interrupt, those that have not started are given back.
            self._single = tasks[1:]
        return handled

    def _alone(self, task: Taken) -> int:
        if self._halted:
            self._acker.give_back([task])
            return 0
        # Done tasks get no heartbeat, and this one may take long.
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
                # The worker was stopped after the attempt was counted.
                self._acker.release(task)
            self._pass_on_interrupt()
        return 1


def _order(task: Taken) -> tuple[int, tuple[int, int]]:
    return STREAMS.index(task.priority), position(text(task.entry_id))
