"""The router: takes tasks from one queue, and moves each to the queue of the agent that is to do it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from agentbus.core.errors import AgentBusError
from agentbus.core.loggers import emit
from agentbus.queues.ids import ROUTER
from agentbus.routing.loading import load
from agentbus.routing.moving import Moving
from agentbus.workers.worker import Worker

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from agentbus.queues.runner import BlockingBus
    from agentbus.routing.rules import Rules
    from agentbus.store.steps import Op

VISIBILITY = 10.0
_ATTEMPTS = 100
_LOOK_EVERY = 1.0


class Router(Worker):
    """Moves what comes in at a queue to those whom its rules name, each task in one atomic step.

    Several routers of one project share the work. Rules are read from a file, again whenever it has
    changed; a file with a mistake leaves those in force that were read last. What no rule routes, and
    what goes in circles, is buried with the reason, among the dead letters of the group `router`. What
    cannot be moved now, since its agents' queues are full or a limit is met, is tried again later and
    holds nobody else up. `on_refused` is told what was `stopped` or `buried`, which task, and why.
    """

    def __init__(
        self,
        bus: BlockingBus,
        rules: Rules,
        *,
        drain: bool = False,
        count: int | None = None,
        visibility: float = VISIBILITY,
        on_refused: Callable[[str, str, str], None] | None = None,
    ) -> None:
        self._file = _RulesFile(rules)
        super().__init__(
            bus.runner,
            rules.incoming,
            _nothing,
            group=ROUTER,
            # No code of a user's runs here: who dies meanwhile was killed for another reason.
            attempts=_ATTEMPTS,
            drain=drain,
            count=count,
            visibility=visibility,
        )
        # What is asked for twice is found when it is moved.
        self._consumer.claiming = False
        self._moving = Moving(
            bus.runner.scope,
            self._runner.run,
            self._consumer,
            self._file.rules,
            lambda queue: bus.runner.policy(queue).bound,
            self._consumer.aside_until,
            on_refused or _unheard,
        )
        self.execute_by(self._moving)
        self.chores.append(self._file)

    @property
    def rules(self) -> Rules:
        """The rules that are in force."""
        return self._file.rules()

    @property
    def counts(self) -> Counter[str]:
        """How many tasks were `moved`, known as `duplicates`, `stopped` for a circle, `buried`.

        `waiting` counts each time that one had to wait.
        """
        return self._moving.counts


def _nothing(_delivery: object) -> None:
    """Stand where a worker has its handler."""


def _unheard(_event: str, _task: str, _why: str) -> None:
    """Tell nobody."""


class _RulesFile:
    """The rules as their file has them; a router's chore is to look whether it has changed."""

    every = _LOOK_EVERY

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._stamp = self._look()
        self._next = time.monotonic() + _LOOK_EVERY
        self._trouble: str | None = None

    def rules(self) -> Rules:
        """Return the rules in force, after a look at the file now and then."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_EVERY
            stamp = self._look()
            if stamp != self._stamp:
                self._stamp = stamp
                self._read()
        return self._rules

    def op(self) -> Op[None]:
        """Look at the file, and ask nothing of the server."""
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
                emit("error", {"verb": "route", "event": "refused", "error": self._trouble})
            return
        self._trouble = None
        if found.incoming != before.incoming:
            emit(
                "error",
                {
                    "verb": "route",
                    "event": "refused",
                    "error": f"{path} names the queue {found.incoming!r} now, which needs a new start",
                },
            )
            return
        self._rules = found
        emit("info", {"verb": "route", "event": "reloaded", "rules": len(found.rules)})
