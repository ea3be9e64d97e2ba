"""Taking tasks by hand, without a worker's loop."""

from __future__ import annotations

import os
import secrets
import socket
import time
import weakref
from typing import TYPE_CHECKING, Any

from agentbus.queues.claimed import Taken
from agentbus.queues.consumer import Consumption
from agentbus.queues.delivery import Delivery
from agentbus.queues.ids import PRIORITIES
from agentbus.store.failures import GroupMissing
from agentbus.store.steps import Pause
from agentbus.workers import registry

if TYPE_CHECKING:
    from agentbus.queues.runner import Runner
    from agentbus.store.steps import Op


_RECLAIM_EVERY = 30.0


class _Place:
    """Who fetches by hand in this process, and when it next looks for what others left."""

    def __init__(self) -> None:
        self.process = os.getpid()
        # One consumer for a bus and a process, or each call would leave another name behind.
        self.consumer = f"{socket.gethostname()}:{self.process}:{secrets.token_hex(4)}"
        self.reclaims: dict[tuple[str, str], float] = {}


_places: weakref.WeakKeyDictionary[Any, _Place] = weakref.WeakKeyDictionary()


def _here(runner: Runner) -> _Place:
    place = _places.get(runner)
    if place is None or place.process != os.getpid():
        place = _places[runner] = _Place()
    return place


def fetch(
    runner: Runner,
    queue: str,
    *,
    group: str,
    count: int,
    block: float | None,
    visibility: float | None = None,
) -> list[Delivery]:
    """Take tasks for a consumer of its own; a malformed one is buried and left out."""
    puller = _Puller(runner, queue, group, visibility)
    puller.run(puller.task.prepare())
    taken = [] if puller.paused() else puller.due(count)
    until = time.monotonic() + (block or 0.0)
    while not taken and time.monotonic() < until:
        # Not for longer than a moment: what was put aside or delayed may fall due meanwhile.
        moment = min(0.1, max(0.001, until - time.monotonic()))
        if puller.paused():
            puller.run(_rest(moment))
            continue
        try:
            taken = puller.run(puller.task.take(count, moment), moment)
        except GroupMissing:
            return []
        taken = taken or puller.due(count)
    if taken and puller.paused():
        # It was paused meanwhile: what was published after that must not be handed out.
        puller.run(puller.task.give_back(taken))
        return []
    return [Delivery(puller.task, puller.run, task) for task in taken if puller.is_sound(task)]


class _Puller:
    """One call that fetches by hand."""

    def __init__(self, runner: Runner, queue: str, group: str, visibility: float | None) -> None:
        policy = runner.policy(queue)
        self._runner = runner
        self._place = _here(runner)
        self._where = (queue, group)
        self._attempts = policy.attempts
        self._visibility = policy.visibility if visibility is None else visibility
        self.task = Consumption(
            runner.scope,
            queue,
            group,
            self._place.consumer,
            kept=policy.results,
            letters_of=policy.dead_letters,
        )

    def run(self, op: Op[Any], patience: float | None = None) -> Any:
        """Run an operation."""
        return self._runner.run(op, verb="fetch", patience=patience)

    def paused(self) -> bool:
        """Tell whether nothing may be taken."""
        return (
            self.run(registry.held(self._runner.scope, self.task.queue, self._runner.scope.agent))
            is not None
        )

    def is_sound(self, task: Taken) -> bool:
        """Tell whether a task is to be handed out; one that cannot be read is buried, a duplicate done."""
        if task.error is not None:
            self.run(self.task.bury(task, f"the entry is malformed: {task.error}"))
            return False
        if task.claims and not self.run(self.task.claim(task)):
            self.run(self.task.finish(task, 0.0))
            return False
        return True

    def due(self, count: int) -> list[Taken]:
        """Take what is to be delivered again, each attempt counted, then new tasks."""
        self.run(self.task.promote())
        taken: list[Taken] = []
        for priority in PRIORITIES:
            if len(taken) < count:
                tasks, _, _ = self.run(self.task.again(priority, count - len(taken)))
                taken += [task for task in tasks if self._begun(task)]
        taken += self._abandoned(count - len(taken))
        if len(taken) < count:
            _, found = self.run(self.task.turn({}, 0.0, count - len(taken)))
            taken += found
        # Now and then would do, but a program that fetches has nobody who would do it then.
        self.run(self.task.bookmark())
        return taken

    def _abandoned(self, count: int) -> list[Taken]:
        """Take over, now and then, what nobody has acknowledged within the visibility."""
        now = time.monotonic()
        if count <= 0 or now < self._place.reclaims.get(self._where, 0.0):
            return []
        self._place.reclaims[self._where] = now + min(_RECLAIM_EVERY, self._visibility / 2)
        taken: list[Taken] = []
        for priority in PRIORITIES:
            start = "-"
            while start and len(taken) < count:
                start, tasks, _ = self.run(
                    self.task.reclaim(
                        priority, self._visibility, start, count - len(taken), own=True
                    )
                )
                taken += [task for task in tasks if self._begun(task)]
        return taken

    def _begun(self, task: Taken) -> bool:
        task.attempt = self.run(self.task.begin(task))
        if task.attempt <= self._attempts:
            return task.attempt > 0
        why = f"it was not acknowledged in any of its {self._attempts} attempts"
        task.attempt = self._attempts
        self.run(self.task.bury(task, why))
        return False


def _rest(seconds: float) -> Op[None]:
    yield Pause(seconds)
