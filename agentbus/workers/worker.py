"""Works off a queue: fetches tasks, runs a handler for each, and settles them.

First deliveries run fast: fetched in batches and acknowledged together. A redelivered task has each
attempt counted before it starts, and what a dead worker held runs one by one: so a task that kills its
worker is buried after its attempts, and its neighbours never are.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from agentbus.core import names
from agentbus.core.errors import AgentBusError, UsageError
from agentbus.queues.claimed import Taken
from agentbus.queues.consumer import Consumption
from agentbus.queues.delivery import AnyDelivery, AsyncDelivery, Delivery
from agentbus.queues.dependents import Follower
from agentbus.queues.janitor import Janitor
from agentbus.queues.runner import LastingRunner
from agentbus.workers.acker import Acker
from agentbus.workers.concurrent import Concurrent, InFlight
from agentbus.workers.executors import Batches, Finish, Pool, executor, is_async
from agentbus.workers.fetcher import Fetcher
from agentbus.workers.heartbeat import Bookmark, Chore, Heartbeat
from agentbus.workers.metrics import Tally
from agentbus.workers.pause import Gate
from agentbus.workers.reclaim import Reclaimer
from agentbus.workers.registry import WorkerRegistration
from agentbus.workers.serial import Serial

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from agentbus.queues.retry import Backoff
    from agentbus.queues.runner import Runner
    from agentbus.store.steps import Op
    from agentbus.workers.serial import Executor

_MOST = 500


class AnyWorker:
    """What a blocking worker and an asynchronous one share."""

    def __init__(
        self,
        runner: Runner,
        queue: str,
        handler: Callable[..., Any],
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        arun: Callable[[Op[Any]], Any] | None = None,
        group: str = "default",
        concurrency: int = 1,
        batch: bool = False,
        attempts: int | None = None,
        visibility: float | None = None,
        drain: bool = False,
        backoff: Backoff | None = None,
        count: int | None = None,
        prefetch: int | None = None,
    ) -> None:
        policy = runner.policy(queue)
        attempts = policy.attempts if attempts is None else attempts
        visibility = policy.visibility if visibility is None else visibility
        if not callable(handler):
            raise UsageError(f"the handler is {handler!r}", hint="give a function")
        if backoff is not None and not callable(getattr(backoff, "after", None)):
            raise UsageError(f"the backoff is {backoff!r}", hint="give a Backoff")
        _check(concurrency=concurrency, attempts=attempts, count=count, prefetch=prefetch)
        if not (math.isfinite(visibility) and visibility > 0):
            raise UsageError(f"the visibility is {visibility!r}", hint="give seconds, above 0")
        scope = runner.scope
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.queue = names.name("queue", queue)
        self.group = names.name("group", group)
        self._runner = LastingRunner(runner)
        self._do = self._runner.run
        self._stopping = threading.Event()
        self._drain = drain
        self._consumer = Consumption(
            scope, queue, group, self.name, kept=policy.results, letters_of=policy.dead_letters
        )
        self.tally = Tally(scope, queue, group, self.name)
        self._acker = Acker(
            self._consumer,
            self._do,
            self.tally,
            attempts=attempts,
            backoff=backoff or policy.backoff,
        )
        self._reclaimer = Reclaimer(self._consumer, self.tally, visibility)
        self._fetcher = Fetcher(self._consumer, self._reclaimer, self.tally, attempts=attempts)
        self._gate = Gate(
            WorkerRegistration(scope, self.name, scope.agent, queue, group, concurrency),
            self._do,
            stop=self.stop,
            stopping=self._stopping.is_set,
            figures=lambda: (self.done, self.failed, len(self._in_hand())),
        )
        wrap: Callable[[Taken], AnyDelivery] = partial(Delivery, self._consumer, self._do)
        if is_async(handler) and not batch:
            wrap = partial(AsyncDelivery, self._consumer, arun or self._runner.arun)
        # With a single attempt, every task that is fetched must run: were this worker to die, tasks that
        # only waited for their turn would be buried.
        most = concurrency if attempts == 1 else prefetch or _MOST
        parts = (self._do, self._fetcher, self._acker, self._gate, wrap)
        limits = {"concurrency": concurrency, "most": most, "limit": count}
        alone = executor(handler, loop=loop, stopping=self._halted)
        self._loop: Serial | Concurrent
        if batch:
            self._loop = Serial(Batches(handler, Finish(loop, keep=True)), *parts, **limits)
        elif concurrency > 1:
            in_flight = InFlight(concurrency, most, self._acker)
            in_flight.pool = Pool(alone, concurrency, self._halted, in_flight.report, loop)
            self._loop = Concurrent(in_flight, *parts, **limits)
        else:
            self._loop = Serial(alone, *parts, **limits)
        said = runner.policies
        self.chores: list[Chore] = [
            *(self.tally, Bookmark(self._consumer), Follower(scope)),
            Janitor(scope, retention=said.retention_of, letters_of=said.letters_of),
        ]

    def execute_by(self, executor: Executor) -> None:
        """Replace the handler of a worker without concurrency, before it runs."""
        assert isinstance(self._loop, Serial)
        self._loop.executor = executor

    @property
    def done(self) -> int:
        """How many tasks this worker has done and acknowledged."""
        return self._acker.done

    @property
    def failed(self) -> int:
        """How many runs of a handler have failed; their tasks are retried, or were buried."""
        return self._acker.failed

    def stop(self) -> None:
        """Stop once the running tasks are finished and acknowledged.

        May be called twice, from any thread, and by a signal handler.
        """
        self._stopping.set()
        self._runner.hurry()
        self._gate.wake()

    def _work(self) -> int:
        heartbeat = Heartbeat(
            self._consumer,
            self._runner,
            self._in_hand,
            self.chores,
            visibility=self._reclaimer.visibility,
            # What falls due may have changed.
            rung=self._fetcher.look_again,
            beat=self._gate.beat,
        )
        self._do(self._fetcher.prepare())
        heartbeat.start()
        try:
            while not self._loop.over:
                # Before the turn: a task that falls due after it has looked is still to come. And first the
                # tasks in hand: one that fails leaves them only when its retry is to come.
                expected = not self._drain or bool(self._in_hand()) or self._still_to_come()
                waits = expected or self._gate.held
                self._gate.refused = False
                wait = self._runner.scope.intervals.fetch if waits else 0.0
                handled = self._loop.turn(wait) if self._open(wait) else 0
                # While it is paused it does not know whether anything is left.
                over = not (handled or expected or self._reclaimer.unsettled)
                if over and not self._gate.refused:
                    break
        except BaseException:
            # A request may have been interrupted between its sending and its answer.
            self._consumer.doubtful = True
            raise
        finally:
            self.stop()
            self._end(heartbeat)
        return self.done

    def _end(self, heartbeat: Heartbeat) -> None:
        # Tasks that cannot be settled on a server that is away are redelivered; another error matters more.
        for step in (
            self._loop.let_go,
            self._loop.close,
            self._give_back_strays,
            heartbeat.end,
            lambda: self._do(self._consumer.leave()),
            self._gate.withdraw,
        ):
            with contextlib.suppress(AgentBusError):
                step()

    def _give_back_strays(self) -> None:
        """Give back the tasks of lost answers; all others are settled."""
        self._do(self._reclaimer.recover(lambda _priority: []))
        self._acker.give_back(self._reclaimer.strays)
        self._reclaimer.strays = []

    def _pass(self, wait: float) -> int:
        self._do(self._fetcher.prepare())
        if not self._open(wait):
            return 0
        self._do(self._consumer.promote())
        self._fetcher.look_again()
        return self._loop.turn(wait) + self._loop.settle()

    def _close(self) -> None:
        self.stop()
        self._loop.close()
        self._gate.withdraw()

    def _still_to_come(self) -> bool:
        expected: bool = self._do(self._fetcher.expected())
        return expected

    def _open(self, wait: float) -> bool:
        """Tell whether tasks may be taken; if not, give back those not begun, and wait a while."""
        if self._gate.held:
            self._loop.let_go()
        return self._gate.open(wait)

    def _halted(self) -> bool:
        """Tell whether nothing more is to begin."""
        return self._stopping.is_set() or self._gate.held

    def _in_hand(self) -> list[Taken]:
        return [*self._loop.held, *self._reclaimer.held]


class Worker(AnyWorker):
    """Runs a handler for the tasks of one queue, for one group.

    `concurrency` tasks run at once: in threads, or in an event loop if the handler is asynchronous. With
    `batch` the handler gets a list of deliveries. `attempts` is the number of runs in all, `visibility`
    the seconds without a heartbeat after which a worker loses its tasks, `backoff` the pause before the
    next attempt; None is what the queue's policy says. It ends when nothing is left (`drain`), or when
    `count` tasks are done. `prefetch` is how many tasks it holds at most.
    """

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._close()

    def run(self) -> int:
        """Work until stopped (or, to drain, until nothing is left); returns how many tasks were done.

        Waits for a server that goes away, for as long as it takes; raises `BackendUnavailable` if it was
        never there.
        """
        return self._work()

    def run_once(self, *, wait: float = 0.0) -> int:
        """Make one pass: redelivered tasks, then one batch of new ones, to its end."""
        return self._pass(wait)

    def close(self) -> None:
        """End the threads of a worker that is not running."""
        self._loop.close()


def _check(**numbers: int | None) -> None:
    for what, number in numbers.items():
        if number is None and what in {"count", "prefetch"}:
            continue
        if not isinstance(number, int) or number < 1:
            raise UsageError(f"the {what} is {number!r}", hint="give a number, at least 1")
