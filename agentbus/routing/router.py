"""The router: a worker that moves tasks from one queue to the queues of agents."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentbus.core.errors import AgentBusError
from agentbus.core.loggers import emit
from agentbus.queues.ids import ROUTER
from agentbus.routing.loading import load
from agentbus.routing.moving import TaskMover
from agentbus.workers.heartbeat import Chore
from agentbus.workers.worker import Worker

if TYPE_CHECKING:
    from collections import Counter

    from agentbus.routing.rules import Rules
    from agentbus.store.steps import Op

VISIBILITY = 10.0
_ATTEMPTS = 100
_LOOK_EVERY = 1.0


class Router(Worker):
    """Moves the tasks of a queue to the agents that its rules name, each task atomically.

    Several routers of a project share the work. A changed rules file is read again; if it is invalid, the
    rules in force remain. Tasks without a matching rule, and tasks that the loop guard stops, become dead
    letters of the group `router`. Tasks whose agents' queues are full or limited are retried later, without
    delaying others. `on_refused` is called with `stopped` or `dead`, the task's id and the reason.
    """

    def __init__(
        self,
        bus: Any,
        rules: Rules,
        *,
        drain: bool = False,
        count: int | None = None,
        visibility: float = VISIBILITY,
        on_refused: Callable[[str, str, str], None] | None = None,
    ) -> None:
        if bus._sharded is not None:
            queues = {agent.queue for agent in rules.agents.values()}
            bus._sharded.check(bus, [rules.incoming, *sorted(queues)], "routing", home=True)
        self._file = _RulesFile(rules)
        super().__init__(
            bus.runner,
            rules.incoming,
            lambda _delivery: None,
            group=ROUTER,
            # A router runs no user code, so a task never causes its death.
            attempts=_ATTEMPTS,
            drain=drain,
            count=count,
            visibility=visibility,
        )
        # The script itself detects duplicates.
        self._consumer.claiming = False
        # A router only moves tasks, and makes no attempts to log.
        self._consumer.log = None
        self._moving = TaskMover(
            self._runner.run,
            self._consumer,
            self._file.rules,
            lambda queue: bus.runner.policy(queue).bound,
            on_refused or (lambda _event, _task, _why: None),
        )
        self.execute_by(self._moving)
        self.chores.append(Chore(self._file.op, _LOOK_EVERY))

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._file.rules()

    @property
    def counts(self) -> Counter[str]:
        """The numbers of tasks `moved`, `duplicates`, `stopped` by the loop guard, and `dead`.

        `waiting` counts each delay of a task.
        """
        return self._moving.counts


class _RulesFile:
    """The rules of a file, reloaded when it changes; checked during a router's maintenance."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._stamp = self._look()
        self._next = time.monotonic() + _LOOK_EVERY
        self._trouble: str | None = None

    def rules(self) -> Rules:
        """Return the rules in force; checks the file once a second."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_EVERY
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._read()
        return self._rules

    def op(self) -> Op[None]:
        """Check the file, without a request to the server."""
        self.rules()
        yield from ()

    def _look(self) -> tuple[int, int, int] | None:
        if not self._rules.path:
            return None
        try:
            found = os.stat(self._rules.path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> None:
        path, before = self._rules.path, self._rules
        try:
            found = load(path)
        except AgentBusError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                _refuse(self._trouble)
            return
        self._trouble = None
        if found.incoming != before.incoming:
            _refuse(f"{path} names the queue {found.incoming!r} now, which needs a restart")
            return
        self._rules = found
        emit("info", {"verb": "route", "event": "reloaded", "rules": len(found.rules)})


def _refuse(error: str) -> None:
    emit("error", {"verb": "route", "event": "refused", "error": error})
