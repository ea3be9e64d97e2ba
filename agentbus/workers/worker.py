"""Works off a queue: takes tasks, runs a handler for each, and says what became of them.

First deliveries run fast: taken in batches and acknowledged together. What is delivered again has each
attempt counted before it starts; what a dead worker held runs one by one: so a task that kills its worker
is buried after its attempts, and its neighbours never are.
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
from agentbus.queues.delivery import AsyncDelivery, Delivery
from agentbus.queues.dependents import Follower
from agentbus.queues.janitor import Janitor
from agentbus.queues.runner import LastingRunner
from agentbus.workers.acker import Settling
from agentbus.workers.concurrent import Sliding, Window
from agentbus.workers.duty import Duty
from agentbus.workers.executors import Batches, Finish, Pool, executor, is_async
from agentbus.workers.fetcher import Intake
from agentbus.workers.heartbeat import Bookmark, Chore, Keeper
from agentbus.workers.metrics import Tally
from agentbus.workers.pause import Gate
from agentbus.workers.registry import Registration
from agentbus.workers.serial import Serial

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from agentbus.queues.retry import Backoff
    from agentbus.queues.runner import Runner
    from agentbus.store.steps import Op
    from agentbus.workers.serial import Performer

_MOST = 500
# A worker that waits for tasks confirms an order to pause only when it has looked up: half a second, so
# that all of a project stand still within one.
_LONGEST_WAIT = 0.5


class Worker:
    """Runs a handler for the tasks of one queue, for one group.

    `concurrency` tasks run at once: in threads, or in an event loop if the handler is asynchronous. With
    `batch` the handler gets a list of deliveries. `attempts` is the number of runs in all, `visibility`
    the seconds without a sign of life after which a worker loses its tasks, `backoff` the pause before
    the next attempt; None is what the queue's policy says. It ends when nothing is left (`drain`), or
    when `count` tasks are done. `prefetch` is how many tasks it holds at most.
    """

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
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.queue = names.name("queue", queue)
        self.group = names.name("group", group)
        self._runner = LastingRunner(runner)
        self._do = self._runner.run
        self._stopping = threading.Event()
        self._task = Consumption(
            runner.scope,
            queue,
            group,
            self.name,
            kept=policy.results,
            letters_of=policy.dead_letters,
        )
        self.tally = Tally(runner.scope, queue, group, self.name)
        self._settling = Settling(
            self._task,
            self._do,
            attempts=attempts,
            backoff=backoff or policy.backoff,
            tally=self.tally,
        )
        self._intake = Intake(
            self._task, self._settling, self._do, attempts=attempts, visibility=visibility
        )
        self._visibility = visibility
        self._drain = drain
        alone = executor(handler, loop=loop, stopping=self._halted)
        wrap: Callable[[Taken], Delivery] = partial(Delivery, self._task, self._do)
        if is_async(handler) and not batch:
            wrap = partial(AsyncDelivery, self._task, arun or self._runner.arun)
        # Without a second attempt, a task that was taken must be one that runs: were this worker to
        # die, those that only waited in its hands would be buried with it.
        most = concurrency if attempts == 1 else prefetch or _MOST
        self._gate = Gate(
            Registration(runner.scope, self.name, runner.scope.agent, queue, group, concurrency),
            self._do,
            stop=self.stop,
            stopping=self._stopping.is_set,
            figures=lambda: (self.done, self.failed, len(self._in_hand())),
        )
        self._duty = Duty(
            self._task,
            self._intake,
            self._settling,
            self.tally,
            wrap,
            self._gate,
            self._stopping.is_set,
            concurrency=concurrency,
            most=most,
            limit=count,
            visibility=visibility,
        )
        self._way: Serial | Sliding
        if batch:
            self._way = Serial(self._duty, Batches(handler, Finish(loop, keep=True)))
        elif concurrency > 1:
            window = Window(concurrency, most, self._settling)
            window.pool = Pool(alone, concurrency, self._halted, window.report, loop)
            self._way = Sliding(self._duty, window)
        else:
            self._way = Serial(self._duty, alone)
        said = runner.policies
        janitor = Janitor(runner.scope, retention=said.retention_of, letters_of=said.letters_of)
        self.chores: list[Chore] = [
            *(self.tally, Bookmark(self._task), Follower(runner.scope)),
            janitor,
        ]

    def perform(self, performer: Performer) -> None:
        """Have tasks done otherwise than by the handler; to be said before it runs."""
        self._way = Serial(self._duty, performer)

    @property
    def done(self) -> int:
        """How many tasks this worker has done and acknowledged."""
        return self._settling.done

    @property
    def failed(self) -> int:
        """How many runs of a handler have failed; their tasks are tried again, or were buried."""
        return self._settling.failed

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
        self.close()
        self._gate.withdraw()

    def stop(self) -> None:
        """Stop after what runs now is finished and acknowledged; may be called twice, and by a signal."""
        self._stopping.set()
        self._runner.hurry()
        self._gate.wake()

    def run(self) -> int:
        """Work until stopped (or, to drain, until nothing is left); returns how many tasks were done.

        Waits for a server that goes away, for as long as it takes; raises `BackendUnavailable` if it was
        never there.
        """
        keeper = Keeper(
            self._task,
            self._runner,
            self._in_hand,
            self.chores,
            visibility=self._visibility,
            # What falls due may have changed.
            rung=self._intake.look_again,
            beat=self._gate.beat,
        )
        self._intake.prepare()
        keeper.start()
        try:
            while not self._duty.over:
                # Asked first: what becomes due after the turn has looked is still to come. And first what
                # is in hand, since a task that fails is out of it only when its retry is to come.
                expected = not self._drain or bool(self._in_hand()) or self._intake.expected()
                waits = expected or self._gate.held
                self._gate.refused = False
                wait = _LONGEST_WAIT if waits else 0.0
                handled = self._way.turn(wait) if self._open(wait) else 0
                # While it is paused it does not know whether anything is left.
                over = not (handled or expected or self._intake.unsettled)
                if over and not self._gate.refused:
                    break
        except BaseException:
            # A request may have been interrupted between its sending and its answer.
            self._task.doubtful = True
            raise
        finally:
            self.stop()
            self._end(keeper)
        return self.done

    def _end(self, keeper: Keeper) -> None:
        # What cannot be told to a server that is away is delivered again, and another error matters more.
        for step in (
            self._way.let_go,
            self.close,
            self._give_back_strays,
            keeper.end,
            lambda: self._do(self._task.leave()),
            self._gate.withdraw,
        ):
            with contextlib.suppress(AgentBusError):
                step()

    def _give_back_strays(self) -> None:
        """Let others have what is this worker's by an answer that was lost; all else is settled."""
        self._intake.recover(lambda _priority: [])
        self._duty.give_back(self._intake.strays)
        self._intake.strays = []

    def run_once(self, *, wait: float = 0.0) -> int:
        """Make one pass: what is to be delivered again, then one batch of new tasks, to its end."""
        self._intake.prepare()
        if not self._open(wait):
            return 0
        self._do(self._task.promote())
        self._intake.look_again()
        return self._way.turn(wait) + self._way.settle()

    def close(self) -> None:
        """End the threads of a worker that does not run, or has ended."""
        self._way.close()

    def _open(self, wait: float) -> bool:
        """Tell whether tasks may be taken; if not, let go of what has not begun, and wait a while."""
        if self._gate.held:
            self._way.let_go()
        return self._gate.open(wait)

    def _halted(self) -> bool:
        """Tell whether what has not begun is not to begin."""
        return self._stopping.is_set() or self._gate.held

    def _in_hand(self) -> list[Taken]:
        return [*self._way.held, *self._intake.page, *self._intake.strays]


def _check(**numbers: int | None) -> None:
    for what, number in numbers.items():
        if number is None and what in {"count", "prefetch"}:
            continue
        if not isinstance(number, int) or number < 1:
            raise UsageError(f"the {what} is {number!r}", hint="give a number, at least 1")
